"""Makes tests/fixtures/tokenizers with the tokenizers library (run from the repository's root):

    python3 scripts/make_tokenizer_fixtures.py

Four small tokenizers trained on the bundled text and some lines of other scripts, in the forms that are found in the wild, and
texts.jsonl: one text a line ("text", or "hex" where the bytes are no UTF-8) with the ids that the library gives for each of them.
Special tokens are text for the library, too, and bytes that are no UTF-8 reach it as U+FFFD.
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, trainers
from train_tokenizer import QWEN2_PATTERN, untrained

sys.path.insert(0, "tests")
from check_tokenizer import left_out, random_text  # noqa: E402

OUT = pathlib.Path("tests/fixtures/tokenizers")
LLAMA = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

OTHER_SCRIPTS = """
El niño comió piñas en la montaña; años después volvió. Où est l'été? Straße, Größe, Übermut.
Привет, мир! Это простой текст. Καλημέρα κόσμε, τι κάνεις; مرحبا بالعالم، كيف حالك؟ שלום עולם, מה שלומך?
你好，世界。这是一个测试。日本語のテキストです。カタカナもあります。안녕하세요 세계, 잘 지내세요?
नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก Tiếng Việt có dấu. 👍🏽 👩‍👩‍👧 🇩🇪 🎉🎉 ❤️ ½ ² ٣ Ⅷ
def merge(ids, pair):\n    return [x for x in ids if x != pair]  # 3.14159e-10\n\tif (a[i] != b->c) { x += 0xFF; }\r\n
"""

TEXTS = [
    "", " ", "a", "Hello world", " Hello world", "I'm we'll they'd it's you've 'tis DON'T I'M 'ſ", "1234567890 12,345.67 ½ ² ٣ Ⅷ",
    "a  b   c    d ", "\n\n\n x\n \n\ty\r\n\r\n  z  \n", "trailing   ", "tab\tand\x0bvertical\x0cfeed\x85next\u2028line",
    "for (int i = 0; i < n; ++i) {\n    sum += x[i];  // add\n}\n",
    "e\u0301 = é, \u1100\u1161\u11a8 = 각, \u0041\u030a = \u212b, \uf900 \u2f800",
    "q\u0323\u0307 q\u0307\u0323 \u0344 \u0f71\u0f72\u0f80",
    "你好，世界。123日本語テキスト", "안녕하세요 세계",
    "שָׁלוֹם עולם", "السَّلَامُ عَلَيْكُم ١٢٣",
    "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪🎉 ❤️ 1️⃣", "\u00a0\u3000\u200b\u180e\ufeffx", "\x00\x01\x7f",
    "<|endoftext|>", "a<|endoftext|>b<|im_start|>c", "<think>a</think> <think><think>",
    "<é><e\u0301>", "a" * 90, "ab" * 300, "!?" * 100, " " * 200 + "x",
    "the president of the United States, the Congress, and the people " * 3, "\U0001d400\U0001d7ff\U0010fffd", "naïve café Zürich",
]
DAMAGED = [b"\xff", b"a\xc3", b"\xe6\xbcz", b"\xed\xa0\x80", b"ok \xf0\x9f\x91 \x80\x80 ok",
           b"\xc0\xafx\xf4\x90\x80\x80", b"e\xcc\x81\xcc", bytes(range(256))]


def trained(like, lines, special=("<|endoftext|>",), added=(), **parts):
    """A tokenizer of 2000 tokens in the form of scripts/train_tokenizer.py, with other parts."""
    tokenizer = untrained(like)
    for name, part in parts.items(): setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens([AddedToken(t, normalized=t == "<é>") for t in added])
    return tokenizer


def tokenizers(lines):
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA), "isolated"), bytes_only])
    gpt2 = trained("gpt2", lines)
    qwen = trained("qwen2", lines, ["<|endoftext|>", "<|im_start|>"], ["<think>", "</think>", "<é>", "<think><"])
    llama = trained("qwen2", lines, normalizer=None, pre_tokenizer=split)
    prefix = trained("gpt2", lines, added=["<think>"], pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    files = {name: json.loads(t.to_str()) for name, t in (("gpt2", gpt2), ("qwen", qwen), ("llama", llama), ("prefix", prefix))}
    for name in ("gpt2", "prefix"):   # the older way of writing merges
        files[name]["model"]["merges"] = [" ".join(pair) for pair in files[name]["model"]["merges"]]
    llama_model = files["llama"]["model"]
    llama_model["ignore_merges"] = True
    llama_model["merges"] = llama_model["merges"][:-200]   # 200 tokens that only whole pieces can be
    return files


def main():
    with open("data/bundled/sotu.jsonl", encoding="utf-8") as file:
        lines = [json.loads(next(file))["text"] for _ in range(6)] + OTHER_SCRIPTS.split("\n") * 3
    OUT.mkdir(parents=True, exist_ok=True)
    libraries = {}
    for name, contents in tokenizers(lines).items():
        text = json.dumps(contents, ensure_ascii=False, separators=(",", ":"))
        (OUT / f"{name}_tokenizer.json").write_text(text + "\n", encoding="utf-8")
        libraries[name] = Tokenizer.from_str(text)
        libraries[name].encode_special_tokens = True
    generator = random.Random(1)
    unknown = left_out(libraries["qwen"])
    texts = [t.encode() for t in TEXTS] + DAMAGED + [random_text(generator, unknown) for _ in range(300)]
    with open(OUT / "texts.jsonl", "w", encoding="utf-8") as file:
        for text in texts:
            decoded = text.decode(errors="replace")
            line = {"text": decoded} if decoded.encode() == text else {"hex": text.hex()}
            for name, library in libraries.items():
                line[name] = library.encode(decoded, add_special_tokens=False).ids
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
