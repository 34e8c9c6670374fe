"""From ledgers to tables: the runs of every arm in every setting, comparisons of arms, best rates."""
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import stats
from claims import NATS, judge, read_claims
from ledger import FINISHED, Ledger
from packages import EXIT_DATA, Refused, require
from plan import SCALES, TIMED, Experiment, known_experiments

pd = require('pandas')

LABELS = ['experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'factor']
LEARNT = 0.9   # of the items right: the run has learnt the task


class Arm:
    """Records of an arm in one setting, by seed or round."""

    def __init__(self, name, records, factor=1.0):
        self.name, self.records, self.factor = name, dict(sorted(records.items())), factor
        self.results = [r['result'] for r in self.records.values()]
        self.losses = {s: r['result']['val_loss'] if r['event'] == 'done' else None for s, r in self.records.items()}
        self.sound = [loss for loss in self.losses.values() if loss is not None]
        self.diverged = [s for s, r in self.records.items() if r['event'] == 'diverged']
        of_files = {s: [v for v in r['result'].get('accuracy', {}).values() if v is not None] for s, r in self.records.items()}
        self.accuracies = {s: mean(values) for s, values in of_files.items() if values}   # means over the files of items

    def values(self, key):
        """A number of all results that have it."""
        return [result[key] for result in self.results if result.get(key) is not None]


@dataclass
class Table:
    """One experiment at one scale in one setting: trained, or timed in rounds (stages turns, timing, writes)."""
    experiment: Experiment
    scale: str
    setting: str
    stage: str
    arms: dict
    comparisons: dict = field(default_factory=dict)  # (arm, against) -> Comparison

    @property
    def label(self):
        return self.experiment.settings.get(self.setting, {}).get('label', self.setting)

    @property
    def title(self):
        return f'{self.experiment.name}, scale {self.scale}' + (f': {self.label}' if self.label else '')

    def compare(self, more=()):
        """Compare every arm with the baseline, the pairs that the experiment names, and `more` of them; Holm over all."""
        base, arms = self.experiment.baseline, self.arms
        self.comparisons = {(arm, against): stats.compare(arms[arm].losses, arms[against].losses)
                            for arm, against in [*((arm, base) for arm in arms if arm != base), *self.experiment.compare, *more]
                            if arm in arms and against in arms}
        stats.adjust(list(self.comparisons.values()))

    @property
    def base(self):
        """The baseline's arm; None without its runs."""
        return self.arms.get(self.experiment.baseline)

    @property
    def seq_len(self):
        e = self.experiment
        return (e.scales[self.scale].get('options', {}) | e.settings[self.setting].get('options', {})).get('seq-len')

    def values(self, arm, key):
        """A number of all rounds that have it and where it is not 0."""
        return [value for value in self.arms[arm].values(key) if value]

    def byte_ratios(self, arm):
        """Ratios to the baseline in every round: of the cache of ./generate, or of the peak memory of training steps."""
        key = 'cache_bytes' if self.stage == 'writes' else 'peak_bytes'
        return [own / base for r in self.arms[arm].results if (own := r.get(key)) and (base := r.get(f'baseline_{key}'))]

    def byte_ratio(self, arm):
        return middle(self.byte_ratios(arm))


def middle(values):
    """The median, None of nothing."""
    return median(values) if values else None


def read_runs(paths):
    """A row of labels, record, attempts and command for every finished run of a plan. Of one place in a plan the newest run counts:
    earlier ones had another engine or other data."""
    finished, keys, attempts, commands = {}, {}, Counter(), {}
    for path in paths:
        if not Path(path).exists(): raise Refused(f'{path}: is not there; run.py writes it', EXIT_DATA)
        ledger = Ledger(path)
        try:
            for record in ledger.records:
                if record['event'] in FINISHED: finished.setdefault(record['key'], record)
                if record['event'] == 'run': keys[tuple(record[label] for label in LABELS)] = record['key']
                if record['event'] == 'start': attempts[record['key']] += 1
        except KeyError as lacking:
            raise Refused(f'{path}: a record lacks the key {lacking}; run.py writes ledgers', EXIT_DATA) from lacking
        commands |= ledger.commands
    rows = [[*place, finished[key], finished[key]['event'], attempts[key], commands.get(key, '')]
            for place, key in keys.items() if key in finished]
    return pd.DataFrame(rows, columns=[*LABELS, 'record', 'event', 'attempts', 'command'])


class Report:
    """All finished runs of ledgers. In the order of plans, `tables` are of trained arms, `timings` of step times, `writings` of
    ./generate; `sweeps` has (experiment, scale) -> arm -> factor -> records."""

    def __init__(self, paths, only=None, scale=None):
        self.analysis, claims = read_claims()
        self.claims = [claim for claim in claims if not only or claim['experiment'] in only]
        runs = read_runs(paths)
        runs = runs[runs.experiment.isin(only or known_experiments()) & runs.scale.isin([scale] if scale else SCALES)]
        self.experiments = {name: Experiment(name) for name in known_experiments() if name in set(runs.experiment)}
        self.runs = runs
        runs = runs.assign(order=[self._order(*row) for row in runs[LABELS].values]).sort_values('order', kind='stable')
        timed = runs[runs.stage.isin(['timing', *TIMED]) & (runs.event == 'done')]
        self.tables = self._tables(runs[~runs.stage.isin(['sweep', 'timing', *TIMED])])
        self.timings = self._tables(timed[timed.stage != 'writes'])
        self.writings = self._tables(timed[timed.stage == 'writes'])
        self.sweeps = {}
        for (name, at, arm, factor), of in runs[runs.stage == 'sweep'].groupby(['experiment', 'scale', 'arm', 'factor'], sort=False):
            self.sweeps.setdefault((name, at), {}).setdefault(arm, {})[factor] = list(of.record)
        for table in self.tables:
            claimed = [c for c in self.claims if c['experiment'] == table.experiment.name and c['unit'] == NATS]
            table.compare([(c['arm'], c['against']) for c in claimed])
        self.verdicts = judge(self.claims, self.tables, self.timings + self.writings)
        self.not_measured = [claim for claim in self.claims if all(one.claim is not claim for one in self.verdicts)]

    def _order(self, experiment, scale, stage, arm, setting, *_):
        """The place of a run in the plans."""
        e = self.experiments[experiment]
        at = lambda names, name: list(names).index(name) if name in names else len(names)
        return at(self.experiments, experiment), SCALES.index(scale), at(e.settings, setting), at(e.arms, arm)

    def _tables(self, runs):
        """One table for each setting. Of several rates of one seed the last planned counts."""
        found = []
        for (name, scale, setting), of in runs.groupby(['experiment', 'scale', 'setting'], sort=False):
            arms = {arm: Arm(arm, dict(zip(own.seed, own.record)), own.factor.iloc[-1])
                    for arm, own in of.groupby('arm', sort=False) if arm in self.experiments[name].arms}
            found.append(Table(self.experiments[name], scale, setting, of.stage.iloc[0], arms))
        return found

    def of(self, kind, experiment, scale):
        """Those of `tables`, `timings` or `writings` of one experiment at one scale."""
        return [t for t in kind if t.experiment.name == experiment and t.scale == scale]

    def reading_of(self, writing):
        """The table of the setting that only reads with the weights of a table of writing: loss and accuracy; None without one."""
        settings = writing.experiment.settings
        weights = settings[writing.setting].get('after')
        of = self.of(self.tables, writing.experiment.name, writing.scale)
        return next((t for t in of if settings[t.setting].get('evaluate') and settings[t.setting].get('after') == weights), None)

    def best_factors(self, experiment, scale):
        """arm -> the factor of its lowest loss in a sweep, without arms of which all rates diverged."""
        means = {arm: sweep_means(by_factor) for arm, by_factor in self.sweeps.get((experiment, scale), {}).items()}
        return {arm: min(losses, key=losses.get) for arm, losses in means.items() if losses}

    def end_points(self, experiment, scale):
        """[(arm, factor)] of arms whose best rate is the lowest or the highest of the sweep."""
        tried = self.sweeps.get((experiment, scale), {})
        return [(arm, best) for arm, best in self.best_factors(experiment, scale).items()
                if len(tried[arm]) > 1 and best in (min(tried[arm]), max(tried[arm]))]

    def pilot_sd(self, experiment, scale):
        """Pooled sd of paired differences of trained arms, of one experiment at one scale; None before there are two pairs. Settings
        that only read are left out: their differences vary more from seed to seed."""
        trained = [t for t in self.of(self.tables, experiment, scale) if not t.experiment.settings.get(t.setting, {}).get('evaluate')]
        found = [c for t in trained for c in t.comparisons.values() if c.pairs >= 2 and c.sd > 0]
        freedom = sum(c.pairs - 1 for c in found)
        return math.sqrt(sum(c.sd**2 * (c.pairs - 1) for c in found) / freedom) if freedom else None


def sweep_means(by_factor):
    """factor -> mean loss over seeds, for rates at which nothing diverged."""
    return {factor: mean(r['result']['val_loss'] for r in records) for factor, records in sorted(by_factor.items())
            if all(r['event'] == 'done' and r['result']['val_loss'] is not None for r in records)}


def sensitivity(by_factor):
    """Sensitivity of a loss to the rate (arXiv 2309.14322): how much worse than the best the rates of the sweep are on average. A
    diverged run counts with the loss it began with; None where that is unknown."""
    if not by_factor or any(r['event'] != 'done' and not r['result'].get('training') for rs in by_factor.values() for r in rs):
        return None
    loss = lambda r: r['result']['val_loss'] if r['event'] == 'done' else r['result']['training'][0][1]
    means = [mean(map(loss, records)) for records in by_factor.values()]
    return mean(means) - min(means)


def steps_to(arm, base):
    """(mean step at which a run is as good as the baseline's run of its seed ends, runs that got there, runs)."""
    pairs = [(record, base.losses.get(seed)) for seed, record in arm.records.items() if record['event'] == 'done']
    steps = [crossing(record['result']['validation'], target) for record, target in pairs if target is not None]
    reached = [step for step in steps if step is not None]
    return (mean(reached) if reached else None), len(reached), len(steps)


def crossing(validation, target):
    """The step at which a curve of validations comes down to a loss, interpolated linearly; None if it never does. A first validation
    below the loss counts itself."""
    before = None
    for step, _, loss, _ in validation:
        if loss is None: continue
        if loss <= target and before is None: return step
        if loss <= target: return before[0] + (step - before[0]) * (before[1] - target) / (before[1] - loss)
        before = (step, loss)
    return None


def by_accuracy(tables):
    """Names of arms with accuracies, the best first: by the mean over settings that all of them have."""
    found = {}
    for table in tables:
        for name, arm in table.arms.items():
            if arm.accuracies: found.setdefault(name, {})[table.setting] = mean(arm.accuracies.values())
    common = set.intersection(*map(set, found.values())) if found else set()
    return sorted(found, key=lambda name: -mean([found[name][s] for s in common] or found[name].values()))


def learnt(tables, name):
    """'k of n' runs of an arm have learnt their task."""
    runs = [accuracy for t in tables if name in t.arms for accuracy in t.arms[name].accuracies.values()]
    return f'{sum(accuracy >= LEARNT for accuracy in runs)} of {len(runs)}'
