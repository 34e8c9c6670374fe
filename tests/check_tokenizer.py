"""Compares the ids of data/tokenizers/tokenizer.h with those of the tokenizers library, over whole files and over random texts of every
kind (run from the repository's root, after `make build/dev/token_ids`; needs the Python package tokenizers).

    python3 tests/check_tokenizer.py TOKENIZER [FILE...] [--random 20000] [--seed 1]

TOKENIZER is a tokenizer.json or a folder that has one. A .jsonl file has one document a line under "text"; of any other file the
whole text is one document. Bytes that are no UTF-8 reach the library as U+FFFD. The library is told to take special tokens for
text, as the engine does. The first difference is shown and ends the run with code 1, unless characters that are younger than one
of the Unicode tables in play explain it.
"""
import argparse
import array
import json
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

PROGRAM = "build/dev/token_ids"
# Ranges of code points from which random texts are drawn.
SCRIPTS = {
    "ASCII": [(0x20, 0x7E)], "English": [(0x61, 0x7A)] * 6 + [(0x20, 0x20)] * 2 + [(0x27, 0x27), (0x41, 0x5A), (0x2E, 0x2E)],
    "control": [(0, 0x1F), (0x7F, 0x9F)], "digits": [(0x30, 0x39), (0x660, 0x669), (0xB2, 0xB3), (0x2160, 0x2188)],
    "white space": [(0x20, 0x20), (9, 13), (0xA0, 0xA0), (0x2000, 0x200B), (0x2028, 0x2029), (0x3000, 0x3000), (0x85, 0x85),
                    (0x180E, 0x180E), (0x61, 0x62)],
    "Latin": [(0xC0, 0x24F), (0x1E00, 0x1EFF), (0x61, 0x7A)],
    "combining": [(0x300, 0x36F), (0x61, 0x7A), (0x1AB0, 0x1ACE), (0x345, 0x345)],
    "Greek and Cyrillic": [(0x370, 0x3FF), (0x1F00, 0x1FFF), (0x400, 0x52F)],
    "Hebrew": [(0x591, 0x5F4), (0xFB1D, 0xFB4F), (0x20, 0x20)],
    "Arabic": [(0x600, 0x6FF), (0x64B, 0x65F), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC), (0x20, 0x20)],
    "Indic and Thai": [(0x900, 0xDFF), (0xE00, 0xEFF), (0xF00, 0xFFF)],
    "Hangul": [(0x1100, 0x11FF), (0xAC00, 0xD7A3), (0x20, 0x20)],
    "CJK": [(0x4E00, 0x9FFF), (0x3000, 0x30FF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1D)],
    "emoji": [(0x1F300, 0x1FAFF), (0x200D, 0x200D), (0xFE0F, 0xFE0F), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF), (0x2600, 0x27BF)],
    "symbols": [(0x2010, 0x2BFF), (0x1D400, 0x1D7FF)], "private": [(0xE000, 0xF8FF), (0xFFF0, 0xFFFF), (0x10FFF0, 0x10FFFF)],
    "anything": [(0, 0x10FFFF)],
}


def left_out(library):
    """Characters on which the Unicode tables of the library's and the engine's parts differ by their age: those that this Python
    does not know (Oniguruma may be newer than PCRE2), and marks that the library's normaliser, older than utf8proc, does not."""
    unknown = {c for c in range(0x110000) if unicodedata.category(chr(c)) == "Cn"}
    normalize = library.normalizer.normalize_str if library.normalizer else lambda text: unicodedata.normalize("NFC", text)
    for c in map(chr, [*range(0xD800), *range(0xE000, 0x110000)]):
        decomposed = unicodedata.normalize("NFD", c)
        probes = ("\u0345" + c, c + "\u0334") if unicodedata.combining(c) else (decomposed,)   # to be reordered, to be composed
        if any(normalize(probe) != unicodedata.normalize("NFC", probe) for probe in probes):
            unknown.update(map(ord, decomposed))
    return unknown


def random_text(generator, unknown):
    """Characters of one to three scripts, as bytes; every eighth text is damaged."""
    ranges = [r for name in generator.sample(sorted(SCRIPTS), generator.randint(1, 3)) for r in SCRIPTS[name]]
    characters = []
    while len(characters) < generator.choice([1, 3, 10, 40, 200]):
        low, high = generator.choice(ranges)
        code_point = generator.randint(low, high)
        if code_point not in unknown and not 0xD800 <= code_point <= 0xDFFF:
            characters += [chr(code_point)] * generator.choice([1, 1, 1, 1, 1, 2, 5])
    text = bytearray("".join(characters).encode())
    for _ in range(generator.choice([0] * 7 + [1 + len(text) // 10])):
        text[generator.randrange(len(text))] = generator.randrange(256)
    return bytes(text)


def documents(path):
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return [json.loads(line)["text"].encode("utf-8", "replace") for line in data.splitlines()]
    return [data]


def without(text, unknown):
    """The text with U+FFFD for the characters in `unknown`."""
    return "".join("\ufffd" if ord(c) in unknown else c for c in text.decode(errors="replace")).encode()


def engine_ids(tokenizer, texts):
    """One array of ids a text."""
    records = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    numbers = array.array("I", subprocess.run([PROGRAM, str(tokenizer)], input=records, stdout=subprocess.PIPE, check=True).stdout)
    begin = 0
    for _ in texts:
        end = begin + 1 + numbers[begin]   # behind the count of ids
        yield numbers[begin + 1:end]
        begin = end


def compare(name, tokenizer_path, library, texts, unknown):
    """Texts that differ get a second chance without the characters in `unknown`."""
    tokens, again = 0, []
    for text, ours in zip(texts, engine_ids(tokenizer_path, texts)):
        theirs = library.encode(text.decode(errors="replace"), add_special_tokens=False).ids
        tokens += len(theirs)
        if ours.tolist() == theirs:
            continue
        again.append(without(text, unknown))
        if again[-1] == without(text, set()):
            report(name, library, text, ours.tolist(), theirs)
    size = sum(map(len, texts))
    print(f"{name}: {len(texts):,} texts, {size:,} bytes, {tokens:,} ids, {len(texts) - len(again):,} texts equal", flush=True)
    if again:
        compare("  the others without characters that the Unicode tables know differently", tokenizer_path, library, again, set())


def report(name, library, text, ours, theirs):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    around = slice(max(0, at - 3), at + 5)
    print(f"{name}: a text of {len(text):,} bytes differs from id {at} on\n  {text[:300]!r}")
    for who, ids in (("engine", ours), ("library", theirs)):
        print(f"  {who}: {ids[around]} {[library.id_to_token(i) for i in ids[around]]}")
    sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=20000, help="how many random texts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_intermixed_args()
    file = options.tokenizer / "tokenizer.json" if options.tokenizer.is_dir() else options.tokenizer
    library = Tokenizer.from_file(str(file))
    library.encode_special_tokens = True
    generator = random.Random(options.seed)
    unknown = left_out(library)
    compare("random texts", file, library, [random_text(generator, unknown) for _ in range(options.random)], unknown)
    for path in options.files:
        compare(str(path), file, library, documents(path), unknown)


if __name__ == "__main__":
    main()
