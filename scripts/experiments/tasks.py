"""Tasks whose answers stand far back: token shards in bytes with a mask of the answers, and items that count them.

Each row of T tokens begins with the end-of-text token; --shuffle 0 --seq-len T reads one row as one sequence. Unused places hold dots.
Writes task_train_000001.bin and task_val_000000.bin, task_manifest.json, and items.bin for --eval-data: one answer token per row
with all possible symbols as choices (16 of a large vocabulary), so that chance is one over their number.

Sources: copying after Jelassi et al. (arXiv 2402.01032), MQAR after Zoology (2312.04927), induction after H3 (2212.14052),
Bigram-Backcopy after 2410.13835.
"""
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

import shards
from packages import EXIT_DATA, Refused

END_OF_TEXT, DOT = 256, ord('.')
BYTES = 512            # the vocabulary of models that read bytes
LETTERS = np.frombuffer(b'abcdefghijklmnop', np.uint8).astype(np.uint16)       # values: chance is 1/16
KEYS = np.frombuffer(b'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!"$%&()*+,-/<=>?@[]^_{|}~`', np.uint8).astype(np.uint16)
BACKCOPY = np.arange(33, 96, dtype=np.uint16)
CHOICES = 16           # of an item whose answer may be any of more symbols than KEYS has
DEFAULTS = {'T': 256, 'length': 16, 'distance': 0, 'pairs': 8, 'queries': 3, 'vocabulary': 0, 'curriculum': False, 'rows': 8192,
            'items': 200, 'seed': 1}


class Rows(NamedTuple):
    """N rows of T tokens, each with A answers."""
    tokens: np.ndarray    # (N, T)
    answers: np.ndarray   # (N, A), places of answer tokens
    sources: np.ndarray   # (N, A), places of the farthest token that each answer stands on, before it
    symbols: np.ndarray   # what an answer token may be


def empty(task, n, needed):
    """n rows of dots behind an end-of-text token; refuses T below the `needed` number of tokens."""
    if task['T'] < needed: raise Refused(f'{task["kind"]}: needs rows of {needed} tokens; T is {task["T"]}')
    tokens = np.full((n, task['T']), DOT, np.uint16)
    tokens[:, 0] = END_OF_TEXT
    return tokens


def copy(task, n, random):
    """A stretch of letters, dots, a colon, the same stretch: every token stands `distance` tokens after its source. The distances of
    gap_copy are drawn from length + 1 to `distance`."""
    length, distance = task['length'], task['distance'] or 4 * task['length']
    if distance <= length: raise Refused(f'{task["kind"]}: distance {distance} must be more than length {length}')
    slot = distance + length
    tokens, answers, sources = empty(task, n, 1 + slot), [], []
    for end in range(1 + slot, task['T'] + 1, slot):
        gap = np.full((n, 1), distance) if task['kind'] == 'copy' else random.integers(length + 1, distance + 1, (n, 1))
        to = np.broadcast_to(np.arange(end - length, end), (n, length))
        stretch = random.choice(LETTERS, (n, length))
        np.put_along_axis(tokens, to - gap, stretch, 1)
        np.put_along_axis(tokens, to, stretch, 1)
        tokens[:, end - length - 1] = ord(':')
        answers.append(to), sources.append(to - gap)
    return Rows(tokens, np.concatenate(answers, 1), np.concatenate(sources, 1), LETTERS)


def mqar(task, n, random):
    """Pairs of a key and a letter, dots, then some of the keys again, each with its letter. With a curriculum rows begin with
    one pair and have all of them from the middle of the shard on. With a vocabulary keys are of its lower half and values of its
    upper one, as in Zoology."""
    pairs, queries, T = task['pairs'], task['queries'], task['T']
    names, symbols = alphabets(task['vocabulary'])
    if not queries <= pairs <= len(names): raise Refused(f'mqar: pairs {pairs} must be from queries {queries} to {len(names)}')
    tokens = empty(task, n, 1 + 2 * (pairs + queries))
    keys = distinct(names, n, pairs, random)
    values = random.choice(symbols, (n, pairs))
    asked = np.argsort(random.random((n, pairs)), axis=1)[:, :queries]
    shown = np.full((n, 1), pairs)   # of a row's pairs, the first so many, for which alone it asks
    if task['curriculum']: shown = np.clip(np.ceil(pairs * np.arange(1, n + 1) / (n / 2)), 1, pairs).astype(int)[:, None]
    asked, hidden = np.where(shown < pairs, asked % shown, asked), np.arange(pairs) >= shown
    tokens[:, 1:1 + 2 * pairs:2] = np.where(hidden, DOT, keys)
    tokens[:, 2:2 + 2 * pairs:2] = np.where(hidden, DOT, values)
    tokens[:, T - 2 * queries::2] = np.take_along_axis(keys, asked, 1)
    answers = np.broadcast_to(np.arange(T - 2 * queries + 1, T, 2), (n, queries))
    np.put_along_axis(tokens, answers, np.take_along_axis(values, asked, 1), 1)
    return Rows(tokens, answers, 2 + 2 * asked, symbols)


def alphabets(vocabulary):
    """(keys, values) of MQAR: characters, or the ids of a vocabulary that no character has."""
    if not vocabulary: return KEYS, LETTERS
    if not 2 * BYTES < vocabulary < 65536: raise Refused(f'mqar: vocabulary {vocabulary} must be above {2 * BYTES} and below 65536')
    return np.arange(BYTES, vocabulary // 2, dtype=np.uint16), np.arange(vocabulary // 2, vocabulary, dtype=np.uint16)


def distinct(symbols, n, count, random):
    """n rows of `count` symbols, none of them twice in a row."""
    if len(symbols) <= len(KEYS): return symbols[np.argsort(random.random((n, len(symbols))), axis=1)[:, :count]]
    return np.stack([random.choice(symbols, count, replace=False) for _ in range(n)])   # a table of all would not fit into memory


def backcopy(task, n, random):
    """A fixed random bigram chain of 63 symbols, in which the symbol before a trigger comes again behind it, so that a head has
    nothing to copy at most places and rests on the first token. The chain does not depend on the task's seed or T."""
    T, count, triggers = task['T'], len(BACKCOPY), 3
    chain = np.exp(np.random.default_rng(1234).standard_normal((count + 1, count + 1)))[1:, 1:]
    chain[:, -triggers:] *= 4
    chain[-triggers:, -triggers:] = 0
    sums = np.cumsum(chain / chain.sum(1, keepdims=True), 1)
    places = np.zeros((n, T), int)
    tokens = empty(task, n, 3)
    places[:, 1] = random.integers(0, count - triggers, n)
    for t in range(2, T):
        before, further = places[:, t - 1], places[:, t - 2]
        drawn = np.minimum((sums[before] < random.random((n, 1))).sum(1), count - 1)
        places[:, t] = np.where((before >= count - triggers) & (t > 2), further, drawn)
    tokens[:, 1:] = BACKCOPY[places[:, 1:]]
    answers = np.broadcast_to(np.arange(2, T), (n, T - 2))
    return Rows(tokens, answers, answers - 2, BACKCOPY)


def induction(task, n, random):
    """Random letters with a colon at a random place. The row ends with a second colon and the letter that stands behind the first."""
    T, rows = task['T'], np.arange(n)
    tokens = empty(task, n, 6)
    tokens[:, 1:] = random.choice(LETTERS, (n, T - 1))
    colons = random.integers(1, T - 3, n)
    tokens[rows, colons] = tokens[:, T - 2] = ord(':')
    tokens[:, T - 1] = tokens[rows, colons + 1]
    return Rows(tokens, np.full((n, 1), T - 1), colons[:, None] + 1, LETTERS)


KINDS = {'copy': copy, 'gap_copy': copy, 'mqar': mqar, 'backcopy': backcopy, 'induction': induction}


def make(task, part, n):
    """n rows of a task for `part` of it (train, val, items), which have no random numbers in common."""
    task = complete(task)
    if n < 1: raise Refused(f'{task["kind"]}: rows and items must be 1 or more')
    random = np.random.default_rng([task['seed'], ('train', 'val', 'items').index(part)])
    return KINDS[task['kind']](task | ({} if part == 'train' else {'curriculum': False}), n, random)


def complete(task):
    """The task with every default; refuses a kind or key that there is not."""
    if task.get('kind') not in KINDS: raise Refused(f'unknown task {task.get("kind")}; there are: {", ".join(KINDS)}')
    if unknown := set(task) - {'kind', *DEFAULTS}:
        raise Refused(f'unknown key {", ".join(unknown)} of task {task["kind"]}; there are: {", ".join(DEFAULTS)}')
    return DEFAULTS | task


def items(rows, random):
    """One multiple-choice item per row: an answer token among all symbols, or among CHOICES of many."""
    parts = []
    chosen = random.integers(0, rows.answers.shape[1], len(rows.tokens))
    for number, (row, answers) in enumerate(zip(rows.tokens, rows.answers)):
        at, symbols = answers[chosen[number]], rows.symbols
        if len(symbols) > len(KEYS):
            symbols = np.sort(np.append(random.choice(symbols[symbols != row[at]], CHOICES - 1, replace=False), row[at]))
        gold, count = int(np.flatnonzero(symbols == row[at])[0]), len(symbols)
        choices = np.stack([np.ones(count, np.uint16), symbols], 1).ravel()
        words = np.concatenate([[65535, 0, number % 65535, gold, count, at], row[:at], choices]).astype('<u2')
        words[1] = min(65535, 2 * len(words))
        parts.append(words.tobytes())
    return shards.header(shards.MAGIC_ITEMS, 1, len(parts)) + b''.join(parts)


def write(task, folder):
    """Write all files of a task."""
    task, folder, tokens = complete(task), Path(folder), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, name, n in (('train', 'task_train_000001.bin', task['rows']),
                              ('val', 'task_val_000000.bin', max(32, task['rows'] // 32))):
            rows = make(task, part, n)
            tokens += rows.tokens.size
            mask = np.zeros(rows.tokens.shape, np.uint8)   # 1 where a token counts as a target
            np.put_along_axis(mask, rows.answers, 1, 1)
            head = shards.header(shards.MAGIC_16, 2, rows.tokens.size)
            shards.write_whole(folder / name, head + rows.tokens.astype('<u2').tobytes() + mask.tobytes())
        manifest = {'tokenizer': 'bytes', 'vocabulary': task['vocabulary'] or BYTES, 'documents': 0, 'tokens': tokens, 'shards': []}
        shards.write_whole(folder / 'task_manifest.json', json.dumps(manifest).encode())
        of_items = items(make(task, 'items', task['items']), np.random.default_rng([task['seed'], 3]))
        shards.write_whole(folder / 'items.bin', of_items)
    except OSError as error:
        raise Refused(f'{folder}: cannot be written ({error.strerror})', EXIT_DATA) from error
