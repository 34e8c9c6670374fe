"""From ledgers to tables: which run belongs where, comparisons of arms, best rates."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import stats
from claims import NATS, judge, read_claims
from ledger import FINISHED, Ledger
from packages import EXIT_DATA, Refused
from plan import SCALES, TIMED, Experiment, known_experiments

LEARNT = 0.9   # of the items right: the run has learnt the task


@dataclass
class Arm:
    """An arm's runs in one setting."""

    name: str
    records: dict = field(default_factory=dict)  # seed -> record of the ledger
    factor: float = 1.0

    @property
    def losses(self):
        """seed -> validation loss, None for a run that diverged."""
        return {s: r['result']['val_loss'] if r['event'] == 'done' else None for s, r in sorted(self.records.items())}

    @property
    def sound(self):
        return [loss for loss in self.losses.values() if loss is not None]

    @property
    def diverged(self):
        return [s for s, r in self.records.items() if r['event'] == 'diverged']

    @property
    def accuracies(self):
        """seed -> mean accuracy over the files of items, where there are any."""
        found = {s: [v for v in r['result'].get('accuracy', {}).values() if v is not None] for s, r in self.records.items()}
        return {s: statistics.mean(values) for s, values in found.items() if values}

    def mean(self, key):
        """Of a number of the results; None where no run has it."""
        found = [r['result'][key] for r in self.records.values() if r['result'].get(key) is not None]
        return statistics.mean(found) if found else None


@dataclass
class Table:
    """One experiment at one scale in one setting."""

    experiment: Experiment
    scale: str
    setting: str
    arms: dict
    comparisons: dict = field(default_factory=dict)  # (arm, against) -> Comparison
    steps_to_loss: dict = field(default_factory=dict)

    @property
    def label(self):
        return self.experiment.settings.get(self.setting, {}).get('label', self.setting)

    @property
    def title(self):
        return f'{self.experiment.name}, scale {self.scale}' + (f': {self.label}' if self.label else '')


@dataclass
class Timing:
    """What was timed by turns of one experiment at one scale in one setting: steps of training, or writing."""

    experiment: Experiment
    scale: str
    setting: str
    arms: dict      # name -> {round: result}
    written: bool = False

    label, title = Table.label, Table.title

    def values(self, arm, key):
        """Of all rounds that have it."""
        return [result[key] for _, result in sorted(self.arms[arm].items()) if result.get(key)]

    def byte_ratios(self, arm):
        """In every round, to the baseline beside it: of what ./generate keeps of a text, or of the peak memory of training steps."""
        key = 'cache_bytes' if self.written else 'peak_bytes'
        return [own / base for r in self.arms[arm].values() if (own := r.get(key)) and (base := r.get(f'baseline_{key}'))]

    def byte_ratio(self, arm):
        """Their median; None where they are not known or one of the two keeps nothing."""
        ratios = self.byte_ratios(arm)
        return statistics.median(ratios) if ratios else None

    @property
    def seq_len(self):
        e = self.experiment
        return (e.scales[self.scale].get('options', {}) | e.settings[self.setting].get('options', {})).get('seq-len')


def cache_bytes(writing, arm):
    """Bytes that ./generate keeps of a text; None where it keeps nothing."""
    found = writing.values(arm, 'cache_bytes')
    return statistics.median(found) if found else None


def where_written(writing, arm):
    """(device, weights), the same in all rounds."""
    return next((result['device'], result['weights']) for result in writing.arms[arm].values())


class Report:
    """All that ledgers hold, ordered."""

    def __init__(self, paths, only=None, scale=None):
        self.runs, self.tables, self.timings, self.writings = [], [], [], []
        self.sweeps = defaultdict(lambda: defaultdict(dict))  # (experiment, scale) -> arm -> factor -> [records]
        self.analysis, claims = read_claims()
        self.claims = [claim for claim in claims if not only or claim['experiment'] in only]
        finished, labels, self.attempts, self.commands = {}, {}, defaultdict(int), {}
        for path in paths:
            if not Path(path).exists():
                raise Refused(f'{path}: is not there; run.py writes it', EXIT_DATA)
            try:
                self._read(Ledger(path), finished, labels)
            except KeyError as lacking:
                raise Refused(f'{path}: a record lacks the key {lacking}; run.py writes ledgers', EXIT_DATA) from lacking
        self._order(finished, labels, only, scale)
        self._compare()
        self.verdicts = judge(self.claims, self.tables, self.timings + self.writings)
        self.not_measured = [claim for claim in self.claims if all(said.claim is not claim for said in self.verdicts)]

    def _read(self, ledger, finished, labels):
        for record in ledger.records:
            if record['event'] in FINISHED:
                finished.setdefault(record['key'], record)
            if record['event'] == 'run':
                place = tuple(record[k] for k in ('experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'factor'))
                labels[place] = record['key']  # the newest counts: another engine or other data
            if record['event'] == 'start':
                self.attempts[record['key']] += 1
                self.commands[record['key']] = record.get('command', '')

    def _order(self, finished, labels, only, only_scale):
        arms, timed = defaultdict(dict), defaultdict(lambda: defaultdict(dict))
        newest = {}  # of several rates of one seed, the last that was planned
        for place, key in labels.items():
            experiment, scale, stage, arm, setting, seed, factor = place
            if key not in finished or (only and experiment not in only) or experiment not in known_experiments():
                continue
            if only_scale and scale != only_scale:
                continue
            record = finished[key]
            self.runs.append((place, record))
            if stage == 'sweep':
                self.sweeps[experiment, scale][arm].setdefault(factor, []).append(record)
            elif stage in ('timing', *TIMED):
                if record['event'] == 'done': timed[stage, experiment, scale, setting][arm][seed] = record['result']
            else:
                newest[experiment, scale, setting, arm, seed] = (record, factor)
        for (experiment, scale, setting, arm, seed), (record, factor) in newest.items():
            of = arms[experiment, scale, setting].setdefault(arm, Arm(arm))
            of.records[seed], of.factor = record, factor
        self.experiments = {
            name: Experiment(name) for name in known_experiments() if any(place[0] == name for place, _ in self.runs)
        }
        for (name, _), by_arm in self.sweeps.items():
            for arm in [a for a in self.experiments[name].arms if a in by_arm]: by_arm[arm] = by_arm.pop(arm)   # in their order
        for (name, scale, setting), found in arms.items():
            e = self.experiments[name]
            self.tables.append(Table(e, scale, setting, {a: found[a] for a in e.arms if a in found}))
        for (stage, name, scale, setting), found in timed.items():
            e, kind = self.experiments[name], self.writings if stage == 'writes' else self.timings
            kind.append(Timing(e, scale, setting, {a: found[a] for a in e.arms if a in found}, stage == 'writes'))
        number = {name: n for n, name in enumerate(self.experiments)}
        for kind in (self.tables, self.timings, self.writings):
            kind.sort(
                key=lambda t: (
                    number[t.experiment.name],
                    SCALES.index(t.scale),
                    list(t.experiment.settings).index(t.setting) if t.setting in t.experiment.settings else 99,
                )
            )

    def _compare(self):
        """Every arm against the baseline, what the experiment names, and what claims compare; Holm over all of a table."""
        for table in self.tables:
            e = table.experiment
            wanted = [(arm, e.baseline) for arm in table.arms if arm != e.baseline] + e.compare
            wanted += [(c['arm'], c['against']) for c in self.claims if c['experiment'] == e.name and c['unit'] == NATS]
            for arm, against in wanted:
                if arm in table.arms and against in table.arms:
                    table.comparisons[arm, against] = stats.compare(table.arms[arm].losses, table.arms[against].losses)
            stats.adjust(list(table.comparisons.values()))
            if table.experiment.baseline in table.arms:
                base = table.arms[table.experiment.baseline]
                table.steps_to_loss = {name: steps_to(arm, base) for name, arm in table.arms.items()}

    def of(self, kind, experiment, scale):
        """Those of `tables`, `timings` or `writings` that are of one experiment at one scale."""
        return [t for t in kind if t.experiment.name == experiment and t.scale == scale]

    def reading_of(self, writing):
        """The table of what the arms of a Timing of writing read, of the setting that does nothing else with the same weights: their
        loss and accuracy; None where there is none."""
        settings = writing.experiment.settings
        weights = settings[writing.setting].get('after')
        of = self.of(self.tables, writing.experiment.name, writing.scale)
        return next((t for t in of if settings[t.setting].get('evaluate') and settings[t.setting].get('after') == weights), None)

    def best_factors(self, experiment, scale):
        """arm -> the factor of its lowest loss in a sweep; without arms of which all rates diverged."""
        means = {arm: sweep_means(by_factor) for arm, by_factor in self.sweeps.get((experiment, scale), {}).items()}
        return {arm: min(losses, key=losses.get) for arm, losses in means.items() if losses}

    def end_points(self, experiment, scale):
        """Arms whose best rate is the lowest or the highest of the sweep."""
        tried = self.sweeps.get((experiment, scale), {})
        return [(arm, best) for arm, best in self.best_factors(experiment, scale).items()
                if len(tried[arm]) > 1 and best in (min(tried[arm]), max(tried[arm]))]

    def pilot_sd(self, experiment, scale):
        """Pooled sd of paired differences of arms that were trained, of one experiment at one scale; None before there are two pairs.
        What weights lose by being read in another way differs by more from seed to seed."""
        trained = [t for t in self.of(self.tables, experiment, scale) if not t.experiment.settings.get(t.setting, {}).get('evaluate')]
        found = [c for t in trained for c in t.comparisons.values() if c.pairs >= 2 and c.sd > 0]
        freedom = sum(c.pairs - 1 for c in found)
        return math.sqrt(sum(c.sd**2 * (c.pairs - 1) for c in found) / freedom) if freedom else None


def sweep_means(by_factor):
    """factor -> mean loss over seeds, for rates at which nothing diverged."""
    means = {}
    for factor, records in sorted(by_factor.items()):
        if all(r['event'] == 'done' and r['result']['val_loss'] is not None for r in records):
            means[factor] = statistics.mean(r['result']['val_loss'] for r in records)
    return means


def sensitivity(by_factor):
    """Of a loss to the rate, as in arXiv 2309.14322: how much worse than the best the rates of the sweep are on average, where what
    diverged counts as the loss that its run began with."""
    if not by_factor or any(r['event'] != 'done' and not r['result'].get('training') for rs in by_factor.values() for r in rs):
        return None
    loss = lambda r: r['result']['val_loss'] if r['event'] == 'done' else r['result']['training'][0][1]
    means = [statistics.mean(map(loss, records)) for records in by_factor.values()]
    return statistics.mean(means) - min(means)


def steps_to(arm, base):
    """Mean of the steps at which a run is as good as the baseline's run of its seed ends; with the share that got there."""
    reached, runs = [], 0
    for seed, record in arm.records.items():
        target = base.losses.get(seed)
        if target is None or record['event'] != 'done': continue
        runs += 1
        if (step := crossing(record['result']['validation'], target)) is not None: reached.append(step)
    return (statistics.mean(reached) if reached else None, len(reached), runs)


def crossing(validation, target):
    """The step at which a curve of validations comes down to a loss, on a straight line between two of them; None where it does
    not. Before the first validation nothing is known: that one counts."""
    before = None
    for step, _, loss, _ in validation:
        if loss is None: continue
        if loss <= target:
            if before is None: return step
            return before[0] + (step - before[0]) * (before[1] - target) / (before[1] - loss)
        before = (step, loss)
    return None


def by_accuracy(tables):
    """Names of arms with accuracies in these tables, the best first: by the mean over settings that all of them have."""
    found = {}
    for table in tables:
        for name, arm in table.arms.items():
            if arm.accuracies: found.setdefault(name, {})[table.setting] = statistics.mean(arm.accuracies.values())
    common = set.intersection(*map(set, found.values())) if found else set()
    mean = lambda of: statistics.mean([of[s] for s in common] or of.values())
    return sorted(found, key=lambda name: -mean(found[name]))


def learnt(tables, name):
    """'k of n' runs of an arm that have learnt their task."""
    runs = [accuracy for t in tables if name in t.arms for accuracy in t.arms[name].accuracies.values()]
    return f'{sum(accuracy >= LEARNT for accuracy in runs)} of {len(runs)}'
