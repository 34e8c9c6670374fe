"""Paired comparisons of runs, and what may be said about a published difference.

Initialisation and order of the data depend on the seed alone, so runs of two arms with one seed are a pair: all that is analysed is
the differences by seed, arm minus baseline, in nats of validation loss. Intervals are Student's; the p values of one table's arms
are corrected by Holm; that an effect is too small to matter is shown by two one-sided tests (TOST) against a quarter of the claim.

    verdict at scale paper              when
    reproduced                          the difference is not 0, and the interval contains the claim
    weaker, stronger                    it has the claim's sign, and the interval excludes the claim
    contradicted                        it has the other sign, or lies within +- a quarter of the claim (TOST)
    unresolved                          none of these

At every other scale the model is not the paper's, and a line says no more than "same sign", "opposite sign" or "unresolved".
Ratios of times and of bytes come from rounds by turns; their logarithms are judged by the same rules.
"""
import functools
import math
from dataclasses import dataclass, field

from packages import require

require('numpy', 'scipy')
import numpy as np                                                    # noqa: E402
from scipy import optimize, stats                                     # noqa: E402

ALPHA, POWER = 0.05, 0.8
SAME, OPPOSITE, UNRESOLVED = 'same sign', 'opposite sign', 'unresolved'
REPRODUCED, WEAKER, STRONGER, CONTRADICTED = 'reproduced', 'weaker', 'stronger', 'contradicted'


@dataclass
class Claim:
    """A published difference: `number` is arm minus baseline in nats or, of other units, arm over baseline; `tolerance` is what
    rounding in the paper leaves open."""
    id: str
    number: float
    tolerance: float = 0.0
    document: str = ''
    unit: str = 'nats'


@dataclass
class Comparison:
    """Differences by seed of one arm against its baseline, and what follows from them."""
    differences: dict                                # seed -> arm - baseline
    unpaired: list = field(default_factory=list)     # seeds that one of the two has not
    diverged: list = field(default_factory=list)     # seeds at which one of the two diverged
    mean: float = math.nan
    sd: float = math.nan
    half_width: float = math.nan                     # of the 95% interval
    p: float = math.nan                              # two-sided, of a difference of 0
    adjusted: float = math.nan                       # the same after Holm

    @property
    def pairs(self):
        return len(self.differences)

    @property
    def low(self):
        return self.mean - self.half_width

    @property
    def high(self):
        return self.mean + self.half_width


@dataclass
class Ratios:
    """Arm over baseline in rounds by turns: their median, and the interval of order statistics that covers it."""
    middle: float
    low: float
    high: float
    coverage: float
    rounds: int


def compare(arm, baseline):
    """Pairs up two arms, each seed -> loss; a loss that is None, NaN or infinite is a run that diverged, and makes no pair."""
    finite = lambda loss: loss is not None and math.isfinite(loss)
    both = sorted(set(arm) & set(baseline))
    found = Comparison(differences={s: arm[s] - baseline[s] for s in both if finite(arm[s]) and finite(baseline[s])},
                       unpaired=sorted(set(arm) ^ set(baseline)),
                       diverged=[s for s in both if not (finite(arm[s]) and finite(baseline[s]))])
    d = np.array(list(found.differences.values()))
    if len(d):
        found.mean = float(d.mean())
    if len(d) >= 2:
        found.sd = float(d.std(ddof=1))
        found.half_width = half_width(len(d), found.sd)
        found.p = two_sided_p(found.mean, found.sd, len(d))
        found.adjusted = found.p
    return found


def half_width(n, sd, level=1 - ALPHA):
    """Of the t interval of a mean over n differences."""
    return float(stats.t.ppf((1 + level) / 2, n - 1) * sd / math.sqrt(n))


def two_sided_p(mean, sd, n):
    """That the true difference is 0. Differences that are all equal leave no doubt either way."""
    if sd == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) * math.sqrt(n) / sd, n - 1))


def tost_p(mean, sd, n, margin):
    """That the true difference is outside (-margin, margin): the larger of the two one-sided p values."""
    if n < 2:
        return math.nan
    if sd == 0:
        return 0.0 if abs(mean) < margin else 1.0
    error = sd / math.sqrt(n)
    return float(max(stats.t.sf((mean + margin) / error, n - 1), stats.t.cdf((mean - margin) / error, n - 1)))


def holm(p_values):
    """Adjusted p values in the order given; those that are NaN were not tested and do not count."""
    tested = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[i] = largest
    return adjusted


def adjust(comparisons):
    """Holm over the arms of one table: sets `adjusted` of each comparison."""
    for comparison, p in zip(comparisons, holm([c.p for c in comparisons])):
        comparison.adjusted = p


# ------------------------------------------------------------------------------------------------------------------ power

@functools.cache
def chi(n, points=2000):
    """sd found over sd true of n numbers, at evenly spaced quantiles: means over it are expectations."""
    return np.sqrt(stats.chi2.ppf((np.arange(points) + 0.5) / points, n - 1) / (n - 1))


def found_sds(sd, n):
    return sd * chi(n)


def power_of_test(difference, sd, n, alpha=ALPHA):
    """That a paired t test over n seeds sees a true difference. (scipy's noncentral t is NaN for two seeds.)"""
    needed = stats.t.ppf(1 - alpha / 2, n - 1) * found_sds(1.0, n)
    noncentral = difference * math.sqrt(n) / sd
    return float(np.mean(stats.norm.cdf(noncentral - needed) + stats.norm.cdf(-noncentral - needed)))


def smallest_detectable(n, sd, power=POWER, alpha=ALPHA):
    """The true difference that n pairs with this sd see with this probability; infinite for fewer than two pairs."""
    if n < 2:
        return math.inf
    if sd == 0:
        return 0.0
    most = 1.0
    while power_of_test(most * sd, sd, n, alpha) < power:
        most *= 2
    return float(sd * optimize.brentq(lambda d: power_of_test(d * sd, sd, n, alpha) - power, 1e-9, most))


def detectable_of(comparison):
    """The same for what a comparison found; None where it says nothing: one pair, or two arms that compute the same."""
    return smallest_detectable(comparison.pairs, comparison.sd) if comparison.pairs >= 2 and comparison.sd > 0 else None


def power_of_tost(margin, sd, n, alpha=ALPHA):
    """That TOST shows a true difference of 0 to be within the margin: averaged over what sd may be found."""
    found = found_sds(sd, n)
    room = (margin - stats.t.ppf(1 - alpha, n - 1) * found / math.sqrt(n)) * math.sqrt(n) / sd
    return float(np.mean(np.where(room > 0, 2 * stats.norm.cdf(room) - 1, 0)))


def seeds_needed(reached, most=100000):
    """The smallest n >= 2 for which reached(n); None beyond `most`. `reached` must not become false again."""
    high = 2
    while not reached(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if reached(middle): high = middle
        else: low = middle
    return max(high, 2)


def seeds_to_detect(difference, sd, power=POWER):
    """Seeds from a pilot's sd: how many pairs see a difference of this size."""
    if sd == 0:
        return 2
    return seeds_needed(lambda n: n >= 2 and power_of_test(abs(difference), sd, n) >= power) if difference else None


def seeds_to_contradict(claim, sd, power=POWER):
    """How many pairs show by TOST that a true difference of 0 is within a quarter of the claim."""
    if sd == 0:
        return 2
    return seeds_needed(lambda n: n >= 2 and power_of_tost(abs(claim) / 4, sd, n) >= power) if claim else None


# --------------------------------------------------------------------------------------------------------------- verdicts

@dataclass
class Verdict:
    word: str
    reason: str = ''


def margin_of(claim):
    """What counts as no difference: a quarter of the claim, or of a claim of 0 its tolerance."""
    return abs(claim.number) / 4 if claim.number else claim.tolerance


def why_not_different(comparison):
    if comparison.mean == comparison.sd == 0: return 'the two compute the same numbers'
    return 'the interval contains 0' if comparison.p >= ALPHA else "after Holm's correction"


def verdict(comparison, claim, scale):
    """What this comparison says about the claim at this scale. Call adjust() over the table's comparisons before."""
    if comparison.pairs < 2:
        have = 'one pair of seeds' if comparison.pairs else 'no pair of seeds'
        return Verdict(UNRESOLVED, f'{have}{lost_pairs(comparison)}')
    return judged(claim, scale, (comparison.low, comparison.mean, comparison.high), comparison.adjusted < ALPHA,
                  tost_p(comparison.mean, comparison.sd, comparison.pairs, margin_of(claim)) < ALPHA, why_not_different(comparison))


def ratio_verdict(ratios, claim, scale):
    """The same of a ratio, which is 1 where there is no difference."""
    if ratios.coverage < 1 - ALPHA:
        return Verdict(UNRESOLVED, f'{ratios.rounds} round{"s" * (ratios.rounds > 1)}, and 95% needs six')
    of = Claim(claim.id, math.log(claim.number), claim.tolerance / claim.number)
    low, middle, high = map(math.log, (ratios.low, ratios.middle, ratios.high))
    return judged(of, scale, (low, middle, high), low > 0 or high < 0, max(-low, high) < margin_of(of), 'the interval contains 1')


def judged(claim, scale, interval, different, small, why_not):
    """The rules at the top of this file. `interval` is (low, middle, high); `different` from 0 and `small`, within a quarter of the
    claim, are tests' answers."""
    low, middle, high = interval
    if scale != 'paper':
        if claim.number == 0: return Verdict(UNRESOLVED, 'the claim is 0 and has no sign')
        if not different: return Verdict(UNRESOLVED, why_not)
        return Verdict(SAME if middle * claim.number > 0 else OPPOSITE)
    if claim.number == 0:
        if small: return Verdict(REPRODUCED, f'within +-{margin_of(claim):g}')
        return Verdict(CONTRADICTED, 'not 0') if different else Verdict(UNRESOLVED, f'not shown to be within +-{margin_of(claim):g}')
    if small: return Verdict(CONTRADICTED, 'within a quarter of the claim')
    if not different: return Verdict(UNRESOLVED, why_not)
    if middle * claim.number < 0: return Verdict(CONTRADICTED, 'the other sign')
    if low - claim.tolerance <= claim.number <= high + claim.tolerance: return Verdict(REPRODUCED)
    return Verdict(WEAKER if abs(middle) < abs(claim.number) else STRONGER)


def lost_pairs(comparison):
    """Why pairs are missing, as the end of a sentence."""
    words = ''
    if comparison.diverged:
        words += f', {len(comparison.diverged)} diverged (seed {", ".join(map(str, comparison.diverged))})'
    if comparison.unpaired:
        words += f', seed {", ".join(map(str, comparison.unpaired))} has no partner'
    return words


def line(claim, name, comparison, scale, rates='each arm at its best rate'):
    """One sentence: what the paper says, what we found, the verdict."""
    said = verdict(comparison, claim, scale)
    begin = f'{claim.document} says {name} {claim.number:+.3f} nats; '
    at_scale = '' if scale == 'paper' else f' at scale {scale}'
    because = f' ({said.reason})' if said.reason else ''
    if comparison.pairs < 2:
        return f'{begin}unresolved{at_scale}: {said.reason}.'
    seen = detectable_of(comparison)
    return (f'{begin}ours {comparison.mean:+.3f} +- {comparison.half_width:.3f} ({comparison.pairs} paired seeds, '
            f'{rates}{lost_pairs(comparison)}): {said.word}{at_scale}{because}.'
            + (f' Smallest difference that so many seeds see: {seen:.3f}.' if seen else ''))


def ratio_line(claim, name, ratios, scale, where):
    """The same sentence of a ratio; `where` are the rows or the text that it was measured with."""
    said = ratio_verdict(ratios, claim, scale)
    at_scale = '' if scale == 'paper' else f' at scale {scale}'
    because = f' ({said.reason})' if said.reason else ''
    return (f'{claim.document} says {name} {claim.number:.3f}, {claim.unit}; ours {ratios.middle:.3f}, from {ratios.low:.3f} to '
            f'{ratios.high:.3f} ({where}, {ratios.rounds} rounds by turns): {said.word}{at_scale}{because}.')
