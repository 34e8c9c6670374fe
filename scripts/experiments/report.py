#!/usr/bin/env python3
"""A report of what ledgers hold: one self-contained HTML file, and its tables as Markdown, CSV and LaTeX.

    report.py --out out/report                              # every ledger of results/
    report.py --ledger out/experiments/ledger-smoke.jsonl --out out/report e2_dsa

Writes report.html, report.md, verdicts.csv, results.csv and tables.tex. Exit codes: 0 done, 2 usage, 3 data.
"""
import argparse
import csv
import io
import math
import statistics
import sys
from pathlib import Path

from packages import EXIT_DATA, Refused, guarded, require

require('jinja2', 'scipy', 'matplotlib')
import jinja2                                                       # noqa: E402

import figures                                                      # noqa: E402
import stats                                                        # noqa: E402
from analysis import Report                                         # noqa: E402
from plan import HERE, SCALES, choose, known_experiments            # noqa: E402
from prepare import ROOT, write_whole                                     # noqa: E402


def number(value, form='.4f'):
    """A number in words of a table; a dash where there is none."""
    return '-' if value is None or (isinstance(value, float) and not math.isfinite(value)) else format(value, form)


def interval(comparison):
    if comparison is None or not comparison.pairs: return '-'
    if comparison.pairs < 2: return f'{comparison.mean:+.4f} (one pair)'
    return f'{comparison.mean:+.4f} +- {comparison.half_width:.4f}'


# ----------------------------------------------------------------------------------------------------------------- tables

def verdict_table(report):
    head = [
        'document',
        'claim',
        'published',
        'scale',
        'ours',
        'pairs',
        'p (Holm)',
        'verdict',
        'because',
        'smallest detectable',
        'planned',
    ]
    rows = []
    for one in report.verdicts:
        c, claim = one.comparison, one.claim
        seen = stats.smallest_detectable(c.pairs, c.sd) if c.pairs >= 2 else None
        rows.append(
            [
                f'{claim["document"]}, {claim["section"]}',
                f'{claim["arm"]} - {claim["against"]}',
                f'{claim["number"]:+.3f}',
                one.scale,
                interval(c),
                str(c.pairs),
                number(c.adjusted, '.3g'),
                one.verdict.word,
                one.verdict.reason + stats.lost_pairs(c),
                number(seen, '.3f'),
                f'{claim["seeds"]} seeds see {claim["smallest_detectable"]:.3f}',
            ]
        )
    return head, rows


def arm_table(table):
    head = [
        'arm',
        'runs',
        'diverged',
        'validation loss',
        'difference',
        'p (Holm)',
        'steps to the baseline\'s loss',
        'rate x',
        'ms a step',
        'accuracy',
    ]
    rows = []
    for name, arm in table.arms.items():
        c = table.comparisons.get((name, table.experiment.baseline))
        spread = f' +- {statistics.stdev(arm.sound):.4f}' if len(arm.sound) > 1 else ''
        step, reached, runs = table.steps_to_loss.get(name, (None, 0, 0))
        accuracies = [v for r in arm.records.values() for v in r['result'].get('accuracy', {}).values() if v is not None]
        rows.append(
            [
                name,
                str(len(arm.records)),
                str(len(arm.diverged)),
                number(statistics.mean(arm.sound)) + spread if arm.sound else '-',
                'baseline' if name == table.experiment.baseline else interval(c),
                number(c.adjusted if c else None, '.3g'),
                f'{step:.0f} ({reached} of {runs})' if step is not None else f'- (0 of {runs})',
                f'{arm.factor:g}',
                number(arm.mean('ms'), '.1f'),
                f'{statistics.mean(accuracies):.3f}' if accuracies else '-',
            ]
        )
    return head, rows


def run_table(report):
    head = [
        'experiment',
        'scale',
        'stage',
        'arm',
        'setting',
        'seed',
        'rate x',
        'event',
        'loss',
        'steps',
        'seconds',
        'attempts',
        'commit',
        'machine',
        'data',
        'weights',
        'key',
        'command',
    ]
    rows = []
    for place, record in sorted(report.runs, key=lambda run: [str(part) for part in run[0]]):
        experiment, scale, stage, arm, setting, seed, factor = place
        r = record['result']
        machine = '; '.join(part for part in (record.get('place', ''), r.get('machine', '')) if part)
        rows.append(
            [
                experiment,
                scale,
                stage,
                arm,
                setting,
                str(seed),
                f'{factor:g}',
                record['event'],
                number(r['val_loss'], '.6f'),
                str(r['steps']),
                number(r['seconds'], '.1f'),
                str(report.attempts[record['key']]),
                record.get('commit', ''),
                machine,
                record.get('data_hash', ''),
                r.get('weights_hash') or '-',
                record['key'],
                report.commands.get(record['key'], ''),
            ]
        )
    return head, rows


# ------------------------------------------------------------------------------------------------------------------ forms

def as_markdown(head, rows):
    line = lambda cells: '| ' + ' | '.join(cell.replace('|', '/').replace('\n', ' ') for cell in cells) + ' |'
    return '\n'.join([line(head), line(['---'] * len(head)), *map(line, rows)]) + '\n'


def as_csv(head, rows):
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows([head, *rows])
    return text.getvalue()


def as_latex(head, rows, caption):
    special = {
        '\\': r'\textbackslash{}',
        '&': r'\&',
        '%': r'\%',
        '_': r'\_',
        '#': r'\#',
        '$': r'\$',
        '{': r'\{',
        '}': r'\}',
        '~': r'\textasciitilde{}',
        '^': r'\textasciicircum{}',
    }
    clean = lambda cell: ''.join(special.get(c, c) for c in cell).replace('+-', r'$\pm$')
    line = lambda cells: ' & '.join(map(clean, cells)) + r' \\'
    return '\n'.join(
        [
            r'\begin{table}',
            r'\centering',
            rf'\caption{{{clean(caption)}}}',
            rf'\begin{{tabular}}{{{"l" * len(head)}}}',
            r'\hline',
            line(head),
            r'\hline',
            *map(line, rows),
            r'\hline',
            r'\end{tabular}',
            r'\end{table}',
            '',
        ]
    )


# --------------------------------------------------------------------------------------------------------------- the page

def pictures(report, experiment, scale):
    """The figures of one experiment at one scale, [(caption, svg)]."""
    tables = [t for t in report.tables if t.experiment.name == experiment and t.scale == scale]
    found, e = [], report.experiments[experiment]
    said = [s for s in report.verdicts if s.claim['experiment'] == experiment and s.scale == scale and s.comparison.pairs]
    if said: found.append(('Differences by seed with 95% intervals, and the published numbers', figures.forest(said)))
    if sweeps := report.sweeps.get((experiment, scale)):
        found.append(
            (
                'The sweep, on the tuning half of the validation tokens',
                figures.rates(sweeps, e.scales[scale]['lr'], f'{experiment}: loss against rate'),
            )
        )
    if e.picture == 'pareto' and tables: found.append(('Loss against FLOPs and seconds', figures.pareto(tables[0], report.tables)))
    if e.picture == 'distance' and tables: found.append(('Accuracy against the distance of the answer', figures.distance(tables)))
    for table in tables:
        found.append((f'{table.title}: loss curves, mean over seeds', figures.curves(table)))
        for key, label, x in (
            ('entropy', 'entropy of attention, nats', 'optimiser steps'),
            ('gate', 'mean gate', 'optimiser steps'),
            ('mass_95', 'share of keys with 95% of the mass', 'optimiser steps'),
            ('mass_99', 'share of keys with 99% of the mass', 'optimiser steps'),
            ('by_position', 'loss, nats', 'position'),
        ):
            if drawn := figures.series(table, key, label, x): found.append((f'{table.title}: {label}', drawn))
    return found


def sections(report):
    """What the page has about each experiment."""
    for name, e in report.experiments.items():
        for scale in SCALES:
            if not any(place[0] == name and place[1] == scale for place, _ in report.runs): continue
            tables = [t for t in report.tables if t.experiment.name == name and t.scale == scale]
            yield {'name': name, 'scale': scale, 'title': e.title, 'question': e.question, 'left_open': e.left_open,
                   'lines': [s.line for s in report.verdicts if s.claim['experiment'] == name and s.scale == scale],
                   'tables': [(t.title, *arm_table(t)) for t in tables], 'pictures': pictures(report, name, scale),
                   'end_points': report.end_points(name, scale),
                   'left_out': e.left_out(scale), 'pilot_sd': report.pilot_sd(scale)}


def write(report, folder):
    """All files; returns the size of the HTML."""
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
                              undefined=jinja2.StrictUndefined).get_template('report.html.j2')
    parts = list(sections(report))
    verdicts, runs = verdict_table(report), run_table(report)
    html = page.render(sections=parts, verdicts=verdicts, runs=runs, analysis=report.analysis, claims=report.claims,
                       diverged=sum(r['event'] == 'diverged' for _, r in report.runs), count=len(report.runs))
    markdown, latex = ['# Verdicts\n', as_markdown(*verdicts)], [as_latex(*verdicts, 'Verdicts')]
    for part in parts:
        markdown += [f'\n# {part["name"]}, scale {part["scale"]}: {part["title"]}\n', *[f'- {line}' for line in part['lines']], '']
        for title, head, rows in part['tables']:
            markdown += [f'\n{title}\n', as_markdown(head, rows)]
            latex.append(as_latex(head, rows, title))
        if part['left_open']: markdown += ['What the paper left open:\n', *[f'- {line}' for line in part['left_open']]]
    markdown += ['\n# Runs\n', as_markdown(*runs)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ('report.html', html),
            ('report.md', '\n'.join(markdown)),
            ('verdicts.csv', as_csv(*verdicts)),
            ('results.csv', as_csv(*runs)),
            ('tables.tex', '\n'.join(latex)),
        ):
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise Refused(f'{folder}: cannot be written ({error.strerror}); give another --out', EXIT_DATA) from error
    return len(html)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('experiments', nargs='*', help='these alone')
    parser.add_argument(
        '--ledger', nargs='+', help='default: all of scripts/experiments/results; at --scale smoke that of out/experiments'
    )
    parser.add_argument('--scale', help='this scale alone')
    parser.add_argument('--out', default='out/report', help='folder (default out/report)')
    options = parser.parse_args(arguments)
    for name in options.experiments: choose('experiment', name, known_experiments())
    if options.scale: choose('scale', options.scale, SCALES)
    smoke = [str(ROOT / 'out/experiments/ledger-smoke.jsonl')] if options.scale == 'smoke' else []
    ledgers = options.ledger or smoke or sorted(map(str, (HERE / 'results').glob('*.jsonl')))
    if not ledgers: raise Refused(f'{HERE / "results"}: has no ledger; run.py makes one, and --ledger names another', EXIT_DATA)
    report = Report(ledgers, options.experiments, options.scale)
    if not report.runs: raise Refused(f'{", ".join(ledgers)}: no run is finished', EXIT_DATA)
    size = write(report, Path(options.out))
    for said in report.verdicts: print(said.line)
    print(f'{options.out}/report.html: {len(report.runs)} runs, {size / 1e3:.0f} kB', file=sys.stderr)
    return 0


if __name__ == '__main__':
    guarded(main)
