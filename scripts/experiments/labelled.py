"""Labelled examples as text: shards to train on, and items that ask for the label.

    digits     8x8 images of handwritten digits: 64 values from 0 to 16 and the class in each line of FOLDER/digits.csv.gz (1,797
               lines; the file of scikit-learn's load_digits())
    polarity   a sentence of a film review in each line of rt-polarity.pos and rt-polarity.neg in FOLDER/sentence_polarity.zip (10,662
               lines; Pang and Lee's sentence polarity dataset 1.0, in UTF-8 or Latin-1)
    topics     a class from 1 to 4, a title and a description in each line of FOLDER/ag_news.csv (AG's news, train.csv of 120,000
               lines, Zhang et al. 2015, arXiv 1509.01626)
    bars       generated 8x8 images with a bar across or down, quick to learn

A document is one example: ">", the text or image, a new line, the label. ./tokenize writes training/labelled_train_000001.bin and
held_out/labelled_train_000001.bin, whose mask counts the label and the end of the text (mask = false: all tokens count), and
items.jsonl has {"query", "choices", "gold"}: the text up to the new line, and all labels. The ">" marks the start of an example in
items too, which have no end-of-text token.

The split needs no seed: examples are in the order of the SHA-256 of their text, and every tenth is held out. Neither the classes of
the held-out tenth nor the labels that follow each other in a row of training data then depend on the order of the file.
"""
import csv
import gzip
import hashlib
import json
import subprocess
import zipfile
import zlib
from pathlib import Path

from packages import EXIT_DATA, ROOT, Refused
from shards import write_whole

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
            *pixels, label = row
            if len(pixels) != SIDE * SIDE or not all(value.isdigit() and int(value) < len(LEVELS) for value in pixels):
                raise Refused(f'{path}:{number}: has no 64 pixels from 0 to 16 before the class', EXIT_DATA)
            yield image_as_text(list(map(int, pixels))), label


def polarity(path):
    """(text, label) of every line of the two files in a .zip archive."""
    with zipfile.ZipFile(path) as archive:
        for label in ('negative', 'positive'):
            [name] = [name for name in archive.namelist() if name.endswith(f'rt-polarity.{label[:3]}')]
            content = archive.read(name)
            try:
                text = content.decode('utf-8')
            except UnicodeDecodeError:
                text = content.decode('latin-1')
            yield from ((line.strip(), label) for line in text.split('\n') if line.strip())


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


def write_lines(path, objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ''.join(json.dumps(one, ensure_ascii=False) + '\n' for one in objects).encode())


def write(task, data, folder, tokenizer='bytes'):
    """Write all files of a task (kind, mask) from the folder `data`, in bytes or in the tokens of a tokenizer.json; return how many
    examples are for training, and how many are held out."""
    source, (read, _, labels) = source_of(task['kind'], data), KINDS[task['kind']]
    mask, folder = task.get('mask', True), Path(folder)
    try:
        examples = sorted(read(source), key=lambda example: hashlib.sha256('\n'.join(example).encode()).hexdigest())
    except (OSError, EOFError, ValueError, csv.Error, zlib.error, zipfile.BadZipFile) as error:
        raise Refused(f'{source}: {error}', EXIT_DATA) from error
    if odd := {label for _, label in examples}.difference(labels): raise Refused(f'{source}: has the classes {odd}', EXIT_DATA)
    held_out, training = examples[HELD_OUT - 1::HELD_OUT], [one for n, one in enumerate(examples, 1) if n % HELD_OUT]
    for part, of_part in (('held_out', held_out), ('training', training)):
        write_lines(folder / part / 'examples.jsonl', [
            {'prompt': f'>{text}\n', 'completion': label} if mask else {'text': f'>{text}\n{label}'} for text, label in of_part])
        command = [ROOT / 'tokenize', '--tokenizer', tokenizer, '--out', folder / part, '--name', 'labelled', '--val-fraction', '0',
                   *(['--mask-prompts'] if mask else []), folder / part / 'examples.jsonl']
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode: raise Refused(done.stderr.strip().split('\n')[-1], EXIT_DATA)
    write_lines(folder / 'items.jsonl', [
        {'query': f'>{text}\n', 'choices': labels, 'gold': labels.index(label)} for text, label in held_out])
    return len(training), len(held_out)
