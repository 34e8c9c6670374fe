"""From ledgers to a table of runs, comparisons of arms and verdicts."""
import math
from collections import Counter
from pathlib import Path
from statistics import mean

import numpy
import pandas as pd

import stats
from claims import NATS, find, read_claims
from ledger import FINISHED, Ledger
from packages import EXIT_DATA, HERE, Refused
from plan import SCALES, TIMED, Experiment, cards, known_experiments
from results import loss_of_sweep

LABELS = ['experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'factor']
GROUP = ['experiment', 'scale', 'setting']   # arms that are compared with each other
MEASURED = ['ms', 'ratio', 'first_ms', 'first_ratio', 'peak_bytes', 'cache_bytes', 'pairs_read', 'parameters', 'val_bpb']
RECALL = ['copy_32', 'copy_64', 'copy_128']  # settings of e7_recall: letters from 32, 64 and 128 tokens back
LEARNT = 0.9   # of the items right: a run has learnt its task
UNTRAINED = ['timing', *TIMED]               # stages that measure times


def read_runs(paths):
    """(a row for every finished run of a plan, {experiment: (plan, keys of its runs)} of plans that ledgers keep). Of one place in a plan
    the newest run counts: others had another engine or data."""
    finished, keys, attempts, commands, plans = {}, {}, Counter(), {}, {}
    for path in paths:
        if not Path(path).exists(): raise Refused(f'{path}: is not there; run.py writes it', EXIT_DATA)
        ledger = Ledger(path)
        try:
            plans |= {record['experiment']: (Experiment(record['experiment'], table=record['table']), set(record['keys']))
                      for record in ledger.records if record['event'] == 'plan'}
            for record in ledger.records:
                if record['event'] in FINISHED: finished.setdefault(record['key'], record)
                planned = record['event'] == 'run' and plans.get(record['experiment'], (None, {record['key']}))[1]
                if planned and record['key'] in planned: keys[tuple(record[label] for label in LABELS)] = record['key']
                if record['event'] == 'start': attempts[record['key']] += 1
        except KeyError as lacking:
            raise Refused(f'{path}: a record lacks the key {lacking}; run.py writes ledgers', EXIT_DATA) from lacking
        commands |= ledger.commands
    starts = {key: {'attempts': attempts[key], 'command': commands.get(key, '')} for key in finished}
    return frame([(labels := dict(zip(LABELS, place))) | starts[key] | numbers_of(finished[key], labels['stage'])
                  for place, key in keys.items() if key in finished]), plans


def frame(rows):
    """Runs as a DataFrame: labels, the record, and the numbers of its result, NaN where it has none."""
    runs = pd.DataFrame(rows, columns=[*LABELS, 'attempts', 'command', *numbers_of({'event': '', 'result': {}}, '')])
    numbers = ['length', 'loss', 'half_loss', 'accuracy', 'f1', 'learnt_at', 'horizon', 'keys_read', 'bytes_ratio', *MEASURED]
    runs[numbers] = runs[numbers].astype(float)
    writes = runs.stage == 'writes'
    runs['step_ratio'], runs['token_ratio'] = runs.ratio.where(~writes), runs.ratio.where(writes)
    runs['peak_ratio'], runs['cache_ratio'] = runs.bytes_ratio.where(~writes), runs.bytes_ratio.where(writes)
    return runs


def numbers_of(record, stage):
    """The columns of a finished run."""
    r = record['result']
    loss = loss_of_sweep(r) if stage == 'sweep' else r.get('val_loss')
    over_files = lambda key: mean(found) if (found := [v for v in r.get(key, {}).values() if v is not None]) else None
    bytes_of = 'cache_bytes' if 'cache_bytes' in r else 'peak_bytes'
    own, base = r.get(bytes_of), r.get(f'baseline_{bytes_of}')
    options = record.get('options', {})
    text = options['prompt'] + options['tokens'] if 'prompt' in options else None
    return {'record': record, 'event': record['event'], 'length': text or options.get('seq-len'),
            'loss': loss if record['event'] == 'done' else None,
            'half_loss': half_loss(r.get('validation') or []), 'weights': r.get('weights_hash'),
            'accuracy': over_files('accuracy'), 'f1': over_files('macro_f1'), 'learnt_at': learnt_at(r),
            'horizon': options.get('steps', r.get('steps')),
            'keys_read': r.get('sparse_reading', {}).get('validation', {}).get('pairs_read'),
            'bytes_ratio': own / base if own and base else None, **{name: r.get(name) for name in MEASURED}}


def half_loss(validation):
    """The validation loss at half of a run's tokens, interpolated between [step, tokens, loss, seconds]; None without one before it."""
    points = [(tokens, loss) for _, tokens, loss, _ in validation if tokens and loss is not None]
    if len(points) < 2 or points[0][0] > points[-1][0] / 2: return None
    return float(numpy.interp(points[-1][0] / 2, *zip(*points)))


def learnt_at(result):
    """The step of the first evaluation with LEARNT of the items right, infinite without one; None for runs evaluated only once."""
    if 'accuracy_at' not in result: return None
    return next((step for step, share in result['accuracy_at'] if share >= LEARNT), math.inf)


def at_best_rates(runs):
    """The runs of every arm at its best of several rates: that of the fewest steps until the task is learnt, on average over seeds
    (all its steps, where a run never learns it), then of the lowest loss."""
    costs = runs.assign(spent=runs.learnt_at.fillna(math.inf).clip(upper=runs.horizon), lost=runs.loss.fillna(math.inf))
    means = costs.groupby([*GROUP, 'arm', 'factor'])[['spent', 'lost']].mean().sort_values(['spent', 'lost'], kind='stable')
    best = means.reset_index().drop_duplicates([*GROUP, 'arm']).set_index([*GROUP, 'arm', 'factor']).index
    return runs[pd.MultiIndex.from_frame(runs[[*GROUP, 'arm', 'factor']]).isin(best)]


def learning_of(runs, baseline):
    """arm -> Learning in one setting, with Holm's correction over all arms; empty where accuracy was not followed over steps."""
    if runs.learnt_at.isna().all(): return {}
    found, horizon = {}, int(runs.horizon.max())
    for arm, own in runs.groupby('arm', sort=False):
        found[arm] = stats.Learning(own.set_index('seed').learnt_at.fillna(math.inf), horizon, own.factor.iloc[0])
    for arm, one in found.items():
        if arm != baseline and baseline in found: one.p = stats.logrank_p(one.steps, found[baseline].steps, horizon)
    stats.adjust(found.values())
    return found


def by_seed(runs, column='loss'):
    """arm -> its numbers by seed."""
    return {arm: own.set_index('seed')[column] for arm, own in runs.groupby('arm', sort=False)}


def compare_arms(runs, baseline, claimed):
    """(arm, against) -> Comparison of every arm with the baseline, and of claimed pairs that have runs, with Holm's correction over all."""
    losses, halves, weights = (by_seed(runs, column) for column in ('loss', 'half_loss', 'weights'))
    found = {}
    for arm, against in [*((arm, baseline) for arm in losses), *claimed]:
        if arm == against or not {arm, against} <= set(losses): continue
        c = found[arm, against] = stats.compare(losses[arm], losses[against])
        of = lambda columns: (columns[name][c.differences.index] for name in (arm, against))
        c.half = float(numpy.subtract(*of(halves)).mean(skipna=False))
        c.identical = c.pairs > 0 and all(own is not None and own == other for own, other in zip(*of(weights)))
    stats.adjust(found.values())
    return found


class Report:
    """All finished runs of ledgers in the order of plans: `trained` ones, one for each seed; `timed` ones, one for each round; and
    those of the `sweep`. `comparisons` has (experiment, scale, setting) -> (arm, against) -> Comparison."""

    def __init__(self, paths, only=None, scale=None):
        written, (runs, plans) = read_claims(), read_runs(paths)
        known = [*known_experiments(), *plans]
        if set(runs.experiment) <= set(plans): only = only or list(plans)   # nothing that claims are on
        self.analysis, self.printed, self.not_run = written['analysis'], written['printed'], [] if only else written['not_run']
        self.statements = [] if only and set(only) <= set(plans) else written['statements']
        self.struck = {(row['experiment'], row['scale']): row['why'] for row in written['struck']}
        self.claims = [claim for claim in written['claims'] if not only or claim['experiment'] in only]
        self.cards, self.committed = cards(), all(Path(path).resolve().parent == HERE / 'results' for path in paths)
        runs = runs[runs.experiment.isin(only or known) & runs.scale.isin([scale] if scale else SCALES)]
        self.experiments = {name: plans[name][0] if name in plans else Experiment(name) for name in known if name in set(runs.experiment)}
        runs = runs.assign(order=[self._order(*labels) for labels in runs[LABELS].values])
        runs = runs.sort_values(['order', 'seed'], kind='stable')
        self.runs, self.sweep = runs, runs[runs.stage == 'sweep']
        self.timed = runs[runs.stage.isin(UNTRAINED) & (runs.event == 'done')]
        planned = [arm in self.experiments[name].arms for name, arm in zip(runs.experiment, runs.arm)]
        trained = runs[~runs.stage.isin(['sweep', *UNTRAINED]) & pd.Series(planned, runs.index, dtype=bool)]
        swept = pd.Series([bool(self.experiments[name].settings.get(setting, {}).get('rates'))
                           for name, setting in zip(trained.experiment, trained.setting)], trained.index, dtype=bool)
        trained = trained[~swept | trained.index.isin(at_best_rates(trained[swept]).index)]
        self.trained = trained.drop_duplicates([*GROUP, 'arm', 'seed'], keep='last')   # the last planned of several rates
        self.comparisons, self.learning = {}, {}
        for (name, scale, setting), of in self.trained.groupby(GROUP, sort=False):
            e = self.experiments[name]
            claimed = [(c['arm'], c['against']) for c in self.claims if c['experiment'] == name and c['unit'] == NATS]
            self.comparisons[name, scale, setting] = compare_arms(of, e.baseline, claimed)
            if 'task' in e.settings.get(setting, {}) and (found := learning_of(of, e.baseline)): self.learning[name, scale, setting] = found
        self.findings = list(find(self.claims, self))
        self.not_measured = [claim for claim in self.claims if all(one.claim is not claim for one in self.findings)]

    def _order(self, experiment, scale, stage, arm, setting, *_):
        """The place of a run in the plans."""
        e = self.experiments[experiment]
        at = lambda names, name: list(names).index(name) if name in names else len(names)
        return at(self.experiments, experiment), SCALES.index(scale), at(e.settings, setting), at(e.arms, arm)


def copied(trained, scale):
    """arm -> share of letters copied right from 32, 64 and 128 tokens back, of arms with runs of all three."""
    own = trained[(trained.experiment == 'e7_recall') & (trained.scale == scale) & trained.setting.isin(RECALL)]
    shares = own.groupby(['arm', 'setting']).accuracy.mean().unstack()
    return {arm: list(row) for arm, row in shares.reindex(columns=RECALL).dropna().iterrows()}


def by_length(timed, column):
    """arm -> {tokens of a row or a text: median over rounds} of a column of interleaved measurements."""
    sound = timed.dropna(subset=[column, 'length'])
    return {arm: own.groupby('length')[column].median().to_dict() for arm, own in sound.groupby('arm', sort=False)}


def sweep_means(sweep):
    """arm -> its mean loss by factor, NaN where a run diverged."""
    mean_of_all = lambda losses: losses.mean(skipna=False)
    return {arm: own.groupby('factor').loss.agg(mean_of_all) for arm, own in sweep.groupby('arm', sort=False)}
