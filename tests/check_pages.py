"""scripts/experiments/README.md and attention/GALLERY.md: every number of their results is recomputed from the ledgers."""
import re
from collections import Counter

import numpy

from experiment_checks import ROOT, check, close
import analysis
import gallery
import guards
import stats
from report import sections

PAGE = ROOT / 'scripts/experiments/README.md'


class Page:
    """The words of the page, its tables, and the runs of results/."""

    def __init__(self):
        self.text = PAGE.read_text(encoding='utf-8')
        self.flat = ' '.join(self.text.split())
        self.report = analysis.Report(sorted((ROOT / 'scripts/experiments/results').glob('*.jsonl')))
        self.runs = self.report.trained

    def table(self, after):
        """{first cell: other cells} of the first table behind these words."""
        lines = self.text[self.text.index(after):].split('\n')
        first = next(n for n, line in enumerate(lines) if line.startswith('|'))
        rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[first + 2:]]
        end = next(n for n, row in enumerate(rows) if len(row) < 2)
        return {row[0]: row[1:] for row in rows[:end]}

    def values(self, experiment, arm, setting, column='loss', scale='reduced'):
        of = self.runs[(self.runs.experiment == experiment) & (self.runs.scale == scale) & (self.runs.setting == setting)]
        return of[of.arm == arm].sort_values('seed')[column].tolist()

    def comparison(self, experiment, arm, against, setting='', scale='reduced'):
        return self.report.comparisons[experiment, scale, setting][arm, against]

    def says(self, name, *words):
        missing = [word for word in words if word not in self.flat]
        check(f'the page: {name}', not missing, missing)


def rounds_to(value, printed):
    """Whether a number is what is printed, to its last digit."""
    digits = len(printed.partition('.')[2])
    return abs(value - float(printed)) <= 0.5 * 10**-digits + 1e-9


def agrees(cell, *groups):
    """Whether a cell is 'mean', 'mean +- sd', 'low to high' of groups' means or 'one, two' of the runs of each group of values."""
    numbers = re.findall(r'[+-]?\d+\.\d+', cell)
    means = [numpy.mean(group) for group in groups]
    if ' to ' in cell: return rounds_to(min(means), numbers[0]) and rounds_to(max(means), numbers[1])
    if '+-' in cell:
        return all(rounds_to(mean, numbers[0]) and rounds_to(numpy.std(group, ddof=1), numbers[1]) for mean, group in zip(means, groups))
    if len(numbers) > 1: return all(len(group) == len(numbers) and all(map(rounds_to, group, numbers)) for group in groups)
    return bool(numbers) and all(rounds_to(mean, numbers[0]) for mean in means)


def difference(cell, c):
    """Whether a cell is a comparison's mean and half-width."""
    numbers = re.findall(r'[+-]?\d+\.\d+', cell)
    return len(numbers) >= 2 and rounds_to(c.mean, numbers[0]) and rounds_to(c.half_width, numbers[1])


def losses_and_differences(page):
    """e1, e2 and e5: losses of arms, their differences, and those of claims.toml beside them."""
    published = {(c['experiment'], c['arm'], c['against']): c['number'] for c in page.report.claims if c['unit'] == 'nats'}
    def agree(experiment, arm, against, cell, printed):   # of whichever of the two the claim is the difference
        sign, pair = (1, (arm, against)) if (experiment, arm, against) in published else (-1, (against, arm))
        c = page.comparison(experiment, *pair)
        ours = rounds_to(sign * c.mean, cell.split()[0]) and rounds_to(c.half_width, cell.split()[2])
        return ours and rounds_to(sign * published[experiment, *pair], printed)
    for name, row in page.table('**e2_dsa**, whole').items():
        found = [agrees(row[0], page.values('e2_dsa', name, ''))]
        others = [(against, at) for against, at in (('causal', 1), ('dsa', 3)) if name not in ('causal', against)]
        found += [agree('e2_dsa', name, against, *row[at:at + 2]) for against, at in others]
        check(f'the page: e2_dsa, {name}', all(found), (row, found))
    for name, row in page.table('**e1_asga**, whole').items():
        arm = name.partition(',')[0].replace('the same', 'asga_no_geometry_matched')
        found = [agrees(row[0], page.values('e1_asga', arm, ''))]
        against = 'asga' if 'against asga' in row[1] else 'causal'
        if arm not in ('causal', 'asga_neither'): found.append(agree('e1_asga', arm, against, *row[1:3]))
        if arm == 'asga_neither': found.append(rounds_to(published['e1_asga', arm, against], row[2]))
        check(f'the page: e1_asga, {name}', all(found), (row, found))
    for name, row in page.table('**e5_isoflop**, whole').items():
        arm = name.split()[0]
        timed = page.report.timed[(page.report.timed.experiment == 'e5_isoflop') & (page.report.timed.arm == arm)]
        equal = [page.values('e5_isoflop', arm, setting) or page.values('e5_isoflop', arm, 'flops') for setting in ('flops', 'seconds')]
        found = [agrees(row[0], equal[0]), rounds_to(timed.ratio.median(), row[2]), agrees(row[3], equal[1])]
        if arm != 'causal': found += [difference(row[at], page.comparison('e5_isoflop', arm, 'causal', setting))
                                      for at, setting in ((1, 'flops'), (4, 'seconds'))]
        check(f'the page: e5_isoflop, {name}', all(found), (row, found))
    once = [one for one in page.report.findings if one.claim['id'] != 'sigma_reparam' and one.claim['experiment'] != 'e4_speed']
    found = Counter((one.claim['id'], one.scale) for one in once)
    check('one finding of each claim and scale', set(found.values()) == {1}, found.most_common(3))


def grids(page):
    """e7, e8, e10: arms x settings."""
    warmth = {'none': 'cold', '5%': 'warm'}
    arms = ['causal', 'asga', 'dsa', 'adaptive_sparse', 'causal_sigma', 'adaptive_sparse_sigma']
    for name, row in page.table('**e10_stability**, whole').items():
        rate, warm = re.match(r'x (\d+), (\S+?)(?:,|$)', name).groups()
        setting = 'no_qk_norm' if 'no QK-norm' in name else f'{warmth[warm]}_{rate}'
        found = [agrees(cell, page.values('e10_stability', arm, setting)) for cell, arm in zip(row, arms)]
        check(f'the page: e10_stability, {name}', all(found), (row, found))
    copies = ['copy_32', 'copy_64', 'copy_128', 'gap_32', 'gap_64', 'gap_128']
    for name, row in page.table('**e7_recall**, whole').items():
        found = [agrees(cell, *(page.values('e7_recall', arm, setting, 'accuracy') for arm in name.split(', ')))
                 for cell, setting in zip(row, copies)]
        check(f'the page: e7_recall, {name}', all(found), (row, found))
    read = {'causal': ('trained', 'causal'), "causal's weights read through a window": ('after', 'window_after'),
            "causal's weights read through a window with sinks": ('after', 'sinks_after')}
    for name, row in page.table('**e8_streaming**, reduced').items():
        setting, arm = read.get(name, ('trained', name.partition(',')[0]))
        found = [agrees(cell, page.values('e8_streaming', arm, at)) for cell, at in zip(row, (setting, 'far'))]
        check(f'the page: e8_streaming, {name}', all(found), (row, found))
    for (name, row), arm in zip(page.table('medium (25M parameters').items(), ('causal', 'window_after', 'sinks_after')):
        found = [agrees(cell, page.values('e8_streaming', arm, at, scale='medium')) for cell, at in zip(row, ('after', 'far_medium'))]
        check(f'the page: e8_streaming at scale medium, {name}', all(found), (row, found))


def sinks(page):
    """e16: losses of each model as it was trained and as it is read, and the ranges in the sentences on them."""
    arms = ['causal', 'window_after', 'sinks_after'] * 2 + ['sink_logits', 'sink_logits_after', 'dsa_no_window', 'gated_after',
                                                            'sliding_window', 'sinks', 'forgetting']
    for number, ((name, row), arm) in enumerate(zip(page.table('**e16_sinks**, whole').items(), arms, strict=True)):
        near, far = ('plain_after', 'plain_far') if 3 <= number < 6 else ('idle_after' if number < 10 else 'idle', 'idle_far')
        found = [agrees(cell, page.values('e16_sinks', arm, setting)) for cell, setting in zip(row, (near, far))]
        check(f'the page: e16_sinks, {name}', all(found), (row, found))
    differences = lambda arm, against, *settings: [d for setting in settings for d in numpy.subtract(
        page.values('e16_sinks', arm, setting), page.values('e16_sinks', against, setting))]
    breaks = differences('window_after', 'causal', 'idle_after', 'plain_after')
    p = stats.Comparison(breaks, [], []).sign_p
    others = [differences('sink_logits_after', 'sink_logits', 'idle_after'), differences('gated_after', 'dsa_no_window', 'idle_after')]
    check('the page: one sink repairs', max(map(abs, differences('sinks_after', 'causal', 'idle_after', 'plain_after'))) < 0.003)
    page.says('e16_sinks in words', f'by {min(breaks):.2f} to {max(breaks):.2f} nats (sign test, p {p:.3f})',
              ' and '.join(f'{min(d):.2f} to {max(d):.2f}' for d in others))


def budget(page):
    """e13: losses at half and at the end, times, and the sentences on them."""
    name, runs = 'e13_budget', page.runs[(page.runs.experiment == 'e13_budget')]
    for label, row in page.table('**e13_budget**').items():
        setting = 'faster' if row[0] == '1.2e-3' else 'trained'
        own = runs[(runs.arm == label.partition(',')[0]) & (runs.setting == setting)]
        form = '.3f' if len(own) == 1 else '.2f'
        ms = ' to '.join(dict.fromkeys(format(value / 1e3, form) for value in (own.ms.min(), own.ms.max())))
        found = [agrees(row[1], own.half_loss.tolist()), agrees(row[2], own.loss.tolist()), row[3] == f'{ms} s']
        check(f'the page: e13_budget, {label}', all(found), (row, ms, found))
    c, asga = (page.comparison(name, arm, 'causal', 'trained', 'medium') for arm in ('dsa', 'asga'))
    by_id = {one.claim['id']: one for one in page.report.findings}
    ms = {arm: own.ms.mean() for arm, own in runs[runs.setting == 'trained'].groupby('arm')}
    curves = {arm: dict(own.record.iloc[0]['result']['by_position']) for arm, own in runs[runs.setting == 'positions'].groupby('arm')}
    rows = [numpy.mean([curves['causal'][at] - curves['dsa'][at] for at in curves['dsa'] if (at > 512) == late]) for late in (False, True)]
    page.says('e13_budget in words', f'{-c.mean:.3f} +- {c.half_width:.3f} nats (p {c.p:.3f}',
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
    page.says('e2 and e5', f'at step 250 dsa\'s lead is {-of("e2_dsa", "dsa", "causal").half:.3f}',
              f'(p {of("e5_isoflop", "asga", "causal", "flops").adjusted:.3f} after Holm')
    e3 = {arm: of('e3_dsa2', arm, 'causal') for arm in ('dsa', 'dsa_fixed_window')}
    mean = {arm: page.values('e3_dsa2', arm, '') for arm in ('causal', *e3)}
    level = {one.claim['id']: one.found.middle for one in report.findings if one.claim['id'].startswith('mass')}
    spread = lambda values: f'{numpy.mean(values):.3f} +- {numpy.std(values, ddof=1):.3f}'
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
    check('the gallery has the table of the ledgers', gallery.results(page.report, re.findall(r'^## (\w+)', text, re.M)) in text)


def recall_in_words(page):
    """MQAR, and the copies at scale medium."""
    for arms, words in re.findall(r'(\w+) ((?:\d\.\d+(?: \+- \d\.\d+)?)(?: and \d\.\d+(?: \+- \d\.\d+)?))(?=[,.])',
                                  page.flat[page.flat.index('MQAR with 2 and 4 pairs'):page.flat.index('Windows copy from 32')]):
        cells = zip(words.split(' and '), ('mqar_2', 'mqar_4'))
        found = [agrees(cell, page.values('e7_recall', arms, setting, 'accuracy')) for cell, setting in cells]
        check(f'the page: MQAR, {arms}', found == [True, True], (words, found))
    settings = ['long_copy_64', 'long_copy_128', 'long_copy_256', 'long_gap_64', 'long_gap_128', 'long_gap_256']
    for name, row in page.table('**Scale medium**').items():
        if name.startswith('strided'): continue   # two forms of one arm; the ledger's newest is the first
        found = [agrees(cell, page.values('e7_recall', name, setting, 'accuracy', 'medium')) for cell, setting in zip(row, settings)]
        check(f'the page: e7_recall at scale medium, {name}', all(found), (row, found))


def optimisers(page):
    """e14: differences to causal under either optimiser, and causal's own between them."""
    apart = lambda arm, setting: page.comparison('e14_optimizer', arm, 'causal', setting)
    said = lambda arm, setting: f'{abs(apart(arm, setting).mean):.3f} +- {apart(arm, setting).half_width:.3f}'
    below, muon = (lambda arm, setting: apart(arm, setting).mean < 0), page.values('e14_optimizer', 'causal', 'muon')
    page.says('e14_optimizer in words', f'Under AdamW dsa is {said("dsa", "adamw")} below causal and sliding_window {said("sliding_window", "adamw")}',
              f'sliding_window {said("sliding_window", "muon")} and dsa {said("dsa", "muon")}',
              f'asga is {said("asga", "adamw")} and {said("asga", "muon")} above causal',
              f'causal by {numpy.mean(page.values("e14_optimizer", "causal", "adamw")) - numpy.mean(muon):.3f}')
    check('the page: signs of e14_optimizer', all(below(arm, of) == (arm != 'asga') for arm in ('asga', 'dsa', 'sliding_window')
                                                  for of in ('adamw', 'muon')))


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
    for place, words in {('e2_dsa', 'reduced'): 'ppa has the opposite sign.', ('e13_budget', 'medium'): 'dsa leads by 0.154',
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
    check('close numbers', close(1.0, 1.0) and rounds_to(0.12349, '0.123') and not rounds_to(0.1236, '0.123') and
          agrees('1.50 +- 0.71', [1.0, 2.0]) and not agrees('1.50 +- 0.72', [1.0, 2.0]) and agrees('1.0 to 2.0', [1.0], [2.0]))
    losses_and_differences(page)
    grids(page)
    sinks(page)
    budget(page)
    sentences(page)
    speeds(page)
    recall_in_words(page)
    learning_times(page)
    optimisers(page)
    read_by_sections(page)
