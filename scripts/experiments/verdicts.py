"""Published numbers (claims.toml), and what a ledger's runs permit to say about each.

    verdict at scale paper              when
    reproduced                          the difference is not 0, and the interval contains the claim
    weaker, stronger                    it has the claim's sign, and the interval excludes the claim
    contradicted                        it has the other sign, or lies within +- a quarter of the claim (TOST)
    unresolved                          none of these

At other scales the model is not the paper's, and the verdict is "same sign", "opposite sign" or "unresolved". Ratios of times and of
bytes come from interleaved rounds; the same rules apply to their logarithms.
"""
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import stats
from packages import HERE, Refused
from turns import median_interval

KEYS = {'id', 'unit', 'experiment', 'arm', 'against', 'number', 'tolerance', 'document', 'section', 'read'}
NATS = 'nats'
RATIOS = {'ratio of step time': 'step_ratio', 'ratio of bytes': 'bytes_ratio', 'ratio of keys read': 'pairs_read'}   # unit: column
SAME, OPPOSITE, UNRESOLVED = 'same sign', 'opposite sign', 'unresolved'
REPRODUCED, WEAKER, STRONGER, CONTRADICTED = 'reproduced', 'weaker', 'stronger', 'contradicted'


def read_claims(path=HERE / 'claims.toml'):
    """(analysis, claims) as written down before the runs; refuses unknown and missing keys."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding='utf-8'))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f'{path}: cannot be read: {error}') from error
    for claim in table.get('claims', []):
        name = f'{path}: claim {claim.get("id", "without id")}'
        if odd := set(claim) ^ KEYS: raise Refused(f'{name}: unknown or missing: {", ".join(sorted(odd))}')
        if claim['unit'] not in (NATS, *RATIOS):
            raise Refused(f'{name}: unknown unit {claim["unit"]}; there are: {", ".join([NATS, *RATIOS])}')
    return table['analysis'], table['claims']


class Ratios(NamedTuple):
    """Arm over baseline in interleaved rounds: the median, and the interval of order statistics that covers it."""
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


@dataclass
class Finding:
    """A claim, and the verdict of the runs of one scale in one setting."""
    claim: dict
    scale: str
    setting: str
    found: stats.Comparison | Ratios
    verdict: Verdict
    line: str
    seeds: int    # of the plan at this scale


def judge_seeds(comparison, claim, scale):
    """The verdict of paired seeds on a claim in nats. stats.adjust() comes first."""
    c = comparison
    if c.pairs < 2: return Verdict(UNRESOLVED, f'{"one pair" if c.pairs else "no pair"} of seeds{c.lost}')
    if c.mean == c.sd == 0: why = 'the two compute the same numbers'
    else: why = 'the interval contains 0' if c.p >= stats.ALPHA else "after Holm's correction"
    within = lambda margin: stats.tost_p(c.differences, margin) < stats.ALPHA
    return judge(claim['number'], claim['tolerance'], scale, (c.low, c.mean, c.high), c.adjusted < stats.ALPHA, within, why)


def judge_ratio(ratios, claim, scale):
    """The verdict of a ratio, which is 1 where there is no difference."""
    if ratios.coverage < 1 - stats.ALPHA:
        return Verdict(UNRESOLVED, f'{ratios.rounds} round{"s" * (ratios.rounds > 1)}, and 95% needs six')
    number, low, middle, high = map(math.log, (claim['number'], ratios.low, ratios.middle, ratios.high))
    within = lambda margin: max(-low, high) < margin
    return judge(number, claim['tolerance'] / claim['number'], scale, (low, middle, high), low > 0 or high < 0, within,
                 'the interval contains 1')


def judge(number, tolerance, scale, interval, different, within, why_not):
    """The rules at the top of this file. `interval` is (low, middle, high); tests say `different`, from 0, and within(margin)."""
    low, middle, high = interval
    margin = abs(number) / 4 if number else tolerance   # the largest difference that counts as none
    if scale != 'paper':
        if number == 0: return Verdict(UNRESOLVED, 'the claim is 0 and has no sign')
        return Verdict(SAME if middle * number > 0 else OPPOSITE) if different else Verdict(UNRESOLVED, why_not)
    if number == 0:
        if within(margin): return Verdict(REPRODUCED, f'within +-{margin:g}')
        return Verdict(CONTRADICTED, 'not 0') if different else Verdict(UNRESOLVED, f'not shown to be within +-{margin:g}')
    if within(margin): return Verdict(CONTRADICTED, 'within a quarter of the claim')
    if not different: return Verdict(UNRESOLVED, why_not)
    if middle * number < 0: return Verdict(CONTRADICTED, 'the other sign')
    if low - tolerance <= number <= high + tolerance: return Verdict(REPRODUCED)
    return Verdict(WEAKER if abs(middle) < abs(number) else STRONGER)


def tell(published, ours, verdict, scale):
    """The claim, the measurement, the verdict."""
    because = f' ({verdict.reason})' if verdict.reason else ''
    return f'{published}; {ours}: {verdict.word}{"" if scale == "paper" else f" at scale {scale}"}{because}.'


def tell_seeds(claim, name, comparison, verdict, scale, rates):
    """One sentence on a claim in nats."""
    c, published = comparison, f'{claim["document"]} says {name} {claim["number"]:+.3f} nats'
    if c.pairs < 2: return f'{published}; unresolved{"" if scale == "paper" else f" at scale {scale}"}: {verdict.reason}.'
    ours = f'ours {c.mean:+.3f} +- {c.half_width:.3f} ({c.pairs} paired seeds, {rates}{c.lost})'
    seen = f' Smallest difference that so many seeds see: {c.detectable:.3f}.' if c.detectable else ''
    return tell(published, ours, verdict, scale) + seen


def tell_ratio(claim, name, ratios, verdict, scale, where):
    """The same sentence of a ratio; `where` are the rows or the text that it was measured with."""
    ours = f'ours {ratios.middle:.3f}, from {ratios.low:.3f} to {ratios.high:.3f} ({where}, {ratios.rounds} interleaved rounds)'
    return tell(f'{claim["document"]} says {name} {claim["number"]:.3f}, {claim["unit"]}', ours, verdict, scale)


def find(claims, report):
    """Findings of every claim, one for each setting with runs of both arms: from paired seeds for nats, else from interleaved
    rounds, whose ratios are all to the baseline."""
    for claim in claims:
        e, arm, against = report.experiments.get(claim['experiment']), claim['arm'], claim['against']
        if e is None: continue
        name = arm + ('' if against == e.baseline else f' against {against}')
        if claim['unit'] == NATS:
            for (experiment, scale, setting), comparisons in report.comparisons.items():
                if experiment != e.name or (arm, against) not in comparisons: continue
                c = comparisons[arm, against]
                verdict = judge_seeds(c, claim, scale)
                line = tell_seeds(claim, name, c, verdict, scale, 'each arm at its best rate' if e.sweep else 'one rate for all')
                yield Finding(claim, scale, setting, c, verdict, line, e.settings[setting].get('seeds', e.scales[scale]['seeds']))
        elif against == e.baseline:
            timed = report.timed[(report.timed.experiment == e.name) & (report.timed.arm == arm)]
            for (scale, setting), own in timed.dropna(subset=RATIOS[claim['unit']]).groupby(['scale', 'setting'], sort=False):
                found = Ratios(*median_interval(own[RATIOS[claim['unit']]]), len(own))
                verdict = judge_ratio(found, claim, scale)
                line = tell_ratio(claim, name, found, verdict, scale, e.label(setting))
                yield Finding(claim, scale, setting, found, verdict, line, e.scales[scale]['seeds'])
