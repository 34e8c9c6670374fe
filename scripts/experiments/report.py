#!/usr/bin/env python3
"""A report of what ledgers hold: one self-contained HTML file, and its tables as Markdown, CSV and LaTeX.

    report.py --out out/report                              # every ledger of results/
    report.py --ledger out/experiments/ledger-smoke.jsonl --out out/report e2_dsa

Writes report.html, report.md, verdicts.csv, results.csv and tables.tex. Exit codes: 0 done, 2 usage, 3 data.
"""
import argparse
import sys
from pathlib import Path

from packages import EXIT_DATA, Refused, guarded, require

require('jinja2', 'scipy', 'matplotlib')
import jinja2                                                       # noqa: E402

import figures                                                      # noqa: E402
from analysis import Report                                         # noqa: E402
from plan import HERE, SCALES, choose, known_experiments            # noqa: E402
from prepare import ROOT, write_whole                               # noqa: E402
from tables import arm_table, as_csv, as_latex, as_markdown, cache_table, run_table, time_table, verdict_table   # noqa: E402


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
    timings = [t for t in report.timings if t.experiment.name == experiment and t.scale == scale]
    if e.picture == 'pareto' and tables:
        found.append(('Loss against FLOPs and seconds', figures.pareto(tables[0], report.tables, timings)))
    if e.picture == 'density' and tables and (drawn := figures.density(tables)): found.append(('Loss against density', drawn))
    if e.picture == 'distance' and tables: found.append(('Accuracy against the distance of the answer', figures.distance(tables)))
    for writing in report.writings_of(experiment, scale):
        if reading := report.reading_of(writing):
            found.append((f'{writing.title}: what it costs in loss and accuracy', figures.cache(writing, reading)))
    if len({t.seq_len for t in timings}) > 1: found.append(('Time of a step and peak memory against the length of a row', figures.times(timings)))
    for table in tables:
        if curves := figures.curves(table): found.append((f'{table.title}: loss curves, mean over seeds', curves))
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
            timings = [t for t in report.timings if t.experiment.name == name and t.scale == scale]
            written = [(t.title, *cache_table(t, report.reading_of(t))) for t in report.writings_of(name, scale)]
            yield {'name': name, 'scale': scale, 'title': e.title, 'question': e.question, 'left_open': e.left_open,
                   'lines': [s.line for s in report.verdicts if s.claim['experiment'] == name and s.scale == scale],
                   'tables': [(t.title, *arm_table(t)) for t in tables] + [(t.title, *time_table(t)) for t in timings] + written,
                   'pictures': pictures(report, name, scale),
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
