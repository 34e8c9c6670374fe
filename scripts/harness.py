#!/usr/bin/env python3
"""Run EleutherAI's lm-evaluation-harness on a checkpoint that training wrote: through transformers, RULER through ./generate.

    python3 scripts/harness.py out/causal/step_00001000 hellaswag piqa       the harness's own tasks, from the Hugging Face hub
    python3 scripts/harness.py out/causal/step_00001000 items.jsonl          items as --eval-data reads them; no network
    python3 scripts/harness.py out/causal/step_00001000 items.jsonl -- --limit 200 --batch_size 8       options of the harness
    python3 scripts/harness.py out/causal/step_00001000 niah_single_1 -- --metadata '{"max_seq_lengths": [1024, 4096]}' --limit 50

Needs `pip install "lm_eval[hf]"`, for RULER "lm_eval[ruler]" and transformers. Every variant is scored as it was trained: what
transformers does not compute itself, by the checkpoint's own Python files, in dense matrices. Forms that look ahead need --batch_size 1.

Items have {"query", "choices", "gold"} in each line and become a task own_NAME through scripts/own_items.yaml; WinoGrande, whose
items have several contexts, is the harness's own task. The harness's acc is the engine's accuracy by sum, acc_norm the one by
character mean; ./train_causal --evaluate prints both.

RULER's tasks (niah_*, ruler_*) are generated to lengths in the checkpoint's tokens; ./generate answers them greedily, as batches of
--batch_size prompts (default 8), with the KV cache of the checkpoint's own mechanism. model/README.md, "RULER", lists the tasks that
need no network.
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

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lm_eval", "torch", "transformers", "accelerate")
RULER_PACKAGES = ("lm_eval", "transformers", "nltk", "scipy", "wonderwords")
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


def tokenizer_of(checkpoint, folder):
    """The checkpoint's tokenizer in a folder of its own: beside a Qwen2's config.json transformers (5.23) splits words as Qwen2 does,
    whatever tokenizer.json says."""
    folder.mkdir(exist_ok=True)
    for path in checkpoint.glob("tokenizer*.json"):
        shutil.copy(path, folder)
    if not any(folder.iterdir()):
        stop(7, f"{checkpoint}: holds no tokenizer.json")
    return folder


def is_ruler(task):
    return task.startswith(("niah_", "ruler"))


def before(text, ends):
    """The text before the first of the ends."""
    return text[:min((text.find(end) for end in ends if end and end in text), default=len(text))]


def write_texts(generate, checkpoint, prompts, *options):
    """The texts that ./generate writes behind the prompts."""
    with tempfile.TemporaryDirectory() as name:
        source, written = Path(name, "prompts.jsonl"), Path(name, "texts.jsonl")
        source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        command = [generate, "--checkpoint", checkpoint, "--prompts", source, "--out", written, *options]
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        except OSError as error:
            stop(2, f"{generate}: {error.strerror}; make generate builds it")
        if done.returncode:
            stop(done.returncode, f"{generate} ends with code {done.returncode}: {done.stderr.strip()[-500:]}")
        return [json.loads(line)["text"] for line in written.read_text().splitlines()]


def register_engine():
    """Registers the harness's model "engine", for tasks that generate text, and returns its class."""
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model

    @register_model("engine")
    class Engine(LM):
        def __init__(self, pretrained, tokenizer=None, generate=ROOT / "generate", batch_size=8, **_):
            super().__init__()
            self.generate, self.checkpoint, self.batch = generate, pretrained, batch_size

        def generate_until(self, requests, disable_tqdm=False):
            texts = [None] * len(requests)
            settings = [(args.get("max_gen_toks", 256), args.get("temperature", 0) if args.get("do_sample") else 0)
                        for _, args in (request.args for request in requests)]
            for tokens, temperature in dict.fromkeys(settings):
                chosen = [n for n, setting in enumerate(settings) if setting == (tokens, temperature)]
                written = write_texts(self.generate, self.checkpoint, [requests[n].args[0] for n in chosen], "--tokens", tokens,
                                      "--temperature", temperature, "--batch", self.batch)
                for n, text in zip(chosen, written, strict=True):
                    texts[n] = before(text, requests[n].args[1].get("until") or [])
            return texts

        def loglikelihood(self, requests):
            raise NotImplementedError("the model engine generates text; likelihood tasks take the model hf")

        loglikelihood_rolling = loglikelihood

    return Engine


def main(words):
    cut = words.index("--") if "--" in words else len(words)
    (folder, *tasks), options = words[:cut] or [""], words[cut + 1:]
    if not tasks:
        stop(2, USAGE)
    checkpoint, own = Path(folder), [task.endswith(".jsonl") for task in tasks]
    ruler = is_ruler(tasks[0])
    if any(is_ruler(task) != ruler for task in tasks):
        stop(2, f"{', '.join(tasks)}: RULER's tasks run apart from others; one call for each kind")
    trust = "" if ruler else trust_of(checkpoint)
    needed, install = (RULER_PACKAGES, '"lm_eval[ruler]" transformers') if ruler else (PACKAGES, '"lm_eval[hf]"')
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        stop(2, f'{sys.executable} has no {", ".join(missing)}: {sys.executable} -m pip install {install}')
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        names = [task_of(Path(task), n, work) if own[n] else task for n, task in enumerate(tasks)]
        environment = os.environ | ({"HF_DATASETS_CACHE": str(work / "cache")} if any(own) else {})
        environment |= {"HF_HUB_OFFLINE": "1"} if all(own) else {}
        arguments = f"pretrained={checkpoint},tokenizer={tokenizer_of(checkpoint, work / 'tokenizer')}"
        command = ["lm_eval", "--tasks", ",".join(names), "--include_path", str(work), "--model"]
        if ruler:
            sys.argv = [*command, "engine", "--model_args", arguments, "--batch_size", "8", *options]
            register_engine()
            from lm_eval.__main__ import cli_evaluate
            sys.exit(cli_evaluate())
        command += ["hf", "--model_args", f"{arguments},dtype=float32{trust}", *options]
        sys.exit(subprocess.run([sys.executable, "-m", *command], env=environment, check=False).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
