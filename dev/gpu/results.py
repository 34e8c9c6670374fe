#!/usr/bin/env python3
"""Keeps what GPUs have measured, and writes the tables that speak of it: dev/gpu/RESULTS.md and the one in README.md.

    python3 dev/gpu/results.py RESULTS    keeps RESULTS/gpu_day.json (of dev/gpu_day.sh) as dev/gpu/GPU_DATE_TIME_COMMIT.json, writes tables
    python3 dev/gpu/results.py            writes the tables again
    python3 dev/gpu/results.py --check    exits 1 where they are not what the kept files say

A number that no kept file has appears nowhere: it is "not measured yet". ROOT=FOLDER for another tree. Standard library only.
"""
import json
import os
import pathlib
import re
import shutil
import sys

BEGIN, END = "<!-- GPU speeds, written by dev/gpu/results.py -->\n", "<!-- end of GPU speeds -->\n"
ATTENTION = [("causal", 64), ("causal", 128)]   # variant, head size: the rows of bench_gpu that README.md shows


def keep(root, folder):
    """Copies a run's summary into dev/gpu and returns its path there."""
    source = folder / "gpu_day.json"
    try:
        machine = json.loads(source.read_text())["machine"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"results.py: {source} is not what dev/gpu_day.sh writes: {error}")
    if not machine["gpu"]: sys.exit(f"results.py: {source} names no GPU: such a run has measured nothing")
    time = machine.get("time", "").replace(":", "")   # several runs a day
    name = "_".join([machine["gpu"], machine["date"], *([time] if time else []), machine["commit"] or "unknown"])
    kept = root / "dev/gpu" / (re.sub(r"[^A-Za-z0-9_-]+", "_", name) + ".json")
    shutil.copy(source, kept)
    return kept


def kept_runs(root):
    """All summaries, newest first."""
    runs = [json.loads(path.read_text()) for path in sorted((root / "dev/gpu").glob("*.json"))]
    return sorted(runs, key=lambda run: (run["machine"]["date"], run["machine"].get("time", "")), reverse=True)


def newest(runs, of):
    """of(run) of the newest run that has it, and that run; None, None if there is none."""
    return next(((of(run), run) for run in runs if of(run) is not None), (None, None))


def number(value, form):
    return "not measured yet" if value is None else format(value, form)


def attention_speed(run, variant, HS, direction):
    rows = run["speeds"]["attention"]
    return next((row[direction] for row in rows if row["variant"] == variant and row["HS"] == HS), None)


def speeds_table(runs):
    """One row per GPU; of several runs on it each number is the newest."""
    head = ["GPU", "causal, tokens/s", "asga, tokens/s"]
    head += [f"attention, heads of {HS}: forward, backward TFLOP/s" for _, HS in ATTENTION] + ["measured"]
    gpus = list(dict.fromkeys(run["machine"]["gpu"] for run in runs))
    rows = []
    for gpu in gpus:
        of_gpu = [run for run in runs if run["machine"]["gpu"] == gpu]
        steps = [newest(of_gpu, lambda run: run["speeds"]["steps"].get(variant)) for variant in ("causal", "asga")]
        attention = [[newest(of_gpu, lambda run: attention_speed(run, variant, HS, direction)) for direction in ("forward", "backward")]
                     for variant, HS in ATTENTION]
        row = [gpu] + [number(value, ",.0f") for value, _ in steps]
        row += [", ".join(number(value, ".0f") for value, _ in both) for both in attention]
        measured = [run["machine"] for _, run in sum(attention, steps) if run]
        rows.append(row + ["; ".join(dict.fromkeys(f"{of['date']}, {of['commit']}" for of in measured))])
    if not rows: rows = [["none so far"] + ["not measured yet"] * (len(head) - 2) + [""]]
    return "".join("| " + " | ".join(row) + " |\n" for row in [head, ["---"] * len(head)] + rows)


def whole_steps_table(run):
    """Every variant that a run has trained, the fastest first."""
    rates = run.get("whole_steps", {})
    if not rates: return []
    causal = rates.get("causal")
    rows = [f"| {variant} | {rate:,.0f} | {number(causal and rate / causal, '.2f')} |"
            for variant, rate in sorted(rates.items(), key=lambda item: -item[1])]
    return ["### Whole steps", "", "A model of 134M parameters (qwen-134m), B 32, T 1024, bf16, its mechanism's defaults: medians of 12 steps.", "",
            "| variant | tokens/s | of causal's |", "| --- | --- | --- |", *rows, ""]


def writing_table(run):
    rates = run.get("writing", {})
    batches = sorted({batch for rate in rates.values() for batch in rate}, key=int)
    if not batches: return []
    rows = [f"| {variant} | " + " | ".join(number(rate.get(batch), ",.0f") for batch in batches) + " |" for variant, rate in rates.items()]
    return ["### Writing", "", "Tokens per second of `generate`, a model of 134M parameters (qwen-134m) that has learnt nothing, behind 64 prompts",
            "of 8 to 512 tokens.", "", "| variant | " + " | ".join(f"{batch} side by side" for batch in batches) + " |",
            "| --- |" + " --- |" * len(batches), *rows, ""]


def paired_table(run):
    rows = [f"| {variant} | {p['step']} | {p['val_loss']:.4f} | {number(p['tokens_per_second'], ',.0f')} |" for variant, p in run.get("paired", {}).items()]
    if not rows: return []
    return ["### Paired runs", "", "A model of 25.9M parameters, bytes of the bundled text, B 32, T 1024, the same rows and first weights; one seed.", "",
            "| variant | steps | validation loss | tokens/s |", "| --- | --- | --- | --- |", *rows, ""]


def apart(table):
    """The lines of a step that prints several tables, an empty one before each."""
    starts = [n for n, line in enumerate(table) if n and re.fullmatch(r"\|[\s|:-]+\|", line)]
    return [line for n, row in enumerate(table) for line in ([""] if n and n + 1 in starts else []) + [row]]


def results_page(runs):
    lines = ["# What GPUs have measured", "",
             "Written by dev/gpu/results.py from the files beside it, one per run of dev/gpu_day.sh: GPU, date, commit. Steps of the",
             "first table are of dev/bench_gpu's model of 124M parameters (B 64, T 1024, bf16), attention alone at T 8192 counts visible pairs only.", "", speeds_table(runs)]
    for run in runs:
        machine, failed = run["machine"], [name for name, good in run["verdicts"] if not good]
        said = f"{len(run['verdicts']) - len(failed)} passed, {len(failed)} failed" + (": " + ", ".join(failed) if failed else "")
        lines += [f"## {machine['gpu']}, {machine['date']}, commit {machine['commit']}", "",
                  f"Driver {machine['driver']}, CUDA {machine['cuda']}. {said}." + (f" {run['note']}" if "note" in run else ""), ""]
        lines += [f"- {name}: {curve['is']}" + (f" (at most {curve['most']:g})" if "most" in curve else "")
                  for name, curve in run["curves"].items()]
        if m := run["memory"]: lines.append(f"- peak memory: {m['peak']:,} bytes where --dry-run predicts {m['predicted']:,.0f}")
        lines.append("")
        lines += whole_steps_table(run) + writing_table(run) + paired_table(run)
        for step, table in run["tables"].items(): lines += [f"### {step}", ""] + apart(table) + [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def pages(root):
    """The texts that README.md and RESULTS.md should have, by path."""
    runs = kept_runs(root)
    readme = (root / "README.md").read_text()
    if BEGIN not in readme or END not in readme: sys.exit(f"results.py: {root / 'README.md'} has no lines {BEGIN.strip()} and {END.strip()}")
    before, after = readme[:readme.index(BEGIN)], readme[readme.index(END):]
    return {root / "README.md": before + BEGIN + speeds_table(runs) + after, root / "dev/gpu/RESULTS.md": results_page(runs)}


def main():
    root = pathlib.Path(os.environ.get("ROOT", pathlib.Path(__file__).resolve().parents[2]))
    if len(sys.argv) > 2 or sys.argv[1:2] in (["--help"], ["-h"]): sys.exit(__doc__)
    checks = sys.argv[1:] == ["--check"]
    if len(sys.argv) == 2 and not checks: print(keep(root, pathlib.Path(sys.argv[1])))
    for path, text in pages(root).items():
        if not checks:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"results.py: {path} is not what the files in {root / 'dev/gpu'} say; dev/gpu/results.py writes it")


if __name__ == "__main__":
    main()
