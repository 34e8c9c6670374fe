"""Loads checkpoints of the causal or sliding-window variant in Hugging Face transformers and fails on anything that does not fit.

    python3 tests/check_transformers.py out/causal/step_00000100 ...
"""
import json
import pathlib
import sys

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
    print(f"{folder}: {type(model).__name__}, {model.num_parameters():,} parameters, every tensor in place")


if __name__ == "__main__":
    for name in sys.argv[1:] or sys.exit(__doc__):
        check(pathlib.Path(name))
