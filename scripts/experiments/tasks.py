"""Tasks whose answers stand far back: token shards in bytes with a mask of the answers, and items that count them.

Each row of T tokens begins with the end-of-text token; --shuffle 0 --seq-len T reads one row as one sequence. Unused places hold dots.
Writes task_train_000001.bin and task_val_000000.bin (version 2, whose mask marks the targets; version 1 with mask = false),
task_manifest.json, and items.bin for --eval-data: one answer token per row with all possible symbols as choices (16 of a large
vocabulary), so that chance is one over their number.

Sources: copying after Jelassi et al. (arXiv 2402.01032), MQAR after Zoology (2312.04927), selective copying after MAD, needles and
variable tracking after RULER (2404.06654), hops over a permutation and modular arithmetic after Physics of Language Models 4.1
(2512.17351).
"""
from dataclasses import dataclass
from pathlib import Path

import shards
from packages import EXIT_DATA, Refused, require

np = require('numpy')

END_OF_TEXT, DOT, HASH = 256, ord('.'), ord('#')
BYTES = 512            # the vocabulary of models that read bytes
LETTERS = np.frombuffer(b'abcdefghijklmnop', np.uint8).astype(np.uint16)       # values: chance is 1/16
KEYS = np.frombuffer(b'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!"$%&()*+,-/<=>?@[]^_{|}~`', np.uint8).astype(np.uint16)
DIGITS = np.frombuffer(b'0123456789', np.uint8).astype(np.uint16)
CHOICES = 16           # of an item whose answer may be any of more symbols than KEYS has
MODULUS = 7            # a prime: adding, subtracting and multiplying by 1 to 6 are one-to-one, so no operand can be left out
DEFAULTS = {'T': 256, 'length': 16, 'distance': 0, 'pairs': 8, 'queries': 3, 'needles': 4, 'hops': 2, 'chains': 3, 'nodes': 12,
            'operations': 4, 'vocabulary': 0, 'curriculum': False, 'rows': 8192, 'items': 200, 'mask': True, 'seed': 1}


@dataclass
class Rows:
    """N rows of T tokens. `answers` are the places of answer tokens, `sources` for each the farthest token that it stands on."""
    tokens: np.ndarray                     # (N, T)
    answers: np.ndarray                    # (N, A)
    sources: np.ndarray                    # (N, A), each before its answer
    symbols: np.ndarray                    # what an answer token may be

    @property
    def mask(self):
        """1 where a token counts as a target."""
        mask = np.zeros(self.tokens.shape, np.uint8)
        np.put_along_axis(mask, self.answers, 1, 1)
        return mask


def empty(n, T):
    tokens = np.full((n, T), DOT, np.uint16)
    tokens[:, 0] = END_OF_TEXT
    return tokens


def text(row, at, words):
    """Writes a string into a row; returns the place behind it."""
    row[at:at + len(words)] = np.frombuffer(words.encode(), np.uint8)
    return at + len(words)


def need(task, tokens, what):
    if task['T'] < tokens: raise Refused(f'{task["kind"]}: {what} needs rows of {tokens} tokens; T is {task["T"]}')


def copy(task, n, random, gaps=None):
    """A stretch of letters, dots, a colon, the same stretch: every token stands `distance` tokens after its source."""
    length, distance = task['length'], task['distance'] or 4 * task['length']
    if distance <= length: raise Refused(f'{task["kind"]}: distance {distance} must be more than length {length}')
    slot = distance + length
    need(task, 1 + slot, f'distance {distance} and length {length}')
    tokens, answers, sources = empty(n, task['T']), [], []
    for end in range(1 + slot, task['T'] + 1, slot):
        gap = np.full((n, 1), distance) if gaps is None else gaps(n)
        to = np.broadcast_to(np.arange(end - length, end), (n, length))
        stretch = random.choice(LETTERS, (n, length))
        np.put_along_axis(tokens, to - gap, stretch, 1)
        np.put_along_axis(tokens, to, stretch, 1)
        tokens[:, end - length - 1] = ord(':')
        answers.append(to), sources.append(to - gap)
    return Rows(tokens, np.concatenate(answers, 1), np.concatenate(sources, 1), LETTERS)


def gap_copy(task, n, random):
    """The same at distances that are drawn from length + 1 to `distance`."""
    distance = task['distance'] or 4 * task['length']
    return copy(task, n, random, lambda n: random.integers(task['length'] + 1, distance + 1, (n, 1)))


def selective_copy(task, n, random):
    """Letters at random places among dots, then a colon and all of them in their order."""
    length, T = task['length'], task['T']
    region = (T - 1 - length - 1) // 2               # the first half, so that all are far
    if region < length: need(task, 2 * length + length + 3, f'length {length}')
    tokens = empty(n, T)
    places = np.sort(np.argsort(random.random((n, region)), axis=1)[:, :length], axis=1) + 1
    letters, to = random.choice(LETTERS, (n, length)), np.broadcast_to(np.arange(T - length, T), (n, length))
    np.put_along_axis(tokens, places, letters, 1)
    np.put_along_axis(tokens, to, letters, 1)
    tokens[:, T - length - 1] = ord(':')
    return Rows(tokens, to, places, LETTERS)


def induction(task, n, random):
    """Random letters; behind a # in the first half stands a letter, which comes again behind the # at the end."""
    T = task['T']
    need(task, 16, 'a row')
    tokens = empty(n, T)
    tokens[:, 1:] = random.choice(LETTERS, (n, T - 1))
    at, row = random.integers(1, T // 2 - 1, n), np.arange(n)
    tokens[row, at] = tokens[:, T - 2] = HASH
    tokens[:, T - 1] = tokens[row, at + 1]
    return Rows(tokens, np.full((n, 1), T - 1), (at + 1)[:, None], LETTERS)


def mqar(task, n, random):
    """Pairs of a key and a letter, dots, then some of the keys again, each with its letter. With a curriculum rows begin with
    one pair and have all of them from the middle of the shard on. With a vocabulary keys are of its lower half and values of its
    upper one, as in Zoology."""
    pairs, queries, T = task['pairs'], task['queries'], task['T']
    names, symbols = alphabets(task['vocabulary'])
    if not queries <= pairs <= len(names): raise Refused(f'mqar: pairs {pairs} must be from queries {queries} to {len(names)}')
    need(task, 1 + 2 * (pairs + queries), f'{pairs} pairs and {queries} queries')
    tokens = empty(n, T)
    keys = distinct(names, n, pairs, random)
    values = random.choice(symbols, (n, pairs))
    asked = np.argsort(random.random((n, pairs)), axis=1)[:, :queries]
    if task['curriculum']:                            # a row shows its first `shown` pairs, and asks for those alone
        shown = np.clip(np.ceil(pairs * np.arange(1, n + 1) / (n / 2)), 1, pairs).astype(int)[:, None]
        asked = np.where(shown < pairs, asked % shown, asked)
        hidden = np.arange(pairs) >= shown
    else:
        hidden = np.zeros((n, pairs), bool)
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


GRASS = 'the grass is green and the sky is blue. '


def haystack(n, T):
    """Rows of a sentence that is repeated."""
    line = np.frombuffer((GRASS * (T // len(GRASS) + 1)).encode()[:T - 1], np.uint8)
    tokens = empty(n, T)
    tokens[:, 1:] = line
    return tokens


def passkey(task, n, random):
    """One number of five digits in the first half of repeated sentences, asked for at the end."""
    T, begin, ask = task['T'], ' the pass key is ', ' what is it? '
    width = len(begin) + 5
    need(task, 2 * (width + len(ask) + 5) + 2, 'a key and a question')
    tokens, digits = haystack(n, T), random.choice(DIGITS, (n, 5))
    last = T - len(ask) - 5 - width - task['distance']          # so that the key is `distance` tokens away at least
    last = max(2, min(last, T // 2 - width))
    at = random.integers(1, last, n)
    for row, place, key in zip(tokens, at, digits):
        text(row, place, begin)
        row[place + len(begin):place + width] = key
        text(row, T - len(ask) - 5, ask)
    to = np.broadcast_to(np.arange(T - 5, T), (n, 5))
    np.put_along_axis(tokens, to, digits, 1)
    return Rows(tokens, to, (at + len(begin))[:, None] + np.arange(5), DIGITS)


def needles(task, n, random):
    """Several keys with numbers of four digits; one of them is asked for."""
    T, count, width = task['T'], task['needles'], len(' key A is 1234. ')
    half = (T - 20) // 2
    if count > 26 or count * width > half: need(task, 2 * count * width + 20, f'{count} needles')
    tokens, spare = haystack(n, T), half - count * width
    digits, sources = random.choice(DIGITS, (n, count, 4)), np.zeros((n, 4), int)
    names = np.argsort(random.random((n, 26)), axis=1)[:, :count] + ord('A')
    asked = random.integers(0, count, n)
    starts = 1 + np.sort(random.integers(0, spare + 1, (n, count)), axis=1) + width * np.arange(count)
    for i, row in enumerate(tokens):
        for name, start, number in zip(names[i], starts[i], digits[i]):
            at = text(row, start, f' key {chr(name)} is ')
            row[at:at + 4] = number
            text(row, at + 4, '. ')
        text(row, T - 15, f' key {chr(names[i][asked[i]])} is? ')
        row[T - 4:] = digits[i][asked[i]]
        sources[i] = starts[i][asked[i]] + len(' key A is ') + np.arange(4)
    return Rows(tokens, np.broadcast_to(np.arange(T - 4, T), (n, 4)), sources, DIGITS)


def variables(task, n, random):
    """Chains A=7;B=A;C=B; mixed with each other; the end asks for the value of one chain's last variable."""
    T, hops, chains = task['T'], task['hops'], task['chains']
    count = chains * (hops + 1)
    half = (T - 4) // 2
    if count > 26: raise Refused(f'variables: {chains} chains of {hops} hops need {count} names; there are 26')
    if 4 * count > half: need(task, 8 * count + 4, f'{chains} chains of {hops} hops')
    tokens, sources = empty(n, T), np.zeros((n, 1), int)
    names = np.argsort(random.random((n, 26)), axis=1)[:, :count].reshape(n, chains, hops + 1) + ord('A')
    values = random.choice(LETTERS, (n, chains))
    order = np.argsort(random.random((n, count)), axis=1) % chains            # whose statement comes next
    starts = 1 + np.sort(random.integers(0, half - 4 * count + 1, (n, count)), axis=1) + 4 * np.arange(count)
    asked = random.integers(0, chains, n)
    for i, row in enumerate(tokens):
        done = [0] * chains
        for chain, start in zip(order[i], starts[i]):
            right = values[i, chain] if done[chain] == 0 else names[i, chain, done[chain] - 1]
            row[start:start + 4] = names[i, chain, done[chain]], ord('='), right, ord(';')
            if chain == asked[i] and done[chain] == 0: sources[i] = start + 2
            done[chain] += 1
        row[T - 3:] = names[i, asked[i], hops], ord('?'), values[i, asked[i]]
    return Rows(tokens, np.full((n, 1), T - 1), sources, LETTERS)


def multi_hop(task, n, random):
    """Edges of one directed cycle over some keys, in random order; the end asks where so many steps lead from one of them."""
    T, nodes, hops = task['T'], task['nodes'], task['hops']
    if not (2 <= nodes <= 26 and 1 <= hops < min(nodes, 10)):
        raise Refused(f'multi_hop: nodes {nodes} and hops {hops}: 2 to 26 nodes, hops below nodes and 10')
    need(task, 2 * (1 + 3 * nodes + 4), f'{nodes} nodes')
    tokens = empty(n, T)
    cycle = np.argsort(random.random((n, 26)), axis=1)[:, :nodes] + ord('A')   # node k leads to node k + 1
    order = np.argsort(random.random((n, nodes)), axis=1)
    for column, (edge, start) in enumerate(zip(order.T, range(1, 1 + 3 * nodes, 3))):
        tokens[:, start] = cycle[np.arange(n), edge]
        tokens[:, start + 1] = cycle[np.arange(n), (edge + 1) % nodes]
    begin = random.integers(0, nodes, n)
    tokens[:, T - 4] = ord('0') + hops
    tokens[:, T - 3], tokens[:, T - 2] = cycle[np.arange(n), begin], ord('?')
    tokens[:, T - 1] = cycle[np.arange(n), (begin + hops) % nodes]
    last_edge = (begin + hops - 1) % nodes                                     # its head is the answer
    place = 1 + 3 * np.argmax(order == last_edge[:, None], axis=1) + 1
    names = np.arange(ord('A'), ord('Z') + 1).astype(np.uint16)
    return Rows(tokens, np.full((n, 1), T - 1), place[:, None], names)


def modular(task, n, random):
    """3+5*2-6=4, from left to right, modulo 7, with dots between the operations. Without the first number all results are as
    likely."""
    T, count = task['T'], task['operations']
    spread = (T - 4) // (count + 1)
    if spread < 2: need(task, 2 * (count + 1) + 4, f'{count} operations')
    tokens = empty(n, T)
    value = random.integers(0, MODULUS, n)
    tokens[:, 1] = DIGITS[value]
    for k in range(count):
        kind, operand = random.integers(0, 3, n), random.integers(1, MODULUS, n)
        value = np.where(kind == 0, value + operand, np.where(kind == 1, value - operand, value * operand)) % MODULUS
        at = 1 + (k + 1) * spread
        tokens[:, at], tokens[:, at + 1] = np.frombuffer(b'+-*', np.uint8)[kind], DIGITS[operand]
    tokens[:, T - 2], tokens[:, T - 1] = ord('='), DIGITS[value]
    return Rows(tokens, np.full((n, 1), T - 1), np.full((n, 1), 1), DIGITS[:MODULUS])


KINDS = {f.__name__: f for f in (copy, gap_copy, selective_copy, induction, mqar, passkey, needles, variables, multi_hop, modular)}


def make(task, part, n):
    """n rows of a task for `part` of it (train, val, items), which have no random numbers in common."""
    task = complete(task)
    if n < 1: raise Refused(f'{task["kind"]}: rows and items must be 1 or more')
    random = np.random.default_rng([task['seed'], ('train', 'val', 'items').index(part)])
    return KINDS[task['kind']](task | ({} if part == 'train' else {'curriculum': False}), n, random)


def complete(task):
    """The task with every default; refuses a kind or key that there is not."""
    if task.get('kind') not in KINDS: raise Refused(f'unknown task {task.get("kind")}; there are: {", ".join(KINDS)}')
    for key in task:
        if key != 'kind' and key not in DEFAULTS:
            raise Refused(f'unknown key {key} of task {task["kind"]}; there are: {", ".join(DEFAULTS)}')
    return DEFAULTS | task


def items(rows, random):
    """One multiple-choice item per row: an answer token among all symbols, or among CHOICES of many."""
    parts = []
    chosen = random.integers(0, rows.answers.shape[1], len(rows.tokens))
    for number, (row, answers) in enumerate(zip(rows.tokens, rows.answers)):
        at = answers[chosen[number]]
        symbols = rows.symbols
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
            mask = rows.mask.tobytes() if task['mask'] else b''
            shards.write_whole(folder / name, shards.shard(rows.tokens.astype('<u2').tobytes(), mask))
        shards.write_manifest(folder / 'task_manifest.json', 0, tokens, task['vocabulary'] or BYTES)
        of_items = items(make(task, 'items', task['items']), np.random.default_rng([task['seed'], 3]))
        shards.write_whole(folder / 'items.bin', of_items)
    except OSError as error:
        raise Refused(f'{folder}: cannot be written ({error.strerror})', EXIT_DATA) from error
