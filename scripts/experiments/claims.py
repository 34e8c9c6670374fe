"""Published numbers, and what the runs of a ledger say about each."""
import tomllib
from dataclasses import dataclass
from pathlib import Path

import stats
from packages import Refused
from plan import HERE
from turns import median_interval

KEYS = {'id', 'unit', 'experiment', 'arm', 'against', 'number', 'tolerance', 'document', 'section', 'read'}
POWER_KEYS = {'seeds', 'smallest_detectable', 'seeds_to_detect', 'seeds_to_contradict'}   # of differences between seeds alone
NATS = 'nats'
RATIOS = {  # unit -> the ratios to the baseline in the rounds of an analysis.Timing
    'ratio of step time': lambda timing, arm: [] if timing.written else timing.values(arm, 'ratio'),
    'ratio of bytes': lambda timing, arm: timing.byte_ratios(arm),
    'ratio of keys read': lambda timing, arm: timing.values(arm, 'pairs_read'),
}


def read_claims(path=HERE / 'claims.toml'):
    """(analysis, claims) as they were written down before the runs; refuses unknown and missing keys."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding='utf-8'))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f'{path}: cannot be read: {error}') from error
    for claim in table.get('claims', []):
        name = f'{path}: claim {claim.get("id", "without id")}'
        if odd := set(claim) ^ (KEYS | POWER_KEYS if claim.get('unit') == NATS else KEYS):
            raise Refused(f'{name}: unknown or missing: {", ".join(sorted(odd))}')
        if claim['unit'] not in (NATS, *RATIOS):
            raise Refused(f'{name}: unknown unit {claim["unit"]}; there are: {", ".join([NATS, *RATIOS])}')
    return table['analysis'], table['claims']


@dataclass
class Said:
    """A claim, and what the runs of one scale in one setting say about it."""

    claim: dict
    scale: str
    setting: str
    found: stats.Comparison | stats.Ratios
    verdict: stats.Verdict
    line: str
    seeds: int    # of the plan at this scale


def judge(claims, tables, timings):
    """Of every claim with runs of both arms, one Said for each setting."""
    said = []
    for claim in claims:
        published = stats.Claim(claim['id'], claim['number'], claim['tolerance'], claim['document'], claim['unit'])
        if claim['unit'] == NATS: of = [of_seeds(claim, published, t) for t in tables if t.experiment.name == claim['experiment']]
        else: of = [of_rounds(claim, published, t) for t in timings if t.experiment.name == claim['experiment']]
        said += [one for one in of if one]
    return said


def name_of(claim, experiment):
    against = '' if claim['against'] == experiment.baseline else f' against {claim["against"]}'
    return claim['arm'] + against


def of_seeds(claim, published, table):
    """From an analysis.Table; None where an arm is not there."""
    comparison, e = table.comparisons.get((claim['arm'], claim['against'])), table.experiment
    if comparison is None: return None
    rates = 'each arm at its best rate' if e.sweep else 'one rate for all'
    return Said(claim, table.scale, table.setting, comparison, stats.verdict(comparison, published, table.scale),
                stats.line(published, name_of(claim, e), comparison, table.scale, rates),
                e.settings[table.setting].get('seeds', e.scales[table.scale]['seeds']))


def of_rounds(claim, published, timing):
    """From an analysis.Timing, whose ratios are all to the baseline; None where nothing of the kind was measured."""
    e = timing.experiment
    ratios = RATIOS[claim['unit']](timing, claim['arm']) if claim['arm'] in timing.arms and claim['against'] == e.baseline else []
    if not ratios: return None
    found = stats.Ratios(*median_interval(ratios), len(ratios))
    where = e.settings[timing.setting].get('label', timing.setting)
    return Said(claim, timing.scale, timing.setting, found, stats.ratio_verdict(found, published, timing.scale),
                stats.ratio_line(published, name_of(claim, e), found, timing.scale, where), e.scales[timing.scale]['seeds'])
