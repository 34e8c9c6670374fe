"""scripts/experiments: statistics against scipy, simulations and planted logs; the ledger; results."""

import contextlib
import io
import json
import math
import random
import resource
import signal

from experiment_checks import check, close
import claims
import ledger
import numpy
import pandas as pd
import results
import stats
from packages import Refused
from scipy import integrate
from scipy import stats as reference
from statsmodels.duration.survfunc import SurvfuncRight


# ------------------------------------------------------------------------------------------------------------- statistics

def against_scipy():
    source = random.Random(5)
    for n in (2, 3, 5, 30):
        base = {s: source.gauss(3, 0.06) for s in range(n)}
        arm = {s: base[s] + source.gauss(0.02, 0.019) for s in base}
        c = stats.compare(arm, base)
        paired = reference.ttest_rel([arm[s] for s in base], [base[s] for s in base])
        interval = paired.confidence_interval()
        check(f'paired t test, {n} seeds',
              close(c.p, paired.pvalue) and close(c.low, interval.low, 1e-8) and close(c.high, interval.high, 1e-8))
        error = c.sd / math.sqrt(n)
        want = max(reference.t.sf((c.mean + 0.03) / error, n - 1), reference.t.cdf((c.mean - 0.03) / error, n - 1))
        check(f'TOST, {n} seeds', close(stats.tost_p(c.differences, 0.03), want, 1e-8))
    arms = [stats.Comparison({}, [], [], p=p) for p in (0.01, 0.04, math.nan, 0.03, 0.005)]
    stats.adjust(arms)
    found = [round(arm.adjusted, 6) for arm in arms]
    check('Holm', found[:2] + found[3:] == [0.03, 0.06, 0.06, 0.02] and math.isnan(found[2]), found)
    widths = [round(c.half_width / c.sd, 2) for c in (stats.compare(dict(enumerate(range(n))), dict.fromkeys(range(n), 0)) for n in (3, 5))]
    check('three seeds give a half-width of 2.48 sd, five 1.24', widths == [2.48, 1.24], widths)


def learning():
    """Steps until tasks are learnt: runs that never do are censored."""
    never, series = math.inf, lambda *values: pd.Series(values, range(1, len(values) + 1), dtype=float)
    samples = [series(*of) for of in ((50, 20, 40, 30, 10), (30, never, 20, 40, never), (never, 10, never, 20, never), (never,) * 5)]
    found = [(one.learnt, one.median, one.low, one.high) for one in (stats.Learning(sample, 100) for sample in samples)]
    check('medians and intervals of learning times, by hand', found == [
        (5, 30, 10, 50), (3, 40, 20, never), (2, never, 10, never), (0, never, never, never)], found)
    for sample in samples[:3]:
        curve, one = SurvfuncRight(sample.clip(upper=100), (sample < never).astype(int)), stats.Learning(sample, 100)
        with numpy.errstate(divide='ignore', invalid='ignore'): low, high = curve.quantile_ci(0.5)
        median = curve.quantile(0.5)
        median = never if math.isnan(median) else median
        check('and by Kaplan and Meier', (median, low, high) == (one.median, one.low, one.high), (median, low, high))
    # At 10, 20, 30, 40 and 50 one of 10 to 6 at risk learns: expected in the group that does 1/2, 4/9, 3/8, 2/7 and 1/6.
    shares = (1 / 2, 4 / 9, 3 / 8, 2 / 7, 1 / 6)
    squared = (5 - sum(shares)) ** 2 / sum(share * (1 - share) for share in shares)
    p = stats.logrank_p(samples[0], samples[3], 100)
    check('the log-rank test, by hand', close(p, reference.chi2.sf(squared, 1)), p)
    same = stats.logrank_p(series(20, 20), series(20, 20), 100)
    check('equal times leave no doubt, and none at all nothing to test', same == 1 and
          math.isnan(stats.logrank_p(samples[3], samples[3], 100)), same)


def power():
    n, sd = 5, 0.019
    smallest = stats.smallest_detectable(n, sd)
    draws = reference.norm.rvs(smallest, sd, size=(20000, n), random_state=7)
    seen = (reference.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean()
    check('a simulation sees the smallest detectable difference with probability 0.8', abs(seen - 0.8) < 0.01, seen)
    below = lambda t, shift: integrate.quad(   # the noncentral t without its tail that scipy gives as NaN
        lambda u: reference.chi2.pdf(u, 1) * reference.norm.sf(t * math.sqrt(u) - shift), 0, 60, limit=400)[0]
    found = below(reference.t.ppf(0.975, 1), stats.smallest_detectable(2, 1.0) * math.sqrt(2))
    check('and so it is for two seeds, by integration', close(found, 0.8, 1e-4), found)
    sizes = [stats.smallest_detectable(pairs, sd) for pairs in range(2, 130)]
    check('more seeds see less, at every number of them', sizes == sorted(sizes, reverse=True) and sizes[-1] > 0)
    check('one seed sees nothing', math.isinf(stats.smallest_detectable(1, sd)))


def planted_log(folder, losses, val_loss, vocab=512):
    """A run's log as the trainer writes it."""
    folder.mkdir(parents=True)
    config = {'event': 'config', 'step': 0, 'variant': 'x', 'parameters': 1, 'options': '', 'model': {'vocab_size': vocab}}
    steps = [{'step': n + 1, 'tokens': 64 * (n + 1), 'loss': loss, 'grad_norm': 1.0, 'lr': 1e-3, 'ms': 2.0}
             for n, loss in enumerate(losses)]
    end = [{'step': len(losses), 'val_loss': val_loss, 'val_bpb': None},
           {'event': 'done', 'step': len(losses), 'loss': losses[-1], 'val_loss': val_loss, 'weights_hash': 'ab', 'seconds': 1}]
    (folder / 'log.jsonl').write_text('\n'.join(json.dumps(r) for r in [config, *steps, *end]) + '\n')
    return results.result_of(folder)


def line_of(claim, comparison, scale):
    return claims.seeds_finding(claim, comparison, scale, '').line


CLAIM = {'number': -0.1, 'tolerance': 0, 'source': '002, table 1', 'unit': 'nats', 'arm': 'dsa', 'against': 'causal'}
NOISE = [0.004, -0.004, 0.002, -0.002, 0.0]


def planted_verdicts(work):
    """Logs whose differences are known, through results.py to the verdict."""
    for number, (want, shift, scale) in enumerate((
            ('reproduced', -0.1, 'paper'), ('weaker', -0.06, 'paper'), ('stronger', -0.2, 'paper'), ('contradicted', 0.1, 'paper'),
            ('contradicted', 0.003, 'paper'), ('contradicted', -0.01, 'paper'), ('same sign', -0.01, 'reduced'),
            ('opposite sign', 0.1, 'medium'), ('equivalent to 0', 0.001, 'reduced'))):
        logged = lambda arm, more: {seed: planted_log(work / f'{number}{arm}{seed}', [6, 4], 3 + seed / 10 + more + n * bool(more))['val_loss']
                                    for seed, n in enumerate(NOISE, 1)}
        c = stats.compare(logged('a', shift), logged('b', 0))
        got = claims.judge_seeds(c, CLAIM, scale)
        check(f'planted logs, {shift:+g} against a claim of -0.1 at scale {scale}: {want}', got.word == want, got)
    wide = stats.compare({s: 3 + d for s, d in enumerate([0.3, -0.3, 0.2, -0.25])}, dict.fromkeys(range(4), 3.0))
    check('planted noise at scale paper: unresolved', claims.judge_seeds(wide, CLAIM, 'paper').word == 'unresolved')
    said = line_of(CLAIM, c, 'reduced')
    check('how a line reads', said == '002: dsa - causal, published -0.100; ours +0.0010 +- 0.0039 (5 paired seeds), scale reduced; '
          'equivalent to 0: within +-0.025.', said)


def edge_cases(work):
    claim, base = CLAIM, {1: 3.0, 2: 3.1, 3: 3.2}
    skewed = stats.compare(dict(enumerate([3.05, 0.15, 3.11, 0.54, 0.40, 0.06, 1.06, 0.32, 0.45, 1.25])), dict.fromkeys(range(10), 0.0))
    check('ten differences of one sign: p is 2 in 1,024, whatever their sizes', close(skewed.sign_p, 2 / 1024), skewed.sign_p)
    check('differences of 0 do not count for the sign', close(stats.compare({1: 1.0, 2: 2.0, 3: 1.0}, {1: 0.5, 2: 2.0, 3: 0.5}).sign_p, 0.5) and
          math.isnan(stats.compare({1: 1.0}, {1: 1.0}).sign_p))
    # Below 0 is rank 1 alone: 4 of 32 choices of signs are as far out.
    mixed = stats.Comparison([0.1, 0.2, 0.3, 0.4, -0.05, 0.0], [], [])
    check('Wilcoxon: ranks of sizes, without zeros', close(skewed.rank_p, 2 / 1024) and close(mixed.rank_p, 4 / 32) and
          close(mixed.sign_p, 12 / 32) and math.isnan(stats.compare({1: 1.0}, {1: 1.0}).rank_p), (mixed.rank_p, mixed.sign_p))
    tie = stats.compare(dict(base), base)
    check('arms that are equal to the bit', tie.mean == tie.half_width == 0
          and claims.judge_seeds(tie, claim, 'paper').word == 'contradicted'
          and claims.judge_seeds(tie, claim, 'reduced').word == 'equivalent to 0')
    transience(claim)
    missing = stats.compare({1: 2.9, 3: 3.1001}, base)
    check('a seed without a partner makes no pair',
          missing.pairs == 2 and missing.unpaired == [2] and 'seed 2 has no partner' in line_of(claim, missing, 'paper'))
    bad = planted_log(work / 'nan', [6, math.nan], None)
    check('a loss that is not finite is a diverged run', bad['val_loss'] is None and 'not finite' in bad['diverged'], bad)
    worse = planted_log(work / 'worse', [6, 9], 9.0)
    check('and so is one that is worse than guessing', 'worse than a guess' in worse['diverged'])
    check('a sound one is not', 'diverged' not in planted_log(work / 'sound', [6, 5], 5.0))
    diverged = stats.compare({1: 2.9, 2: bad['val_loss'], 3: 3.1001}, base)
    check('it is counted and out of the interval',
          diverged.pairs == 2 and diverged.diverged == [2] and '1 diverged (seed 2)' in line_of(claim, diverged, 'reduced'))
    evaluation(work / 'evaluation')
    one = stats.compare({1: 2.9}, {1: 3.0})
    got = claims.judge_seeds(one, claim, 'paper')
    check('one pair is unresolved, with the reason', got.word == 'unresolved' and got.reason == 'one pair of seeds' and math.isnan(one.p))
    check('and so is none', claims.judge_seeds(stats.compare({}, base), claim, 'paper').reason.startswith('no pair of seeds'))
    zero = {'number': 0.0, 'tolerance': 0.01}
    near = stats.compare({s: 3 + d for s, d in enumerate([0.001, -0.001, 0.002])}, dict.fromkeys(range(3), 3.0))
    check('a claim of 0 is reproduced within its tolerance', claims.judge_seeds(near, zero, 'paper').word == 'reproduced')
    arms = [stats.compare({s: 3 + m + d for s, d in enumerate([0.01, -0.01, 0.012, -0.008])}, dict.fromkeys(range(4), 3.0))
            for m in (0.02, 0.019, 0.018, 0.017)]
    before = [claims.judge_seeds(c, {'number': 0.02, 'tolerance': 0}, 'reduced').word for c in arms]
    stats.adjust(arms)
    after = [claims.judge_seeds(c, {'number': 0.02, 'tolerance': 0}, 'reduced') for c in arms]
    check("Holm takes back what only one of four tests would have said", 'same sign' in before and any('Holm' in v.reason for v in after),
          (before, after))


def transience(claim):
    """The words that say what a difference is worth below scale paper: transient, identity, not 0, equivalent to 0."""
    of = lambda shift: stats.compare({s: 3 + shift + n + s / 10 for s, n in enumerate(NOISE)}, {s: 3 + s / 10 for s in range(5)})
    for half, scale, want in ((-0.13, 'reduced', 'transient'), (-0.124, 'medium', 'same sign'), (-0.13, 'paper', 'reproduced'),
                              (-0.05, 'reduced', 'same sign'), (float('nan'), 'reduced', 'same sign')):
        c = of(-0.1)
        c.half = half
        got = claims.judge_seeds(c, claim, scale)
        check(f'-0.1 after {half} at half of the tokens, scale {scale}: {want}', got.word == want, got)
    zero = {'number': 0.0, 'tolerance': 0.005}
    check('a claim of 0 that is not: not 0', claims.judge_seeds(of(-0.1), zero, 'reduced').word == 'not 0')
    check('a claim of 0 that is: equivalent to 0', claims.judge_seeds(of(0.0), zero, 'reduced').word == 'equivalent to 0')
    same, other = of(0.0), of(0.02)
    same.identical = True
    stats.adjust([same, other])
    got = claims.judge_seeds(same, claim, 'paper')
    check('equal weights hashes: identity, and out of the Holm family', got.word == 'identity' and math.isnan(same.adjusted)
          and close(other.adjusted, other.p), got)
    check('the correlation of two arms over seeds', close(stats.compare({1: 2.0, 2: 3.0, 3: 4.5}, {1: 1.0, 2: 2.0, 3: 3.0}).correlation,
                                                          reference.pearsonr([2.0, 3.0, 4.5], [1.0, 2.0, 3.0]).statistic))
    level = lambda low, high: claims.Ratios((low + high) / 2, low, high, 0.95, 5)
    share = {'number': 0.05, 'tolerance': 0.0}
    check('a level whose interval leaves the published one out is not seen', claims.judge_level(level(0.3, 0.4), share).word == 'not seen'
          and claims.judge_level(level(0.04, 0.06), share).word == 'reproduced')


def evaluation(folder):
    """The log of --eval-log: no steps, the loss by position."""
    folder.mkdir(parents=True)
    bins = [{'first': 0, 'last': 3, 'targets': 8, 'loss': 5.0, 'stderr': 0.1},
            {'first': 4, 'last': 7, 'targets': 0, 'loss': None, 'stderr': None},
            {'first': 8, 'last': 11, 'targets': 8, 'loss': 4.0, 'stderr': None}]
    records = [{'event': 'config', 'step': 12, 'evaluates': 'x', 'model': {'vocab_size': 512}},
               {'step': 12, 'val_loss': 4.5, 'val_bpb': 6.5},
               {'event': 'sparse_reading', 'step': 12, 'attention': 'psa', 'of': 'validation', 'pairs_read': 0.4, 'mass_kept': 0.9},
               {'event': 'loss_by_position', 'step': 12, 'bins': bins}, {'event': 'done', 'step': 12, 'val_loss': 4.5, 'seconds': 1.0}]
    (folder / 'log.jsonl').write_text('\n'.join(map(json.dumps, records)) + '\n')
    result = results.result_of(folder)
    check('the log of an evaluation is a result', result['val_loss'] == 4.5 and 'diverged' not in result and result['steps'] == 0, result)
    check('with the loss at the middle of each bin that has one', result['by_position'] == [[1.5, 5.0], [9.5, 4.0]],
          result['by_position'])
    check('and what a sparse mechanism has read', result['sparse_reading'] == {'validation': {'pairs_read': 0.4, 'mass_kept': 0.9}},
          result['sparse_reading'])


# ----------------------------------------------------------------------------------------------------------------- ledger

def ledgers(work):
    path = work / 'ledger.jsonl'
    book = ledger.Ledger(path)
    book.append('done', key='a', result={'val_loss': 1.0})
    book.append('done', key='b', result={'val_loss': 2.0})
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        cut = ledger.Ledger(path)
        cut.append('done', key='c', result={})
    check('a line cut in half: those before stay, and it says so',
          set(cut.finished) == {'a', 'c'} and 'ledger.jsonl:2: is cut short' in said.getvalue(), said.getvalue())
    check('the next line is whole', path.read_bytes().startswith(whole[:-20] + b'\n{"event":"done"'))
    check('keys: what changes no result does not count',
          ledger.key_of('x', {'lr': 1, 'threads': 1, 'out': 'a'}, 'c', 'd') == ledger.key_of('x', {'out': 'b', 'lr': 1}, 'c', 'd'))
    key = ledger.key_of('x', {'lr': 1}, 'c', 'd')
    others = [ledger.key_of('y', {'lr': 1}, 'c', 'd'), ledger.key_of('x', {'lr': 2}, 'c', 'd'), ledger.key_of('x', {'lr': 1}, 'e', 'd'),
              ledger.key_of('x', {'lr': 1}, 'c', 'e')]
    check('keys: variant, options, commit and data do', key not in others and len(set(others)) == 4)
    with ledger.lock(work / 'locks/a'): check('a run that is being done is taken', not ledger.lock(work / 'locks/a'))
    check('and free afterwards', ledger.lock(work / 'locks/a'))
    shared = [ledger.lock(work / 'machine', shared=True) for _ in range(2)]
    check('runs share a machine, and times are taken alone', all(shared) and not ledger.lock(work / 'machine'))
    before, allowed = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, allowed[1]))   # a disk with room for ten bytes more
    try:
        cut.append('done', key='d')
        said = 'nothing refused'
    except Refused as refused:
        said = str(refused)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    check('a full disk is a sentence, and the file as it was',
          'make room or give another --ledger' in said and path.read_bytes() == before, said)


def main(here):
    against_scipy()
    learning()
    power()
    planted_verdicts(here)
    edge_cases(here)
    ledgers(here)
