#!/usr/bin/env python3
"""Token shards of several texts, with validation documents of the same kinds as those of training.

    mixture.py --tokenizer gpt2_tokenizer.json --out FOLDER --val-tokens 1000000 fineweb_sample.jsonl classic_books.jsonl

Documents are cut at ends of paragraphs into pieces of at most --characters and sorted by SHA-256: a random order that does not depend
on the order of the inputs. The first pieces, up to --val-tokens tokens, are for validation.
"""
import argparse
import hashlib
import json
import subprocess
from pathlib import Path

from packages import EXIT_DATA, ROOT, Refused, guarded


def pieces(text, limit):
    """Runs of paragraphs of up to `limit` characters; a longer paragraph is a piece of its own."""
    piece = ''
    for paragraph in text.split('\n\n'):
        if piece and len(piece) + 2 + len(paragraph) > limit:
            yield piece
            piece = ''
        piece = f'{piece}\n\n{paragraph}' if piece else paragraph
    if piece.strip(): yield piece


def documents(path):
    """The `text` of each line of a JSON Lines file."""
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)['text']
            except (ValueError, KeyError, TypeError) as error:
                raise Refused(f'{path}:{number}: is no JSON object with a "text"; give JSON Lines of documents', EXIT_DATA) from error


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='+', type=Path, help='JSON Lines, a document per line under "text"')
    parser.add_argument('--tokenizer', required=True, help='as for ./tokenize')
    parser.add_argument('--out', required=True, help='folder for the shards')
    parser.add_argument('--name', default='mixture', help="start of the shards' names (default mixture)")
    parser.add_argument('--val-tokens', type=int, default=1000000, help='size of the validation set (default 1000000)')
    parser.add_argument('--characters', type=int, default=20000, help='length of the longest piece (default 20000)')
    options = parser.parse_args(arguments)
    of_all = {hashlib.sha256(piece.encode()).digest(): piece
              for path in options.files for text in documents(path) for piece in pieces(text, options.characters)}
    command = [str(ROOT / 'tokenize'), '--tokenizer', options.tokenizer, '--out', options.out, '--name', options.name,
               '--val-tokens', str(options.val_tokens), '--format', 'jsonl', '--documents', str(len(of_all)), '-']
    lines = ''.join(json.dumps({'text': of_all[key]}) + '\n' for key in sorted(of_all))
    return subprocess.run(command, input=lines.encode()).returncode


if __name__ == '__main__':
    guarded(main)
