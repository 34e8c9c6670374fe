"""scripts/experiments/tasks.py: every answer follows from the text, and a solver that cannot look back far enough guesses."""

import re
import struct
import time

from experiment_checks import check, refused
import numpy as np
import tasks

ROWS = 1500
TASKS = {
    'copy': {'T': 200, 'length': 8, 'distance': 64},
    'gap_copy': {'T': 200, 'length': 8, 'distance': 64},
    'mqar': {'T': 96, 'pairs': 8, 'queries': 3},
    'induction': {'T': 64},
}


def solve_copy(words, task):
    """From a whole stretch of letters, at whatever distance."""
    head, _, done = words.rpartition(':')
    found = re.search(r'[a-p]+(?=[.:]*$)', head)
    stretch = found.group()[-task['length']:] if found else ''
    return stretch[len(done)] if len(stretch) == task['length'] else None


def solve_mqar(words, task):
    found = re.search(re.escape(words[-1]) + '([a-p])', words[:-1])
    return found[1] if found else None


def solve_induction(words, task):
    at = words[:-1].find(':')
    return words[at + 1] if at >= 0 else None


SOLVERS = {'copy': solve_copy, 'gap_copy': solve_copy, 'mqar': solve_mqar, 'induction': solve_induction}


def accuracy(rows, task, window, random):
    """Of a solver that sees so many tokens back and guesses where it cannot tell; one answer of each row."""
    right, solve = 0, SOLVERS[task['kind']]
    for row, answers in zip(rows.tokens, rows.answers):
        at = answers[random.integers(len(answers))]
        words = ''.join('_' if n < at - window else '^' if c == 256 else chr(c) for n, c in enumerate(row[:at]))
        said = solve(words, task) or chr(random.choice(rows.symbols))
        right += said == chr(row[at])
    return right / len(rows.tokens)


def distances(rows):
    return rows.answers - rows.sources


def kind_of_task(kind, sizes, random):
    task = tasks.complete({'kind': kind} | sizes)
    rows = tasks.make(task, 'train', ROWS)
    chance = 1 / len(rows.symbols)
    answer, source = (np.take_along_axis(rows.tokens, at, 1) for at in (rows.answers, rows.sources))
    check(f'{kind}: the answer is in the text', (answer == source).all() and (distances(rows) > 0).all())
    if kind == 'copy': check('copy: at its distance', (distances(rows) == task['distance']).all())
    check(f'{kind}: answers are among the symbols, each about as often', np.isin(answer, rows.symbols).all() and
          abs(np.mean(answer == rows.symbols[0]) - chance) < 5 * (chance / answer.size) ** 0.5 + 0.01)
    got = accuracy(rows, task, task['T'], random)
    check(f'{kind}: a solver that sees all is right', got == 1, got)
    near = int(distances(rows).min()) - 1
    got, spread = accuracy(rows, task, near, random), (chance * (1 - chance) / ROWS) ** 0.5
    check(f'{kind}: a solver that sees {near} tokens back scores chance', abs(got - chance) < 4 * spread,
          f'{got:.4f}, not {chance:.4f} +- {4 * spread:.4f}')
    again, other, val = (tasks.make(*of, ROWS) for of in ((task, 'train'), (task | {'seed': 2}, 'train'), (task, 'val')))
    check(f'{kind}: seeded, and other parts are other rows',
          (again.tokens == rows.tokens).all() and (other.tokens != rows.tokens).any() and (val.tokens != rows.tokens).any())


def files(work):
    task = {'kind': 'copy', 'T': 64, 'length': 8, 'distance': 16, 'rows': 40, 'items': 10}
    tasks.write(task, work / 'a')
    masked = (work / 'a/task_train_000001.bin').read_bytes()
    count = 40 * 64
    check('a shard of version 2 has its mask behind the tokens',
          struct.unpack('<3i', masked[:12]) == (20240520, 2, count) and len(masked) == 1024 + 3 * count)
    tokens = np.frombuffer(masked[1024:1024 + 2 * count], '<u2').reshape(40, 64)
    mask = np.frombuffer(masked[1024 + 2 * count:], np.uint8).reshape(40, 64)
    check('the mask marks the copies', mask.sum() == 40 * 2 * 8 and set(mask.ravel()) == {0, 1}
          and (tokens[:, 17:25][mask[:, 17:25] == 1].reshape(40, -1) == tokens[:, 1:9]).all())


def main(work):
    random = np.random.default_rng(3)
    for kind, sizes in TASKS.items(): kind_of_task(kind, sizes, random)
    steps = tasks.make({'kind': 'mqar', 'T': 96, 'pairs': 8, 'curriculum': True}, 'train', 100)
    shown = np.isin(steps.tokens[:, 2:18:2], tasks.LETTERS).sum(1)
    check('mqar: a curriculum goes from one pair to all', shown[0] == 1 and (np.diff(shown) >= 0).all() and (shown[50:] == 8).all(), shown)
    begin = time.process_time()
    tasks.make({'kind': 'mqar', 'T': 256}, 'train', 4000)
    check('a million tokens take seconds', time.process_time() - begin < 3, time.process_time() - begin)
    files(work)
    near, far = (tasks.make({'kind': 'backcopy', 'T': T, 'seed': T}, 'train', 2000) for T in (64, 256))
    before, further = near.tokens[:, 2:-1], near.tokens[:, 1:-2]
    trigger = before > tasks.BACKCOPY[-4]
    check('backcopy: behind a trigger the symbol before it comes again', (near.tokens[:, 3:] == further)[trigger].all() and
          0.1 < trigger.mean() < 0.2 and (near.tokens[:, 3:] == further)[~trigger].mean() < 0.05, trigger.mean())
    pairs = [np.histogram2d(rows.tokens[:, 2:-1][near_trigger], rows.tokens[:, 3:][near_trigger], [np.arange(33, 97)] * 2, density=True)[0]
             for rows in (near, far) for near_trigger in [rows.tokens[:, 2:-1] <= tasks.BACKCOPY[-4]]]
    check('backcopy: seed and T do not change the chain', np.corrcoef(pairs[0].ravel(), pairs[1].ravel())[0, 1] > 0.95)
    check('backcopy: all places count but the first two', (near.answers == np.arange(2, 64)).all())
    large = tasks.complete({'kind': 'mqar', 'T': 64, 'pairs': 4, 'queries': 4, 'vocabulary': 8192})
    rows = tasks.make(large, 'train', 50)
    keys, values = rows.tokens[:, 1:9:2], rows.tokens[:, 2:10:2]
    check('a vocabulary has keys in its lower half and values in its upper one', keys.min() >= 512 and keys.max() < 4096 <= values.min() and
          values.max() < 8192 and all(len(set(row)) == 4 for row in keys))
    check('and answers stand where their sources say', (np.take_along_axis(rows.tokens, rows.answers, 1) ==
          np.take_along_axis(rows.tokens, rows.sources, 1)).all())
    words = np.frombuffer(tasks.items(rows, np.random.default_rng(1))[1024:], '<u2')
    offered = words[6 + words[5]:words[1] // 2].reshape(-1, 2)[:, 1]
    check('an item offers 16 of them, the right one among these', words[4] == 16 == len(set(offered)) and
          offered[words[3]] == rows.tokens[0, words[5]], offered)
    for wrong, word in (({'kind': 'mqar', 'vocabulary': 1000}, 'vocabulary 1000 must be above 1024'),
                        ({'kind': 'riddle'}, 'unknown task riddle; there are: copy'), ({'kind': 'copy', 'reach': 3}, 'unknown key reach'),
                        ({'kind': 'copy', 'T': 20, 'length': 16, 'distance': 64}, 'needs rows of 81 tokens'),
                        ({'kind': 'copy', 'length': 16, 'distance': 8}, 'must be more than length 16')):
        refused(f'refuses {wrong}', word, lambda: tasks.make(wrong, 'train', 4))
