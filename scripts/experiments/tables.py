"""Tables of a report, [head, rows] of words, and the forms that they are written in."""
import csv
import io
import math
import statistics

import stats
from analysis import by_accuracy, cache_bytes, learnt, sensitivity, sweep_means, where_written
from claims import NATS
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
    """A row for every claim and setting, and one for every claim that nothing has measured."""
    head = ['document', 'claim', 'published', 'scale', 'ours', 'pairs', 'p (Holm)', 'verdict', 'smallest detectable', 'planned', 'as read']
    rows = []
    for one in report.verdicts:
        of = seeds_cells(one, report.analysis['pilot_sd']) if one.claim['unit'] == NATS else rounds_cells(one)
        setting = report.experiments[one.claim['experiment']].settings.get(one.setting, {}).get('label', one.setting)
        rows.append([*claim_cells(one.claim), one.scale + (f', {setting}' if setting else ''), *of, one.claim['read']])
    rows += [[*claim_cells(claim), '-', '-', '-', '-', 'not measured', '-', '-', claim['read']] for claim in report.not_measured]
    return head, rows


def claim_cells(claim):
    """Document, claim and published number."""
    published = f'{claim["number"]:+.3f}' if claim['unit'] == NATS else f'{claim["number"]:.3f}, {claim["unit"]}'
    operator = '-' if claim['unit'] == NATS else '/'
    return [f'{claim["document"]}, {claim["section"]}', f'{claim["arm"]} {operator} {claim["against"]}', published]


def seeds_cells(said, pilot_sd):
    """What pairs of seeds say of a claim in nats."""
    c = said.found
    lost = stats.lost_pairs(c) if c.pairs >= 2 else ''   # else they are the reason
    return [interval(c), str(c.pairs), number(c.adjusted, '.3g'), verdict_cell(said.verdict) + lost, number(stats.detectable_of(c), '.3f'),
            f'{said.seeds} seeds see {stats.smallest_detectable(said.seeds, pilot_sd):.3f}']


def verdict_cell(verdict):
    return verdict.word + (f': {verdict.reason}' if verdict.reason else '')


def rounds_cells(said):
    """What rounds by turns say of a ratio."""
    r = said.found
    return [f'{r.middle:.3f}, from {r.low:.3f} to {r.high:.3f}', f'{r.rounds} rounds', '-', verdict_cell(said.verdict), '-', '-']


def arm_table(table):
    """What every arm came to; columns that no arm has are left out. Step times are not here: runs of one table may come from several
    machines, or from a busy one."""
    head = ['arm', 'runs', 'diverged', 'validation loss', 'difference', 'p (Holm)', 'steps to the baseline\'s loss', 'rate x',
            'accuracy', 'macro F1', 'difference of accuracy', 'keys read']
    base = table.arms.get(table.experiment.baseline)
    rows = []
    for name, arm in table.arms.items():
        c = table.comparisons.get((name, table.experiment.baseline))
        accuracies, f1, read = list(arm.accuracies.values()), *of_items(arm)
        paired = stats.compare(arm.accuracies, base.accuracies) if base and arm is not base else None
        rows.append([
            name, str(len(arm.records)), str(len(arm.diverged)), mean_loss(arm),
            'baseline' if arm is base else interval(c), number(c.adjusted if c else None, '.3g'), steps_cell(table, arm),
            f'{arm.factor:g}', mean_accuracy(accuracies), f'{statistics.mean(f1):.3f}' if f1 else '-', interval(paired),
            f'{statistics.mean(read):.1%}' if read else '-'])
    said = [n for n in range(len(head)) if head[n] in ('arm', 'runs', 'diverged') or any(row[n] != '-' for row in rows)]
    return [head[n] for n in said], [[row[n] for n in said] for row in rows]


def of_items(arm):
    """Macro F1 and shares of keys read, of the runs that have them."""
    results = [r['result'] for r in arm.records.values()]
    return ([v for r in results for v in r.get('macro_f1', {}).values()],
            [r['sparse_reading']['validation']['pairs_read'] for r in results if 'validation' in r.get('sparse_reading', {})])


def steps_cell(table, arm):
    """When an arm came to the baseline's loss: a mean, and of how many runs."""
    step, reached, runs = table.steps_to_loss.get(arm.name, (None, 0, 0))
    if not any(r['result'].get('steps') for r in arm.records.values()): return '-'
    return f'{step:.0f} ({reached} of {runs})' if step is not None else f'- (0 of {runs})'


def mean_accuracy(accuracies, form='.3f'):
    if not accuracies: return '-'
    spread = f' +- {statistics.stdev(accuracies):{form}}' if len(accuracies) > 1 else ''
    return f'{statistics.mean(accuracies):{form}}{spread}'


def comparison_table(table):
    """Differences of arms that are not against the baseline."""
    head = ['arm', 'against', 'difference', 'pairs', 'p (Holm)', 'smallest detectable']
    return head, [[arm, against, interval(c), str(c.pairs), number(c.adjusted, '.3g'), number(stats.detectable_of(c), '.3f')]
                  for (arm, against), c in table.comparisons.items() if against != table.experiment.baseline]


def sweep_table(by_arm, lr):
    """The best rate of every arm, and how much the others cost."""
    head = ['arm', 'rates', 'diverged', 'best rate', 'loss there', 'sensitivity']
    rows = []
    for arm, by_factor in by_arm.items():
        means, runs = sweep_means(by_factor), [r for records in by_factor.values() for r in records]
        best = min(means, key=means.get) if means else None
        end = ' (end of the sweep)' if len(by_factor) > 1 and best in (min(by_factor), max(by_factor)) else ''
        rows.append([arm, str(len(by_factor)), f'{sum(r["event"] == "diverged" for r in runs)} of {len(runs)}',
                     '-' if best is None else f'{best * lr:g} (x {best:g}){end}', number(means.get(best)),
                     number(sensitivity(by_factor), '.3f')])
    return head, rows


def recall_table(tables):
    """Accuracy of arms x settings, the best arm first; how many of its runs have learnt their task."""
    rows = [[name, learnt(tables, name),
             *[mean_accuracy(list(t.arms[name].accuracies.values()) if name in t.arms else [], '.2f') for t in tables]]
            for name in by_accuracy(tables)]
    return ['arm', 'learnt', *[t.label for t in tables]], rows


def setting_table(tables):
    """Mean loss of arms x settings, and how many runs diverged."""
    arms, rows = dict.fromkeys(arm for t in tables for arm in t.arms), []
    share = lambda of: f'{sum(len(a.diverged) for a in of)} of {sum(len(a.records) for a in of)}'
    for name in arms:
        of = [t.arms.get(name) for t in tables]
        rows.append([name, *[number(statistics.mean(a.sound), '.3f') if a and a.sound else '-' for a in of],
                     share([a for a in of if a])])
    rows.append(['diverged', *[share(t.arms.values()) for t in tables], share([a for t in tables for a in t.arms.values()])])
    return ['arm', *[t.label for t in tables], 'diverged'], rows


def time_table(timing):
    """Step times by turns: of the baseline against itself, they are the noise."""
    head = ['arm', 'rounds', 'ms a step', 'against the baseline', 'from', 'to', 'coverage', 'peak MiB', 'of the baseline\'s']
    rows = []
    for name in timing.arms:
        times, ratios, peaks = (timing.values(name, key) for key in ('ms', 'ratio', 'peak_bytes'))
        middle, low, high, coverage = median_interval(ratios)
        rows.append([name, str(len(times)), f'{statistics.median(times):.2f}', f'{middle:.3f}', f'{low:.3f}', f'{high:.3f}',
                     f'{100 * coverage:.0f}%', f'{statistics.median(peaks) / 2**20:.1f}' if peaks else '-',
                     number(timing.byte_ratio(name), '.3f')])
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
            number(writing.byte_ratio(name), '.3f'),
            f'{1e3 / statistics.median(writing.values(name, "ms")):.1f}', f'{middle:.3f}', f'{low:.3f}', f'{high:.3f}',
            f'{statistics.median(writing.values(name, "first_ms")):.2f}', f'{statistics.median(writing.values(name, "first_ratio")):.3f}',
            f'{statistics.mean(read):.1%}' if read else '-',
            mean_loss(arm) if arm else '-', f'{statistics.mean(accuracies):.3f}' if accuracies else '-'])
    return head, rows


def run_table(report):
    head = ['experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'rate x', 'event', 'loss', 'steps', 'seconds', 'attempts', 'commit',
            'machine', 'data', 'weights', 'key', 'command']
    rows = []
    for place, record in sorted(report.runs, key=lambda run: [str(part) for part in run[0]]):
        *labels, seed, factor = place
        r = record['result']
        machine = '; '.join(part for part in (record.get('place', ''), r.get('machine', '')) if part)
        rows.append([*labels, str(seed), f'{factor:g}', record['event'], number(r['val_loss'], '.6f'), str(r['steps']),
                     number(r['seconds'], '.1f'), str(report.attempts[record['key']]), record.get('commit', ''), machine,
                     record.get('data_hash', ''), r.get('weights_hash') or '-', record['key'], report.commands.get(record['key'], '')])
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
