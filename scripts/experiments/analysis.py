"""From ledgers to tables: which run belongs where, comparisons of arms, verdicts on claims."""

import math
import statistics
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import stats
from ledger import FINISHED, Ledger
from packages import EXIT_DATA, Refused
from plan import HERE, SCALES, TIMED, Experiment, known_experiments

CLAIM_KEYS = {
    'id',
    'experiment',
    'arm',
    'against',
    'number',
    'tolerance',
    'document',
    'section',
    'read',
    'seeds',
    'smallest_detectable',
    'seeds_to_detect',
    'seeds_to_contradict',
}


def read_claims(path=HERE / 'claims.toml'):
    """(analysis, claims) as they were written down before the runs; refuses unknown and missing keys."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding='utf-8'))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f'{path}: cannot be read: {error}') from error
    for claim in table.get('claims', []):
        if odd := set(claim) ^ CLAIM_KEYS:
            raise Refused(f'{path}: claim {claim.get("id", "without id")}: unknown or missing: {", ".join(sorted(odd))}')
    return table['analysis'], table['claims']


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
    def title(self):
        label = self.experiment.settings.get(self.setting, {}).get('label', self.setting)
        return f'{self.experiment.name}, scale {self.scale}' + (f': {label}' if label else '')


@dataclass
class Timing:
    """What was timed by turns of one experiment at one scale in one setting: steps of training, or writing."""

    experiment: Experiment
    scale: str
    setting: str
    arms: dict      # name -> {round: result}

    title = Table.title

    def values(self, arm, key):
        """Of all rounds that have it."""
        return [result[key] for _, result in sorted(self.arms[arm].items()) if result.get(key)]

    def peak_ratio(self, arm):
        """Peak memory against the baseline's beside it; None where it is not known."""
        pairs = [(r.get('peak_bytes'), r.get('baseline_peak_bytes')) for r in self.arms[arm].values()]
        return statistics.median(own / base for own, base in pairs) if all(own and base for own, base in pairs) else None

    @property
    def seq_len(self):
        e = self.experiment
        return (e.scales[self.scale].get('options', {}) | e.settings[self.setting].get('options', {})).get('seq-len')


def cache_bytes(writing, arm):
    """Bytes that ./generate keeps of a text; None where it keeps nothing."""
    found = writing.values(arm, 'cache_bytes')
    return statistics.median(found) if found else None


def cache_ratio(writing, arm):
    """To the baseline's on the same device, None where one of them keeps nothing."""
    own, base = cache_bytes(writing, arm), writing.values(arm, 'baseline_cache_bytes')
    return own / statistics.median(base) if own and base else None


def where_written(writing, arm):
    """(device, weights), the same in all rounds."""
    return next((result['device'], result['weights']) for result in writing.arms[arm].values())


@dataclass
class Said:
    """A claim, and what the runs of one scale say about it."""

    claim: dict
    scale: str
    setting: str
    comparison: stats.Comparison
    verdict: stats.Verdict
    line: str
    seeds: int    # of the plan at this scale


class Report:
    """All that ledgers hold, ordered."""

    def __init__(self, paths, only=None, scale=None):
        self.runs, self.tables, self.timings, self.writings, self.verdicts = [], [], [], [], []
        self.sweeps = defaultdict(lambda: defaultdict(dict))  # (experiment, scale) -> arm -> factor -> [records]
        self.analysis, self.claims = read_claims()
        finished, labels, self.attempts, self.commands = {}, {}, defaultdict(int), {}
        for path in paths:
            if not Path(path).exists():
                raise Refused(f'{path}: is not there; run.py writes it', EXIT_DATA)
            self._read(Ledger(path), finished, labels)
        self._order(finished, labels, only, scale)
        self._compare()
        self._judge()

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
        for (name, scale, setting), found in arms.items():
            e = self.experiments[name]
            self.tables.append(Table(e, scale, setting, {a: found[a] for a in e.arms if a in found}))
        for (stage, name, scale, setting), found in timed.items():
            e, kind = self.experiments[name], self.writings if stage == 'writes' else self.timings
            kind.append(Timing(e, scale, setting, {a: found[a] for a in e.arms if a in found}))
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
        """Every arm against the baseline, and against what claims compare it with; Holm over all of a table."""
        for table in self.tables:
            wanted = [(arm, table.experiment.baseline) for arm in table.arms if arm != table.experiment.baseline]
            wanted += [
                (c['arm'], c['against'])
                for c in self.claims
                if c['experiment'] == table.experiment.name and (c['arm'], c['against']) not in wanted
            ]
            for arm, against in wanted:
                if arm in table.arms and against in table.arms:
                    table.comparisons[arm, against] = stats.compare(table.arms[arm].losses, table.arms[against].losses)
            stats.adjust(list(table.comparisons.values()))
            if table.experiment.baseline in table.arms:
                base = table.arms[table.experiment.baseline]
                table.steps_to_loss = {name: steps_to(arm, base) for name, arm in table.arms.items()}

    def _judge(self):
        for claim in self.claims:
            for table in self.tables:
                comparison = table.comparisons.get((claim['arm'], claim['against']))
                if table.experiment.name != claim['experiment'] or comparison is None:
                    continue
                published = stats.Claim(claim['id'], claim['number'], claim['tolerance'], claim['document'])
                name = (
                    claim['arm'] if claim['against'] == table.experiment.baseline else f'{claim["arm"]} against {claim["against"]}'
                )
                rates = 'each arm at its best rate' if table.experiment.sweep else 'one rate for all'
                self.verdicts.append(
                    Said(
                        claim,
                        table.scale,
                        table.setting,
                        comparison,
                        stats.verdict(comparison, published, table.scale),
                        stats.line(published, name, comparison, table.scale, rates),
                        table.experiment.scales[table.scale]['seeds'],
                    )
                )

    def writings_of(self, experiment, scale):
        return [t for t in self.writings if t.experiment.name == experiment and t.scale == scale]

    def reading_of(self, writing):
        """The table of what the arms of a Timing of writing read, of the setting that does nothing else: their loss and accuracy;
        None where there is none."""
        of = [t for t in self.tables if (t.experiment, t.scale) == (writing.experiment, writing.scale)]
        return next((t for t in of if t.experiment.settings[t.setting].get('evaluate')), None)

    def end_points(self, experiment, scale):
        """Arms whose best rate is the lowest or the highest of the sweep."""
        found = []
        for arm, by_factor in self.sweeps.get((experiment, scale), {}).items():
            losses = sweep_means(by_factor)
            best = min(losses, key=losses.get) if losses else None
            if best is not None and len(by_factor) > 1 and best in (min(by_factor), max(by_factor)):
                found.append((arm, best))
        return found

    def pilot_sd(self, scale):
        """Pooled sd of paired differences of arms that were trained, at a scale; None before there are two pairs. What weights
        lose by being read in another way differs by more from seed to seed."""
        trained = [t for t in self.tables if t.scale == scale and not t.experiment.settings.get(t.setting, {}).get('evaluate')]
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


def steps_to(arm, base):
    """Mean of the first validated step at which a run is as good as the baseline's run of its seed ends; with the share that got
    there."""
    reached, runs = [], 0
    for seed, record in arm.records.items():
        target = base.losses.get(seed)
        if target is None or record['event'] != 'done':
            continue
        runs += 1
        first = next((step for step, _, loss, _ in record['result']['validation'] if loss is not None and loss <= target), None)
        if first is not None:
            reached.append(first)
    return (statistics.mean(reached) if reached else None, len(reached), runs)
