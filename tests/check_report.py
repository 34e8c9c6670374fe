"""scripts/experiments/report.py and what it is made of, from planted ledgers: verdicts on differences and on ratios, best rates,
tables, pictures."""

import re
import warnings

from experiment_checks import ROOT, cells, check, close, refused
import analysis
import ledger
import page
import plan
import report as reports
import tables
import verdicts
from scipy import stats as reference

warnings.simplefilter('error', UserWarning)   # matplotlib says so where a picture has no room


class Planted:
    """A ledger, written when its report is asked for: every write waits for the disk."""

    def __init__(self, work, name):
        self.path = work / f'{name}.jsonl'
        self.events = []

    def run(self, experiment, arm, seed, loss, scale='reduced', setting='', stage='seeds', factor=1, event='done', **result):
        labels = {'experiment': experiment, 'scale': scale, 'stage': stage, 'arm': arm, 'setting': setting, 'seed': seed, 'factor': factor}
        key = f'{experiment}{arm}{seed}{setting}{stage}{factor}{scale}'
        curve = [[100, 1, loss and loss + 1, 1.0], [399, 2, loss, 2.0]]
        training = [[step, 6 - step / 100] for step in range(10, 400, 10)]
        self.events += [('run', {'key': key, **labels}), (event, {
            'key': key, **labels, 'options': {'model': 'qwen-1m', 'lr': 0.004 * factor, 'seq-len': 512}, 'result': {
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
    paper = next(section for section in page.sections(report) if section.scale == 'paper')
    check('a best rate at the end of the sweep is told',
          [words[:31] for words in paper.warnings()] == ['dsa: the best rate of the sweep'], paper.warnings())
    head, rows = cells(tables.verdict_table(report))
    planned = {row[3]: row[head.index('planned')] for row in rows if row[3] != '-'}
    check('what the plan of each scale can see', planned == {'paper': '5 seeds see 0.032', 'reduced': '5 seeds see 0.032'}, planned)
    same = next(s for s in report.findings if s.claim['id'] == 'asga_loss')
    check('two arms that compute the same', same.verdict.reason == 'the two compute the same numbers' and 'Smallest' not in same.line and
          next(row for row in rows if row[1] == 'asga - causal')[head.index('smallest detectable')] == '-', same)
    check("the pilot's sd is of one experiment alone", close(report.pilot_sd('e2_dsa', 'paper'), reference.tstd([n - 0.023 for n in noise]),
                                                             1e-6) and close(report.pilot_sd('e1_asga', 'reduced'), 0.03, 1e-6))
    section = next(section for section in page.sections(report) if section.name == 'e1_asga')
    [other] = [cells(table)[1] for title, table in section.tables if 'other comparisons' in title]
    check('what an experiment compares beside the baseline', [row[:3] for row in other] ==
          [['asga_no_geometry_matched', 'asga', '+0.1600 +- 0.0745']], other)
    lines = section.compared()
    check('stands in its picture, without a published number', [line[2] for line in lines if ' - asga' in line[0]] == [None], lines)


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
    section = next(section for section in page.sections(report) if section.name == 'e10_stability')
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
    [section] = page.sections(report)
    head, rows = cells(section.tables[0][1])
    check('accuracy of 31 arms at tasks', head[:2] == ['arm', 'learnt'] and 'MQAR, two pairs' in head and len(rows) == len(e.arms),
          head)
    check('the best at the top, with what it has learnt', rows[0][:2] == ['causal', '5 of 5'] and
          rows[1][:2] == ['sliding_window', '5 of 5'] and rows[-1][0] == 'sinks_cache', rows)
    rows = {row[0]: row for row in rows}
    check('learnt in k of n', rows['strided'][1] == '5 of 5' and rows['shaw'][1] == '2 of 5' and rows['seer'][-1] == '-', rows['shaw'])
    check('one run of each is said to be one', 'One run of each arm' in section.warnings()[0], section.warnings())


def ratios(work):
    """Claims that are ratios, from interleaved rounds."""
    claim = {'number': 0.8, 'tolerance': 0.01}
    of = lambda low, middle, high, coverage=0.97: verdicts.Ratios(middle, low, high, coverage, 6)
    for want, found, scale in (('reproduced', of(0.78, 0.79, 0.81), 'paper'), ('stronger', of(0.58, 0.59, 0.61), 'paper'),
                               ('weaker', of(0.88, 0.9, 0.92), 'paper'), ('contradicted', of(1.1, 1.2, 1.3), 'paper'),
                               ('contradicted', of(0.98, 1.0, 1.02), 'paper'), ('unresolved', of(0.8, 1.0, 1.2), 'paper'),
                               ('same sign', of(0.88, 0.9, 0.92), 'reduced'), ('opposite sign', of(1.1, 1.2, 1.3), 'reduced'),
                               ('unresolved', of(0.88, 0.9, 0.92, 0.75), 'reduced')):
        got = verdicts.judge_ratio(found, claim, scale)
        check(f'a ratio from {found.low} to {found.high} against 0.8 at scale {scale}: {want}', got.word == want, got)
    book = Planted(work, 'ratios')
    for seed in range(1, 7):
        for arm, ms, peak in (('causal', 100, 400), ('dsa', 110, 300)):
            book.run('e4_speed', arm, seed, None, setting='t512', stage='turns', ms=ms, ratio=(ms + seed) / 100, peak_bytes=peak,
                     baseline_peak_bytes=400)
        for arm, kept in (('causal', 4096), ('mosa', 2048), ('seer', 0)):
            book.run('e9_cache', arm, seed, None, setting='bytes', stage='writes', ms=10, ratio=1.0, first_ms=1.0, first_ratio=1.0,
                     cache_bytes=kept, baseline_cache_bytes=4096, device='cpu', weights='fp32')
    report = book.report()
    said = {s.claim['id']: s for s in report.findings}
    check('those that a ledger has are judged', set(said) == {'dsa_time_000', 'dsa_time_002', 'dsa_time_004', 'dsa_memory', 'mosa_cache'},
          sorted(said))
    check('by the table of times', said['dsa_time_000'].verdict.word == 'opposite sign' and said['dsa_time_002'].verdict.word == 'same sign',
          said['dsa_time_002'].line)
    check('by peak memory', close(said['dsa_memory'].found.middle, 0.75) and said['dsa_memory'].verdict.word == 'same sign')
    check('and by the cache', close(said['mosa_cache'].found.middle, 0.5), said['mosa_cache'].found)
    check('how a line of a ratio reads', said['dsa_time_002'].line == '002 says dsa 1.056, ratio of step time; ours 1.135, from 1.110 to '
          '1.160 (rows of 512 tokens, 6 interleaved rounds): same sign at scale reduced.', said['dsa_time_002'].line)
    rows = {row[1]: row for row in cells(tables.verdict_table(report))[1]}
    check('others are not measured', rows['asga / causal'][7] == rows['dsa_no_window - causal'][7] == 'not measured' and
          'arXiv 2505.06708' in rows['dsa_no_window - causal'][-1], rows['asga / causal'])
    check('but not those of other experiments', {c['experiment'] for c in book.report(['e4_speed']).claims} == {'e4_speed'})


def whole(work):
    """What the files say."""
    reports.write(analysis.Report([work / 'sweeps.jsonl', work / 'differences.jsonl', work / 'recall.jsonl', work / 'ratios.jsonl']), work)
    text, html = (work / 'report.md').read_text(), (work / 'report.html').read_text()
    for what, words in (('its setup', '- model: qwen-1m'), ('what was run', '- seeds: 1 to 7'), ('labels of arms', '- causal_sigma: causal with'),
                        ('warnings', '**dsa: the best rate of the sweep'), ('the analysis', '- equivalence: TOST at 5%'),
                        ('what the source says', 'As read: 4.904 against 4.927.')):
        check(f'the Markdown has {what}', words in text, words)
        check(f'the page has {what}', re.sub(r'^(- .*: |\*\*)', '', words) in html, words)
    check('it has pictures', html.count('<figcaption>') == 7, html.count('<figcaption>'))


def written(work):
    """What claims.toml says has a plan."""
    for claim in verdicts.read_claims()[1]:
        e = plan.Experiment(claim['experiment']) if claim['experiment'] in plan.known_experiments() else None
        check(f'claim {claim["id"]} has a plan', e and {claim['arm'], claim['against']} <= set(e.arms) and 'paper' in e.scales)
        if claim['unit'] != verdicts.NATS:
            check(f'claim {claim["id"]} is measured in rounds', any(plan.rounds_of(setting) for setting in e.settings.values()))
    text = (ROOT / 'scripts/experiments/claims.toml').read_text()
    for what, old, new, words in (('a unit that there is not', '"ratio of bytes"', '"bytes"', 'unknown unit bytes; there are: nats'),
                                  ('a key that there is not', 'number = 1.087\n', 'number = 1.087\nwall = 5\n', 'unknown or missing: wall'),
                                  ('a claim without its source', 'document = "000"\n', '', 'unknown or missing: document')):
        (work / 'claims.toml').write_text(text.replace(old, new, 1))
        refused(what, words, lambda: verdicts.read_claims(work / 'claims.toml'))
    (work / 'toml').mkdir()
    toml = (ROOT / 'scripts/experiments/e1_asga.toml').read_text()
    (work / 'toml/e1_asga.toml').write_text(toml.replace('"asga_no_geometry_matched", "asga"]', '"asga_no_geometry_matched", "agsa"]'))
    refused('a comparison with an arm that is not there', 'unknown arm agsa', lambda: plan.Experiment('e1_asga', work / 'toml'))


def main(here):
    differences(here)
    sweeps(here)
    recall(here)
    ratios(here)
    whole(here)
    written(here)
