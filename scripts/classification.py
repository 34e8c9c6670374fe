#!/usr/bin/env python3
"""Classification as text: labelled examples become documents to train on and items to be answered (--eval-data).

    python3 scripts/classification.py digits digits.csv.gz --out out/digits-data
    python3 scripts/classification.py polarity sentence_polarity.zip --out out/polarity-data

digits.csv.gz has 8x8 images of handwritten digits, 64 values from 0 to 16 and the class in a line (1,797 lines; the one that
scikit-learn's load_digits() reads). sentence_polarity.zip has rt-polarity.pos and rt-polarity.neg, a sentence of a film review in
each line (10,662 lines; Pang and Lee's sentence polarity dataset 1.0, in UTF-8 or, as first published, in Latin-1).

Writes OUT/NAME_train.jsonl for ./tokenize, {"text"}, one document an example: a ">", the text or the image, a new line, the label;
and OUT/NAME.jsonl, {"query", "choices", "gold"}: the same up to the new line, and all labels. As the query ends in white space, no
space is put between it and the label. The ">" says where an example begins: in training the end-of-text token stands there too,
but items are read without it. scripts/classification.sh trains on them.

The split needs no seed: examples are put into the order of the SHA-256 of their text, and every tenth is held out. In the order of
the file, every tenth digit would be a 3 four times as often as a 1. Training has the same order, for a second reason: a row of
training data holds several documents, and where labels follow each other by a rule (the digits begin 0 1 2 ... 9 0 1 2 ...), a
model would learn that rule instead of reading the image.

Exit codes: 0 done, 2 usage, 3 data.
"""
import argparse
import csv
import gzip
import hashlib
import json
import sys
import zipfile
import zlib
from pathlib import Path

LEVELS = '0123456789abcdefg'   # one character for each of the 17 grey levels
SIDE = 8
HELD_OUT = 10                  # every tenth


class DataError(Exception):
    pass


def fail(message):
    print(f'classification: {message}', file=sys.stderr)
    sys.exit(3)


def image_as_text(values):
    """Eight lines of eight characters. A pixel is one byte, and so one token; the line ends cost eight tokens of 72 and tell the
    model where it is: the pixel above is always nine tokens back."""
    return '\n'.join(''.join(LEVELS[value] for value in values[row:row + SIDE]) for row in range(0, SIDE * SIDE, SIDE))


def digits(path):
    """(text, label) of every line of a .csv.gz file."""
    with gzip.open(path, 'rt', encoding='ascii', newline='') as file:
        for number, row in enumerate(csv.reader(file), 1):
            if len(row) != SIDE * SIDE + 1:
                raise DataError(f'{path}:{number}: has {len(row)} values, expected 64 pixels and the class')
            try:
                *pixels, label = map(int, row)
            except ValueError as error:
                raise DataError(f'{path}:{number}: {error}') from error
            if not all(0 <= value < len(LEVELS) for value in pixels) or not 0 <= label <= 9:
                raise DataError(f'{path}:{number}: pixels are from 0 to 16 and classes from 0 to 9')
            yield image_as_text(pixels), str(label)


def decoded(content):
    try:
        return content.decode('utf-8')
    except UnicodeDecodeError:
        return content.decode('latin-1')


def polarity(path):
    """(text, label) of every line of the two files in a .zip archive."""
    with zipfile.ZipFile(path) as archive:
        for ending, label in (('.neg', 'negative'), ('.pos', 'positive')):
            names = [name for name in archive.namelist() if name.endswith('rt-polarity' + ending)]
            if len(names) != 1:
                raise DataError(f'{path}: has {len(names)} files named rt-polarity{ending}, expected one')
            for line in decoded(archive.read(names[0])).split('\n'):
                if line.strip():
                    yield line.strip(), label


TASKS = {'digits': (digits, [str(n) for n in range(10)]), 'polarity': (polarity, ['negative', 'positive'])}


def split(examples):
    """(training, held out), both in the order of the texts' SHA-256."""
    ordered = sorted(examples, key=lambda example: hashlib.sha256('\n'.join(example).encode()).hexdigest())
    held_out = ordered[HELD_OUT - 1::HELD_OUT]
    del ordered[HELD_OUT - 1::HELD_OUT]
    return ordered, held_out


def write_lines(path, objects):
    path.write_text(''.join(json.dumps(one, ensure_ascii=False) + '\n' for one in objects), encoding='utf-8')
    print(f'{path}: {len(objects)} examples')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('task', choices=TASKS)
    parser.add_argument('input', type=Path)
    parser.add_argument('--out', type=Path, required=True)
    options = parser.parse_args()
    read, labels = TASKS[options.task]
    try:
        training, held_out = split(read(options.input))
        if not held_out:
            raise DataError(f'{options.input}: has {len(training)} examples, fewer than {HELD_OUT}')
    except DataError as error:
        fail(error)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error, zipfile.BadZipFile) as error:
        fail(f'{options.input}: {error}')
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        write_lines(options.out / f'{options.task}_train.jsonl', [{'text': f'>{text}\n{label}'} for text, label in training])
        items = [{'query': f'>{text}\n', 'choices': labels, 'gold': labels.index(label)} for text, label in held_out]
        write_lines(options.out / f'{options.task}.jsonl', items)
    except OSError as error:
        fail(f'--out {options.out}: {error}')


if __name__ == '__main__':
    main()
