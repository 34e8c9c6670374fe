"""Tables of a report: DataFrames of words."""
import math

import pandas as pd

import stats
from analysis import LEARNT, by_seed, sweep_means
from claims import NATS, words_of
from turns import median_interval

EMPTY = '-'


def number(value, form='.4f'):
    """A number as a cell; a dash for None and what is not finite."""
    return EMPTY if value is None or not math.isfinite(value) else format(value, form)


def interval(comparison):
    if comparison is None or not comparison.pairs: return EMPTY
    if comparison.pairs < 2: return f'{comparison.mean:+.4f} (one pair)'
    return f'{comparison.mean:+.4f} +- {comparison.half_width:.4f}'


def mean_cell(values, form='.4f'):
    """The mean, with the standard deviation of several."""
    values = values.dropna()
    return number(values.mean(), form) + (f' +- {values.std():{form}}' if len(values) > 1 else '')


def diverged(runs):
    """'k of n' runs that diverged."""
    return f'{(runs.event == "diverged").sum()} of {len(runs)}'


def learnt(runs):
    """'k of n' runs that have learnt their task."""
    return f'{(runs.accuracy >= LEARNT).sum()} of {len(runs)}'


def table_of(rows, always=()):
    """The table of rows {column: cell}, without columns that no row has, except those that are `always` there."""
    table = pd.DataFrame(rows).fillna(EMPTY)
    return table[[column for column in table if column in always or (table[column] != EMPTY).any()]]


def verdict_table(report):
    """A row for every claim and setting, and one for every claim that has not run."""
    rows = []
    for one in report.findings:
        c, row = one.found, claim_cells(one.claim) | {'ours': one.ours, 'verdict': str(one.verdict)}
        row['scale'] = one.scale + (f', {one.where}' if one.where else '')
        if one.claim['unit'] == NATS:
            row |= {'p (Holm)': number(c.adjusted, '.3g'), 'smallest detectable': number(c.detectable, '.3f')}
        if one.multiple: row['of the published'] = f'{one.multiple[1]:+.1f} x'
        rows.append(row | {'as read': one.claim['read']})
    rows += [claim_cells(claim) | {'verdict': f'not run: {claim.get("needs") or claim["experiment"] + " at scale paper"}',
                                   'as read': claim['read']} for claim in report.not_measured]
    rows += [{'document': row['source'], 'claim': row['claim'], 'verdict': f'not run: {row["needs"]}'}
             for row in report.not_run]
    return pd.DataFrame(rows, columns=['document', 'claim', 'published', 'scale', 'ours', 'verdict', 'of the published', 'p (Holm)',
                                        'smallest detectable', 'as read']).fillna(EMPTY)


def claim_cells(claim):
    name, published = words_of(claim)
    return {'document': claim['source'], 'claim': name, 'published': published}


def arm_table(runs, comparisons, baseline):
    """Results of every arm in one setting. Step times are left out: runs of one table may come from several machines, or from a
    busy one."""
    rows, accuracies = [], by_seed(runs, 'accuracy')
    for arm, own in runs.groupby('arm', sort=False):
        c, more = comparisons.get((arm, baseline)), EMPTY
        if arm != baseline and baseline in accuracies: more = interval(stats.compare(accuracies[arm], accuracies[baseline]))
        rows.append({
            'arm': arm, 'runs': str(len(own)), 'diverged': str((own.event == 'diverged').sum()),
            'validation loss': mean_cell(own.loss), 'difference': 'baseline' if arm == baseline else interval(c),
            'p (Holm)': number(c.adjusted if c else None, '.3g'),
            'p (sign)': number(c.sign_p if c else None, '.3g'), 'p (Wilcoxon)': number(c.rank_p if c else None, '.3g'),
            'correlation': number(c.correlation if c else None, '+.2f'),
            'at half of the tokens': number(c.half if c else None, '+.4f'), 'rate x': f'{own.factor.iloc[-1]:g}',
            'accuracy': mean_cell(own.accuracy, '.3f'), 'macro F1': number(own.f1.mean(), '.3f'),
            'difference of accuracy': more, 'keys read': number(own.keys_read.mean(), '.1%')})
    return table_of(rows, ('arm', 'runs', 'diverged'))


def comparison_table(comparisons, baseline):
    """Differences that are not against the baseline."""
    rows = [[arm, against, interval(c), number(c.half, '+.4f'), str(c.pairs), number(c.adjusted, '.3g'), number(c.detectable, '.3f')]
            for (arm, against), c in comparisons.items() if against != baseline]
    return pd.DataFrame(rows, columns=['arm', 'against', 'difference', 'at half of the tokens', 'pairs', 'p (Holm)', 'smallest detectable'])


def learning_table(e, learning):
    """Steps until a task is learnt: {setting: {arm: Learning}}."""
    rows = []
    for setting, arms in learning.items():
        for arm, one in arms.items():
            steps = lambda value: f'{value:g}' if value < math.inf else f'> {one.horizon}'
            rates = e.settings[setting].get('rates', [])
            end = ' (end of the rates)' if len(rates) > 1 and one.factor in (min(rates), max(rates)) else ''
            rows.append({'task': e.label(setting), 'arm': arm, 'rate x': f'{one.factor:g}{end}',
                         'learnt': f'{one.learnt} of {len(one.steps)}', 'median of steps': steps(one.median),
                         'from': steps(one.low), 'to': steps(one.high), 'coverage': f'{100 * one.coverage:.0f}%',
                         'p (log-rank, Holm)': number(one.adjusted, '.3g')})
    return table_of(rows)


def horizon_table(horizons, baseline):
    """Differences to the baseline after whole schedules of several lengths: {tokens of a run: comparisons}; and the exponent a of
    |difference| = c tokens^-a with its 95% interval over seeds."""
    rows = []
    for arm in dict.fromkeys(arm for of in horizons.values() for arm, against in of if against == baseline):
        of_arm = {tokens: c for tokens, of in horizons.items() if (c := of.get((arm, baseline))) and c.pairs}
        law = stats.power_law(pd.DataFrame({tokens: c.differences for tokens, c in of_arm.items()}).dropna())
        rows.append({'arm': arm} | {f'{tokens:,} tokens': interval(c) for tokens, c in of_arm.items()} |
                    {'falls as tokens to the power of -a, a': f'{law[0]:.2f} +- {law[1]:.2f}' if law else EMPTY})
    return table_of(rows)


def grid_table(e, runs, column='loss'):
    """Mean loss (or accuracy, the best arm first) of arms x settings, and how many runs diverged (or have learnt the task)."""
    arms, settings = list(runs.arm.unique()), list(runs.setting.unique())
    count, form = (diverged, '.3f') if column == 'loss' else (learnt, '.2f')
    cells = runs.groupby(['arm', 'setting'])[column].agg(lambda values: mean_cell(values, form)).unstack(fill_value=EMPTY)
    counts = pd.Series({arm: count(own) for arm, own in runs.groupby('arm')})
    if column == 'accuracy':
        common = runs.groupby('setting').filter(lambda own: own.arm.nunique() == len(arms))
        means = runs[runs.setting.isin(common.setting)].groupby(['arm', 'setting']).accuracy.mean().groupby('arm').mean()
        arms = sorted(arms, key=lambda arm: -means.get(arm, 0))
    table = cells.loc[arms, settings].rename(columns=e.label)
    table.insert(0, count.__name__, counts)
    return table.reset_index().rename_axis(columns=None)


def sweep_table(sweep, lr):
    """The best rate of every arm, and how much worse than there the rates of the sweep are on average (arXiv 2309.14322)."""
    rows, means = [], sweep_means(sweep)
    for arm, own in sweep.groupby('arm', sort=False):
        sound = means[arm].dropna()
        best = sound.idxmin() if len(sound) else None
        end = ' (end of the sweep)' if best in (own.factor.min(), own.factor.max()) and own.factor.nunique() > 1 else ''
        rows.append({'arm': arm, 'rates': str(own.factor.nunique()), 'diverged': diverged(own),
                     'best rate': EMPTY if best is None else f'{best * lr:g} (x {best:g}){end}',
                     'loss there': number(sound.get(best)),
                     'sensitivity': number((means[arm] - sound.min()).mean(skipna=False), '.3f')})
    return pd.DataFrame(rows)


def time_table(timed):
    """Interleaved times of training steps, or of a token of ./generate, against the baseline's. Those of the baseline against
    itself are the noise."""
    rows = []
    for arm, own in timed.groupby('arm', sort=False):
        middle, low, high, coverage = median_interval(own.ratio)
        rows.append({
            'arm': arm, 'on': own.record.iloc[0]['result'].get('device', EMPTY), 'rounds': str(len(own)),
            'ms': number(own.ms.median(), '.2f'), 'against the baseline': f'{middle:.3f}',
            'from': f'{low:.3f}', 'to': f'{high:.3f}', 'coverage': f'{100 * coverage:.0f}%',
            'first token, ms': number(own.first_ms.median(), '.2f'),
            'first against the baseline': number(own.first_ratio.median(), '.3f'),
            'peak MiB': number(own.peak_bytes.median() / 2**20, '.1f'),
            'cache, KiB': number(own.cache_bytes.median() / 2**10, '.1f'),
            'bytes of the baseline\'s': number(own.bytes_ratio.median(), '.3f'),
            'keys read': number(own.pairs_read.mean(), '.1%')})
    return table_of(rows)


def run_table(report):
    runs, results = report.runs, report.runs.record.map(lambda record: record['result'])
    of_record = lambda *names: ['; '.join(filter(None, (record.get(name) for name in names))) for record in runs.record]
    table = runs[['experiment', 'scale', 'stage', 'arm', 'setting']].assign(**{
        'seed': runs.seed.map(str), 'rate x': runs.factor.map('{:g}'.format), 'event': runs.event,
        'loss': [number(r['val_loss'], '.6f') for r in results], 'steps': [str(r['steps']) for r in results],
        'seconds': [number(r['seconds'], '.1f') for r in results], 'attempts': runs.attempts.map(str),
        'commit': of_record('commit'),
        'machine': ['; '.join(filter(None, (record.get('place'), record['result'].get('machine')))) for record in runs.record],
        'data': of_record('data_hash'), 'weights': [r.get('weights_hash') or EMPTY for r in results], 'key': of_record('key'),
        'command': runs.command})
    return table.sort_values(['experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'rate x'])


def as_markdown(table):
    line = lambda cells: '| ' + ' | '.join(cell.replace('|', '/').replace('\n', ' ') for cell in cells) + ' |\n'
    return ''.join(map(line, [list(table), ['---'] * len(table.columns), *table.values]))
