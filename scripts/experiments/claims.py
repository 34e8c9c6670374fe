"""Published numbers, and the verdicts of a ledger's runs on each."""
import tomllib
from dataclasses import dataclass
from pathlib import Path

import stats
from packages import HERE, Refused
from turns import median_interval

KEYS = {'id', 'unit', 'experiment', 'arm', 'against', 'number', 'tolerance', 'document', 'section', 'read'}
POWER_KEYS = {'seeds', 'smallest_detectable', 'seeds_to_detect', 'seeds_to_contradict'}   # of claims in nats alone
NATS = 'nats'
RATIOS = {  # unit -> the ratios to the baseline in the rounds of an analysis.Table
    'ratio of step time': lambda table, arm: [] if table.stage == 'writes' else table.values(arm, 'ratio'),
    'ratio of bytes': lambda table, arm: table.byte_ratios(arm),
    'ratio of keys read': lambda table, arm: table.values(arm, 'pairs_read'),
}


def read_claims(path=HERE / 'claims.toml'):
    """(analysis, claims) as written down before the runs; refuses unknown and missing keys."""
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
class Finding:
    """A claim, and the verdict of the runs of one scale in one setting."""
    claim: dict
    scale: str
    setting: str
    found: stats.Comparison | stats.Ratios
    verdict: stats.Verdict
    line: str
    seeds: int    # of the plan at this scale


def judge(claims, trained, timed):
    """Findings of every claim, one for each setting with runs of both arms: `trained` tables for nats, `timed` ones for ratios."""
    found = []
    for claim in claims:
        of, tables = (of_seeds, trained) if claim['unit'] == NATS else (of_rounds, timed)
        found += [of(claim, table) for table in tables if table.experiment.name == claim['experiment']]
    return [one for one in found if one]


def published_in(claim, experiment):
    """(the claim for stats.py, its name in a sentence)."""
    against = '' if claim['against'] == experiment.baseline else f' against {claim["against"]}'
    return stats.Claim(claim['id'], claim['number'], claim['tolerance'], claim['document'], claim['unit']), claim['arm'] + against


def of_seeds(claim, table):
    """A finding from paired seeds; None without one of the arms."""
    comparison, e = table.comparisons.get((claim['arm'], claim['against'])), table.experiment
    if comparison is None: return None
    published, name = published_in(claim, e)
    rates = 'each arm at its best rate' if e.sweep else 'one rate for all'
    return Finding(claim, table.scale, table.setting, comparison, stats.verdict(comparison, published, table.scale),
                   stats.line(published, name, comparison, table.scale, rates),
                   e.settings[table.setting].get('seeds', e.scales[table.scale]['seeds']))


def of_rounds(claim, table):
    """A finding from interleaved rounds, whose ratios are all to the baseline; None without any."""
    e = table.experiment
    ratios = RATIOS[claim['unit']](table, claim['arm']) if claim['arm'] in table.arms and claim['against'] == e.baseline else []
    if not ratios: return None
    published, name = published_in(claim, e)
    found = stats.Ratios(*median_interval(ratios), len(ratios))
    return Finding(claim, table.scale, table.setting, found, stats.ratio_verdict(found, published, table.scale),
                   stats.ratio_line(published, name, found, table.scale, table.label), e.scales[table.scale]['seeds'])
