#!/usr/bin/env python3
"""Run EleutherAI's lm-evaluation-harness on a checkpoint that training wrote, through transformers.

    python3 scripts/harness.py out/causal/step_00001000 hellaswag piqa       the harness's own tasks, from the Hugging Face hub
    python3 scripts/harness.py out/causal/step_00001000 items.jsonl          items as --eval-data reads them; no network
    python3 scripts/harness.py out/causal/step_00001000 items.jsonl -- --limit 200 --batch_size 8       options of the harness

Needs `pip install "lm_eval[hf]"`. Every variant is scored as it was trained: what transformers does not compute itself, by the
checkpoint's own Python files, in dense matrices. Forms that look ahead need --batch_size 1.

Items have {"query", "choices", "gold"} in each line and become a task own_NAME through scripts/own_items.yaml; WinoGrande, whose
items have several contexts, is the harness's own task. The harness's acc is the engine's accuracy by sum, acc_norm the one by
character mean; ./train_causal --evaluate prints both.
Exit codes: 0 done, 2 usage or a missing package, 3 items, 7 the checkpoint; else the harness's.
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

USAGE = "usage: scripts/harness.py FOLDER TASK... [-- OPTIONS OF THE HARNESS]"


def stop(code, message):
    print(f"harness.py: {message}", file=sys.stderr)
    sys.exit(code)


def trust_of(checkpoint):
    """The model argument that lets the checkpoint's Python files run, where it has any."""
    try:
        config = json.loads((checkpoint / "config.json").read_text())
    except (OSError, ValueError) as error:
        stop(7, f"{checkpoint}: holds no config.json that can be read ({error}); give a step_* folder that training wrote")
    if "auto_map" in config:
        return ",trust_remote_code=True"
    variant = config.get("attention_variant", "causal")
    if variant not in ("causal", "sliding_window"):
        stop(7, f"{checkpoint}: is of variant {variant} and carries no Python files, without which transformers would compute plain "
                "attention; --resume the run, and its next checkpoint has them")
    return ""


def delimiter_of(items):
    """The text between query and answer, as in the engine: none where queries end in white space. The harness has one per task."""
    ends = set()
    try:
        lines = items.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        stop(3, f"{items}: cannot be read: {error}")
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                query = json.loads(line)["query"]
                ends.add(not query or query[-1].isspace())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            stop(3, f'{items}:{number}: is no item with "query", "choices" and "gold": {error!r}')
    if len(ends) != 1:
        stop(3, f"{items}: needs items whose queries all end in white space, or none of them")
    return "" if ends.pop() else " "


def task_of(items, number, folder):
    """Writes the task of a file of items into the folder; returns its name."""
    name = f"own_{number}_{re.sub('[^A-Za-z0-9_]', '_', items.stem)}"
    link = folder / f"{name}.jsonl"
    text = (Path(__file__).parent / "own_items.yaml").read_text()
    for word, value in (("DELIMITER", json.dumps(delimiter_of(items))), ("NAME", name), ("FILE", str(link))):
        text = text.replace(word, value)
    link.symlink_to(items.resolve())
    (folder / f"{name}.yaml").write_text(text)
    return name


def main(words):
    cut = words.index("--") if "--" in words else len(words)
    (folder, *tasks), options = words[:cut] or [""], words[cut + 1:]
    if not tasks:
        stop(2, USAGE)
    checkpoint, own = Path(folder), [task.endswith(".jsonl") for task in tasks]
    trust = trust_of(checkpoint)
    missing = [name for name in ("lm_eval", "torch", "transformers", "accelerate") if not importlib.util.find_spec(name)]
    if missing:
        stop(2, f'{sys.executable} has no {", ".join(missing)}: {sys.executable} -m pip install "lm_eval[hf]"')
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        names = [task_of(Path(task), n, work) if own[n] else task for n, task in enumerate(tasks)]
        # The tokenizer in a folder of its own: beside a Qwen2's config.json transformers (5.23) splits words as Qwen2 does, whatever
        # the checkpoint's tokenizer.json says.
        (work / "tokenizer").mkdir()
        for path in checkpoint.glob("tokenizer*.json"):
            shutil.copy(path, work / "tokenizer")
        if not any((work / "tokenizer").iterdir()):
            stop(7, f"{checkpoint}: holds no tokenizer.json")
        environment = os.environ | ({"HF_DATASETS_CACHE": str(work / "cache")} if any(own) else {}) | ({"HF_HUB_OFFLINE": "1"} if all(own) else {})
        arguments = f"pretrained={checkpoint},tokenizer={work / 'tokenizer'},dtype=float32{trust}"
        sys.exit(subprocess.run([sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", arguments, "--tasks", ",".join(names),
                                 "--include_path", str(work), *options], env=environment, check=False).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
