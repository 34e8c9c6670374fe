#!/usr/bin/env python3
"""The logs of evaluations that tests/evaluate.sh has run. Prints `ok NAME` or `FAIL NAME: why`.

    python3 tests/check_evaluate.py FOLDER      with NAME.jsonl, NAME.txt and NAME-items.jsonl for each evaluation
"""
import json
import math
import sys
from pathlib import Path

from checks import check_all

FOLDER = Path(sys.argv[1])


def records_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Log:
    def __init__(self, name):
        self.records, self.text = records_of(FOLDER / f'{name}.jsonl'), (FOLDER / f'{name}.txt').read_text()
        event = {record.get('event', 'validation'): record for record in self.records}
        self.loss, self.config, self.done = event['validation']['val_loss'], event['config'], event['done']
        self.bins = event.get('loss_by_position', {'bins': []})['bins']
        self.targets = sum(b['targets'] for b in self.bins)
        self.mean = sum(b['targets'] * b['loss'] for b in self.bins if b['targets']) / max(1, self.targets)
        reading = [record for record in self.records if record.get('event') == 'sparse_reading']
        self.read, self.kept = ({r['of']: r[key] for r in reading} for key in ('pairs_read', 'mass_kept'))
        self.items = records_of(FOLDER / f'{name}-items.jsonl')
        self.scores = [score for item in self.items for score in item['log_likelihoods']]


def near(a, b, most=1e-12):
    return abs(a - b) <= most * abs(b)


def same(a, b, most):
    """Losses of all bins, relative."""
    return len(a.bins) == len(b.bins) > 0 and all(near(x['loss'], y['loss'], most) for x, y in zip(a.bins, b.bins))


def same_scores(a, b, most):
    return len(a.scores) == len(b.scores) == 6 and all(near(x, y, most) for x, y in zip(a.scores, b.scores))


plain, masked, each, completions = Log('plain'), Log('masked'), Log('each'), Log('completions')
check_all('the loss by position, weighted by its targets, is the validation loss', near(plain.mean, plain.loss), plain.targets % 32 == 0)
check_all('in equal parts of a row, each with its error, and in a table',
          [(b['first'], b['last']) for b in plain.bins] == [(0, 5), (6, 11), (12, 18), (19, 24), (25, 31)],
          all(0 < b['stderr'] < 0.2 for b in plain.bins), '| 25 to 31 ' in plain.text)
check_all('the log has the checkpoint, its step, and an end', plain.config['evaluates'].endswith('step_00000012'),
          {record['step'] for record in plain.records} == {12}, plain.done['val_loss'] == plain.loss)
check_all('loss and perplexity are printed, and three accuracies with their errors',
          f'loss {plain.loss:.6f}, perplexity {math.exp(plain.loss):.2f}' in plain.text,
          all(words in plain.text for words in ('items: 3 items, accuracy by sum ', ' +- ', 'by token mean', 'by character mean')))
check_all('it is the loss that the run ended with', Log('as_run').loss == records_of(FOLDER / 'causal/log.jsonl')[-1]['val_loss'])
check_all('items that have no room in a batch get the same scores', same_scores(Log('narrow'), plain, 1e-5))
check_all('targets that a mask hides do not count', near(masked.mean, masked.loss), masked.targets < plain.targets / 4, '-, 0 targets' in masked.text,
          [b['targets'] == 0 for b in masked.bins] == [True, True, False, False, False], masked.bins[0]['loss'] is None)
check_all('more bins than positions are one for each', len(each.bins) == 32, near(each.mean, plain.loss))
check_all('completions are the targets of masked prompts, and the end of text behind them', completions.targets == 19 * 12,
          [b['targets'] for b in completions.bins] == [0] * 20 + [19] * 12)

everything = Log('psa_all')
check_all('psa that keeps everything is causal attention at every position and in scores', same(everything, plain, 1e-5),
          same_scores(everything, plain, 1e-5), set(everything.read) == {'validation', 'items'},
          all(near(share, 1, 1e-6) for share in [*everything.read.values(), *everything.kept.values()]))
psa, adaspa = Log('psa'), Log('adaspa')   # the last answer has too few tokens before it to leave some out
check_all('psa that reads less has other losses and scores', not same(psa, plain, 1e-5), near(psa.mean, psa.loss), len(psa.scores) == 6,
          not any(near(a, b, 1e-6) for a, b in zip(psa.scores[:5], plain.scores)))
check_all('and prints the shares that it has read and kept', all(0.1 < psa.read[of] < 0.95 and 0.5 <= psa.kept[of] < 1 and f'{of}: psa: read ' in psa.text
                                                                for of in ('validation', 'items')))
check_all('adaspa reads less of rows, which look ahead, and contexts of one block whole', 0.4 < adaspa.read['validation'] < 0.9,
          adaspa.read['items'] == 1, 'cannot be compared' in adaspa.text, 'cannot be compared' not in psa.text)

if (FOLDER / 'ranks.jsonl').exists():
    ranks, psa_ranks = Log('ranks'), Log('psa_ranks')
    check_all('two ranks find the same at every position', same(ranks, plain, 1e-6), ranks.targets == plain.targets, ranks.config['ranks'] == 2,
              all(near(a['stderr'], b['stderr'], 1e-4) for a, b in zip(ranks.bins, plain.bins)))
    check_all('and give every item the score of one', ranks.items == plain.items)
    check_all('and read the same with psa', same(psa_ranks, psa, 1e-6), same_scores(psa_ranks, psa, 1e-5),
              all(near(psa_ranks.read[of], psa.read[of], 1e-6) for of in psa.read))
