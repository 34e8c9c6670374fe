"""scripts/experiments/report.py and what it is made of, from planted ledgers: verdicts on differences and on ratios, best rates,
tables, pictures."""

import json
import math
import re
import struct
import warnings

from experiment_checks import ROOT, cells, check, close, refused
import analysis
import claims
import evidence
import guards
import ledger
import plan
import report as reports
import shards
import stats
import tables
from scipy import stats as reference

warnings.simplefilter('error', UserWarning)   # matplotlib says so where a picture has no room


class Planted:
    """A ledger, written when its report is asked for: every write waits for the disk."""

    def __init__(self, work, name):
        self.path = work / f'{name}.jsonl'
        self.events = []

    def run(self, experiment, arm, seed, loss, scale='reduced', setting='', stage='seeds', factor=1, event='done', half=None, options={},
            **result):
        labels = {'experiment': experiment, 'scale': scale, 'stage': stage, 'arm': arm, 'setting': setting, 'seed': seed, 'factor': factor}
        key = f'{experiment}{arm}{seed}{setting}{stage}{factor}{scale}'
        curve = [[100, 1, half or loss and loss + 1, 1.0], [399, 2, loss, 2.0]]
        training = [[step, (loss or 2) + (399 - step) / 299] for step in range(10, 400, 10)]
        self.events += [('run', {'key': key, **labels}), (event, {
            'key': key, **labels, 'options': {'model': 'qwen-1m', 'lr': 0.004 * factor, 'seq-len': 512} | options, 'result': {
                'val_loss': loss, 'validation': curve, 'training': training, 'ms': 2.0, 'seconds': 2.0, 'steps': 399,
                'flops_per_token': 10.0, 'parameters': 853376} | result})]

    def report(self, only=None):
        if self.events: ledger.Ledger(self.path).append_all(self.events)
        self.events = []
        return analysis.Report([self.path], only)


def differences(work):
    """At scale paper with a verdict that is known, a run that diverged, a seed without a partner and rates of a sweep."""
    book, noise = Planted(work, 'differences'), [0.001, -0.001, 0.002, -0.002, 0.0]
    for seed, n in enumerate(noise, 1):
        book.run('e2_dsa', 'causal', seed, 4.9 + seed / 50, 'paper')
        book.run('e2_dsa', 'dsa', seed, 4.9 + seed / 50 - 0.023 + n, 'paper')
    book.run('e2_dsa', 'causal', 6, 4.9, 'paper')
    book.run('e2_dsa', 'causal', 7, 4.9, 'paper')
    book.run('e2_dsa', 'dsa', 7, None, 'paper', event='diverged')
    for factor, loss in ((0.5, 5.3), (1, 5.2), (2, 5.1)): book.run('e2_dsa', 'dsa', 1, loss, 'paper', stage='sweep', factor=factor)
    for seed in (1, 2, 3):
        for arm, loss in (('causal', 1.5), ('asga', 1.5), ('asga_no_geometry_matched', 1.6 + 0.03 * seed)):
            book.run('e1_asga', arm, seed, loss + seed / 50)
    report = book.report()
    said = next(s for s in report.findings if s.claim['id'] == 'dsa_loss')
    check('a planted ledger: the verdict', said.verdict.word == 'reproduced' and said.found.pairs == 5, said.line)
    check('its diverged run and the seed without a partner are told', '1 diverged (seed 7), seed 6 has no partner' in said.line, said.line)
    paper = next(section for section in reports.sections(report) if section.scale == 'paper')
    check('a best rate at the end of the sweep is told',
          [words[:31] for words in paper.warnings()] == ['dsa: the best rate of the sweep'], paper.warnings())
    head, rows = cells(tables.verdict_table(report))
    share = [row[head.index('of the published')] for row in rows if row[1] == 'dsa - causal']
    check('a difference as a share of the published one', share[0] == '+1.0 x', share)
    same = next(s for s in report.findings if s.claim['id'] == 'asga_loss')
    check('two arms that compute the same', same.verdict.word == 'equivalent to 0' and
          next(row for row in rows if row[1] == 'asga - causal')[head.index('smallest detectable')] == '-', same)
    section = next(section for section in reports.sections(report) if section.name == 'e1_asga')
    [other] = [cells(table)[1] for title, table in section.tables if 'other comparisons' in title]
    check('what an experiment compares beside the baseline', [row[:3] for row in other] ==
          [['asga_no_geometry_matched', 'asga', '+0.1600 +- 0.0745']], other)
    lines = [line[2] for line in section.compared() if ' - asga' in line[0]]
    check('a claim against another arm stands in the picture', lines == [0.053], lines)


def sweeps(work):
    """Best rates, sensitivity, and sections whose runs had another one."""
    book = Planted(work, 'sweeps')
    for factor, loss in ((0.5, 1.8), (1, 1.9), (2, 2.3)): book.run('e6_lr', 'causal', 1, loss, stage='sweep', factor=factor)
    for factor, loss in ((0.5, 1.8), (1, 1.7)): book.run('e6_lr', 'dsa', 1, loss, stage='sweep', factor=factor)
    book.run('e6_lr', 'dsa', 1, None, stage='sweep', factor=2, event='diverged', training=[[1, 6.2]])
    for seed in (1, 2):
        for setting in ('cold_1', 'cold_4', 'warm_1', 'warm_4'):
            for arm in ('causal', 'dsa', 'asga'): book.run('e10_stability', arm, seed, 2.5 + seed / 100, setting=setting)
    book.run('e10_stability', 'asga', 1, None, setting='warm_16', event='diverged')
    report = book.report()
    rows = cells(tables.sweep_table(report.sweep, 0.004))[1]
    check('the best rate of every arm, and how much others cost', rows ==
          [['causal', '3', '0 of 3', '0.002 (x 0.5) (end of the sweep)', '1.8000', '0.200'],
           ['dsa', '3', '1 of 3', '0.004 (x 1)', '1.7000', '-']], rows)
    section = next(section for section in reports.sections(report) if section.name == 'e10_stability')
    head, rows = cells(section.tables[0][1])
    check('how many diverged, and the loss in every setting', [row[1] for row in rows] == ['0 of 8', '1 of 9', '0 of 8'] and
          rows[0][2] == '2.515 +- 0.007' and rows[1][-1] == '-', rows)
    check('the tables of many settings are folded away', len(section.tables) == 1 and len(section.folded) == 5)


def recall(work):
    """31 arms at tasks, one run of each."""
    book, e = Planted(work, 'recall'), plan.Experiment('e7_recall')
    for setting in ('copy_32', 'copy_64', 'gap_32', 'mqar_2', 'mqar_4'):
        for n, arm in enumerate(e.settings[setting].get('arms', e.arms)):
            book.run('e7_recall', arm, 1, 0.1, setting=setting, accuracy={'items': 1 - n / (100 if 'mqar' in setting else 40)})
    report = book.report()
    [section] = reports.sections(report)
    head, rows = cells(section.tables[0][1])
    check('accuracy of 31 arms at tasks', head[:2] == ['arm', 'learnt'] and 'MQAR, two pairs' in head and len(rows) == len(e.arms),
          head)
    check('the best at the top, with what it has learnt', rows[0][:2] == ['causal', '5 of 5'] and
          rows[1][:2] == ['sliding_window', '5 of 5'] and rows[-1][0] == 'sinks_cache', rows)
    rows = {row[0]: row for row in rows}
    check('learnt in k of n', rows['strided'][1] == '5 of 5' and rows['shaw'][1] == '2 of 5' and rows['seer'][-1] == '-', rows['shaw'])
    check('one run of each is said to be one', 'One run of each arm' in section.warnings()[0], section.warnings())


def learning(work):
    """Steps until tasks are learnt, at the best of three rates: the second, also for asga, of which a run at the third diverges."""
    book, setting = Planted(work, 'learning'), 'learn_copy'
    steps = {('causal', 0.5): 80, ('causal', 1): 40, ('causal', 2): 60, ('asga', 0.5): 90, ('asga', 1): 80, ('asga', 2): 70}
    for (arm, factor), at in steps.items():
        for seed in range(1, 6):
            curve = [[at - 10, 0.89], [at + seed, 0.9], [399, 0.5]]
            event = 'diverged' if (arm, factor, seed) == ('asga', 2, 5) else 'done'
            book.run('e7_recall', arm, seed, 0.1, setting=setting, factor=factor, event=event, accuracy={'items': 0.5},
                     **({} if event == 'diverged' else {'accuracy_at': curve}))
    for seed in range(1, 6):
        for factor in (0.5, 1, 2):
            book.run('e7_recall', 'shaw', seed, 2.0 + factor, setting=setting, factor=factor, accuracy={'items': 0.1},
                     accuracy_at=[[10, 0.1]])
    report = book.report()
    [section] = reports.sections(report)
    head, rows = cells(section.tables[0][1])
    p = stats.logrank_p(*(report.learning['e7_recall', 'reduced', setting][arm].steps for arm in ('shaw', 'causal')), 399)
    want = [['causal', '1', '5 of 5', '43', '41', '45', '94%', '-'], ['asga', '1', '5 of 5', '83', '81', '85', '94%'],
            ['shaw', '0.5 (end of the rates)', '0 of 5', '> 399', '> 399', '> 399', '94%', f'{2 * p:.3g}']]
    check('learning times at the best rate, censored where a task is not learnt',
          [row[1:len(of) + 1] for row, of in zip(rows, want)] == want, rows)


def ratios(work):
    """Claims that are ratios, from interleaved rounds."""
    claim = {'number': 0.8, 'tolerance': 0.01}
    of = lambda low, middle, high, coverage=0.97: claims.Ratios(middle, low, high, coverage, 6)
    for want, found, scale in (('reproduced', of(0.78, 0.79, 0.81), 'paper'), ('stronger', of(0.58, 0.59, 0.61), 'paper'),
                               ('weaker', of(0.88, 0.9, 0.92), 'paper'), ('contradicted', of(1.1, 1.2, 1.3), 'paper'),
                               ('contradicted', of(0.98, 1.0, 1.02), 'paper'), ('unresolved', of(0.8, 1.0, 1.2), 'paper'),
                               ('same sign', of(0.88, 0.9, 0.92), 'reduced'), ('opposite sign', of(1.1, 1.2, 1.3), 'reduced'),
                               ('unresolved', of(0.88, 0.9, 0.92, 0.75), 'reduced')):
        got = claims.judge_ratio(found, claim, scale)
        check(f'a ratio from {found.low} to {found.high} against 0.8 at scale {scale}: {want}', got.word == want, got)
    book = Planted(work, 'ratios')
    for seed in range(1, 7):
        for arm, ms, peak in (('causal', 100, 400), ('dsa', 110, 300)):
            book.run('e4_speed', arm, seed, None, setting='t1k', stage='turns', ms=ms, ratio=(ms + seed) / 100, peak_bytes=peak,
                     baseline_peak_bytes=400)
        for arm, kept in (('causal', 4096), ('mosa', 2048), ('seer', 0)):
            book.run('e9_cache', arm, seed, None, setting='bytes', stage='writes', ms=10, ratio=1.0, first_ms=1.0, first_ratio=1.0,
                     cache_bytes=kept, baseline_cache_bytes=4096, device='cpu', weights='fp32')
        for arm, setting, tokens, ratio in (('causal', 'w1k', 1024, 1.0), ('causal', 'w4k', 4096, 1.0), ('nsa', 'w1k', 1024, 2.0),
                                            ('nsa', 'w4k', 4096, 0.1 + seed / 100)):
            book.run('e4_speed', arm, seed, None, setting=setting, stage='writes', options={'prompt': tokens - 64, 'tokens': 64}, ms=0.5,
                     ratio=ratio, first_ms=1.0, first_ratio=2 * ratio, cache_bytes=tokens * 256, baseline_cache_bytes=tokens * 128)
    book.run('e4_speed', 'nsa', 1, 2.5, setting='weights')
    for setting, share in (('copy_32', 1.0), ('copy_64', 0.9), ('copy_128', 0.2)):
        book.run('e7_recall', 'nsa', 1, 0.1, setting=setting, accuracy={'items': share})
    report = book.report()
    said = {s.claim['id']: s for s in report.findings}
    check('those that a ledger has are judged', set(said) == {'asga_time', 'dsa_time_000', 'dsa_time_002', 'dsa_time_004', 'dsa_memory',
                                                              'mosa_cache', 'nsa_decode', 'nsa_prefill'}, sorted(said))
    lengths = [(s.where[:22], s.found.middle, s.verdict.word) for s in report.findings if s.claim['id'] == 'nsa_decode']
    check('a claim on decoding is judged at each length', lengths == [('a text of 1,024 tokens', 2.0, 'opposite sign'),
                                                                      ('a text of 4,096 tokens', 0.135, 'same sign')], lengths)
    check('and one on prefill by the time to the first token', close(said['nsa_prefill'].found.middle, 0.27), said['nsa_prefill'].line)
    check('by the table of times', said['dsa_time_000'].verdict.word == 'opposite sign' and
          said['dsa_time_002'].verdict.word == 'same sign', said['dsa_time_002'].line)
    check('by peak memory', close(said['dsa_memory'].found.middle, 0.75) and said['dsa_memory'].verdict.word == 'same sign')
    check('and by the cache', close(said['mosa_cache'].found.middle, 0.5), said['mosa_cache'].found)
    check('how a line of a ratio reads', said['dsa_time_002'].line == '002: dsa / causal, published 1.056, ratio of step time; ours '
          '1.135, from 1.110 to 1.160, scale reduced, rows of 1,024 tokens, 6 interleaved rounds; same sign.', said['dsa_time_002'].line)
    timed = {row[0]: row for row in cells(tables.time_table(report.timed[report.timed.setting.isin(['t1k', 'bytes'])]))[1]}
    check('a table of times: medians, interval, memory', timed['dsa'][2:9] == ['6', '110.00', '1.135', '1.110', '1.160', '97%', '-'] and
          timed['dsa'][10:13] == ['0.0', '-', '0.750'], timed['dsa'])
    check('bytes of the cache, and no ratio of what keeps nothing', [timed[arm][-2:] for arm in ('mosa', 'seer')] ==
          [['2.0', '0.500'], ['0.0', '-']], timed)
    head, rows = cells(tables.verdict_table(report))
    rows = {row[1]: row for row in rows}
    at = head.index('verdict')
    check('others have not run, and say what they take', rows['dsa_no_window - causal'][at] == 'not run: e2_dsa at scale paper' and
          'arXiv 2505.06708' in rows['dsa_no_window - causal'][-1] and
          'FineWeb' in rows['a loss of 4.927 +- 0.012 (4.9266) for dense attention'][at], rows['dsa_no_window - causal'])
    card = json.loads((ROOT / 'dev/gpu/NVIDIA_H200.json').read_text())['whole_steps']
    check('a step time is that of a card, too', [s.where[:6] for s in report.findings if s.claim['id'] == 'dsa_time_002'] ==
          ['NVIDIA', 'rows o'] and said['asga_time'].where.startswith('NVIDIA H200') and
          close(said['asga_time'].found.middle, card['causal']['is'] / card['asga']['is']) and
          said['asga_time'].verdict.word == 'same sign', said['asga_time'])
    section = reports.Section(report, 'e4_speed', 'reduced')
    costs = [(title.split()[0], found) for title, found, _ in section.costs()]
    check('worth and cost of every arm against length', costs == [
        ('validation', {'nsa': {None: 2.5}}), ('copies,', {'nsa': {None: 0.7}}),
        ('KV', {arm: {1024: 256.0, 4096: 1024.0} for arm in ('causal', 'nsa')}),
        ('tokens/s', {'causal': {1024: 1.0, 4096: 1.0}, 'nsa': {1024: 0.5, 4096: costs[3][1]['nsa'][4096]}}),
        ('tokens/s', {'causal': {1024: 0.5, 4096: 0.5}, 'nsa': {1024: 0.25, 4096: costs[4][1]['nsa'][4096]}}),
        ('time', {'causal': {512: costs[5][1]['causal'][512]}, 'dsa': {512: costs[5][1]['dsa'][512]}})], costs)
    check('decoding at the longest is the median of rounds, and so is a step', close(costs[3][1]['nsa'][4096], 1 / 0.135) and
          close(costs[4][1]['nsa'][4096], 1 / 0.27) and close(costs[5][1]['dsa'][512], 1.135), costs)
    [drawn] = [svg for caption, svg in section.pictures() if caption.startswith('Worth and cost')]
    check('one picture has them, with dashes for what is missing', drawn.count('>-</text>') == 8 and '4,096 tokens' in drawn,
          drawn.count('>-</text>'))
    check('but not those of other experiments', {c['experiment'] for c in book.report(['e4_speed']).claims} == {'e4_speed'})


def statements(_):
    """Each statement of the page's internal evidence, recomputed by hand from the documents' numbers; another printed number changes it."""
    report = analysis.Report(sorted((ROOT / 'scripts/experiments/results').glob('*.jsonl')))
    expected = (   # words, then a printed number that is changed and the words that follow
        (['weights hashes of 5 pairs', '+0.003 printed', '-0.009 (no gating) and +0.000'], ('neither_000', 4.950), '+0.023 printed'),
        (['rows 257 to 512', '0.8% of all', '2.9 nats', 'at T 2,048 0.18.'], ('dense_until', 768), 'rows 257 to 768'),
        (['1,543,714,304 parameters', 'has 233 million', '122 TFLOP/s', 'and 11 at'], ('rates_002', [26400, 12500]), '245 TFLOP/s'),
        (['418 million tokens: 8.8 hours', '1.1 if', '6.69 billion: 141 or 17.6', '24.5', '4.93 nats after 174 million', '4.04 after 418',
          '3.28 after 5.0 billion', '174 million tokens only if rows have 109.'], ('steps_002', 798), '837 million tokens: 17.6 hours'),
        (['399 steps at 0.0003 and of 50,000 at 0.0006', '-13% (000), +6% (002) and +2.4% (004)', '0.254 nats apart'],
         ('dsa_004', 4.904), '0.000 nats apart'),
        (['is 5.6%, or 6.0% of the smaller; 5.7% is printed', '28 to 22 GB is 21%', 'tokens/s is 5%'],
         ('memory_002', [28, 14]), '14 GB is 50%'),
        (['25.8 GB in bf16', '28 GB hold no model'], ('tokens_002', 2048), '0.1 GB in bf16'),
        (['computes 16 GELUs', '0.92', '1.15', 'NVIDIA H200, rows of 1,024, fused kernels: 0.53 and 0.98.'],
         ('gelus_000', 8), 'computes 8 GELUs'),
        (['z = 1.4', 't = 2.4 and p = 0.07', '3 seeds'], ('dsa_000', 4.827), 'z = 6.1'))
    found = evidence.statements(report)
    check('nine statements', len(found) == len(expected))
    printed = report.printed
    for at, (words, (name, other), after) in enumerate(expected):
        title, said = found[at]
        check(f'internal evidence {at + 1}: {title}', all(word in said for word in words), said)
        report.printed = printed | {name: other}
        _, changed = evidence.statements(report)[at]
        check(f'and it follows the printed {name}', after in changed, changed)
    report.printed = {name: value for name, value in printed.items() if name != 'steps_002'}
    refused('a number that claims.toml lacks', '[printed] has no steps_002', lambda: evidence.statements(report), 2)


def cautious(work):
    """Guards: context, text, unigram, transience, each from a planted ledger whose opposite has no sentence."""
    curve = lambda slope: [[at + 15.5, 2 - (at > 0) * 0.1 - slope * at / 512] for at in range(0, 512, 32)]
    for name, by_position, half, words in (
            ('flat', curve(0), 2.3, 'uses no context beyond a window: its loss behind position 32 is +0.000'),
            ('falling', curve(0.2), 2.3, ''),
            ('shrinking', curve(0.2), 2.0, 'dsa - causal from -0.400 to -0.100')):
        book = Planted(work, f'guards_{name}')
        for seed, noise in enumerate((0.001, -0.001, 0.0), 1):
            book.run('e2_dsa', 'causal', seed, 2.0, half=2.4, training=[[100, 2.4], [399, 2.0]])
            book.run('e2_dsa', 'dsa', seed, 1.9 + noise, half=half)
        book.run('e8_streaming', 'causal', 1, 2.0, setting='after', stage='phase2', by_position=by_position)
        report = book.report()
        said = ' '.join(next(s for s in reports.sections(report) if s.name == 'e2_dsa').cautions())
        check(f'a guard: {name}', words in said and bool(said) == bool(words), said)
    base = report.trained[(report.trained.arm == 'causal') & (report.trained.seed == 1) & (report.trained.experiment == 'e2_dsa')]
    result = base.record.iloc[0]['result']
    for name, training, words in (('differ in kind', [[100, 1.4], [399, 1.0]], ' +1.00 nats apart at the first validation, +1.00 at the'),
                                  ('are apart after many passes alone', [[100, 2.4], [399, 1.0]], ''),
                                  ('cross', [[100, 3.4], [399, 1.0]], '')):
        result['training'] = training
        said = ' '.join(guards.other_text(base))
        check(f'a guard: training and validation {name}', words in said and bool(said) == bool(words), said)
    shard = work / 'a_train_000001.bin'
    shard.write_bytes(shards.header(shards.MAGIC_16, 1, 4) + struct.pack('<4H', 7, 7, 7, 9))
    unigram = guards.unigram_loss([shard])
    check('the loss of a unigram model', close(unigram, -0.75 * math.log(0.75) - 0.25 * math.log(0.25)), unigram)
    check('a guard: no better than it', 'is not below the 0.56' in ' '.join(guards.no_better_than_unigram(base, unigram)) and
          guards.no_better_than_unigram(base, 2.1) == [] and guards.unigram_loss([]) is None)


def horizons(work):
    """Differences that fall as a power of the tokens of whole schedules, and the exponent's interval over seeds."""
    book, exponents = Planted(work, 'horizons'), (0.4, 0.5, 0.6)
    for setting, tokens in (('steps_500', 2e6), ('steps_2000', 8e6), ('steps_8000', 32e6)):
        for seed, a in enumerate(exponents, 1):
            for arm, difference in (('causal', 0.0), ('dsa', -(0.2 + seed / 1000) * (tokens / 2e6)**-a),
                                    ('asga', 0.01 * seed * (8e6 - tokens) / 8e6)):
                book.run('e15_horizon', arm, seed, 2.0 + seed / 10 + difference, 'medium', setting, tokens=int(tokens))
    [section] = reports.sections(book.report())
    title, table = section.tables[0]
    head, rows = cells(table)
    half = reference.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    check('the exponent of a difference with its interval', 'length of a run' in title and head[1] == '2,000,000 tokens' and
          rows[0][0] == 'dsa' and rows[0][-1] == f'0.50 +- {half:.2f}', rows)
    check('none where the sign changes', rows[1][0] == 'asga' and rows[1][-1] == '-', rows)
    check('with a picture', any('length of a run' in caption for caption, _ in section.pictures()))
    book = Planted(work, 'horizons_lacking')
    for setting, tokens in (('steps_500', 1), ('steps_2000', 4), ('steps_8000', 16)):
        for arm in ('causal', 'dsa')[:1 if tokens == 16 else 2]: book.run('e15_horizon', arm, 1, 2.0, 'medium', setting, tokens=tokens)
    refused('an arm without runs at one horizon', 'dsa has no runs of 16 tokens, where others have; run.py e15_horizon --scale medium '
            '--arms dsa makes them', lambda: reports.sections(book.report()), 3)


def pairs_of_results(work):
    """Claims judged from pairs of seeds and from curves: bytes, steps to a loss, collapse of entropy, mass; and identities, strikes."""
    book = Planted(work, 'pairs')
    for seed in (1, 2, 3):
        for arm, peak, lower in (('causal', 100, 0), ('dsa', 102, 0.5)):
            loss = 2.0 - lower - (0.001 * seed**2 if arm == 'dsa' else 0)
            book.run('e13_budget', arm, seed, loss, 'medium', 'trained', peak_bytes=peak,
                     validation=[[100, 1, 3.0 - lower, 1], [200, 2, 2.0 - lower, 2]])
        book.run('e3_dsa2', 'causal', seed, 1.5, mass_95=[[100, 0.9], [399, 0.3 + seed / 100]])
        for arm in ('causal', 'asga_neither'): book.run('e1_asga', arm, seed, 1.5 + seed / 100, weights_hash=f'same{seed}')
        for arm, end in (('causal', 0.3), ('dsa', 0.4), ('causal_sigma', 4.8)):
            book.run('e10_stability', arm, seed, 2.5, setting='no_qk_norm', entropy=[[10, 3.0], [150, end + seed / 100]])
            book.run('e10_stability', arm, seed, 2.5, setting='warm_4', entropy=[[150, 3.0]])
    for arm in ('causal', 'dsa'): book.run('e2_dsa', arm, 1, 5.0, 'medium')
    for seed in range(1, 6):
        for setting in ('idle_after', 'plain_after'):
            whole = (seed, setting) == (1, 'idle_after')
            for arm, more in (('causal', 0), ('window_after', 0 if whole else 0.02 * seed**3), ('sinks_after', 0.001)):
                book.run('e16_sinks', arm, seed, 3.1 + seed / 100 + more, setting=setting)
    report = book.report()
    said = {s.claim['id']: s for s in report.findings}
    memory, steps, sigma, mass = (said[name] for name in ('dsa_memory_134m', 'dsa_converges', 'sigma_reparam', 'mass_95'))
    check('bytes by pairs of seeds', close(memory.found.middle, 1.02) and memory.verdict.word == 'opposite sign', memory.line)
    check('steps to the loss of the baseline', close(steps.found.middle, 0.75) and steps.verdict.word == 'same sign', steps.line)
    check('entropy that collapses, in its setting alone', sigma.verdict.word == 'same sign' and
          '6 of 6 collapse without (0.31 to 0.43 nats at the end), 0 of 3 with (4.81 to 4.83)' in sigma.line, sigma.line)
    broken, repaired = said['window_breaks'], said['sink_repairs']
    check('runs that break, of two settings by one sign test', broken.verdict.word == 'same sign' and
          '9 of 10 break (+0.0000 to +2.5000 nats), p 0.0039, Wilcoxon 0.0' in broken.line, broken.line)
    check('and runs that do not', repaired.verdict.word == 'equivalent to 0' and '0 of 10 break' in repaired.line, repaired.line)
    check('a share of keys', close(mass.found.middle, 0.32) and mass.verdict.word == 'not seen', mass.line)
    check('equal weights hashes', said['asga_neither'].verdict.word == 'identity', said['asga_neither'].line)
    section = next(s for s in reports.sections(report) if (s.name, s.scale) == ('e2_dsa', 'medium'))
    check('struck runs have no verdict and no picture of it, and say why', {one.verdict.word for one in section.findings} == {'struck'} and
          section.compared() == [] and 'web pages' in section.warnings()[0], section.warnings())


def whole(work):
    """What the files say."""
    four = [work / f'{name}.jsonl' for name in ('sweeps', 'differences', 'recall', 'ratios')]
    reports.write(analysis.Report(four), work)
    text, html = (work / 'report.md').read_text(), (work / 'report.html').read_text()
    for what, words in (('its setup', '- model: qwen-1m'), ('what was run', '- seeds: 1 to 7'),
                        ('labels of arms', '- causal_sigma: causal with'),
                        ('warnings', '**dsa: the best rate of the sweep'), ('the analysis', '- equivalence: TOST at 5%'),
                        ('what the source says', '4.904 against 4.927')):
        check(f'the Markdown has {what}', words in text, words)
        check(f'the page has {what}', re.sub(r'^(- .*: |\*\*)', '', words) in html, words)
    check('it has pictures', html.count('<figcaption>') == 12, html.count('<figcaption>'))
    first = text[:text.index('# Internal evidence')]
    check('five sentences open it, before a picture', first.count('\n- ') + first.startswith('- ') == 5 and
          html.index('differences that still shrink') < html.index('<figure'), first)
    check('a table for telephones names its cells', html.count('data-label="verdict"') == len(tables.verdict_table(analysis.Report(four))))


def opened(work):
    """The first five sentences and the multiples of the picture, from planted runs."""
    report = analysis.Report([work / 'differences.jsonl', work / 'ratios.jsonl'])
    said, picture = reports.opening(report)
    ran = {one.claim['id'] for one in report.findings}
    count = lambda *words: sum(one.verdict.word in words for one in report.findings)
    check('the opening counts runs and claims', said[0].startswith(f'{len(report.runs)} runs of 853,376 parameters and 2 tokens test '
          f'{len(ran)} of {len(report.claims) + len(report.not_run)} published numbers; 1 runs diverged'), said[0])
    check('those at the papers\' scale', said[1].startswith(f'{(report.runs.scale == "paper").sum()} runs are'), said[1])
    check('what has the published sign', '002: dsa - causal' in said[3].split('opposite')[0] and '000: dsa / causal, step time' in
          said[3].split('opposite')[1], said[3])
    check('and what says nothing', f'from {count("transient")} differences' in said[4] and
          f'; {count("equivalent to 0", "identity")} are' in said[4], said[4])
    multiple = {one.claim['id']: one.multiple for one in report.findings}
    check('ours as a multiple of the published', close(multiple['dsa_loss'][1], 1.0, 1e-6) and
          close(multiple['dsa_time_002'][1], math.log(1.135) / math.log(1.056)), multiple)
    check('in one picture', picture.startswith('<svg'))


def written(work):
    """What claims.toml says has a plan."""
    for claim in claims.read_claims()['claims']:
        e = plan.Experiment(claim['experiment']) if claim['experiment'] in plan.known_experiments() else None
        check(f'claim {claim["id"]} has a plan', e and {*claim['arm'].split(), *claim['against'].split()} <= set(e.arms) and
              set(claim.get('setting', '').split()) <= set(e.settings))
        if claim['unit'] in claims.RATIOS and claim['experiment'] != 'e13_budget':
            check(f'claim {claim["id"]} is measured in rounds', any(plan.rounds_of(setting) for setting in e.settings.values()))
    text = (ROOT / 'scripts/experiments/claims.toml').read_text()
    for what, old, new, words in (
            ('a unit that there is not', '"ratio of bytes"', '"bytes"', 'unknown unit bytes; there are: nats'),
            ('a key that there is not', 'number = 1.087', 'number = 1.087, wall = 5', 'unknown or missing: wall'),
            ('a claim without its source', 'tolerance = 0.027, source = "000, table 1"', 'tolerance = 0.027',
             'row asga_loss of claims: unknown or missing: source'),
            ('a claim without a place in it', 'tolerance = 0.027, source = "000, table 1"', 'source = "000, "',
             'row asga_loss of claims: the source "000, " is no document'),
            ('a strike without a reason', 'why = "', 'why = " "  # "', 'row e2_dsa of struck: why is empty'),
            ('a printed number without its place', '"000, table 1" = {', '"000" = {', '[printed]: the source "000" is no document')):
        (work / 'claims.toml').write_text(text.replace(old, new, 1))
        refused(what, words, lambda: claims.read_claims(work / 'claims.toml'), 2)


def main(here):
    for part in (differences, sweeps, recall, learning, ratios, pairs_of_results, cautious, horizons, statements, whole, opened, written):
        part(here)
