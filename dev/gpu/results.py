#!/usr/bin/env python3
"""Keeps what GPUs have measured, one file per card, and writes the pages that show it: dev/gpu/RESULTS.md and a table in README.md.

    python3 dev/gpu/results.py RESULTS    merges RESULTS/gpu_day.json (of dev/gpu_day.py) into dev/gpu/CARD.json, writes the pages
    python3 dev/gpu/results.py            writes the pages again
    python3 dev/gpu/results.py --check    exits 1 if the pages differ from the kept files

Each figure is kept with the date and commit of the run that measured it last. A figure that no run has is "not measured yet".
ROOT=FOLDER for another tree. Standard library only.
"""
import json
import os
import pathlib
import re
import sys

BEGIN, END = "<!-- GPU speeds, written by dev/gpu/results.py -->\n", "<!-- end of GPU speeds -->\n"
ATTENTION = [("causal", 64), ("causal", 128)]   # variant, head size: the columns of the first table


def figures_of(run):
    """The figures of one summary, {section: {row: figure}}."""
    attention = {f"{row['variant']} {row['HS']}": [row["forward"], row["backward"]] for row in run["speeds"]["attention"]}
    return {"steps": run["speeds"]["steps"], "attention": attention, "whole_steps": run.get("whole_steps", {}), "writing": run.get("writing", {})}


def merge(card, run):
    """Adds a summary of dev/gpu_day.py to a card's file: its figures take the place of older ones."""
    machine = run["machine"]
    failed = [name for name, good in run["verdicts"] if not good]
    when = {"date": machine["date"], "commit": machine["commit"]}
    card.update(gpu=machine["gpu"], driver=machine["driver"], cuda=machine["cuda"])
    card.setdefault("runs", []).append(when | {"time": machine.get("time", ""), "passed": len(run["verdicts"]) - len(failed), "failed": failed})
    for section, rows in figures_of(run).items():
        for row, figure in rows.items(): card.setdefault(section, {})[row] = when | {"is": figure}


def keep(root, folder):
    """Merges a run's summary into its card's file and returns the file's path."""
    source = folder / "gpu_day.json"
    try:
        run = json.loads(source.read_text())
        gpu = run["machine"]["gpu"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"results.py: {source} is not what dev/gpu_day.py writes: {error}")
    if not gpu: sys.exit(f"results.py: {source} names no GPU: such a run has measured nothing")
    path = root / "dev/gpu" / (re.sub(r"[^A-Za-z0-9_-]+", "_", gpu) + ".json")
    card = json.loads(path.read_text()) if path.exists() else {}
    merge(card, run)
    path.write_text(json.dumps(card, indent=1) + "\n")
    return path


def figure(card, section, row, form=",.0f"):
    """A figure in words."""
    found = card.get(section, {}).get(row)
    if not found: return "not measured yet"
    return ", ".join(format(value, form) for value in (found["is"] if isinstance(found["is"], list) else [found["is"]]))


def measured(card, section, rows):
    """Dates and commits of these figures."""
    found = [card[section][row] for row in rows if row in card.get(section, {})]
    return "; ".join(dict.fromkeys(f"{of['date']}, {of['commit']}" for of in found))


def table(head, rows):
    return "".join("| " + " | ".join(row) + " |\n" for row in [head, ["---"] * len(head), *rows])


def speeds_table(cards):
    """One row per card."""
    head = ["GPU", "causal, tokens/s", "asga, tokens/s", *(f"attention, heads of {HS}: forward, backward TFLOP/s" for _, HS in ATTENTION), "measured"]
    columns = [f"{variant} {HS}" for variant, HS in ATTENTION]
    rows = [[card["gpu"], figure(card, "steps", "causal"), figure(card, "steps", "asga"), *(figure(card, "attention", of, ".0f") for of in columns),
             measured(card, "steps", ["causal", "asga"])] for card in cards]
    return table(head, rows or [["none so far"] + ["not measured yet"] * (len(head) - 2) + [""]])


def variants_table(card):
    """Every variant that the card has trained, the fastest first, with the text that it has written."""
    rates = {variant: of["is"] for variant, of in card.get("whole_steps", {}).items()}
    written = card.get("writing", {})
    batches = sorted({batch for of in written.values() for batch in of["is"]}, key=int)
    rows = []
    for variant, rate in sorted(rates.items(), key=lambda item: -item[1]):
        share = f"{rate / rates['causal']:.2f}" if "causal" in rates else ""
        text = [f"{written[variant]['is'][batch]:,.0f}" if variant in written and batch in written[variant]["is"] else "" for batch in batches]
        rows.append([variant, f"{rate:,.0f}", share, *text, measured(card, "whole_steps", [variant])])
    return table(["variant", "training, tokens/s", "of causal's", *(f"writing {batch} side by side, tokens/s" for batch in batches), "measured"], rows)


def results_page(cards):
    lines = ["# What GPUs have measured", "",
             "Written by dev/gpu/results.py from the file per card beside it, which holds the newest figures of dev/gpu_day.py. The first table:",
             "dev/bench_gpu's model of 124M parameters (B 64, T 1024, bf16); attention alone at T 8192, visible pairs only.", "", speeds_table(cards)]
    for card in cards:
        lines += [f"## {card['gpu']}", "", f"Driver {card['driver']}, CUDA {card['cuda']}. Runs of dev/gpu_day.py: the tests on the GPU, curves beside the CPU's,",
                  "repeated runs bit by bit, memory against its prediction, compute-sanitizer.", "",
                  table(["date", "commit", "passed", "failed"],
                        [[run["date"], run["commit"], str(run["passed"]), ", ".join(run["failed"]) or "none"] for run in card["runs"]]),
                  "Whole steps of 134M parameters (qwen-134m), B 32, T 1024, bf16, settings at their defaults, medians of 12 steps; writing behind 64",
                  "prompts of 8 to 512 tokens.", "", variants_table(card)]
    return "\n".join(lines).rstrip("\n") + "\n"


def pages(root):
    """The texts that README.md and RESULTS.md should have, by path."""
    cards = [json.loads(path.read_text()) for path in sorted((root / "dev/gpu").glob("*.json"))]
    readme = (root / "README.md").read_text()
    if BEGIN not in readme or END not in readme: sys.exit(f"results.py: {root / 'README.md'} has no lines {BEGIN.strip()} and {END.strip()}")
    before, after = readme[:readme.index(BEGIN)], readme[readme.index(END):]
    return {root / "README.md": before + BEGIN + speeds_table(cards) + after, root / "dev/gpu/RESULTS.md": results_page(cards)}


def main():
    root = pathlib.Path(os.environ.get("ROOT", pathlib.Path(__file__).resolve().parents[2]))
    if len(sys.argv) > 2 or sys.argv[1:2] in (["--help"], ["-h"]): sys.exit(__doc__)
    checks = sys.argv[1:] == ["--check"]
    if len(sys.argv) == 2 and not checks: print(keep(root, pathlib.Path(sys.argv[1])))
    for path, text in pages(root).items():
        if not checks:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"results.py: {path} differs from the files in {root / 'dev/gpu'}; dev/gpu/results.py writes it")


if __name__ == "__main__":
    main()
