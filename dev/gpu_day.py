#!/usr/bin/env python3
"""What dev/gpu_day.sh found, as gpu_day.json and gpu_day.md in the folder of its results: python3 gpu_day.py RESULTS PACK

Every number comes from a file of that folder; what did not run is left out. Standard library only.
"""
import datetime
import json
import pathlib
import re
import sys


def text_of(results, step):
    """What a step printed, "" where it did not run."""
    try:
        return (results / f"{step}.txt").read_text(errors="replace")
    except OSError:
        return ""


def losses(path):
    """The losses of a run's steps from its log.jsonl, [] where there is none."""
    found = []
    try:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "grad_norm" in record: found.append(record["loss"])
    except (OSError, ValueError):
        pass
    return found


def last_record(path):
    """A run's last record, which has its hash of weights; {} where there is none."""
    try:
        return json.loads(path.read_text().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}


def farthest(losses_here, reference):
    """The largest relative difference of two curves, None unless both have all their steps."""
    if not reference or len(losses_here) != len(reference): return None
    return max(abs(a - b) / b for a, b in zip(losses_here, reference))


def curves(results, pack):
    """How far the twenty steps on the GPU are from the CPU's, and whether the same command gave the same bits."""
    log = lambda run: results / "runs" / run / "log.jsonl"
    cpu = {name: losses(pack / "cpu" / name / "log.jsonl") for name in ("causal", "asga")}
    found = {}
    for run, reference in (("causal_fp32", "causal"), ("causal", "causal"), ("asga", "asga")):
        far = farthest(losses(log(run)), cpu[reference])
        if far is not None: found[f"{run}: farthest from the CPU, relative"] = far
    hashes = [last_record(log(run)).get("weights_hash") for run in ("causal", "causal_again")]
    if all(hashes): found["causal: the same command twice gives the same weights"] = hashes[0] == hashes[1]
    return found


def paired(results):
    """The last validation loss, tokens per second and seconds of each paired run."""
    found = {}
    for log in sorted((results / "runs").glob("paired_*/log.jsonl")):
        records = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        validations = [r for r in records if "val_loss" in r]
        rates = sorted(r["tokens_per_second"] for r in records if "tokens_per_second" in r)
        if validations:
            found[log.parent.name.removeprefix("paired_")] = {
                "step": validations[-1]["step"], "val_loss": validations[-1]["val_loss"],
                "tokens_per_second": rates[len(rates) // 2] if rates else None}
    return found


def machine(results, pack):
    told = text_of(results, "machine")
    gpu = re.search(r"\|\s+\d+\s+(NVIDIA [^|]*?)\s{2,}", told)
    driver, cuda = re.search(r"Driver Version: ([\d.]+)", told), re.search(r"CUDA Version: ([\d.]+)", told)
    commit = pack / "COMMIT"
    return {"gpu": gpu[1] if gpu else None, "driver": driver[1] if driver else None, "cuda": cuda[1] if cuda else None,
            "commit": commit.read_text().strip() if commit.exists() else None, "date": datetime.date.today().isoformat()}


def tables(results):
    """The Markdown tables that benchmarks printed, by step."""
    found = {}
    for step in ("bench_attention", "bench_steps", "ladder", "patterns"):
        lines = [line for line in text_of(results, step).splitlines() if line.startswith(("|", "###"))]
        if lines: found[step] = lines
    return found


def markdown(all_of_it):
    m = all_of_it["machine"]
    lines = [f"# {m['gpu'] or 'no GPU'}, {m['date']}, commit {m['commit']}", "", f"Driver {m['driver']}, CUDA {m['cuda']}.", "",
             "| step | status | seconds | limit |", "| --- | --- | --- | --- |"]
    for s in all_of_it["steps"]:
        status = {0: "done", 124: "ran into its limit", 127: "no such program"}.get(s["status"], f"status {s['status']}")
        lines.append(f"| {s['step']} | {status} | {s['seconds']} | {s['limit']} |")
    lines += [""] + [f"- {name}: {value if isinstance(value, bool) else format(value, '.2g')}"
                     for name, value in all_of_it["curves"].items()]
    if all_of_it["paired"]:
        lines += ["", "| variant | steps | validation loss | tokens/s |", "| --- | --- | --- | --- |"]
        lines += [f"| {name} | {p['step']} | {p['val_loss']:.4f} | {p['tokens_per_second'] or ''} |"
                  for name, p in all_of_it["paired"].items()]
    for step, table in all_of_it["tables"].items(): lines += ["", f"## {step}", ""] + table
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3: sys.exit(__doc__)
    results, pack = map(pathlib.Path, sys.argv[1:])
    steps = [json.loads(line) for line in (results / "steps.jsonl").read_text().splitlines()]
    found = {"machine": machine(results, pack), "steps": steps, "curves": curves(results, pack), "paired": paired(results),
             "tables": tables(results)}
    (results / "gpu_day.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / "gpu_day.md").write_text(markdown(found))
    print(f"{sum(s['status'] == 0 for s in steps)} of {len(steps)} steps done; {results}/gpu_day.md")


if __name__ == "__main__":
    main()
