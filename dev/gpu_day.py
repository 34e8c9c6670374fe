#!/usr/bin/env python3
"""Ask a GPU that is there for ten minutes what tells most, first: do the kernels compute what they should, and how fast.

    python3 gpu_day.py [RESULTS]      in the folder that dev/pack.sh made; needs no compiler and no Python package

Each step has a limit, and what fails stops nothing. After each, gpu_day.json and gpu_day.md in RESULTS say what was found, and
these two and results.tar.gz, with everything, are copied to the folder OUT. Called again with the same RESULTS, or with that
archive beside this file as before.tar.gz, it goes on with what was not reached. The last line is `N passed, N failed`; the exit
code is 1 when something failed, 2 where nothing can run.
"""
import argparse
import contextlib
import datetime
import glob
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import time
import traceback
from pathlib import Path
from string import Template

FLOAT32_BAND, BF16_BAND = 1e-4, 2e-2   # of the losses of twenty steps, relative
# Where tokens choose, rounding decides some choices: the bands of tests/gpu/variant/test_model_gpu.cpp.
BF16_BANDS = {"routing": 2e-1, "mosa": 1e-1, "moh": 1e-1, "adaptive_sparse": 1e-1, "seer": 1e-1}

# The steps, the most telling first: name, limit in seconds, command in the words of a shell, and a line that its output has, or the
# step has failed; then Python packages that it needs. The first line of a group says for which variants $v it is there. A step that
# comes twice is run once.
# - Of attention ncu profiles the measured launch of forward (three before each are warm-ups; the first of each pass and head size
#   fill the tensors) and the next, backward's first, with clocks as they are; then it prints all that was measured, what warps wait
#   for among it, and the same for each instruction.
# - turns_V: whole steps of another build's trainer and of this one, interleaved; turns_causal_wgmma: by mma and by wgmma.
# - Text is from checkpoints that have learnt nothing, so large that they stay out of what is brought back.
# - Races are looked for in a test: in a whole step the tool of CUDA 13.0 ends with an internal error (on an H200; dev/LOG.md).
# - Ranks are on one GPU: their sums go through the host's memory.
STEPS = """
causal
machine | 20 | bash -c 'cat COMMIT; nproc; free -g; ldd bin/*; nvidia-smi'
tests_conformance | 40 | $tests '[conformance]' | $passed
constants | 30 | bin/bench_constants $quick
tests_operations | 60 | $tests '[ops],[linear],[optimizer],[feed],[roles]' | $passed
tests_attention | 75 | $tests '[attention]~[conformance]~[variant],[asga]' | $passed
tests_models | 60 | $tests 'causal model on the GPU:*,asga model on the GPU:*' | $passed
tests_collectives | 40 | $tests 'collectives:*' | $passed
train_causal | 60 | bin/train_causal $twenty --out $runs/causal
train_causal_again | 60 | bin/train_causal $twenty --out $runs/causal_again
train_causal_fp32 | 60 | bin/train_causal $twenty --precision fp32 --out $runs/causal_fp32
train_causal_wgmma | 60 | bin/train_causal $twenty --attention-kernels wgmma --out $runs/causal_wgmma
turns_causal_wgmma | 120 | $python scripts/experiments/turns.py --rounds 3 bin/train_causal 'bin/train_causal --attention-kernels wgmma' -- --device cuda $whole $bundled
train_asga | 60 | bin/train_asga $twenty --out $runs/asga
bench_attention | 60 | bin/bench_gpu --parts attention --repeats 10
bench_steps | 90 | bin/bench_gpu --parts kernels steps --repeats 10

written
checkpoint_$v | 60 | bin/train_$v $writes --out written/$v
write_${v}_1 | 60 | $write --batch 1 | ^prefill: [0-9]+ prompts.* decode:
write_${v}_8 | 60 | $write --batch 8 | ^prefill: [0-9]+ prompts.* decode:
write_${v}_64 | 60 | $write --batch 64 | ^prefill: [0-9]+ prompts.* decode:

causal
ladder | 30 | bin/ladder
memcheck_$v | 120 | $memcheck | ERROR SUMMARY
racecheck_$v | 120 | $racecheck | ^All tests passed
profile_128 | 60 | $profile --launch-skip 5 --export $results/profile_128 $attention | attention_backward_kernel
profile_128_raw | 30 | ncu --import $results/profile_128.ncu-rep --page raw
profile_128_instructions | 30 | ncu --import $results/profile_128.ncu-rep --page source --csv
profile_64 | 60 | $profile --launch-skip 15 --export $results/profile_64 $attention | attention_backward_kernel
profile_64_raw | 30 | ncu --import $results/profile_64.ncu-rep --page raw
profile_64_instructions | 30 | ncu --import $results/profile_64.ncu-rep --page source --csv
tests_all | 300 | $tests '$others' | $passed
end_to_end | 300 | env GPU_PROGRAMS=bin bash tests/gpu_end_to_end.sh
pytorch | 300 | $python dev/compare_pytorch.py 124m asga --programs bin --turns 1 | ^ | torch numpy

trained
train_$v | 60 | bin/train_$v $twenty --out $runs/$v
train_${v}_fp32 | 60 | bin/train_$v $twenty --precision fp32 --out $runs/${v}_fp32
memcheck_$v | 120 | $memcheck | ERROR SUMMARY
racecheck_$v | 120 | $racecheck | ^All tests passed

trained
speed_$v | 30 | bin/train_$v --device cuda $whole --steps 12 $bundled $quiet --out $runs/speed_$v
turns_$v | 120 | $python scripts/experiments/turns.py --rounds 3 bin/old_train_$v bin/train_$v -- --device cuda $whole $bundled

causal
patterns | 60 | bin/bench_patterns_gpu
ranks_2 | 60 | mpi/mpirun -np 2 $ranks --zero-stage 0 --out $runs/ranks_2
ranks_8 | 60 | mpi/mpirun -np 8 $ranks --zero-stage 1 --out $runs/ranks_8

trained
paired_$v | 120 | bin/train_$v $paired --out $runs/paired_$v

experiment
experiment_$v | 600 | $run
"""
SHORT = {
    "tests": "bin/run_tests --durations yes",
    "others": "~[conformance]~[ops]~[linear]~[optimizer]~[feed]~[roles]~[asga]~[attention],[attention][variant]",
    "passed": r"^All tests passed \([0-9]+ assertions? in [1-9]",   # some of Catch2's versions call no case at all a success
    "twenty": "--device cuda $size --steps 20 $bundled $quiet",
    "writes": "--device cuda $writer --batch-size 1 --seq-len 70 --steps 1 $bundled $quiet --checkpoint-every 1",
    "write": "bin/generate_$v --device cuda --checkpoint written/$v/step_00000001 --prompts prompts.jsonl --tokens 64 --ignore-eos "
             "--print-ids --out /dev/null",
    "memcheck": "compute-sanitizer --tool memcheck --error-exitcode 9 bin/train_$v --device cuda --model qwen-tiny --batch-size 1 "
                "--seq-len 96 --steps 1 $bundled $quiet --out $runs/memcheck_$v",
    "racecheck": "compute-sanitizer --tool racecheck --error-exitcode 9 bin/run_tests "
                 "'$v attention on the GPU: many tiles and the same bits again'",
    "profile": "ncu --set full --clock-control none --launch-count 2 --kernel-name 'regex:attention_(forward|backward)_kernel' "
               "--page details --force-overwrite",
    "attention": "bin/bench_gpu --parts attention --repeats 1",
    "ranks": "--oversubscribe bin/train_causal --device cuda $size --steps 20 $bundled $quiet --batch-size 1 --check-ranks-every 5",
    "paired": "--device cuda --model model_25m --batch-size 32 --seq-len 1024 --steps 400 --lr 1e-3 $text --val-every 100 "
              "--val-batches 16 --sample-every 0 --checkpoint-every 0 --plot 0",
    # Its ledger is among the results, its checkpoints are not.
    "run": "$python scripts/experiments/run.py $words --no-build --programs bin --data data/more --out written/experiments "
           "--ledger $results/ledger.jsonl --machine $gpu"}


def plan(results, experiment):
    """All steps in their order, by name."""
    listed = subprocess.run("timeout 20 nvidia-smi --query-gpu=name --format=csv,noheader", shell=True, capture_output=True)
    text = "data/more/*" if os.path.isdir("data/more") else "data/bundled/sotu_"
    facts = {name: Path(name).read_text() for name in ("size", "quick", "writer", "whole")}
    facts |= {"results": shlex.quote(f"{results}"), "runs": shlex.quote(f"{results}/runs"), "python": shlex.quote(sys.executable),
              "bundled": "--train-data 'data/bundled/sotu_train_*.bin' --val-data ''", "words": shlex.join(experiment.split()),
              "quiet": "--val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0",
              "text": f"--train-data '{text}train_*.bin' --val-data '{text}val_*.bin'",
              "gpu": shlex.quote("".join(listed.stdout.decode().removeprefix("NVIDIA ").lower().split()[:1]))}   # h200
    variants = {"causal": ["causal"], "experiment": [re.sub("[^a-z0-9]+", "_", experiment)] if experiment else []}
    for kind, program in (("trained", "bin/train_"), ("written", "bin/generate_")):
        variants[kind] = sorted(path.removeprefix(program) for path in glob.glob(f"{program}*"))
    steps = {}
    for kind, *rows in (group.splitlines() for group in STEPS.strip().split("\n\n")):
        for v, row in itertools.product(variants[kind], rows):
            name, *step = (Template(cell).substitute(facts, v=v) for cell in Template(row).safe_substitute(SHORT).split(" | "))
            steps[name] = step
    return steps


# ---- running them

def say(text):
    """Print a line. A full disk or a closed pipe behind it stops nothing."""
    with contextlib.suppress(OSError): os.write(1, f"{text}\n".encode())


def refuse(why):
    print(f"gpu_day: {why}", file=sys.stderr)
    sys.exit(2)


def text_of(path):
    """The text of a file, "" where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def records_of(path):
    """The records of a file of JSON lines, without one that was cut short."""
    return [json.loads(line) for line in text_of(path).splitlines() if line.startswith("{") and line.endswith("}")]


def write_whole(path, text):
    """Replace a file in one piece. Where the disk is full the old one stays."""
    try:
        Path(f"{path}.new").write_text(text)
        os.replace(f"{path}.new", path)
    except OSError as error:
        say(f"gpu_day: {error}")


def run_command(words, seconds, path, says):
    """A command's status as a shell has it, and its last line. 124: it was ended at its limit; 137: that took SIGKILL; 2: it did
    not say what it should."""
    try:
        with open(path, "wb") as file:
            words = ["timeout", "-k", "5", f"{seconds}", *words]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    except OSError as error:
        return 127, f"{error}"
    try:
        status = process.wait(seconds + 10)
    except subprocess.TimeoutExpired:   # the system does not give it back
        status = 137
    finally:   # also where this program is ended: timeout passes the signal on
        process.terminate()
    text = text_of(path)
    if status == 0 and not re.search(says, text, re.M):
        status, text = 2, f"{text}\ngpu_day: no line of this says '{says}'\n"
        write_whole(path, text)
    return status if status >= 0 else 128 - status, "".join([line for line in text.splitlines() if line.strip()][-1:])[:140]


def find_absent(words, packages):
    """What a step needs and the machine has not, None where it has all."""
    if not shutil.which(words[0]): return words[0]
    absent = [word for word in words if word.startswith("bin/") and not os.path.exists(word)]
    absent += [package for package in packages.split() if not importlib.util.find_spec(package)]
    return absent[0] if absent else None


def perform(name, step, results, left):
    """What became of a step, which has so many seconds left: its record, None where it was not reached, and words for the user."""
    limit, command, says, packages = (*step, "", "")[:4]
    limit, words = int(limit), shlex.split(command)
    if absent := find_absent(words, packages): return {"skipped": f"no {absent}"}, f"skipped: no {absent}"
    if left < 5: return None, ""
    begin = time.monotonic()
    status, last = run_command(words, min(limit, left), results / f"{name}.txt", says)
    seconds = int(time.monotonic() - begin)
    if status in (124, 137) and left < limit and seconds >= left: return None, f"cut short after {seconds} s"   # not too slow
    return {"status": status, "seconds": seconds, "limit": limit}, f"status {status:3d} after {seconds:3d} s: {last}"


def summarize(results, out, records):
    """Keep all that is known so far, where it is safe; whether nothing has failed, and the last two lines."""
    write_whole(results / "steps.jsonl", "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    try:
        passed, summary = judge(results, records)
    except Exception:   # whatever a broken file made of it, the next step runs
        passed, summary = False, traceback.format_exc()
    write_whole(results / "summary.txt", summary)
    try:
        if out: bring_back(results, out)
    except (OSError, tarfile.TarError) as error:
        say(f"gpu_day: {error}")
    return passed, summary


def bring_back(results, out):
    for path in (results / "gpu_day.json", results / "gpu_day.md"):
        if path.exists(): shutil.copy(path, out)
    with tarfile.open(out / "results.new", "w:gz", compresslevel=6) as archive: archive.add(results, ".")
    os.replace(out / "results.new", out / "results.tar.gz")


# ---- judging: every number comes from a file of the results, and what did not run is left out

def compare_curves(runs):
    """How far twenty steps on the GPU are from where they should be, and whether the same command gave the same bits."""
    pairs = []
    for cpu in sorted(Path("cpu").iterdir()):
        pairs += [(f"{cpu.name}: float32 and the CPU", runs / f"{cpu.name}_fp32", cpu, FLOAT32_BAND),
                  (f"{cpu.name}: bf16 and the CPU", runs / cpu.name, cpu, BF16_BANDS.get(cpu.name, BF16_BAND))]
    pairs.append(("causal: bf16 by wgmma and the CPU", runs / "causal_wgmma", Path("cpu/causal"), BF16_BAND))
    pairs.append(("causal: two ranks and one, bf16", runs / "ranks_2", runs / "causal", BF16_BAND))   # a row each, and both rows
    losses = lambda run: [step["loss"] for step in records_of(run / "log.jsonl")
                          if None not in (step.get("grad_norm"), step.get("loss"))]
    found = {}
    for name, run, reference, most in pairs:
        here, there = losses(run), losses(reference)
        if there and len(here) == len(there):   # both have all their steps
            found[f"{name}, largest relative difference"] = {"is": max(abs(a - b) / b for a, b in zip(here, there)), "most": most}
    hashes = [(records_of(runs / run / "log.jsonl") or [{}])[-1].get("weights_hash") for run in ("causal", "causal_again")]
    if all(hashes): found["causal: the same command gives the same weights"] = {"is": hashes[0] == hashes[1]}
    return found


def read_runs(runs, kind):
    """Of each run of a kind, by variant: the median of its tokens per second, and the step and loss of its last validation."""
    found = {}
    for log in sorted(runs.glob(f"{kind}_*/log.jsonl")):
        records = records_of(log)
        rates = [record["tok_s"] for record in records if record.get("tok_s") is not None]
        last = {name: record[name] for record in records if record.get("val_loss") is not None for name in ("step", "val_loss")}
        last["tokens_per_second"] = statistics.median_high(rates) if rates else None
        found[log.parent.name.removeprefix(f"{kind}_")] = last
    return found


def read_writing(results, done):
    """Tokens per second behind the prompts' first ones, by variant and number of texts side by side."""
    found = {}
    for variant, batch in (name.removeprefix("write_").rsplit("_", 1) for name in done if name.startswith("write_")):
        rate = re.search(r"decode: \d+ tokens in [\d.]+ s \(([\d.]+) tokens/s\)", text_of(results / f"write_{variant}_{batch}.txt"))
        if rate: found.setdefault(variant, {})[batch] = float(rate[1])
    return found


def describe_machine(told):
    facts = {"gpu": r"\|\s+\d+\s+(NVIDIA [^|]*?)\s{2,}", "driver": r"Driver Version: ([\d.]+)", "cuda": r"CUDA Version: ([\d.]+)"}
    found = {name: match[1] if (match := re.search(pattern, told)) else None for name, pattern in facts.items()}
    now = datetime.datetime.now().isoformat(timespec="minutes")
    return found | {"commit": text_of("COMMIT").strip() or None, "date": now[:10], "time": now[11:]}


def rows_of(table, first):
    """The rows of Markdown tables whose first column is called so, each with its head."""
    head = []
    for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in table):
        if row[0] in first: head = row
        elif row[0] and row[0][0] not in "-#" and len(row) == len(head): yield head, row   # the last line may be half of one


def read_speeds(tables):
    """Tokens per second of whole steps by variant, and TFLOP/s of attention alone, from the tables that bench_gpu prints."""
    steps = {row[0]: float(row[head.index("tokens/s")]) for head, row in rows_of(tables["bench_steps"], ("variant", "kernel"))
             if "tokens/s" in head}
    attention = []
    for head, row in rows_of(tables["bench_attention"], ("attention",)):
        forward, backward = (float(cell) for name, cell in zip(head, row) if name == "TFLOP/s")
        attention.append({"variant": row[0], "T": int(row[head.index("T")]), "HS": int(row[head.index("HS")]), "forward": forward,
                          "backward": backward})
    return {"steps": steps, "attention": attention}


def write_page(found):
    """gpu_day.md."""
    machine, statuses = found["machine"], {0: "done", 124: "ran into its limit", 137: "killed, at its limit or for memory"}
    lines = [f"# {machine['gpu'] or 'no GPU'}, {machine['date']}, commit {machine['commit']}", "",
             f"Driver {machine['driver']}, CUDA {machine['cuda']}.", "",
             "| step | status | seconds | limit |", "| --- | --- | --- | --- |"]
    for step in found["steps"]:
        status = f"skipped: {step['skipped']}" if "skipped" in step else statuses.get(step["status"], f"status {step['status']}")
        lines.append(f"| {step['step']} | {status} | {step.get('seconds', '')} | {step.get('limit', '')} |")
    lines += ["", *(f"- FAILED: {name}" for name, passed in found["verdicts"] if not passed)]
    for name, curve in found["curves"].items():
        lines.append(f"- {name}: " + (f"{curve['is']:.2g} of {curve['most']:g}" if "most" in curve else f"{curve['is']}"))
    if found["paired"]: lines += ["", "| variant | steps | validation loss | tokens/s |", "| --- | --- | --- | --- |"]
    for name, run in found["paired"].items():
        lines.append(f"| {name} | {run['step']} | {run['val_loss']:.4f} | {run['tokens_per_second'] or ''} |")
    for step, table in found["tables"].items(): lines += ["", f"## {step}", "", *table]
    return "\n".join(lines) + "\n"


def judge(results, records):
    """Write gpu_day.json and gpu_day.md; whether nothing failed, and the last two lines."""
    runs, done = results / "runs", [step["step"] for step in records if step.get("status") == 0]
    tables = {step: [line for line in text_of(results / f"{step}.txt").splitlines() if line.startswith(("|", "###"))]
              for step in ("constants", "bench_attention", "bench_steps", "pytorch", "ladder", "patterns")}
    tables["turns"] = [line for path in sorted(results.glob("turns_*.txt")) for line in text_of(path).splitlines() if " ms: " in line]
    speeds = {variant: run["tokens_per_second"] for variant, run in read_runs(runs, "speed").items() if f"speed_{variant}" in done}
    found = {"machine": describe_machine(text_of(results / "machine.txt")), "steps": records, "curves": compare_curves(runs),
             "paired": {variant: run for variant, run in read_runs(runs, "paired").items() if "val_loss" in run},
             "speeds": read_speeds(tables), "whole_steps": {variant: speed for variant, speed in speeds.items() if speed},
             "writing": read_writing(results, done), "tables": {step: table for step, table in tables.items() if table}}
    # What passed and what failed. Steps that were skipped count as neither.
    checks = re.findall("^(ok|FAIL) (.*)$", text_of(results / "end_to_end.txt"), re.M)
    curves = {name: curve["is"] <= curve["most"] if "most" in curve else curve["is"] for name, curve in found["curves"].items()}
    found["verdicts"] = [*((step["step"], step["status"] == 0) for step in records if "skipped" not in step),
                         *((name, word == "ok") for word, name in checks), *curves.items()]
    write_whole(results / "gpu_day.json", json.dumps(found, indent=1) + "\n")
    write_whole(results / "gpu_day.md", write_page(found))
    failed = sum(not passed for _, passed in found["verdicts"])
    return not failed, f"{results}/gpu_day.md\n{len(found['verdicts']) - failed} passed, {failed} failed"


# ---- before the first step

def unpack():
    """Unpack package.tar.xz beside this file. A Python may lack lzma, and tar needs xz."""
    try:
        with tarfile.open("package.tar.xz") as archive: archive.extractall()
    except (OSError, tarfile.TarError) as error:
        if subprocess.run(["tar", "xf", "package.tar.xz"]).returncode: refuse(f"package.tar.xz: {error}")
    os.replace("package.tar.xz", "unpacked.tar.xz")


def link_libraries():
    """Put what the programs miss into lib/, where they look first, from the first of these folders that has it; CUDA of a Python
    package counts as installed. What ldd still misses is refused before anything runs."""
    told = subprocess.run(["ldd", *glob.glob("bin/*")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    missing = sorted({line.strip() for line in told.decode(errors="replace").splitlines() if "not found" in line})
    folders = [Path("/usr/local/cuda/lib64"), *sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/lib"))]
    new = {name: folder / name for name in (line.split(" => ")[0] for line in missing) for folder in reversed(folders)
           if (folder / name).exists() and not os.path.lexists(f"lib/{name}")}   # what is in lib/ was of no use
    for name, library in new.items(): os.symlink(library, f"lib/{name}")
    if new: link_libraries()   # what these need
    elif missing: refuse(f"programs of {os.getcwd()} cannot start here; install what they miss: {'; '.join(missing)}")


def prepare(results):
    """Unpack, continue earlier results, and set what programs read from the environment."""
    if os.path.exists("package.tar.xz"): unpack()
    if not os.path.isfile("COMMIT"): refuse(f"{os.getcwd()} is no package; dev/pack.sh makes one")
    if os.path.exists("before.tar.gz") and not (results / "steps.jsonl").exists():
        with tarfile.open("before.tar.gz") as archive: archive.extractall(results)
    here, there = text_of("COMMIT").strip(), text_of(results / "COMMIT").strip()
    if there not in ("", here): refuse(f"{results} is of commit {there}, this is {here}; give another folder, remove before.tar.gz")
    shutil.copy("COMMIT", results)
    # KEEP_...: programs must not start themselves again under a profiler. The MPI that they were linked with comes first. Emulated
    # programs know nothing of lib/.
    os.environ.update(KEEP_OPENBLAS_CORETYPE="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", LC_ALL="C.UTF-8",
                      PATH=f"{os.getcwd()}/mpi:{os.environ['PATH']}:/usr/local/cuda/bin")
    if os.path.exists("emulated"): os.environ["LD_LIBRARY_PATH"] = f"{os.getcwd()}/lib"
    link_libraries()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("results", nargs="?", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp"), "gpu_day"), help="default /tmp/gpu_day")
    add("--only", metavar="PATTERN", default="", help="names of the steps to run, as '^paired_(causal|asga)$'")
    add("--seconds", metavar="N", type=int, default=570, help="time for all steps, whatever hangs (default 570)")
    add("--experiment", metavar="WORDS", default="", help="words for scripts/experiments/run.py, the last step")
    add("--out", metavar="FOLDER", type=Path, default=os.environ.get("OUT") or None, help="folder of copies (default $OUT)")
    arguments = parser.parse_args()
    results, out = arguments.results.resolve(), arguments.out and arguments.out.resolve()
    if out and results.is_relative_to(out): refuse(f"{results} is in {out}, where its archive goes; name a folder outside")
    try:
        re.compile(arguments.only)
    except re.error as error:
        refuse(f"--only '{arguments.only}' is no regular expression: {error}")
    return results, out, arguments


def main():
    begin = time.monotonic()
    results, out, arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(Path(__file__).resolve().parent)
    try:
        for folder in filter(None, (results, out)): folder.mkdir(parents=True, exist_ok=True)
        prepare(results)
        steps = plan(results, arguments.experiment)
    except (OSError, tarfile.TarError) as error:
        refuse(error)
    records, not_reached = records_of(results / "steps.jsonl"), []
    for name in (name for name in steps if re.search(arguments.only, name)):
        if any(record["step"] == name for record in records): continue
        record, words = perform(name, steps[name], results, arguments.seconds - int(time.monotonic() - begin))
        if record: records.append({"step": name, **record})
        else: not_reached.append(name)
        if not words: continue
        say(f"{time.monotonic() - begin:4.0f} s  {name:28} {words}")
        summarize(results, out, records)
    if not_reached: say(f"not reached: {' '.join(not_reached)}")
    passed, summary = summarize(results, out, records)
    say(summary)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
