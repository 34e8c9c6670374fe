"""scripts/experiments/README.md and attention/GALLERY.md: the numbers of their results are recomputed from the ledgers."""
import re
from collections import Counter

import numpy

from experiment_checks import ROOT, check
import analysis
import gallery
import guards
import stats
from report import sections

PAGE = ROOT / 'scripts/experiments/README.md'


class Page:
    """The words of the page, and the runs of results/."""

    def __init__(self):
        self.flat = ' '.join(PAGE.read_text(encoding='utf-8').split())
        self.report = analysis.Report(sorted((ROOT / 'scripts/experiments/results').glob('*.jsonl')))
        self.runs = self.report.trained

    def values(self, experiment, arm, setting, column='loss', scale='reduced'):
        of = self.runs[(self.runs.experiment == experiment) & (self.runs.scale == scale) & (self.runs.setting == setting)]
        return of[of.arm == arm].sort_values('seed')[column].tolist()

    def comparison(self, experiment, arm, against, setting='', scale='reduced'):
        return self.report.comparisons[experiment, scale, setting][arm, against]

    def says(self, name, *words):
        missing = [word for word in words if word not in self.flat]
        check(f'the page: {name}', not missing, missing)


def spread(values, form='.3f'):
    """A mean and its standard deviation, as the page prints them."""
    return f'{numpy.mean(values):{form}} +- {numpy.std(values, ddof=1):{form}}'


def apart(c):
    """A difference without its sign, and half of its interval."""
    return f'{abs(c.mean):.3f} +- {c.half_width:.3f}'


def losses_and_differences(page):
    """e1, e2, e5, e7 and e8."""
    of, published = page.comparison, {c['id']: c['number'] for c in page.report.claims}
    dsa, asga = of('e2_dsa', 'dsa', 'causal'), of('e1_asga', 'asga', 'causal')
    page.says('e1 and e2', f"dsa's lead of {apart(dsa)} (published {-published['dsa_loss']:.3f}) is {-dsa.half:.3f} at step 250",
              f'asga is {apart(asga)} below causal, where document 000 has it {published["asga_loss"]:.3f} above',
              f'as printed, it costs {of("e1_asga", "asga_no_geometry", "asga").mean:.3f}')
    equal = lambda arm: [of('e5_isoflop', arm, 'causal', setting) for setting in ('flops', 'seconds')]
    asga_equal = equal('asga')
    page.says('e5_isoflop', 'dsa by {} at equal FLOPs and {} at equal seconds'.format(*map(apart, equal('dsa'))),
              f'(p {asga_equal[0].adjusted:.3f} after Holm\'s correction) and {apart(asga_equal[1])} above it')
    check('the page: signs of e1, e2 and e5', max(dsa.mean, asga.mean, *(c.mean for c in equal('dsa'))) < 0 < asga_equal[1].mean)
    dense, sinks = ([spread(page.values('e8_streaming', arm, setting)) for setting in ('trained', 'far')] for arm in ('causal', 'sinks'))
    page.says('e8_streaming', 'causal has {} in rows of 512 and {} in rows of 8,192'.format(*dense),
              'with a window and sinks {} and {}'.format(*sinks))
    recalled = {arm: page.values('e7_recall', arm, 'mqar_2', 'accuracy') for arm in ('causal', 'sliding_window', 'dsa')}
    page.says('MQAR', f'causal has {spread(recalled["causal"], ".2f")} of MQAR with two pairs, sliding_window and dsa '
              f'{numpy.mean(recalled["sliding_window"]):.2f} and {numpy.mean(recalled["dsa"]):.2f}')
    once = [one for one in page.report.findings if one.claim['id'] != 'sigma_reparam' and one.claim['experiment'] != 'e4_speed']
    found = Counter((one.claim['id'], one.scale) for one in once)
    check('one finding of each claim and scale', set(found.values()) == {1}, found.most_common(3))


def conclusions(page):
    """What the page says of runs without printing their numbers."""
    ppa, published = page.comparison('e2_dsa', 'ppa', 'causal'), {c['id']: c['number'] for c in page.report.claims}
    page.says('ppa', f'{apart(ppa)} below causal, published {published["ppa_loss"]:.3f} above')
    verdicts = {one.claim['id']: one.verdict.word for one in page.report.findings if one.scale == 'reduced' and one.verdict}
    check('the page: what is equivalent in e2_dsa', all(verdicts[name].startswith('equivalent') for name in (
        'dsa_fixed_window_full', 'dsa_no_window')), verdicts)
    mean = lambda *place, **more: numpy.mean(page.values(*place, **more))
    dense, window, sinks = ([mean('e8_streaming', arm, setting, scale='medium') for setting in ('after', 'far_medium')]
                            for arm in ('causal', 'window_after', 'sinks_after'))
    page.says('e8_streaming at scale medium', 'from {:.3f} to {:.3f}, and the same'.format(*dense),
              'do not, from {:.3f} to {:.3f};'.format(*window))
    check('the page: sinks change the fourth decimal', numpy.abs(numpy.subtract(sinks, window)).max() < 0.001, (sinks, window))
    flat = {arm: [mean('e16_sinks', arm, setting) for setting in ('idle', 'idle_far')]
            for arm in ('sliding_window', 'forgetting', 'causal')}
    flat['sinks_after'] = [mean('e16_sinks', 'sinks_after', setting) for setting in ('idle_after', 'idle_far')]
    check('the page: which losses of e16_sinks stay flat', [arm for arm, (near, far) in flat.items() if far > near] == ['causal'], flat)
    costs = {arm: [mean('e10_stability', arm, f'{warmth}_16') - mean('e10_stability', arm, f'{warmth}_1') for warmth in ('cold', 'warm')]
             for arm in ('causal', 'asga', 'dsa', 'adaptive_sparse', 'causal_sigma', 'adaptive_sparse_sigma')}
    without = [cost for arm, of in costs.items() if 'sigma' not in arm for cost in of]
    page.says('what sixteen times the rate costs', f'{min(without):.1f} to {max(without):.1f} nats without')
    check('the page: next to nothing with spectral norms',
          max(costs['causal_sigma'] + costs['adaptive_sparse_sigma']) < min(without), costs)
    copies = {('reduced', ('copy_64', 'copy_128')): ('moh adaptive_sparse seer deepseek_sparse asga causal', 'sliding_window dsa'),
              ('medium', ('long_copy_64', 'long_copy_128', 'long_copy_256')): ('causal mosa', 'sliding_window dsa')}
    for (scale, settings), groups in copies.items():
        able, unable = ([mean('e7_recall', arm, setting, 'accuracy', scale=scale) for arm in group.split() for setting in settings]
                        for group in groups)
        check(f'the page: which arms copy at scale {scale}', min(able) > 0.8 and max(unable) < 0.1, (able, unable))
    strided = {setting: mean('e7_recall', 'strided', setting, 'accuracy') for setting in ('copy_32', 'copy_64', 'copy_128')}
    check('the page: strided copies from 64 alone', [name for name, share in strided.items() if share > 0.5] == ['copy_64'], strided)
    near = [mean('e7_recall', arm, 'copy_32', 'accuracy') for arm in ('sliding_window', 'dsa')]
    check('the page: windows copy from 32', min(near) > 0.95, near)


def sinks(page):
    """e16: what a window costs each model, and one sink repairs."""
    differences = lambda arm, against, *settings: [d for setting in settings for d in numpy.subtract(
        page.values('e16_sinks', arm, setting), page.values('e16_sinks', against, setting))]
    breaks = differences('window_after', 'causal', 'idle_after', 'plain_after')
    of_causal = stats.Comparison(breaks, [], [])
    check('the page: equal p of both tests', of_causal.sign_p == of_causal.rank_p)
    windows = [differences(window, arm, 'idle_after') for arm, window in (
        ('sink_logits', 'sink_logits_after'), ('gated', 'gated_window'), ('gated_heads', 'gated_heads_window'))]
    repaired = {arm: differences(f'{arm}_sink', arm, 'idle_after') for arm in (
        'sink_logits', 'gated', 'gated_heads', 'sliding_window', 'forgetting')}
    largest = {arm: max(map(abs, found)) for arm, found in repaired.items()}
    check('the page: what one sink leaves', max(largest['sink_logits'], largest['gated'], largest['gated_heads']) < 0.004 and
          largest['sliding_window'] < 0.003, largest)
    longer = {arm: sorted(numpy.subtract(page.values('e16_sinks', f'{arm}_sink', 'idle_far'), page.values('e16_sinks', arm, 'idle')))
              for arm in ('sink_logits', 'gated', 'gated_heads')}
    check('the page: gated models are flat with a sink',
          max(longer['gated'] + longer['gated_heads']) < 0 > longer['sink_logits'][2], longer)
    forgets = sorted(differences('forgetting_window', 'forgetting', 'idle_after'))
    check('the page: forgetting without a sink', max(forgets[:3]) == 0, forgets)
    check('the page: one sink repairs', max(map(abs, differences('sinks_after', 'causal', 'idle_after', 'plain_after'))) < 0.003)
    page.says('e16_sinks in words', f'by {min(breaks):.2f} to {max(breaks):.2f} nats (sign test and Wilcoxon\'s, p {of_causal.sign_p:.3f})',
              'sink_logits {} nats, with a gate per element (gated) {}, and with a gate per head {}.'.format(
                  *(f'{min(d):.2f} to {max(d):.2f}' for d in windows)),
              'lose {:.2f} and {:.2f} nats'.format(*longer['sink_logits'][-2:]), 'the others {:.3f} and {:.3f} nats'.format(*forgets[-2:]),
              'leaves {:.3f} and {:.3f}.'.format(*sorted(repaired['forgetting'])[-2:]))


def budget(page):
    """e13."""
    name, runs = 'e13_budget', page.runs[(page.runs.experiment == 'e13_budget')]
    c, asga = (page.comparison(name, arm, 'causal', 'trained', 'medium') for arm in ('dsa', 'asga'))
    by_id = {one.claim['id']: one for one in page.report.findings}
    ms = {arm: own.ms.mean() for arm, own in runs[runs.setting == 'trained'].groupby('arm')}
    curves = {arm: dict(own.record.iloc[0]['result']['by_position']) for arm, own in runs[runs.setting == 'positions'].groupby('arm')}
    rows = [numpy.mean([curves['causal'][at] - curves['dsa'][at] for at in curves['dsa'] if (at > 512) == late]) for late in (False, True)]
    page.says('e13_budget in words', f'dsa leads by {apart(c)} nats (p {c.p:.3f}',
              ', '.join(f'{d:.3f}' for d in sorted(-c.differences)), f'at step 100 by {-c.half:.3f}',
              f'rows 0 to 511, where dsa sees what causal sees, differ by {rows[0]:.3f}, rows 512 to 1023 by {rows[1]:.3f}',
              f'after {by_id["dsa_converges"].found.middle:.2f} of the steps',
              f'{by_id["dsa_memory_134m"].found.middle:.2f} times its peak memory',
              f'{ms["dsa"] / ms["causal"]:.3f} times its time', f'asga, one run, is {-asga.mean:.3f} below')


def sentences(page):
    """Numbers in sentences."""
    of, report = page.comparison, page.report
    groups = [cs for (experiment, scale, _), cs in report.comparisons.items()
              if experiment in ('e1_asga', 'e2_dsa', 'e3_dsa2') and scale == 'reduced']
    lead = [c for cs in groups for (_, against), c in cs.items() if against == 'causal' and c.adjusted < stats.ALPHA]
    shares = [c.mean / c.half for c in lead]
    base = page.runs[(page.runs.experiment == 'e8_streaming') & (page.runs.arm == 'causal')]
    gain = {scale: numpy.mean([guards.context_gain(record['result']['by_position']) for record in
                               base[(base.setting == 'after') & (base.scale == scale)].record]) for scale in ('reduced', 'medium')}
    after = numpy.mean(page.values('e8_streaming', 'window_after', 'after')) - numpy.mean(page.values('e8_streaming', 'causal', 'trained'))
    page.says('transience, context and pairs', f'shrink to {min(shares):.2f} to {max(shares):.2f} of themselves',
              f'its loss there is {-gain["reduced"]:.3f} nats below', f'gain {gain["medium"]:.3f} nats from context beyond 128 tokens',
              f'correlation {of("e1_asga", "asga", "causal").correlation:.2f} for asga',
              f'({of("e2_dsa", "dsa", "causal").correlation:.2f} for dsa)',
              f'a window of 32 costs this model {after:.3f} nats')
    e3 = {arm: of('e3_dsa2', arm, 'causal') for arm in ('dsa', 'dsa_fixed_window')}
    mean = {arm: page.values('e3_dsa2', arm, '') for arm in ('causal', *e3)}
    level = {one.claim['id']: one.found.middle for one in report.findings if one.claim['id'].startswith('mass')}
    page.says('e3_dsa2', *(f'{arm} {spread(values)}' for arm, values in mean.items()),
              *(f'{c.mean:.3f} +- {c.half_width:.3f}' for c in e3.values()), f'({e3["dsa"].half:.3f} at step 250)',
              f'on {level["mass_95"]:.0%} of the keys and 99% on {level["mass_99"]:.0%}')
    ends = next(one.ours for one in report.findings if one.claim['id'] == 'sigma_reparam')
    ps = [c.p for (experiment, *_), cs in report.comparisons.items() if experiment == 'e10_stability' for c in cs.values()]
    page.says('e10_stability', 'in 8 of 8 runs (0.18 to 0.72 nats at step 150)', 'in none of 4 with spectral norms (4.48 to 5.24',
              f'one family of {len(ps)} none passes Holm\'s correction (the smallest p, {min(ps):.4f}, becomes {min(ps) * len(ps):.2f})')
    check('the page: e10_stability, of the finding', ends.startswith('8 of 8 collapse without (0.18 to 0.72 nats') and
          '0 of 4 with (4.48 to 5.24)' in ends, ends)
    trained = page.runs[(page.runs.scale == 'medium') & page.runs.setting.isin(['', 'trained'])]
    medium = {(run.experiment, run.arm, run.seed): run for run in trained.itertuples()}
    pair, other = (medium['e2_dsa', arm, 1] for arm in ('causal', 'dsa')), medium['e8_streaming', 'causal', 1].loss
    causal, dsa = pair
    training = causal.record['result']['training'][-1][1]
    page.says('what is struck', f'({causal.loss:.3f} of causal, {dsa.loss:.3f} of dsa)', f'has {other:.3f}',
              f'{training:.1f} nats of training are {causal.loss:.1f} there',
              f'17.3 million tokens of GPT-2 read {causal.record["result"]["tokens"] / 17_261_531:.1f} times')
    why = report.struck['e2_dsa', 'medium']
    words = f'{training:.1f} against {causal.loss:.1f}', f'{causal.loss:.3f} against {other:.3f}'
    check('the reason of the strike', all(word in why for word in words), why)
    sees = lambda seeds, sd=report.analysis['pilot_sd']: f'{stats.smallest_detectable(seeds, sd):.3f}'
    page.says('what seeds see', f'sees {sees(5)} nats with 5 seeds', f'{sees(3)} with 3', f'{sees(2)} with 2',
              f'{stats.smallest_detectable(2, 0.097):.1f} at the 0.097')


def speeds(page):
    """e4_speed in sentences, and the table of the gallery."""
    timed = page.report.timed[page.report.timed.experiment == 'e4_speed']
    of = lambda setting, arm, column: timed[(timed.setting == setting) & (timed.arm == arm)][column].median()
    faster = lambda arm, column: f'{1 / of("w32k", arm, column):.1f}'
    page.says('e4_speed', f'{of("t32k", "dsa", "ratio"):.3f} of causal\'s at 32,768 tokens, a token {of("w32k", "dsa", "ratio"):.3f} and '
              f'the cache {of("w32k", "dsa", "cache_ratio"):.3f}; at 1,024 the step is {of("t1k", "dsa", "ratio"):.2f}',
              f'decodes {faster("nsa", "ratio")} and reads {faster("nsa", "first_ratio")} times as fast',
              f'a token takes {of("w1k", "nsa", "ratio"):.1f} times causal\'s at 1,024',
              f'with a gate that rests reads {faster("seer_frozen", "first_ratio")} times as fast',
              f'psa_90 reads {of("w32k", "psa_90", "pairs_read"):.0%} of the keys',
              f'a token takes {of("w32k", "psa_90", "ratio"):.2f} times causal\'s',
              f'step takes {of("t16k", "asga", "ratio"):.1f} times causal\'s',
              f'causal against itself: {of("t32k", "causal", "ratio"):.2f} for a step, {of("w32k", "causal", "ratio"):.2f} for a token')
    text = gallery.GALLERY.read_text(encoding='utf-8')
    lines = [line.strip('| ').split('|') for line in text.splitlines() if line.startswith('| ')]
    listed = {re.sub(r'\W*(\w+).*', r'\1', row[0]): row for row in lines}
    check('the gallery: a row for every arm that writes, and a section for every name that leads to one',
          set(timed[timed.setting == 'w32k'].arm) == set(listed) - {'mechanism', '---'} and
          re.findall(r'\(#(\w+)\)', text) == re.findall(r'^## (\w+)', text, re.M), sorted(listed))
    pictures = [ROOT / f'attention/{path}' for path in re.findall(r'<img src="([^"]+)"', text)]
    check('the gallery: a small picture for each section', len(pictures) == text.count('\n## ') and
          sum(path.stat().st_size for path in pictures) < 400_000, pictures)
    check('the gallery has the table of the ledgers', gallery.results(page.report, re.findall(r'^## (\w+)', text, re.M)) in text)


def optimisers(page):
    """e14: differences to causal under either optimiser, and causal's own between them."""
    of = lambda arm, setting: page.comparison('e14_optimizer', arm, 'causal', setting)
    said, muon = (lambda arm, setting: apart(of(arm, setting))), page.values('e14_optimizer', 'causal', 'muon')
    page.says('e14_optimizer in words', f'Under AdamW dsa is {said("dsa", "adamw")} below causal and sliding_window {said("sliding_window", "adamw")}',
              f'sliding_window {said("sliding_window", "muon")} and dsa {said("dsa", "muon")}',
              f'asga is {said("asga", "adamw")} and {said("asga", "muon")} above causal',
              f'causal by {numpy.mean(page.values("e14_optimizer", "causal", "adamw")) - numpy.mean(muon):.3f}')
    check('the page: signs of e14_optimizer', all((of(arm, setting).mean < 0) == (arm != 'asga')
                                                  for arm in ('asga', 'dsa', 'sliding_window') for setting in ('adamw', 'muon')))


def learning_times(page):
    """Medians, intervals and p of every arm, and the arms that never learn the task."""
    times = page.report.learning['e7_recall', 'reduced', 'learn_copy']
    p = lambda one: f', p {one.adjusted:.3f}' if one.adjusted == one.adjusted else ''
    page.says('learning times', *(f'{arm} {one.median:g} ({one.low:g} to {one.high:g}{p(one)})'
                                  for arm, one in times.items() if one.learnt))
    never = [arm for arm, one in times.items() if not one.learnt]
    page.says('what is never learnt', f'no run of {" or ".join(never)} in {times[never[0]].horizon} steps{p(times[never[0]])}')
    check('the page: equal p of arms without a run that has learnt', len({p(times[arm]) for arm in never}) == 1)


def read_by_sections(page):
    """The report's sections have the page's sentences, each where its runs are, and none of another ledger."""
    said = {(part.name, part.scale): part.reading() for part in sections(page.report)}
    for place, words in {('e2_dsa', 'reduced'): 'ppa has the opposite sign', ('e13_budget', 'medium'): 'dsa leads by 0.154',
                         ('e8_streaming', 'medium'): 'Again dense attention', ('e8_streaming', 'reduced'): 'Dense attention breaks',
                         ('e7_recall', 'medium'): 'causal and mosa copy', ('e6_lr', 'reduced'): 'of 1/4, 1/2',
                         ('e2_dsa', 'medium'): ''}.items():
        found = said[place]
        check(f'the report reads {" at scale ".join(place)}', found.startswith(words) and bool(found) == bool(words), found)
    missing = [words for words in said.values() if words not in page.flat]
    check('the sentences of sections are those of the page', not missing, missing)
    page.report.committed = False
    check('other ledgers have none', not any(part.reading() for part in sections(page.report)))


def main(_):
    page = Page()
    for part in (losses_and_differences, conclusions, sinks, budget, sentences, speeds, learning_times, optimisers, read_by_sections):
        part(page)
