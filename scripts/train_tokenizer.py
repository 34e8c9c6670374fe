#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer on texts: a tokenizer.json for ./tokenize and for Hugging Face's library.

    pip install tokenizers
    python3 scripts/train_tokenizer.py book.txt notes.jsonl --out mine/tokenizer.json
    ./tokenize --tokenizer mine/tokenizer.json --out mine book.txt notes.jsonl

Inputs are .txt and .jsonl (one document a line, under the key --text-field), either perhaps with .gz or .xz behind it. The file has
exactly --vocab-size tokens: 256 for the bytes, one for each merge that was learnt, and <|endoftext|>, which has the last id, as
GPT-2 and Qwen have it. A model needs as large a vocabulary: --model qwen-7m-8k goes with the default.

--like says how text is cut into the words inside which bytes are merged: qwen2 (Qwen2 to Qwen3: text is brought into Unicode's NFC
first, and every digit stands alone) or gpt2. The same texts and options give the same file, with any number of threads
(RAYON_NUM_THREADS); it gets its name when it is complete. What has to fit into memory is the texts' different words, not the texts.

Exit codes: 0 done, 2 usage, 3 data or a missing package.
"""
import argparse
import gzip
import io
import json
import lzma
import signal
import sys
import zlib
from pathlib import Path

from fineweb import Problem, needed, run, write_whole

# What Qwen2's tokenizer takes for a word: bytes are merged inside of words only. GPT-2's pattern is ByteLevel's own.
QWEN2_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
END_OF_TEXT = '<|endoftext|>'
COMPRESSED = {'.gz': gzip.open, '.xz': lzma.open}
BLOCK = 1 << 16   # characters; the library collects 256 documents before it works on them


# ----------------------------------------------------------------------------------------------------------------- reading texts

def kind(path):
    """The name's ending without that of compression: .txt, .jsonl or something that is not read."""
    return (path.with_suffix('') if path.suffix in COMPRESSED else path).suffix


def text_of(line, field, where):
    """The document in a line of JSON Lines."""
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Problem(f'{where}: is not JSON: {error}')
    if not isinstance(item, dict) or not isinstance(item.get(field), str):
        raise Problem(f'{where}: has no string under "{field}"; --text-field names the key to take')
    try:
        item[field].encode()
    except UnicodeEncodeError:
        raise Problem(f'{where}: has half of a surrogate pair (\\ud800 to \\udfff) under "{field}", which is no character')
    return item[field]


def documents_of(path, file, field):
    if kind(path) == '.jsonl':
        for number, line in enumerate(file, 1):
            if line.strip():
                yield text_of(line, field, f'{path}:{number}')
        return
    # A text may be larger than memory. Where a block ends a word may be cut: one in ten thousand, which no merge notices.
    text = io.TextIOWrapper(file, encoding='utf-8', errors='replace', newline='')
    while block := text.read(BLOCK):
        yield block


def documents(options):
    for path in options.inputs:
        try:
            with COMPRESSED.get(path.suffix, open)(path, 'rb') as file:
                yield from documents_of(path, file, options.text_field)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise Problem(f'{path}: cannot be read: {getattr(error, "strerror", None) or error}')


# --------------------------------------------------------------------------------------------------------------------- training

def untrained(like):
    """Normaliser, pre-tokenizer and decoder of GPT-2 or Qwen2 around a vocabulary that is still empty."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    if like == 'gpt2':
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return tokenizer
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def train(options):
    from tokenizers import pre_tokenizers, trainers
    tokenizer = untrained(options.like)
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size - 1, min_frequency=2, show_progress=sys.stderr.isatty(),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))   # all bytes, also those that the texts lack
    tokenizer.train_from_iterator(documents(options), trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])
    size = tokenizer.get_vocab_size()
    if size != options.vocab_size:
        raise Problem(f'the texts are too short for {options.vocab_size} tokens: after {size} no pair of them stands there twice; '
                f'give more text, or --vocab-size {size}')
    return tokenizer


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('inputs', nargs='+', type=Path, metavar='INPUT', help='.txt or .jsonl, each also .gz or .xz')
    parser.add_argument('--out', type=Path, required=True, help='the file to write; its name ends in .json')
    parser.add_argument('--vocab-size', type=int, default=8192, metavar='N', help='tokens, <|endoftext|> included (default: 8192)')
    parser.add_argument('--like', choices=['qwen2', 'gpt2'], default='qwen2', help='how text is cut into words (default: qwen2)')
    parser.add_argument('--text-field', default='text', help='key of the text in JSON Lines (default: text)')
    options = parser.parse_args()
    for path in options.inputs:
        if kind(path) not in ('.txt', '.jsonl'):
            parser.error(f'{path}: inputs are .txt or .jsonl, each also .gz or .xz; decompress or rename it')
    if options.out.suffix != '.json':
        parser.error(f'--out {options.out}: name a file that ends in .json, such as {options.out / "tokenizer.json"}')
    if not 257 <= options.vocab_size <= 1 << 24:
        parser.error(f'--vocab-size {options.vocab_size}: expected 257 (the bytes and {END_OF_TEXT}) to 16777216')
    return options


def main():
    options = parse()
    needed('tokenizers')
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)   # before the long work, not behind it
    except OSError as error:
        raise Problem(f'{options.out.parent}: cannot be created as a folder: {error.strerror}')
    signal.signal(signal.SIGINT, signal.SIG_DFL)   # the library would let Ctrl-C wait until the merges are learnt
    tokenizer = train(options)
    write_whole(options.out, tokenizer.to_str(pretty=True).encode())
    print(f'{options.out}: {tokenizer.get_vocab_size()} tokens')


if __name__ == '__main__':
    run('train_tokenizer', main)
