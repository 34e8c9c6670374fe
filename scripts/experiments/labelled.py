"""Labelled examples as text: shards to train on, and items that ask for the label.

    digits     8x8 images of handwritten digits: 64 values from 0 to 16 and the class in each line of FOLDER/digits.csv.gz (1,797
               lines; the file of scikit-learn's load_digits())
    polarity   a sentence of a film review in each line of rt-polarity.pos and rt-polarity.neg in FOLDER/sentence_polarity.zip (10,662
               lines; Pang and Lee's sentence polarity dataset 1.0, in UTF-8 or Latin-1)
    topics     a class from 1 to 4, a title and a description in each line of FOLDER/ag_news.csv (AG's news, train.csv of 120,000
               lines, Zhang et al. 2015, arXiv 1509.01626)
    bars       generated 8x8 images with a bar across or down, quick to learn

A document is one example: ">", the text or image, a new line, the label. Writes labelled_train_000001.bin and labelled_val_000000.bin,
in bytes, with a mask of the labels (mask = false: all tokens count), and items.jsonl, {"query", "choices", "gold"}: the text up to the new
line, and all labels. The ">" marks the start of an example in items too, which have no end-of-text token.

With a tokenizer the shards are in the tokens of that tokenizer.json: ./tokenize writes training/labelled_train_000001.bin and
held_out/labelled_train_000001.bin. Their mask also counts the end of an example.

The split needs no seed: examples are in the order of the SHA-256 of their text, and every tenth is held out. Neither the classes of
the held-out tenth nor the labels that follow each other in a row of training data then depend on the order of the file.
"""
import csv
import gzip
import hashlib
import json
import struct
import subprocess
import zipfile
import zlib
from pathlib import Path

import shards
from packages import EXIT_DATA, ROOT, Refused
from shards import write_whole

END_OF_TEXT = 256
LEVELS = '0123456789abcdefg'   # one character for each of the 17 grey levels
TOPICS = ['World', 'Sports', 'Business', 'Sci/Tech']
SIDE = 8
HELD_OUT = 10                  # every tenth


def image_as_text(values):
    """Eight lines of eight characters. The line ends cost eight tokens of 72; the pixel above is always nine tokens back."""
    return '\n'.join(''.join(LEVELS[value] for value in values[row:row + SIDE]) for row in range(0, SIDE * SIDE, SIDE))


def digits(path):
    """(text, label) of every line of a .csv.gz file."""
    with gzip.open(path, 'rt', encoding='ascii', newline='') as file:
        for number, row in enumerate(csv.reader(file), 1):
            if len(row) != SIDE * SIDE + 1:
                raise Refused(f'{path}:{number}: has {len(row)} values, expected 64 pixels and the class', EXIT_DATA)
            try:
                *pixels, label = map(int, row)
            except ValueError as error:
                raise Refused(f'{path}:{number}: {error}', EXIT_DATA) from error
            if not all(0 <= value < len(LEVELS) for value in pixels) or not 0 <= label <= 9:
                raise Refused(f'{path}:{number}: pixels are from 0 to 16 and classes from 0 to 9', EXIT_DATA)
            yield image_as_text(pixels), str(label)


def polarity(path):
    """(text, label) of every line of the two files in a .zip archive."""
    with zipfile.ZipFile(path) as archive:
        for ending, label in (('.neg', 'negative'), ('.pos', 'positive')):
            names = [name for name in archive.namelist() if name.endswith('rt-polarity' + ending)]
            if len(names) != 1:
                raise Refused(f'{path}: has {len(names)} files named rt-polarity{ending}, expected one', EXIT_DATA)
            content = archive.read(names[0])
            try:
                lines = content.decode('utf-8').split('\n')
            except UnicodeDecodeError:
                lines = content.decode('latin-1').split('\n')
            yield from ((line.strip(), label) for line in lines if line.strip())


def topics(path):
    """(text, label) of every line of a .csv file."""
    with open(path, encoding='utf-8', newline='') as file:
        for number, row in enumerate(csv.reader(file), 1):
            if len(row) != 3 or row[0] not in ('1', '2', '3', '4'):
                raise Refused(f'{path}:{number}: is no class from 1 to 4, title and description', EXIT_DATA)
            yield ' '.join(' '.join(row[1:]).split()), TOPICS[int(row[0]) - 1]


def bars(_):
    """(text, label) of images with one bar of two grey levels, at every place."""
    for level in range(1, len(LEVELS)):
        for place in range(SIDE):
            for across in (False, True):
                image = [level if (k // SIDE if across else k % SIDE) == place else level // 2 for k in range(SIDE * SIDE)]
                yield image_as_text(image), 'across' if across else 'down'


KINDS = {
    'digits': (digits, 'digits.csv.gz', [str(n) for n in range(10)]),
    'polarity': (polarity, 'sentence_polarity.zip', ['negative', 'positive']),
    'topics': (topics, 'ag_news.csv', TOPICS),
    'bars': (bars, '', ['across', 'down']),
}


def source_of(kind, folder):
    """The file of a kind, None for a generated one; refused unless it is in the folder."""
    if kind not in KINDS: raise Refused(f'unknown kind {kind} of labelled examples; there are: {", ".join(KINDS)}')
    name = KINDS[kind][1]
    if name and not (folder and (Path(folder) / name).exists()):
        raise Refused(f'{folder or kind}: has no {name}; give a folder that has it with --data', EXIT_DATA)
    return Path(folder) / name if name else None


def split(examples):
    """(training, held out), both in the order of the texts' SHA-256."""
    ordered = sorted(examples, key=lambda example: hashlib.sha256('\n'.join(example).encode()).hexdigest())
    held_out = ordered[HELD_OUT - 1::HELD_OUT]
    del ordered[HELD_OUT - 1::HELD_OUT]
    return ordered, held_out


def write_bytes(examples, path, mask):
    """A shard in bytes, and its manifest."""
    tokens, counts = [], bytearray()
    for text, label in examples:
        document = [END_OF_TEXT, *f'>{text}\n{label}'.encode()]
        tokens += document
        counts += bytes(len(document) - len(label.encode())) + b'\1' * len(label.encode())
    write_whole(path, shards.shard(struct.pack(f'<{len(tokens)}H', *tokens), bytes(counts) if mask else b''))
    shards.write_manifest(path.parent / 'labelled_manifest.json', len(examples))


def write_tokens(examples, folder, mask, tokenizer):
    """A shard in the tokens of a tokenizer.json."""
    folder.mkdir(exist_ok=True)
    write_whole(folder / 'examples.jsonl', lines_of(
        {'prompt': f'>{text}\n', 'completion': label} if mask else {'text': f'>{text}\n{label}'} for text, label in examples))
    command = [str(ROOT / 'tokenize'), '--tokenizer', str(tokenizer), '--out', str(folder), '--name', 'labelled',
               '--val-fraction', '0', *(['--mask-prompts'] if mask else []), str(folder / 'examples.jsonl')]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise Refused(f'{command[0]}: cannot be run ({error.strerror}); make tokenize builds it') from error
    if done.returncode: raise Refused(done.stderr.strip().split('\n')[-1], EXIT_DATA)


def lines_of(objects):
    return ''.join(json.dumps(one, ensure_ascii=False) + '\n' for one in objects).encode()


def write(task, data, folder, tokenizer=None):
    """Write all files of a task (kind, mask) from the folder `data`, in bytes or in the tokens of a tokenizer.json."""
    source, (read, _, labels) = source_of(task['kind'], data), KINDS[task['kind']]
    try:
        training, held_out = split(read(source))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error, zipfile.BadZipFile) as error:
        raise Refused(f'{source}: {error}', EXIT_DATA) from error
    if not held_out: raise Refused(f'{source}: has {len(training)} examples, fewer than {HELD_OUT}', EXIT_DATA)
    mask, folder = task.get('mask', True), Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if tokenizer:
            write_tokens(held_out, folder / 'held_out', mask, tokenizer)
            write_tokens(training, folder / 'training', mask, tokenizer)
        else:
            write_bytes(held_out, folder / 'labelled_val_000000.bin', mask)
            write_bytes(training, folder / 'labelled_train_000001.bin', mask)
        write_whole(folder / 'items.jsonl', lines_of(
            {'query': f'>{text}\n', 'choices': labels, 'gold': labels.index(label)} for text, label in held_out))
    except OSError as error:
        raise Refused(f'{folder}: cannot be written ({error.strerror})', EXIT_DATA) from error
    return len(training), len(held_out)
