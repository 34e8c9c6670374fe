"""Paired comparisons of runs, and what they permit to say about a published difference.

Initialisation and data order depend on the seed alone, so runs of two arms with one seed are a pair. Analysed are the differences by
seed, arm minus baseline, in nats of validation loss: Student's intervals, p values with Holm's correction over the arms of a table, and
two one-sided tests (TOST) against a quarter of the claim.

    verdict at scale paper              when
    reproduced                          the difference is not 0, and the interval contains the claim
    weaker, stronger                    it has the claim's sign, and the interval excludes the claim
    contradicted                        it has the other sign, or lies within +- a quarter of the claim (TOST)
    unresolved                          none of these

At other scales the model is not the paper's, and the verdict is "same sign", "opposite sign" or "unresolved". Ratios of times and of
bytes come from interleaved rounds; the same rules apply to their logarithms.
"""
import bisect
import functools
import math
from dataclasses import dataclass, field

from packages import require

require('numpy', 'scipy', 'statsmodels')
import numpy as np                                                    # noqa: E402
from scipy import stats as scipy                                      # noqa: E402
from statsmodels.stats.multitest import multipletests                 # noqa: E402
from statsmodels.stats.power import TTestPower                        # noqa: E402

ALPHA, POWER = 0.05, 0.8
SAME, OPPOSITE, UNRESOLVED = 'same sign', 'opposite sign', 'unresolved'
REPRODUCED, WEAKER, STRONGER, CONTRADICTED = 'reproduced', 'weaker', 'stronger', 'contradicted'


@dataclass
class Claim:
    """A published difference: `number` is arm minus baseline in nats or, in other units, arm over baseline; `tolerance` is the rounding
    in the paper."""
    id: str
    number: float
    tolerance: float = 0.0
    document: str = ''
    unit: str = 'nats'

    @property
    def margin(self):
        """The largest difference that counts as none."""
        return abs(self.number) / 4 if self.number else self.tolerance


@dataclass
class Comparison:
    """Differences by seed of one arm against its baseline, and their statistics."""
    differences: dict                                # seed -> arm - baseline
    unpaired: list = field(default_factory=list)     # seeds that one of the two lacks
    diverged: list = field(default_factory=list)     # seeds at which one of the two diverged
    mean: float = math.nan
    sd: float = math.nan
    half_width: float = math.nan                     # of the 95% interval
    p: float = math.nan                              # two-sided, of a difference of 0
    adjusted: float = math.nan                       # p after Holm

    @property
    def pairs(self):
        return len(self.differences)

    @property
    def low(self):
        return self.mean - self.half_width

    @property
    def high(self):
        return self.mean + self.half_width

    @property
    def detectable(self):
        """The smallest true difference that so many seeds see; None for one pair or two arms that compute the same."""
        return smallest_detectable(self.pairs, self.sd) if self.pairs >= 2 and self.sd > 0 else None

    @property
    def lost(self):
        """Why pairs are missing, as the end of a sentence."""
        words = f', {len(self.diverged)} diverged (seed {", ".join(map(str, self.diverged))})' if self.diverged else ''
        return words + (f', seed {", ".join(map(str, self.unpaired))} has no partner' if self.unpaired else '')


@dataclass
class Ratios:
    """Arm over baseline in interleaved rounds: the median, and the interval of order statistics that covers it."""
    middle: float
    low: float
    high: float
    coverage: float
    rounds: int


@dataclass
class Verdict:
    word: str
    reason: str = ''

    def __str__(self):
        return self.word + (f': {self.reason}' if self.reason else '')


# ----------------------------------------------------------------------------------------------------------- comparisons

def compare(arm, baseline):
    """Pair two arms, each seed -> loss. A loss that is None, NaN or infinite is a diverged run and makes no pair."""
    finite = lambda loss: loss is not None and math.isfinite(loss)
    both = sorted(set(arm) & set(baseline))
    found = Comparison(differences={s: arm[s] - baseline[s] for s in both if finite(arm[s]) and finite(baseline[s])},
                       unpaired=sorted(set(arm) ^ set(baseline)),
                       diverged=[s for s in both if not (finite(arm[s]) and finite(baseline[s]))])
    d = np.array(list(found.differences.values()))
    if len(d): found.mean = float(d.mean())
    if len(d) >= 2:
        found.sd = float(d.std(ddof=1))
        found.half_width = float(scipy.t.ppf(1 - ALPHA / 2, len(d) - 1) * found.sd / math.sqrt(len(d)))
        # Differences that are all equal leave no doubt either way.
        found.p = found.adjusted = float(scipy.ttest_1samp(d, 0).pvalue) if np.ptp(d) else float(d[0] == 0)
    return found


def tost_p(differences, margin):
    """p of a true difference outside (-margin, margin): the larger of the two one-sided p values."""
    d = np.array(list(differences))
    if len(d) < 2: return math.nan
    if np.ptp(d) == 0: return float(abs(d[0]) >= margin)
    below, above = scipy.ttest_1samp(d, margin, alternative='less'), scipy.ttest_1samp(d, -margin, alternative='greater')
    return float(max(below.pvalue, above.pvalue))


def adjust(comparisons):
    """Holm over the arms of one table: sets `adjusted` of every comparison that was tested."""
    tested = [c for c in comparisons if not math.isnan(c.p)]
    if not tested: return
    for comparison, p in zip(tested, multipletests([c.p for c in tested], method='holm')[1]): comparison.adjusted = float(p)


# ----------------------------------------------------------------------------------------------------------------- power

@functools.cache
def smallest_detectable(n, sd):
    """The true difference that a paired t test over n seeds with this sd sees with probability POWER; infinite for fewer than two.
    One-sided at ALPHA / 2: a two-sided test adds less than 1e-6, from a tail that scipy's noncentral t often gives as NaN."""
    if n < 2: return math.inf
    return sd * float(TTestPower().solve_power(nobs=n, alpha=ALPHA / 2, power=POWER, alternative='larger')) if sd else 0.0


def seeds_to_detect(difference, sd):
    """The number of pairs that see a difference of this size, from a pilot's sd; None for a difference of 0."""
    return fewest(lambda n: smallest_detectable(n, sd) <= abs(difference)) if difference else None


def power_of_tost(margin, sd, n):
    """The probability that TOST shows a true difference of 0 to be within the margin: the mean over the sds that n pairs may find."""
    found = sd * np.sqrt(scipy.chi2.ppf((np.arange(2000) + 0.5) / 2000, n - 1) / (n - 1))   # at evenly spaced quantiles
    room = margin * math.sqrt(n) / sd - scipy.t.ppf(1 - ALPHA, n - 1) * found / sd
    return float(np.mean(np.where(room > 0, 2 * scipy.norm.cdf(room) - 1, 0)))


def seeds_to_contradict(claim, sd):
    """The number of pairs that show by TOST that a true difference of 0 is within a quarter of the claim; None for a claim of 0."""
    return fewest(lambda n: power_of_tost(abs(claim) / 4, sd, n) >= POWER) if claim else None


def fewest(enough, most=100000):
    """The smallest number of pairs that is enough, as are all larger ones; None beyond `most`."""
    n = 2 + bisect.bisect_left(range(2, most), True, key=enough)
    return n if n < most else None


# -------------------------------------------------------------------------------------------------------------- verdicts

def verdict(comparison, claim, scale):
    """The verdict of a comparison on a claim at a scale. Call adjust() over the table's comparisons before."""
    c = comparison
    if c.pairs < 2: return Verdict(UNRESOLVED, f'{"one pair" if c.pairs else "no pair"} of seeds{c.lost}')
    if c.mean == c.sd == 0: why = 'the two compute the same numbers'
    else: why = 'the interval contains 0' if c.p >= ALPHA else "after Holm's correction"
    small = tost_p(c.differences.values(), claim.margin) < ALPHA
    return judged(claim, scale, (c.low, c.mean, c.high), c.adjusted < ALPHA, small, why)


def ratio_verdict(ratios, claim, scale):
    """The verdict of a ratio, which is 1 where there is no difference."""
    if ratios.coverage < 1 - ALPHA:
        return Verdict(UNRESOLVED, f'{ratios.rounds} round{"s" * (ratios.rounds > 1)}, and 95% needs six')
    of = Claim(claim.id, math.log(claim.number), claim.tolerance / claim.number)
    low, middle, high = map(math.log, (ratios.low, ratios.middle, ratios.high))
    return judged(of, scale, (low, middle, high), low > 0 or high < 0, max(-low, high) < of.margin, 'the interval contains 1')


def judged(claim, scale, interval, different, small, why_not):
    """The rules at the top of this file. `interval` is (low, middle, high). Tests decide `different`, from 0, and `small`, within a
    quarter of the claim."""
    low, middle, high = interval
    if scale != 'paper':
        if claim.number == 0: return Verdict(UNRESOLVED, 'the claim is 0 and has no sign')
        if not different: return Verdict(UNRESOLVED, why_not)
        return Verdict(SAME if middle * claim.number > 0 else OPPOSITE)
    if claim.number == 0:
        if small: return Verdict(REPRODUCED, f'within +-{claim.margin:g}')
        return Verdict(CONTRADICTED, 'not 0') if different else Verdict(UNRESOLVED, f'not shown to be within +-{claim.margin:g}')
    if small: return Verdict(CONTRADICTED, 'within a quarter of the claim')
    if not different: return Verdict(UNRESOLVED, why_not)
    if middle * claim.number < 0: return Verdict(CONTRADICTED, 'the other sign')
    if low - claim.tolerance <= claim.number <= high + claim.tolerance: return Verdict(REPRODUCED)
    return Verdict(WEAKER if abs(middle) < abs(claim.number) else STRONGER)


def sentence(published, ours, verdict, scale):
    """The claim, the measurement, the verdict."""
    because = f' ({verdict.reason})' if verdict.reason else ''
    return f'{published}; {ours}: {verdict.word}{"" if scale == "paper" else f" at scale {scale}"}{because}.'


def line(claim, name, comparison, scale, rates='each arm at its best rate'):
    """One sentence on a claim in nats."""
    c, found = comparison, verdict(comparison, claim, scale)
    published = f'{claim.document} says {name} {claim.number:+.3f} nats'
    if c.pairs < 2: return f'{published}; unresolved{"" if scale == "paper" else f" at scale {scale}"}: {found.reason}.'
    ours = f'ours {c.mean:+.3f} +- {c.half_width:.3f} ({c.pairs} paired seeds, {rates}{c.lost})'
    seen = f' Smallest difference that so many seeds see: {c.detectable:.3f}.' if c.detectable else ''
    return sentence(published, ours, found, scale) + seen


def ratio_line(claim, name, ratios, scale, where):
    """The same sentence of a ratio; `where` are the rows or the text that it was measured with."""
    ours = f'ours {ratios.middle:.3f}, from {ratios.low:.3f} to {ratios.high:.3f} ({where}, {ratios.rounds} interleaved rounds)'
    return sentence(f'{claim.document} says {name} {claim.number:.3f}, {claim.unit}', ours, ratio_verdict(ratios, claim, scale), scale)
