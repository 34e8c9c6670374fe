"""Tables of a report: DataFrames of words, and their forms."""
import math
import re
from statistics import mean, median, stdev

import stats
from analysis import by_accuracy, learnt, middle, sensitivity, steps_to, sweep_means
from claims import NATS
from packages import require
from turns import median_interval

pd = require('pandas')

EMPTY = '-'


def number(value, form='.4f'):
    """A number as a cell; a dash for None and what is not finite."""
    return EMPTY if value is None or (isinstance(value, float) and not math.isfinite(value)) else format(value, form)


def interval(comparison):
    if comparison is None or not comparison.pairs: return EMPTY
    if comparison.pairs < 2: return f'{comparison.mean:+.4f} (one pair)'
    return f'{comparison.mean:+.4f} +- {comparison.half_width:.4f}'


def mean_cell(values, form='.4f'):
    """The mean, with the standard deviation of several."""
    values = list(values)
    return number(mean(values) if values else None, form) + (f' +- {stdev(values):{form}}' if len(values) > 1 else '')


def median_cell(values, form='.2f'):
    return number(middle(values), form)


def spread_cells(ratios):
    """The median of rounds, and the interval of order statistics."""
    center, low, high, _ = median_interval(ratios)
    return [f'{center:.3f}', f'{low:.3f}', f'{high:.3f}']


def share(arms):
    """'k of n' runs of arms that diverged."""
    return f'{sum(len(a.diverged) for a in arms)} of {sum(len(a.records) for a in arms)}'


# --------------------------------------------------------------------------------------------------------------- tables

def verdict_table(report):
    """A row for every claim and setting, and one for every unmeasured claim."""
    rows = []
    for one in report.verdicts:
        c, label = one.found, report.experiments[one.claim['experiment']].settings.get(one.setting, {}).get('label', one.setting)
        row = claim_cells(one.claim) | {'scale': one.scale + (f', {label}' if label else '')}
        if one.claim['unit'] == NATS:
            row |= {'ours': interval(c), 'pairs': str(c.pairs), 'p (Holm)': number(c.adjusted, '.3g'),
                    'verdict': str(one.verdict) + (c.lost if c.pairs >= 2 else ''), 'smallest detectable': number(c.detectable, '.3f'),
                    'planned': f'{one.seeds} seeds see {stats.smallest_detectable(one.seeds, report.analysis["pilot_sd"]):.3f}'}
        else:
            row |= {'ours': f'{c.middle:.3f}, from {c.low:.3f} to {c.high:.3f}', 'pairs': f'{c.rounds} rounds',
                    'verdict': str(one.verdict)}
        rows.append(row | {'as read': one.claim['read']})
    rows += [claim_cells(claim) | {'verdict': 'not measured', 'as read': claim['read']} for claim in report.not_measured]
    return pd.DataFrame(rows, columns=['document', 'claim', 'published', 'scale', 'ours', 'pairs', 'p (Holm)', 'verdict',
                                       'smallest detectable', 'planned', 'as read']).fillna(EMPTY)


def claim_cells(claim):
    nats = claim['unit'] == NATS
    return {'document': f'{claim["document"]}, {claim["section"]}',
            'claim': f'{claim["arm"]} {"-" if nats else "/"} {claim["against"]}',
            'published': f'{claim["number"]:+.3f}' if nats else f'{claim["number"]:.3f}, {claim["unit"]}'}


def arm_table(table):
    """Results of every arm, without columns that no arm has. Step times are left out: runs of one table may come from several
    machines, or from a busy one."""
    base, rows = table.base, []
    for name, arm in table.arms.items():
        c = table.comparisons.get((name, table.experiment.baseline))
        f1 = [v for r in arm.results for v in r.get('macro_f1', {}).values()]
        read = [r['sparse_reading']['validation']['pairs_read'] for r in arm.results if 'validation' in r.get('sparse_reading', {})]
        step, reached, runs = steps_to(arm, base) if base else (None, 0, 0)
        steps = f'{number(step, ".0f")} ({reached} of {runs})' if step is not None else f'- (0 of {runs})'
        rows.append({
            'arm': name, 'runs': str(len(arm.records)), 'diverged': str(len(arm.diverged)), 'validation loss': mean_cell(arm.sound),
            'difference': 'baseline' if arm is base else interval(c), 'p (Holm)': number(c.adjusted if c else None, '.3g'),
            'steps to the baseline\'s loss': steps if any(r.get('steps') for r in arm.results) else EMPTY,
            'rate x': f'{arm.factor:g}', 'accuracy': mean_cell(arm.accuracies.values(), '.3f'),
            'macro F1': number(mean(f1) if f1 else None, '.3f'),
            'difference of accuracy': interval(stats.compare(arm.accuracies, base.accuracies)) if base and arm is not base else EMPTY,
            'keys read': number(mean(read) if read else None, '.1%')})
    found = pd.DataFrame(rows)
    return found[[column for column in found if column in ('arm', 'runs', 'diverged') or (found[column] != EMPTY).any()]]


def comparison_table(table):
    """Differences that are not against the baseline."""
    rows = [[arm, against, interval(c), str(c.pairs), number(c.adjusted, '.3g'), number(c.detectable, '.3f')]
            for (arm, against), c in table.comparisons.items() if against != table.experiment.baseline]
    return pd.DataFrame(rows, columns=['arm', 'against', 'difference', 'pairs', 'p (Holm)', 'smallest detectable'])


def sweep_table(by_arm, lr):
    """The best rate of every arm, and the cost of the others."""
    rows = []
    for arm, by_factor in by_arm.items():
        means, runs = sweep_means(by_factor), [r for records in by_factor.values() for r in records]
        best = min(means, key=means.get) if means else None
        end = ' (end of the sweep)' if len(by_factor) > 1 and best in (min(by_factor), max(by_factor)) else ''
        rows.append({'arm': arm, 'rates': str(len(by_factor)),
                     'diverged': f'{sum(r["event"] == "diverged" for r in runs)} of {len(runs)}',
                     'best rate': EMPTY if best is None else f'{best * lr:g} (x {best:g}){end}', 'loss there': number(means.get(best)),
                     'sensitivity': number(sensitivity(by_factor), '.3f')})
    return pd.DataFrame(rows)


def recall_table(tables):
    """Accuracy of arms x settings, the best arm first, and how many of its runs have learnt their task."""
    accuracy = lambda t, name: mean_cell(t.arms[name].accuracies.values() if name in t.arms else [], '.2f')
    rows = [[name, learnt(tables, name), *(accuracy(t, name) for t in tables)] for name in by_accuracy(tables)]
    return pd.DataFrame(rows, columns=['arm', 'learnt', *(t.label for t in tables)])


def setting_table(tables):
    """Mean loss of arms x settings, and how many runs diverged."""
    rows = []
    for name in dict.fromkeys(arm for t in tables for arm in t.arms):
        of = [t.arms.get(name) for t in tables]
        rows.append([name, *(number(mean(a.sound) if a and a.sound else None, '.3f') for a in of), share([a for a in of if a])])
    rows.append(['diverged', *(share(t.arms.values()) for t in tables), share([a for t in tables for a in t.arms.values()])])
    return pd.DataFrame(rows, columns=['arm', *(t.label for t in tables), 'diverged'])


def time_table(timing):
    """Interleaved step times; of the baseline against itself, they are the noise."""
    rows = []
    for name in timing.arms:
        times, ratios, peaks = (timing.values(name, key) for key in ('ms', 'ratio', 'peak_bytes'))
        rows.append([name, str(len(times)), median_cell(times), *spread_cells(ratios), f'{100 * median_interval(ratios)[3]:.0f}%',
                     median_cell([peak / 2**20 for peak in peaks], '.1f'), number(timing.byte_ratio(name), '.3f')])
    return pd.DataFrame(rows, columns=['arm', 'rounds', 'ms a step', 'against the baseline', 'from', 'to', 'coverage', 'peak MiB',
                                       'of the baseline\'s'])


def cache_table(writing, reading):
    """Caches of ./generate and its speed, beside the loss of the same weights in the table `reading`, if there is one; the smallest
    cache first. Times are ratios to the baseline's on the same device."""
    rows, kept = [], {name: middle(writing.values(name, 'cache_bytes')) for name in writing.arms}
    for name in sorted(writing.arms, key=lambda arm: kept[arm] or math.inf):
        arm, one = reading.arms.get(name) if reading else None, writing.arms[name].results[0]
        of = lambda key: writing.values(name, key)
        accuracies, read = list(arm.accuracies.values()) if arm else [], of('pairs_read')
        rows.append([name, f'{one["device"]}, {one["weights"]}', str(len(writing.arms[name].records)),
                     f'{kept[name] / 2**10:.1f}' if kept[name] else 'nothing kept: each token is a pass over all of the text',
                     number(writing.byte_ratio(name), '.3f'), f'{1e3 / median(of("ms")):.1f}', *spread_cells([1 / r for r in of('ratio')]),
                     median_cell(of('first_ms')), median_cell(of('first_ratio'), '.3f'), number(mean(read) if read else None, '.1%'),
                     mean_cell(arm.sound if arm else []), number(mean(accuracies) if accuracies else None, '.3f')])
    return pd.DataFrame(rows, columns=[
        'arm', 'on', 'rounds', 'cache, KiB', 'of the baseline\'s', 'tokens/s', 'of the baseline\'s', 'from', 'to', 'first token, ms',
        'of the baseline\'s', 'keys read', 'validation loss', 'accuracy'])


def run_table(report):
    rows = []
    for _, run in report.runs.iterrows():
        record, r = run.record, run.record['result']
        rows.append({'experiment': run.experiment, 'scale': run.scale, 'stage': run.stage, 'arm': run.arm, 'setting': run.setting,
                     'seed': str(run.seed), 'rate x': f'{run.factor:g}', 'event': run.event, 'loss': number(r['val_loss'], '.6f'),
                     'steps': str(r['steps']), 'seconds': number(r['seconds'], '.1f'), 'attempts': str(run.attempts),
                     'commit': record.get('commit', ''), 'machine': '; '.join(filter(None, (record.get('place'), r.get('machine')))),
                     'data': record.get('data_hash', ''), 'weights': r.get('weights_hash') or EMPTY, 'key': record['key'],
                     'command': run.command})
    return pd.DataFrame(rows).sort_values(['experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'rate x'])


# ---------------------------------------------------------------------------------------------------------------- forms

def as_markdown(table):
    line = lambda cells: '| ' + ' | '.join(cell.replace('|', '/').replace('\n', ' ') for cell in cells) + ' |\n'
    return ''.join(map(line, [list(table), ['---'] * len(table.columns), *table.values]))


def as_latex(table, caption):
    return table.to_latex(index=False, escape=True, caption=re.sub(r'([_%&#$])', r'\\\1', caption)).replace('+-', r'$\pm$')
