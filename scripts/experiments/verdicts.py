"""Published numbers (claims.toml), and what a ledger's runs permit to say about each.

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
import tomllib
from pathlib import Path
from typing import NamedTuple

import stats
from packages import HERE, Refused

NATS, COLLAPSE, TO_LOSS = 'nats', 'share of runs that collapse', "ratio of steps to the baseline's loss"
BREAKS = 'share of runs that break'
RATIOS = {'ratio of step time': 'step_ratio', 'ratio of prefill time': 'first_ratio', 'ratio of token time': 'token_ratio',
          'ratio of bytes': 'peak_ratio', 'ratio of cache bytes': 'cache_ratio', 'ratio of keys read': 'pairs_read'}   # unit: column
MASS = {'share of keys with 95% of the mass': 'mass_95', 'share of keys with 99% of the mass': 'mass_99'}            # unit: curve
UNITS = (NATS, COLLAPSE, BREAKS, TO_LOSS, *RATIOS, *MASS)
SOURCE = {'document', 'section'}
ROWS = {   # the lists of claims.toml: their keys, and those that a row may lack
    'claims': ({'id', 'unit', 'experiment', 'arm', 'against', 'number', 'tolerance', 'read', *SOURCE}, {'setting', 'needs'}),
    'not_run': ({'id', 'claim', 'needs', *SOURCE}, set()),
    'printed': ({'id', 'value', *SOURCE}, set()),
    'struck': ({'id', 'experiment', 'scale', 'why'}, set()),
    'statements': ({'title', 'words'}, set())}
SAME, OPPOSITE, NOT_ZERO, UNRESOLVED = 'same sign', 'opposite sign', 'not 0', 'unresolved'
TRANSIENT, EQUIVALENT, IDENTITY, STRUCK, NOT_SEEN = 'transient', 'equivalent to 0', 'identity', 'struck', 'not seen'
REPRODUCED, WEAKER, STRONGER, CONTRADICTED = 'reproduced', 'weaker', 'stronger', 'contradicted'


def read_claims(path=HERE / 'claims.toml'):
    """{analysis, and every list of rows}; `printed` becomes {id: value}. Refuses unknown, missing and empty keys, naming the row."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding='utf-8'))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f'{path}: cannot be read: {error}') from error
    for kind, (needed, others) in ROWS.items():
        for row in table.setdefault(kind, []):
            name = row.get('id', row.get('title', 'without id'))
            check_row(f'{path}: row {name} of [[{kind}]]', row, needed, others)
    return table | {'printed': {row['id']: row['value'] for row in table['printed']}}


def check_row(name, row, needed, others):
    """Refuse a row of claims.toml with unknown keys, without one that it needs, or without a source."""
    if odd := (set(row) ^ needed) - others: raise Refused(f'{name}: unknown or missing: {", ".join(sorted(odd))}')
    if empty := [key for key in sorted(needed & (SOURCE | {'needs', 'why'})) if not row[key].strip()]:
        raise Refused(f'{name}: {empty[0]} is empty; give the document and the place of what it says')
    if row.get('unit', NATS) not in UNITS: raise Refused(f'{name}: unknown unit {row["unit"]}; there are: {", ".join(UNITS)}')


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
    """The rules at the top of this file. `interval` is (low, middle, high); tests say `different`, from 0, and within(margin)."""
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
