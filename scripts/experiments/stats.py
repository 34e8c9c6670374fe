"""Paired comparisons of runs: differences by seed, arm minus baseline, in nats of validation loss.

Initialisation and data order depend on the seed alone, so runs of two arms with one seed are a pair. Comparisons have Student's
intervals, p values with Holm's correction over the arms of a table, two one-sided tests (TOST) of a difference that is small, and
a sign test and Wilcoxon's signed-rank test for differences of skewed sizes. Learning times are not paired: a run may end before it
has learnt.
"""
import functools
import math
from dataclasses import dataclass

import numpy
import pandas as pd
from scipy import stats as scipy
from statsmodels.duration.survfunc import survdiff
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW

from turns import median_interval

ALPHA, POWER = 0.05, 0.8
SHRINKS = 0.8   # a difference below this share of the one at half of the tokens is still shrinking


@dataclass
class Comparison:
    """Differences by seed of one arm against its baseline, and their statistics: the 95% interval from `low` to `high`, p of a true
    difference of 0 (two-sided), and `adjusted`, which is p until Holm's correction."""
    differences: pd.Series            # arm - baseline, of sound pairs
    unpaired: list                    # seeds that one of the two lacks
    diverged: list                    # seeds at which one of the two diverged
    p: float = math.nan
    correlation: float = math.nan     # of the two arms over seeds: above 1/2 pairs have narrower intervals than unpaired runs
    half: float = math.nan            # mean difference of the same pairs at half of the tokens
    identical: bool = False           # every pair has equal weights hashes

    def __post_init__(self):
        d = self.differences = pd.Series(self.differences, dtype=float)
        self.pairs, self.sd = len(d), float(d.std())
        self.low, self.mean, self.high = student(d) if self.pairs else (math.nan,) * 3
        self.half_width = self.high - self.mean
        # Differences that are all equal leave no doubt either way.
        if self.pairs >= 2: self.p = float(scipy.ttest_1samp(d, 0).pvalue) if d.nunique() > 1 else float(d.iloc[0] == 0)
        self.adjusted = self.p

    @property
    def sign_p(self):
        """p of the sign test, which outliers do not move: as many differences above 0 as below."""
        d = self.differences[self.differences != 0]
        return float(scipy.binomtest(int((d > 0).sum()), len(d)).pvalue) if len(d) else math.nan

    @property
    def rank_p(self):
        """p of Wilcoxon's signed-rank test: ranks of sizes count, outliers do not; differences of 0 are left out."""
        d = self.differences[self.differences != 0]
        return float(scipy.wilcoxon(d).pvalue) if len(d) else math.nan

    @property
    def detectable(self):
        """The smallest true difference that so many seeds see; None for one pair or two arms that compute the same."""
        return smallest_detectable(self.pairs, self.sd) if self.pairs >= 2 and self.sd > 0 else None

    @property
    def shrinks(self):
        """Whether the difference still shrinks at the end of the runs."""
        return abs(self.mean) < SHRINKS * abs(self.half)

    @property
    def lost(self):
        """Why pairs are missing, as the end of a sentence."""
        words = f', {len(self.diverged)} diverged (seed {", ".join(map(str, self.diverged))})' if self.diverged else ''
        return words + (f', seed {", ".join(map(str, self.unpaired))} has no partner' if self.unpaired else '')


def student(values):
    """(low, mean, high) of Student's 95% interval; of one value the mean alone."""
    values, n = numpy.asarray(values, float), len(values)
    half = float(scipy.t.ppf(1 - ALPHA / 2, n - 1) * values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return float(values.mean()) - half, float(values.mean()), float(values.mean()) + half


def compare(arm, baseline):
    """Pair two arms, each seed -> loss. A loss that is None, NaN or infinite is a diverged run and makes no pair."""
    arm, baseline = (pd.Series(losses, dtype=float).replace([math.inf, -math.inf], math.nan) for losses in (arm, baseline))
    both = (arm - baseline)[sorted(arm.index.intersection(baseline.index))]
    sound = both.dropna()
    a, b = arm[sound.index], baseline[sound.index]
    correlation = float(a.corr(b)) if len(sound) > 2 and a.nunique() > 1 < b.nunique() else math.nan
    return Comparison(sound, list(arm.index.symmetric_difference(baseline.index)), list(both.index.difference(sound.index)),
                      correlation=correlation)


def adjust(comparisons):
    """Holm over the arms of one table: sets `adjusted` of every comparison that was tested, which two equal programs are not."""
    for c in comparisons: c.adjusted = math.nan if c.identical else c.p
    tested = [c for c in comparisons if not math.isnan(c.adjusted)]
    if not tested: return
    for comparison, p in zip(tested, multipletests([c.p for c in tested], method='holm')[1]): comparison.adjusted = float(p)


@dataclass
class Learning:
    """Steps until the runs of an arm have learnt a task, by seed, infinite for runs that end after `horizon` steps without: their median
    with an interval of order statistics, which such runs leave exact, as all have one length; p of the log-rank test against the
    baseline, and `adjusted`, which is p until Holm's correction."""
    steps: pd.Series
    horizon: int
    factor: float = 1.0     # of the scale's rate
    p: float = math.nan
    identical: bool = False

    def __post_init__(self):
        self.learnt, self.adjusted = int((self.steps < math.inf).sum()), self.p
        self.median, self.low, self.high, self.coverage = median_interval(self.steps)


def logrank_p(one, other, horizon):
    """p of equal learning times of two arms (log-rank test); NaN where no run has learnt."""
    times = pd.concat([one, other]).to_numpy(float)
    learnt = times < math.inf
    if not learnt.any(): return math.nan
    if len(numpy.unique(times)) == 1: return 1.0
    return float(survdiff(times.clip(max=horizon), learnt.astype(int), numpy.repeat([0, 1], [len(one), len(other)]))[1])


def tost_p(differences, margin):
    """p of a true difference outside (-margin, margin): the larger of the two one-sided p values."""
    d = pd.Series(differences)
    if len(d) < 2: return math.nan
    if d.nunique() == 1: return float(abs(d.iloc[0]) >= margin)
    return float(DescrStatsW(d).ttost_mean(-margin, margin)[0])


def power_law(differences):
    """(a, half-width) of |difference| = c tokens^-a from `differences`, a column of seeds for each number of tokens: a is the negative
    slope of logarithms by least squares, seed by seed, with Student's 95% interval. None for one seed or a sign that changes."""
    if len(differences) < 2 or len(numpy.unique(numpy.sign(differences))) > 1: return None
    x = numpy.log(numpy.asarray(differences.columns, dtype=float))
    slopes = -numpy.polyfit(x, numpy.log(numpy.abs(differences.to_numpy())).T, 1)[0]
    _, middle, high = student(slopes)
    return middle, high - middle


@functools.cache
def smallest_detectable(n, sd):
    """The true difference that a paired t test over n seeds with this sd sees with probability POWER; infinite for fewer than two.
    One-sided at ALPHA / 2: a two-sided test adds less than 1e-6, from a tail that scipy's noncentral t often gives as NaN."""
    if n < 2: return math.inf
    return sd * float(TTestPower().solve_power(nobs=n, alpha=ALPHA / 2, power=POWER, alternative='larger')) if sd else 0.0
