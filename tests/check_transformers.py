"""Loads checkpoints that Hugging Face transformers computes itself (causal ones), fails on anything that does not fit, and compares the logits of
random tokens, and greedy text with that of ./generate (run from the repository's root, after `make generate build/dev/logits`).

    python3 tests/check_transformers.py out/causal/step_00000100 ...
"""
import array
import json
import pathlib
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def check(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{folder}: {kind} {info[kind]}"
    config = json.loads((folder / "config.json").read_text())
    rope = getattr(model.config, "rope_parameters", None) or {"rope_theta": model.config.rope_theta}
    assert rope["rope_theta"] == config["rope_theta"], f"{folder}: rope_theta became {rope['rope_theta']}"
    assert model.config.tie_word_embeddings == config["tie_word_embeddings"], f"{folder}: the head is tied differently"
    if config["engine_tokenizer"] == "bytes":
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = "Two words, \t\u00e9 \u65e5\u672c\n"
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode()), f"{folder}: the tokenizer gives {ids}"
        assert tokenizer.decode(ids) == text, f"{folder}: the tokenizer does not give the text back"
    compare_greedy(folder, model)
    compare_logits(folder, model)
    print(f"{folder}: {type(model).__name__}, {model.num_parameters():,} parameters, every tensor in place")


def compare_greedy(folder, model, count=64):
    """Token by token the likeliest one; where transformers' two best are closer than rounding, either may be chosen."""
    ids = [72, 101, 108, 108, 111, 32]
    command = ["./generate", "--checkpoint", str(folder), "--prompt-ids", ",".join(map(str, ids)), "--tokens", str(count), "--temperature", "0", "--print-ids"]
    ours = [int(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
    assert len(ours) == count, f"{folder}: ./generate wrote {len(ours)} tokens instead of {count}"
    with torch.no_grad():
        logits = model(torch.tensor([ids + ours])).logits[0, len(ids) - 1 : -1]
    gap = (logits.max(-1).values - logits[range(count), ours]).max().item()
    assert gap < 1e-4, f"{folder}: ./generate chose a token whose logit is {gap} below transformers' best"


@torch.no_grad()
def compare_logits(folder, model, count=512):
    """Of random tokens, which go through the model as well as any text does. float32 on both sides."""
    vocabulary = model.config.vocab_size
    ids = torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(1)).tolist()
    given = array.array("i", ids).tobytes()
    said = subprocess.run(["build/dev/logits", str(folder)], input=given, check=True, capture_output=True).stdout
    ours = torch.frombuffer(bytearray(said), dtype=torch.float32).view(count, vocabulary)
    theirs = model.float()(torch.tensor([ids])).logits[0]
    difference, greatest = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    print(f"{folder}: logits of {count} random tokens differ by at most {difference:.2e}; the greatest is {greatest:.3f}")
    assert difference < 1e-4 * max(1, greatest), f"{folder}: logits differ by {difference}"


if __name__ == "__main__":
    for name in sys.argv[1:] or sys.exit(__doc__):
        check(pathlib.Path(name))
