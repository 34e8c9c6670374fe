#!/usr/bin/env python3
"""What dev/gpu_day.sh found, as gpu_day.json and gpu_day.md in the folder of its results: python3 gpu_day.py RESULTS PACK

Every number comes from a file of that folder; what did not run is left out. Standard library only.
"""
import csv
import datetime
import json
import pathlib
import re
import sys


FLOAT32_BAND, BF16_BAND = 1e-4, 2e-2   # of the losses of twenty steps, relative
# Where tokens choose, rounding decides some choices: the bands of tests/gpu/variant/test_model_gpu.cpp.
BF16_BANDS = {"routing": 2e-1, "mosa": 1e-1, "moh": 1e-1, "adaptive_sparse": 1e-1, "seer": 1e-1}


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
    """How far twenty steps on the GPU are from where they should be, by variant, and whether the same command gave the same bits."""
    log = lambda run: results / "runs" / run / "log.jsonl"
    found = {}
    for variant in sorted(path.name for path in (pack / "cpu").iterdir()):
        cpu, fp32 = losses(pack / "cpu" / variant / "log.jsonl"), losses(log(f"{variant}_fp32"))
        bf16_band = BF16_BANDS.get(variant, BF16_BAND)
        for name, run, most in (("float32", fp32, FLOAT32_BAND), ("bf16", losses(log(variant)), bf16_band)):
            far = farthest(run, cpu)
            if far is not None: found[f"{variant}: {name} and the CPU, largest relative difference"] = {"is": far, "most": most}
    far = farthest(losses(log("ranks_2")), losses(log("causal")))   # a row each, and both rows
    if far is not None: found["causal: two ranks and one, bf16, largest relative difference"] = {"is": far, "most": BF16_BAND}
    hashes = [last_record(log(run)).get("weights_hash") for run in ("causal", "causal_again")]
    if all(hashes): found["causal: the same command gives the same weights"] = {"is": hashes[0] == hashes[1]}
    return found


def memory(results):
    """The largest memory of a run on the GPU beside what a dry run predicts, in bytes; {} where one is missing."""
    units = {"KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30}
    predicted = re.search(r"predicted peak\D*([\d.]+) ([KMG]iB)", text_of(results, "memory_predicted"))
    peak = last_record(results / "runs/memory/log.jsonl").get("peak_bytes")
    return {"predicted": float(predicted[1]) * units[predicted[2]], "peak": peak} if predicted and peak else {}


def verdicts(steps, results, found):
    """What passed and what failed, as pairs (name, passed). Steps that were skipped count as neither."""
    all_of_them = [(s["step"], s["status"] == 0) for s in steps if "skipped" not in s]
    for line in text_of(results, "end_to_end").splitlines():
        if line.startswith(("ok ", "FAIL ")): all_of_them.append((line.split(" ", 1)[1], line.startswith("ok ")))
    for name, curve in found["curves"].items(): all_of_them.append((name, curve["is"] <= curve["most"] if "most" in curve else curve["is"]))
    if found["memory"]:
        m = found["memory"]
        all_of_them.append(("memory is within 5% of what the dry run predicts", abs(m["peak"] - m["predicted"]) <= 0.05 * m["predicted"]))
    return all_of_them


def paired(results):
    """The last validation loss, tokens per second and seconds of each paired run."""
    found = {}
    for log in sorted((results / "runs").glob("paired_*/log.jsonl")):
        records = records_of(log)
        validations = [r for r in records if r.get("val_loss") is not None]   # null: not finite, or not validated yet
        rate = middle([r["tok_s"] for r in records if r.get("tok_s") is not None])
        if validations:
            found[log.parent.name.removeprefix("paired_")] = {
                "step": validations[-1]["step"], "val_loss": validations[-1]["val_loss"],
                "tokens_per_second": rate}
    return found


def records_of(log):
    """A run's records from its log.jsonl, without a last one that was cut short."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def middle(numbers):
    return sorted(numbers)[len(numbers) // 2] if numbers else None


def whole_steps(steps, results):
    """Tokens per second of training, the median of a run's steps, by variant; of runs that were done."""
    done = {s["step"] for s in steps if s.get("status") == 0}
    found = {}
    for log in sorted((results / "runs").glob("speed_*/log.jsonl")):
        rate = middle([r["tok_s"] for r in records_of(log) if r.get("tok_s") is not None])
        if rate and log.parent.name in done: found[log.parent.name.removeprefix("speed_")] = rate
    return found


def writing(steps, results):
    """Tokens per second behind the prompts' first ones, by variant and number of texts side by side; of steps that were done."""
    found = {}
    for step in (s["step"] for s in steps if s["step"].startswith("write_") and s.get("status") == 0):
        variant, batch = step.removeprefix("write_").rsplit("_", 1)
        rate = re.search(r"more in [\d.]+ s, ([\d.]+) tokens/s", text_of(results, step))
        if rate: found.setdefault(variant, {})[batch] = float(rate[1])
    return found


def machine(results, pack):
    told = text_of(results, "machine")
    gpu = re.search(r"\|\s+\d+\s+(NVIDIA [^|]*?)\s{2,}", told)
    driver, cuda = re.search(r"Driver Version: ([\d.]+)", told), re.search(r"CUDA Version: ([\d.]+)", told)
    commit = pack / "COMMIT"
    return {"gpu": gpu[1] if gpu else None, "driver": driver[1] if driver else None, "cuda": cuda[1] if cuda else None,
            "commit": commit.read_text().strip() if commit.exists() else None, "date": datetime.date.today().isoformat(),
            "time": datetime.datetime.now().isoformat(timespec="minutes")[11:]}


def tables(results):
    """The Markdown tables that benchmarks printed, and those of profiles, by step."""
    found = {}
    for step in ("constants", "bench_attention", "bench_steps", "pytorch", "ladder", "patterns"):
        lines = [line for line in text_of(results, step).splitlines() if line.startswith(("|", "###"))]
        if lines: found[step] = lines
    for step in ("profile_64", "profile_128"):
        if lines := waits(results, step): found[step] = lines
    return found


def waits(results, step):
    """What ncu sampled of each kernel's warps, as a Markdown table: the reasons for which they waited, as shares of all samples, and
    the instructions that most waited at, numbered from the kernel's first one; [] where nothing was profiled."""
    lines = text_of(results, f"{step}_instructions").splitlines()
    begins = [n for n, line in enumerate(lines) if line.startswith('"Kernel Name"')] + [len(lines)]
    found = {}
    for begin, end in zip(begins, begins[1:]):
        name = next(csv.reader([lines[begin]]))[1].removeprefix("void ").split("(T")[0]
        if name in found: continue   # ncu prints each kernel twice
        rows = list(csv.DictReader(lines[begin + 1:end]))
        if rows and "# Samples" in rows[0]: found[name] = sampled(name, rows)
    head = ["| kernel | samples | waits for | waits longest at |", "| --- | --- | --- | --- |"]
    return head + list(found.values()) if found else []


def sampled(name, rows):
    """A line of waits()."""
    count = lambda row, column: int(row[column]) if (row.get(column) or "").isdigit() else 0
    total = sum(count(row, "# Samples") for row in rows) or 1
    reasons = [column for column in rows[0] if column.startswith("stall_") and not column.endswith("(Not Issued)")]
    shares = sorted(((sum(count(row, reason) for row in rows) / total, reason[6:]) for reason in reasons), reverse=True)
    longest = sorted(range(len(rows)), key=lambda n: -count(rows[n], "# Samples"))[:6]
    operation = lambda row: next(word for word in row["Source"].split() if not word.startswith("@"))   # but its predicate
    why = lambda row: max(reasons, key=lambda reason: count(row, reason))[6:]
    places = [f"{n} {operation(rows[n])} ({why(rows[n])} {count(rows[n], '# Samples') / total:.1%})" for n in longest]
    return f"| {name} | {total} | {', '.join(f'{reason} {share:.1%}' for share, reason in shares[:8])} | {', '.join(places)} |"


def rows_of(lines):
    """The rows of a Markdown table as lists of cells, without the head and the line below it."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0] and not row[0].startswith("-")]


def speeds(results):
    """Tokens per second of whole steps by variant, and TFLOP/s of attention alone, from the tables that bench_gpu prints."""
    found = {"steps": {}, "attention": []}
    head = []
    for row in rows_of(text_of(results, "bench_steps").splitlines()):
        if row[0] in ("variant", "kernel"): head = row
        elif "tokens/s" in head and len(row) == len(head): found["steps"][row[0]] = float(row[head.index("tokens/s")])
    head = []
    for row in rows_of(text_of(results, "bench_attention").splitlines()):
        if row[0] == "attention": head = row
        elif len(row) == len(head):   # the last line may be half of one
            forward, backward = (n for n, name in enumerate(head) if name == "TFLOP/s")
            found["attention"].append({"variant": row[0], "T": int(row[head.index("T")]), "HS": int(row[head.index("HS")]),
                                       "forward": float(row[forward]), "backward": float(row[backward])})
    return found


def markdown(all_of_it):
    m = all_of_it["machine"]
    lines = [f"# {m['gpu'] or 'no GPU'}, {m['date']}, commit {m['commit']}", "", f"Driver {m['driver']}, CUDA {m['cuda']}.", "",
             "| step | status | seconds | limit |", "| --- | --- | --- | --- |"]
    for s in all_of_it["steps"]:
        if "skipped" in s:
            lines.append(f"| {s['step']} | skipped: {s['skipped']} | | |")
            continue
        status = {0: "done", 124: "ran into its limit", 137: "killed, at its limit or for memory"}.get(s["status"], f"status {s['status']}")
        lines.append(f"| {s['step']} | {status} | {s['seconds']} | {s['limit']} |")
    failed = [name for name, passed in all_of_it["verdicts"] if not passed]
    lines += [""] + [f"- FAILED: {name}" for name in failed]
    for name, curve in all_of_it["curves"].items():
        lines.append(f"- {name}: " + (f"{curve['is']:.2g} of {curve['most']:g}" if "most" in curve else str(curve["is"])))
    if all_of_it["memory"]: lines.append("- memory: {peak:.4g} bytes, {predicted:.4g} predicted".format(**all_of_it["memory"]))
    if all_of_it["paired"]:
        lines += ["", "| variant | steps | validation loss | tokens/s |", "| --- | --- | --- | --- |"]
        lines += [f"| {name} | {p['step']} | {p['val_loss']:.4f} | {p['tokens_per_second'] or ''} |"
                  for name, p in all_of_it["paired"].items()]
    for step, table in all_of_it["tables"].items(): lines += ["", f"## {step}", ""] + table
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3: sys.exit(__doc__)
    results, pack = map(pathlib.Path, sys.argv[1:])
    steps = [json.loads(line) for line in (results / "steps.jsonl").read_text().splitlines() if line.endswith("}")]
    found = {"machine": machine(results, pack), "steps": steps, "curves": curves(results, pack), "memory": memory(results),
             "paired": paired(results), "speeds": speeds(results), "whole_steps": whole_steps(steps, results), "writing": writing(steps, results),
             "tables": tables(results)}
    found["verdicts"] = verdicts(steps, results, found)
    (results / "gpu_day.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / "gpu_day.md").write_text(markdown(found))
    passed = sum(passed for _, passed in found["verdicts"])
    print(f"{results}/gpu_day.md\n{passed} passed, {len(found['verdicts']) - passed} failed")
    sys.exit(passed < len(found["verdicts"]))


if __name__ == "__main__":
    main()
