"""What the runs of ledgers, and measurements of GPUs, say of each published number (verdicts.py has the rules)."""
import math
from dataclasses import dataclass

import numpy
import pandas as pd
from scipy import stats as scipy

import stats
from turns import median_interval
from verdicts import (BREAKS, COLLAPSE, MASS, NATS, RATIOS, STRUCK, TO_LOSS, Ratios, Verdict, judge, judge_level, judge_ratio,
                      judge_seeds)

COLLAPSED = 1.0   # nats; attention with less entropy at the end of a run has collapsed


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
    def line(self):
        """One sentence."""
        name, published = words_of(self.claim)
        where = f', {self.where}' if self.where else ''
        return f'{self.claim["document"]}: {name}, published {published}; ours {self.ours}, scale {self.scale}{where}; {self.verdict}.'

    @property
    def name(self):
        """The claim in short."""
        unit = self.claim['unit']
        return f'{self.claim["document"]}: {words_of(self.claim)[0]}' + (f', {unit.removeprefix("ratio of ")}' if unit != NATS else '')

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
    for claim in claims:
        e, unit, found = report.experiments.get(claim['experiment']), claim['unit'], []
        if e and unit == NATS: found = by_seeds(claim, e, report)
        elif e and unit == COLLAPSE: found = by_collapse(claim, e, report)
        elif e and unit == BREAKS: found = by_signs(claim, e, report)
        elif e and unit in MASS: found = by_level(claim, e, report)
        elif e and unit == TO_LOSS: found = by_pairs(claim, e, report, steps_to_loss)
        elif e and 'setting' in claim: found = by_pairs(claim, e, report, peak_bytes)
        elif e: found = by_rounds(claim, e, report)
        if unit == 'ratio of step time': yield from by_cards(claim, report)
        yield from found


def by_seeds(claim, e, report):
    """Of paired seeds; settings that only read the weights of another one are left out."""
    arm, against, found = claim['arm'], claim['against'], []
    for (experiment, scale, setting), comparisons in report.comparisons.items():
        reads = experiment == e.name and e.settings[setting].get('evaluate')
        if experiment != e.name or reads or (arm, against) not in comparisons: continue
        c, struck = comparisons[arm, against], report.struck.get((e.name, scale))
        found.append(seeds_finding(claim, c, scale, e.label(setting), struck))
    return found


def seeds_finding(claim, c, scale, where, struck=None):
    """The finding of a comparison; `struck` is why its runs have no verdict."""
    verdict = Verdict(STRUCK, struck) if struck else judge_seeds(c, claim, scale)
    spread = f'+- {c.half_width:.4f} ({c.pairs} paired seeds{c.lost})' if c.pairs > 1 else '(one pair)'
    ours = f'{c.mean:+.4f} {spread}' if c.pairs else 'no pair'
    return Finding(claim, scale, where, c, ours, verdict)


def by_rounds(claim, e, report):
    """Of interleaved rounds, whose ratios are all to the baseline."""
    column, timed, found = RATIOS[claim['unit']], report.timed, []
    timed = timed[(timed.experiment == e.name) & (timed.arm == claim['arm'])].dropna(subset=column)
    for (scale, setting), own in timed.groupby(['scale', 'setting'], sort=False):
        ratios = Ratios(*median_interval(own[column]), len(own))
        found.append(ratio_finding(claim, ratios, scale, f'{e.label(setting)}, {len(own)} interleaved rounds'))
    return found


def by_pairs(claim, e, report, ratio_of):
    """Of pairs of seeds: the mean logarithm of ratio_of(arm's result, baseline's result) with Student's interval."""
    found = []
    for (scale, setting), own in groups(claim, e, report):
        results = {arm: dict(zip(of.seed, of.record.map(lambda record: record['result']))) for arm, of in own.groupby('arm')}
        arm, base = results.get(claim['arm'], {}), results.get(claim['against'], {})
        logs = [math.log(ratio) for seed in arm.keys() & base.keys() if (ratio := ratio_of(arm[seed], base[seed]))]
        if len(logs) < 2: continue
        low, middle, high = map(math.exp, student(logs))
        ratios = Ratios(middle, low, high, 1 - stats.ALPHA, len(logs))
        found.append(ratio_finding(claim, ratios, scale, f'{e.label(setting) or e.title}, {len(logs)} paired seeds'))
    return found


def by_cards(claim, report):
    """Of whole steps on GPUs, one median each: as wide as two measurements of one program on one card are apart."""
    found, noise = [], report.analysis['card_noise']
    for card in report.cards:
        steps = card['whole_steps']
        if not {claim['arm'], claim['against']} <= set(steps): continue
        ratio = steps[claim['against']]['is'] / steps[claim['arm']]['is']
        ratios = Ratios(ratio, ratio / (1 + noise), ratio * (1 + noise), 1.0, 1)
        where = f'{card["gpu"]}, 134M parameters, rows of 1,024, one median each'
        found.append(ratio_finding(claim, ratios, 'medium', where))
    return found


def by_collapse(claim, e, report):
    """Of entropies at the end of runs: how many of the arms of the claim collapse, and how many of those against it (Fisher's test)."""
    found = []
    for (scale, setting), own in groups(claim, e, report):
        ends = {arm: [r['entropy'][-1][1] for r in of.record.map(lambda record: record['result']) if r.get('entropy')]
                for arm, of in own.groupby('arm')}
        with_it, without = ([end for arm in claim[side].split() for end in ends.get(arm, [])] for side in ('arm', 'against'))
        if not with_it or not without: continue
        counts = [(sum(end < COLLAPSED for end in side), len(side)) for side in (with_it, without)]
        (a, n), (b, m) = counts
        p = float(scipy.fisher_exact([[a, n - a], [b, m - b]]).pvalue)
        difference = a / n - b / m
        never = lambda margin: False
        verdict = judge(claim['number'], claim['tolerance'], scale, (difference,) * 3, p < stats.ALPHA, never, f'p {p:.2g}')
        words = (f'{b} of {m} collapse without ({min(without):.2f} to {max(without):.2f} nats at the end), '
                 f'{a} of {n} with ({min(with_it):.2f} to {max(with_it):.2f}), p {p:.2g}')
        found.append(Finding(claim, scale, e.label(setting), None, words, verdict))
    return found


def by_signs(claim, e, report):
    """Of settings that read weights otherwise than they were trained: in how many runs the loss grows by more than the tolerance, and a
    sign test of all, as the sizes are skewed."""
    found, settings = [], claim['setting'].split()
    for scale in dict.fromkeys(scale for experiment, scale, setting in report.comparisons if experiment == e.name):
        pairs = [report.comparisons.get((e.name, scale, setting), {}).get((claim['arm'], claim['against'])) for setting in settings]
        d = pd.concat([c.differences for c in pairs if c] or [pd.Series(dtype=float)])
        if d.empty: continue
        breaks, p = int((d > claim['tolerance']).sum()), stats.Comparison(d.reset_index(drop=True), [], []).sign_p
        within = lambda margin: (d.abs() < margin).all()
        verdict = judge(claim['number'], claim['tolerance'], scale, (d.median(),) * 3, p < stats.ALPHA and breaks > len(d) / 2, within,
                        f'sign test, p {p:.2g}')
        words = f'{breaks} of {len(d)} break ({d.min():+.4f} to {d.max():+.4f} nats), p {p:.2g}'
        found.append(Finding(claim, scale, ', '.join(map(e.label, settings)), None, words, verdict))
    return found


def by_level(claim, e, report):
    """Of the last value of a curve, mean over seeds."""
    found = []
    for (scale, setting), own in groups(claim, e, report):
        curves = [record['result'].get(MASS[claim['unit']]) for record in own.record[own.arm == claim['arm']]]
        ends = [curve[-1][1] for curve in curves if curve]
        if not ends: continue
        low, middle, high = student(ends)
        level = Ratios(middle, low, high, 1 - stats.ALPHA, len(ends))
        found.append(ratio_finding(claim, level, scale, f'{len(ends)} seeds', judge_level(level, claim)))
    return found


def groups(claim, e, report):
    """((scale, setting), sound runs) of a claim's experiment, in the setting that it names or in all that train."""
    runs = report.trained[(report.trained.experiment == e.name) & (report.trained.event == 'done')]
    chosen = [setting for setting, table in e.settings.items() if not table.get('evaluate') and claim.get('setting', setting) == setting]
    return runs[runs.setting.isin(chosen)].groupby(['scale', 'setting'], sort=False)


def student(values):
    """(low, mean, high) of Student's interval; infinite for one value."""
    values, n = numpy.asarray(values), len(values)
    half = scipy.t.ppf(1 - stats.ALPHA / 2, n - 1) * values.std(ddof=1) / math.sqrt(n) if n > 1 else math.inf
    return float(values.mean() - half), float(values.mean()), float(values.mean() + half)


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
