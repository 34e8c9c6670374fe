"""Tables of a report, [head, rows] of words, and the forms that they are written in."""
import csv
import io
import math
import statistics

import stats
from analysis import cache_bytes, cache_ratio, where_written
from turns import median_interval


def number(value, form='.4f'):
    """A number in words of a table; a dash where there is none."""
    return '-' if value is None or (isinstance(value, float) and not math.isfinite(value)) else format(value, form)


def interval(comparison):
    if comparison is None or not comparison.pairs: return '-'
    if comparison.pairs < 2: return f'{comparison.mean:+.4f} (one pair)'
    return f'{comparison.mean:+.4f} +- {comparison.half_width:.4f}'


def mean_loss(arm):
    """Over the sound runs of an arm, with their standard deviation where there are several."""
    spread = f' +- {statistics.stdev(arm.sound):.4f}' if len(arm.sound) > 1 else ''
    return number(statistics.mean(arm.sound) if arm.sound else None) + spread


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
                f'{one.seeds} seeds see {stats.smallest_detectable(one.seeds, report.analysis["pilot_sd"]):.3f}',
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
        'macro F1',
        'difference of accuracy',
        'keys read',
    ]
    base = table.arms.get(table.experiment.baseline)
    rows = []
    for name, arm in table.arms.items():
        c = table.comparisons.get((name, table.experiment.baseline))
        step, reached, runs = table.steps_to_loss.get(name, (None, 0, 0))
        trained = any(r['result'].get('steps') for r in arm.records.values())
        accuracies = list(arm.accuracies.values())
        f1 = [v for r in arm.records.values() for v in r['result'].get('macro_f1', {}).values()]
        read = [r['result']['sparse_reading']['validation']['pairs_read'] for r in arm.records.values()
                if 'validation' in r['result'].get('sparse_reading', {})]
        paired = stats.compare(arm.accuracies, base.accuracies) if base and arm is not base else None
        rows.append(
            [
                name,
                str(len(arm.records)),
                str(len(arm.diverged)),
                mean_loss(arm),
                'baseline' if name == table.experiment.baseline else interval(c),
                number(c.adjusted if c else None, '.3g'),
                '-' if not trained else f'{step:.0f} ({reached} of {runs})' if step is not None else f'- (0 of {runs})',
                f'{arm.factor:g}',
                number(arm.mean('ms'), '.1f'),
                f'{statistics.mean(accuracies):.3f}' + (f' +- {statistics.stdev(accuracies):.3f}' if len(accuracies) > 1 else '')
                if accuracies
                else '-',
                f'{statistics.mean(f1):.3f}' if f1 else '-',
                interval(paired),
                f'{statistics.mean(read):.1%}' if read else '-',
            ]
        )
    said = [n for n in range(len(head)) if head[n] in ('arm', 'runs', 'diverged') or any(row[n] != '-' for row in rows)]
    return [head[n] for n in said], [[row[n] for n in said] for row in rows]


def time_table(timing):
    """Step times by turns: of the baseline against itself, they are the noise."""
    head = ['arm', 'rounds', 'ms a step', 'against the baseline', 'from', 'to', 'coverage', 'peak MiB', 'of the baseline\'s']
    rows = []
    for name in timing.arms:
        times, ratios, peaks = (timing.values(name, key) for key in ('ms', 'ratio', 'peak_bytes'))
        middle, low, high, coverage = median_interval(ratios)
        rows.append([name, str(len(times)), f'{statistics.median(times):.2f}', f'{middle:.3f}', f'{low:.3f}', f'{high:.3f}',
                     f'{100 * coverage:.0f}%', f'{statistics.median(peaks) / 2**20:.1f}' if peaks else '-',
                     number(timing.peak_ratio(name), '.3f')])
    return head, rows


def cache_table(writing, reading):
    """What ./generate keeps of a text and how fast it writes, beside what the same weights lose, the smallest cache first. Times are
    ratios to the baseline's on the same device; `reading` is a table or None."""
    head = ['arm', 'on', 'rounds', 'cache, KiB', 'of the baseline\'s', 'tokens/s', 'of the baseline\'s', 'from', 'to', 'first token, ms',
            'of the baseline\'s', 'keys read', 'validation loss', 'accuracy']
    rows = []
    for name in sorted(writing.arms, key=lambda arm: cache_bytes(writing, arm) or math.inf):
        [device, weights], kept = where_written(writing, name), cache_bytes(writing, name)
        middle, low, high, _ = median_interval([1 / ratio for ratio in writing.values(name, 'ratio')])
        arm = reading.arms.get(name) if reading else None
        accuracies, read = list(arm.accuracies.values()) if arm else [], writing.values(name, 'pairs_read')
        rows.append([
            name, f'{device}, {weights}', str(len(writing.arms[name])),
            f'{kept / 2**10:.1f}' if kept else 'nothing kept: each token is a pass over all of the text',
            number(cache_ratio(writing, name), '.3f'),
            f'{1e3 / statistics.median(writing.values(name, "ms")):.1f}', f'{middle:.3f}', f'{low:.3f}', f'{high:.3f}',
            f'{statistics.median(writing.values(name, "first_ms")):.2f}', f'{statistics.median(writing.values(name, "first_ratio")):.3f}',
            f'{statistics.mean(read):.1%}' if read else '-',
            mean_loss(arm) if arm else '-', f'{statistics.mean(accuracies):.3f}' if accuracies else '-'])
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
