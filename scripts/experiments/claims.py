"""Published numbers (claims.toml), and what a ledger's runs and measurements of GPUs permit to say about each.

    verdict at scale paper              when
    reproduced                          the difference is not 0, and the interval contains the claim
    weaker, stronger                    it has the claim's sign, and the interval excludes the claim
    contradicted                        it has the other sign, or lies within +- a quarter of the claim (TOST)
    unresolved                          none of these

At other scales the model is not the paper's, and the verdict is

    same sign, opposite sign, not 0     the difference is not 0 (not 0: the claim is)
    transient                           so it is, and below 0.8 of what the same runs have at half of their tokens
    equivalent to 0                     it lies within +- a quarter of the claim (TOST)
    unresolved                          none of these

At every scale `identity` are two arms whose weights have equal hashes, and `struck` runs that claims.toml rejects with a reason. Ratios
come from interleaved rounds, from pairs of seeds or from whole steps on a card; the same rules apply to their logarithms.
"""
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import pandas as pd
from scipy import stats as scipy

import stats
from packages import HERE, Refused
from plan import read_toml
from turns import median_interval

NATS, COLLAPSE, TO_LOSS = 'nats', 'share of runs that collapse', "ratio of steps to the baseline's loss"
BREAKS = 'share of runs that break'
RATIOS = {'ratio of step time': 'step_ratio', 'ratio of prefill time': 'first_ratio', 'ratio of token time': 'token_ratio',
          'ratio of bytes': 'peak_ratio', 'ratio of cache bytes': 'cache_ratio', 'ratio of keys read': 'pairs_read'}   # unit: column
MASS = {'share of keys with 95% of the mass': 'mass_95', 'share of keys with 99% of the mass': 'mass_99'}            # unit: curve
UNITS = (NATS, COLLAPSE, BREAKS, TO_LOSS, *RATIOS, *MASS)
DEFAULTS = {'unit': NATS, 'against': 'causal', 'tolerance': 0.0005}   # of a claim
ROWS = {   # the lists of claims.toml: their keys, and those that a row may lack
    'claims': ({'id', 'experiment', 'arm', 'number', 'read', 'source', *DEFAULTS}, {'setting', 'needs'}),
    'not_run': ({'claim', 'needs', 'source'}, set()),
    'struck': ({'experiment', 'scale', 'why'}, set()),
    'statements': ({'title', 'words'}, set())}
SAME, OPPOSITE, NOT_ZERO, UNRESOLVED = 'same sign', 'opposite sign', 'not 0', 'unresolved'
TRANSIENT, EQUIVALENT, IDENTITY, STRUCK, NOT_SEEN = 'transient', 'equivalent to 0', 'identity', 'struck', 'not seen'
REPRODUCED, WEAKER, STRONGER, CONTRADICTED = 'reproduced', 'weaker', 'stronger', 'contradicted'
COLLAPSED = 1.0   # nats; attention with less entropy at the end of a run has collapsed


def read_claims(path=HERE / 'claims.toml'):
    """{analysis, and every list of rows}; `printed` becomes {id: value}. Refuses unknown, missing and empty keys, naming the row."""
    table = read_toml(path)
    table['claims'] = [DEFAULTS | shared | row for shared in table['claims'] for row in shared.pop('rows', [{}])]
    for kind, (needed, others) in ROWS.items():
        for row in table[kind]:
            name = next((row[key] for key in ('id', 'claim', 'title', 'experiment') if key in row), 'without id')
            check_row(f'{path}: row {name} of {kind}', row, needed, others)
    for source in table['printed']: check_source(f'{path}: [printed]', source)
    return table | {'printed': {name: value for of in table['printed'].values() for name, value in of.items()}}


def check_row(name, row, needed, others):
    """Refuse a row of claims.toml with unknown keys, without one that it needs, or without a source."""
    if odd := (set(row) ^ needed) - others: raise Refused(f'{name}: unknown or missing: {", ".join(sorted(odd))}')
    if empty := [key for key in sorted(needed & {'needs', 'why'}) if not row[key].strip()]: raise Refused(f'{name}: {empty[0]} is empty')
    if 'source' in row: check_source(name, row['source'])
    if row.get('unit', NATS) not in UNITS: raise Refused(f'{name}: unknown unit {row["unit"]}; there are: {", ".join(UNITS)}')


def check_source(name, source):
    if not all(part.strip() for part in source.partition(', ')):
        raise Refused(f'{name}: the source "{source}" is no document, a comma and a place in it')


class Ratios(NamedTuple):
    """Arm over baseline: the middle, the interval that covers it, and of how many rounds, pairs or seeds."""
    middle: float
    low: float
    high: float
    coverage: float
    rounds: int


class Verdict(NamedTuple):
    word: str
    reason: str = ''

    def __str__(self):
        return self.word + (f': {self.reason}' if self.reason else '')


def judge_seeds(comparison, claim, scale):
    """The verdict of paired seeds on a claim in nats. stats.adjust() comes first."""
    c = comparison
    if c.identical: return Verdict(IDENTITY, 'equal weights hashes; one program, so that what is published is the noise of its runs')
    if c.pairs < 2: return Verdict(UNRESOLVED, f'{"one pair" if c.pairs else "no pair"} of seeds{c.lost}')
    if c.mean == c.sd == 0: why = 'the two compute the same numbers'
    else: why = 'the interval contains 0' if c.p >= stats.ALPHA else "after Holm's correction"
    within = lambda margin: stats.tost_p(c.differences, margin) < stats.ALPHA
    found = judge(claim['number'], claim['tolerance'], scale, (c.low, c.mean, c.high), c.adjusted < stats.ALPHA, within, why)
    if not c.shrinks or found.word not in (SAME, OPPOSITE, NOT_ZERO): return found
    return Verdict(TRANSIENT, f'{found.word}, and {c.half:+.3f} at half of the tokens')


def judge_ratio(ratios, claim, scale):
    """The verdict of a ratio, which is 1 where there is no difference."""
    if ratios.coverage < 1 - stats.ALPHA:
        return Verdict(UNRESOLVED, f'{ratios.rounds} round{"s" * (ratios.rounds > 1)}, and 95% needs six')
    number, low, middle, high = map(math.log, (claim['number'], ratios.low, ratios.middle, ratios.high))
    within = lambda margin: max(-low, high) < margin
    return judge(number, claim['tolerance'] / claim['number'], scale, (low, middle, high), low > 0 or high < 0, within,
                 'the interval contains 1')


def judge(number, tolerance, scale, interval, different, within, why_not):
    """The rules at the top of this file. `interval` is (low, middle, high); `different` (from 0) and within(margin) are tests."""
    low, middle, high = interval
    margin = abs(number) / 4 if number else tolerance   # the largest difference that counts as none
    if scale != 'paper':
        if different: return Verdict(NOT_ZERO if number == 0 else SAME if middle * number > 0 else OPPOSITE)
        return Verdict(EQUIVALENT, f'within +-{margin:.2g}') if within(margin) else Verdict(UNRESOLVED, why_not)
    if number == 0:
        if within(margin): return Verdict(REPRODUCED, f'within +-{margin:g}')
        return Verdict(CONTRADICTED, 'not 0') if different else Verdict(UNRESOLVED, f'not shown to be within +-{margin:g}')
    if within(margin): return Verdict(CONTRADICTED, 'within a quarter of the claim')
    if not different: return Verdict(UNRESOLVED, why_not)
    if middle * number < 0: return Verdict(CONTRADICTED, 'the other sign')
    if low - tolerance <= number <= high + tolerance: return Verdict(REPRODUCED)
    return Verdict(WEAKER if abs(middle) < abs(number) else STRONGER)


def judge_level(level, claim):
    """The verdict of a mean over seeds on a published level, whatever the scale: not seen where the interval leaves it out."""
    low, high = claim['number'] - claim['tolerance'], claim['number'] + claim['tolerance']
    if level.rounds < 2: return Verdict(UNRESOLVED, 'one run')
    return Verdict(NOT_SEEN) if level.high < low or level.low > high else Verdict(REPRODUCED)


@dataclass
class Finding:
    """A claim, and the verdict of the runs of one scale in one setting, or of a card; `ours` is what they have, in words."""
    claim: dict
    scale: str
    where: str
    found: stats.Comparison | Ratios | None
    ours: str
    verdict: Verdict

    @property
    def document(self):
        return self.claim['source'].partition(', ')[0]

    @property
    def line(self):
        """One sentence."""
        name, published = words_of(self.claim)
        where = f', {self.where}' if self.where else ''
        return f'{self.document}: {name}, published {published}; ours {self.ours}, scale {self.scale}{where}; {self.verdict}.'

    @property
    def name(self):
        """The claim in short."""
        unit = self.claim['unit']
        return f'{self.document}: {words_of(self.claim)[0]}' + (f', {unit.removeprefix("ratio of ")}' if unit != NATS else '')

    @property
    def multiple(self):
        """(low, middle, high) of ours as a multiple of the published difference, or of a ratio's logarithm; None where there is none."""
        c, number = self.found, self.claim['number']
        if isinstance(c, Ratios) and self.claim['unit'] not in MASS:
            return tuple(sorted(math.log(value) / math.log(number) for value in (c.low, c.middle, c.high)))
        if not isinstance(c, stats.Comparison) or not c.pairs or not number: return None
        low, high = sorted((c.low / number, c.high / number))
        return low, c.mean / number, high


def words_of(claim):
    """(what a claim compares, its number)."""
    nats, arm, against = claim['unit'] == NATS, *(claim[side].replace(' ', ', ') for side in ('arm', 'against'))
    name = arm if arm == against else f'{arm} {"-" if nats or "," in against else "/"} {against}'
    return name, f'{claim["number"]:+.3f}' if nats else f'{claim["number"]:.3f}, {claim["unit"]}'


def find(claims, report):
    """Findings of every claim, one for each setting with runs of both arms, of step times also one for each card."""
    by_unit = {NATS: by_seeds, COLLAPSE: by_collapse, BREAKS: by_signs, TO_LOSS: by_pairs} | dict.fromkeys(MASS, by_level)
    for claim in claims:
        e, unit = report.experiments.get(claim['experiment']), claim['unit']
        if unit == 'ratio of step time': yield from by_cards(claim, report)
        if e: yield from by_unit.get(unit, by_pairs if 'setting' in claim else by_rounds)(claim, e, report)


def by_seeds(claim, e, report):
    """Of paired seeds; settings that only read the weights of another one are left out."""
    for (experiment, scale, setting), comparisons in report.comparisons.items():
        c = comparisons.get((claim['arm'], claim['against'])) if experiment == e.name else None
        if c and not e.settings[setting].get('evaluate'):
            yield seeds_finding(claim, c, scale, e.label(setting), report.struck.get((e.name, scale)))


def seeds_finding(claim, c, scale, where, struck=None):
    """The finding of a comparison; `struck` is why its runs have no verdict."""
    verdict = Verdict(STRUCK, struck) if struck else judge_seeds(c, claim, scale)
    spread = f'+- {c.half_width:.4f} ({c.pairs} paired seeds{c.lost})' if c.pairs > 1 else '(one pair)'
    ours = f'{c.mean:+.4f} {spread}' if c.pairs else 'no pair'
    return Finding(claim, scale, where, c, ours, verdict)


def by_rounds(claim, e, report):
    """Of interleaved rounds, whose ratios are all to the baseline."""
    column, timed = RATIOS[claim['unit']], report.timed
    timed = timed[(timed.experiment == e.name) & (timed.arm == claim['arm'])].dropna(subset=column)
    for (scale, setting), own in timed.groupby(['scale', 'setting'], sort=False):
        ratios = Ratios(*median_interval(own[column]), len(own))
        yield ratio_finding(claim, ratios, scale, f'{e.label(setting)}, {len(own)} interleaved rounds')


def by_pairs(claim, e, report):
    """Of pairs of seeds: the mean logarithm of the ratio of two results with Student's interval."""
    ratio_of = steps_to_loss if claim['unit'] == TO_LOSS else peak_bytes
    for (scale, setting), own in groups(claim, e, report):
        pairs = own.pivot(index='seed', columns='arm', values='record').reindex(columns=[claim['arm'], claim['against']]).dropna()
        logs = [math.log(ratio) for arm, base in pairs.values if (ratio := ratio_of(arm['result'], base['result']))]
        if len(logs) < 2: continue
        low, middle, high = map(math.exp, stats.student(logs))
        ratios = Ratios(middle, low, high, 1 - stats.ALPHA, len(logs))
        yield ratio_finding(claim, ratios, scale, f'{e.label(setting) or e.title}, {len(logs)} paired seeds')


def by_cards(claim, report):
    """Of whole steps on GPUs, one median each: as wide as two measurements of one program on one card are apart."""
    noise = report.analysis['card_noise']
    for gpu, (_, steps) in report.cards.items():
        if not {claim['arm'], claim['against']} <= set(steps): continue
        ratio = steps[claim['arm']] / steps[claim['against']]
        ratios = Ratios(ratio, ratio / (1 + noise), ratio * (1 + noise), 1.0, 1)
        yield ratio_finding(claim, ratios, 'medium', f'{gpu}, 134M parameters, rows of 1,024, one median each')


def by_collapse(claim, e, report):
    """Of entropies at the end of runs: how many of the arms of the claim collapse, and how many of those against it (Fisher's test)."""
    for (scale, setting), own in groups(claim, e, report):
        ends = {arm: [r['entropy'][-1][1] for r in of.record.map(lambda record: record['result']) if r.get('entropy')]
                for arm, of in own.groupby('arm')}
        with_it, without = ([end for arm in claim[side].split() for end in ends.get(arm, [])] for side in ('arm', 'against'))
        if not with_it or not without: continue
        (a, n), (b, m) = ((sum(end < COLLAPSED for end in side), len(side)) for side in (with_it, without))
        p, never = float(scipy.fisher_exact([[a, n - a], [b, m - b]]).pvalue), lambda margin: False
        verdict = judge(claim['number'], claim['tolerance'], scale, (a / n - b / m,) * 3, p < stats.ALPHA, never, f'p {p:.2g}')
        words = (f'{b} of {m} collapse without ({min(without):.2f} to {max(without):.2f} nats at the end), '
                 f'{a} of {n} with ({min(with_it):.2f} to {max(with_it):.2f}), p {p:.2g}')
        yield Finding(claim, scale, e.label(setting), None, words, verdict)


def by_signs(claim, e, report):
    """Of settings that read weights otherwise than they were trained: in how many runs the loss grows by more than the tolerance, and a
    sign test and a Wilcoxon test of all, as the sizes are skewed."""
    settings = claim['setting'].split()
    for scale in dict.fromkeys(scale for experiment, scale, setting in report.comparisons if experiment == e.name):
        pairs = [report.comparisons.get((e.name, scale, setting), {}).get((claim['arm'], claim['against'])) for setting in settings]
        d = pd.concat([c.differences for c in pairs if c] or [pd.Series(dtype=float)])
        if d.empty: continue
        breaks, c = int((d > claim['tolerance']).sum()), stats.Comparison(d.reset_index(drop=True), [], [])
        within = lambda margin: (d.abs() < margin).all()
        most = c.sign_p < stats.ALPHA and breaks > len(d) / 2
        verdict = judge(claim['number'], claim['tolerance'], scale, (d.median(),) * 3, most, within, f'sign test, p {c.sign_p:.2g}')
        words = f'{breaks} of {len(d)} break ({d.min():+.4f} to {d.max():+.4f} nats), p {c.sign_p:.2g}, Wilcoxon {c.rank_p:.2g}'
        yield Finding(claim, scale, ', '.join(map(e.label, settings)), None, words, verdict)


def by_level(claim, e, report):
    """Of the last value of a curve, mean over seeds."""
    for (scale, setting), own in groups(claim, e, report):
        curves = [record['result'].get(MASS[claim['unit']]) for record in own.record[own.arm == claim['arm']]]
        ends = [curve[-1][1] for curve in curves if curve]
        if not ends: continue
        low, middle, high = stats.student(ends)
        level = Ratios(middle, low, high, 1 - stats.ALPHA, len(ends))
        yield ratio_finding(claim, level, scale, f'{len(ends)} seeds', judge_level(level, claim))


def groups(claim, e, report):
    """((scale, setting), sound runs) of a claim's experiment, in the setting that it names or in all that train."""
    runs = report.trained[(report.trained.experiment == e.name) & (report.trained.event == 'done')]
    chosen = [setting for setting, table in e.settings.items() if not table.get('evaluate') and claim.get('setting', setting) == setting]
    return runs[runs.setting.isin(chosen)].groupby(['scale', 'setting'], sort=False)


def peak_bytes(arm, base):
    return arm['peak_bytes'] / base['peak_bytes'] if arm.get('peak_bytes') and base.get('peak_bytes') else None


def steps_to_loss(arm, base):
    """Steps at which the arm's validation loss, interpolated, is the baseline's last one, over the baseline's; None if it never is."""
    if not arm.get('validation') or not base.get('validation'): return None
    steps, losses = zip(*((step, loss) for step, _, loss, _ in arm['validation']))
    last, _, goal, _ = base['validation'][-1]
    behind = next((k for k, loss in enumerate(losses) if loss <= goal), 0)
    if not behind: return None
    return float(numpy.interp(-goal, [-losses[behind - 1], -losses[behind]], steps[behind - 1:behind + 1])) / last


def ratio_finding(claim, ratios, scale, where, verdict=None):
    """The finding of a number with an interval; `where` are the rows, the text or the seeds that it was measured with."""
    ours = f'{ratios.middle:.3f}, from {ratios.low:.3f} to {ratios.high:.3f}'
    return Finding(claim, scale, where, ratios, ours, verdict or judge_ratio(ratios, claim, scale))
