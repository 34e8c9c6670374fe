#!/usr/bin/env python3
"""What the GPU kernels cost on paper: compiles them as the programs are compiled, disassembles them, and counts. No GPU is needed.

    make kernel-report                                         causal, asga and the other kernels of a step, for three architectures
    python3 dev/kernel_report/report.py nsa seer --arch sm_90
    python3 dev/kernel_report/report.py --check                ends with 1 where a count is above dev/kernel_report/budget.txt
    python3 dev/kernel_report/report.py --write-budget         makes that file anew of what there is; git diff shows what has grown

dev/README.md ("Kernel report") says what the columns are. Needs nvcc and nvdisasm.
"""
import argparse
import concurrent.futures
import functools
import glob
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import model
import sass

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent
BUDGET = HERE / "budget.txt"
WORK = ROOT / "build" / "kernel_report"   # keeps cubins and their disassembly

# Of one multiprocessor: warps, blocks, bytes of shared memory, and of these the most that one block may have (CUDA C++ Programming
# Guide, "Technical Specifications per Compute Capability"). All have 65536 registers, which a warp gets in pieces of 256.
GPUS = {"sm_80": (64, 32, 167936, 166912), "sm_89": (48, 24, 102400, 101376), "sm_90": (64, 32, 233472, 232448)}

COUNTS = ["instructions", *sass.KINDS, "shared_cycles", "copy_block", "loop_bytes", "serial_loads", "serial_on_any_way"]
BUDGETED = ["registers", "spill_bytes", "local_in_loops", "serialised", "shared_bytes", *COUNTS]
WITH_SLACK = {"instructions", "FP32", "copy_block", "loop_bytes"}   # 2% more is no news


def stop(message):
    print(f"kernel report: {message}", file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------------------------------------------------------------- compilation

def configuration():
    """nvcc and the flags that the programs' kernels are compiled with."""
    try:
        text = (ROOT / "build" / "config.mk").read_text()
    except OSError:
        stop("build/config.mk is not there: `make train_causal` writes it")
    values = dict(re.findall(r"(?m)^(\w+) := ?(.*)$", text))
    if values.get("HAVE_CUDA") != "1":
        stop("there is no nvcc that works (`scripts/probe.sh build/config.mk` shows why); without it no kernel can be compiled")
    return [values["NVCC"], *values["NVCC_FLAGS"].split(), "-O3", "-I.", *os.environ.get("CPPFLAGS", "").split()]


def find_nvdisasm(nvcc):
    """CUDA's own, or that of the Python package nvidia-cuda-nvdisasm in build/python."""
    beside = pathlib.Path(nvcc).resolve().parent / "nvdisasm"
    packaged = glob.glob(str(ROOT / "build/python/lib/python*/site-packages/nvidia/*/bin/nvdisasm"))
    found = next(filter(shutil.which, [os.environ.get("NVDISASM", ""), "nvdisasm", str(beside), *packaged]), None)
    if not found:
        stop("there is no nvdisasm: a complete CUDA Toolkit has it, or "
             "`python3 -m venv build/python && build/python/bin/pip install nvidia-cuda-nvdisasm`")
    return found


def run(command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError as error:
        stop(f"{command[0]} cannot be run: {error.strerror}")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:] or ["no message"]
        stop(f"{' '.join(map(str, command))} ended with {done.returncode}: {errors[0]}")
    return done


def compile_unit(nvcc, nvdisasm, unit, arch):
    """Kernels of one source for one architecture, and what ptxas says of each."""
    source, flags = (HERE / "kernels_of.cu", [f"-DATTENTION={unit}"]) if unit != "step" else ("model/gpt.cu", [])
    cubin = WORK / f"{unit}.{arch}.cubin"
    if arch == "sm_90": flags = [*flags, "-DUSE_WGMMA"]   # the code for exactly this generation
    log = run([*nvcc, *flags, "-x", "cu", "-cubin", f"-arch={arch}{'a' * (arch == 'sm_90')}", "-Xptxas=-v", "-o", cubin, source]).stderr
    text = run([nvdisasm, cubin]).stdout
    cubin.with_suffix(".sass").write_text(text)
    return sass.parse(text), resources(log)


def resources(log):
    """Mangled name -> what `ptxas -v` says: registers, spills in bytes (stores and loads), static shared memory, and how often it
    makes products of a warpgroup wait for each other (its messages C75..)."""
    found, name = {}, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(.*?)'", line): name = match[1]
        elif match := re.search(r"Function properties for (\S+)", line): properties_of = match[1]
        elif (match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)) and properties_of == name:
            found.setdefault(name, {}).update(spill_stores=int(match[1]), spill_loads=int(match[2]))
        elif match := re.search(r"\(C75\d\d\).*'(\S+)'", line):
            of_kernel = found.setdefault(match[1], {})
            of_kernel["serialised"] = of_kernel.get("serialised", 0) + 1
        elif match := re.search(r"Used (\d+) registers", line):
            static = re.search(r"(\d+) bytes smem", line)
            found.setdefault(name, {}).update(registers=int(match[1]), static_shared=int(static[1]) if static else 0)
    return found


@functools.lru_cache(maxsize=None)
def readable(mangled):
    """attention_forward_kernel<ForwardShape<bf16,64,false>,false,causal>: demangled, without spaces, result and parameters."""
    program = shutil.which("cu++filt") or shutil.which("c++filt")
    if not program: return mangled
    name = subprocess.run([program, "-p"], input=mangled, capture_output=True, text=True).stdout.strip()
    return name.removeprefix("void ").replace("__nv_bfloat16", "bf16").replace(" ", "")


# ------------------------------------------------------------------------------------------------------------------------- counting

def facts_of(kernels):
    """Name -> (dynamic shared memory, rounds of the inner loop, rounds of another loop with products), from kernels_of.cu; None where they
    hang on the run."""
    facts = {}
    for kernel in kernels:
        name = readable(kernel.name)
        if "_facts<" not in name: continue
        sleeps = [i.operands for i in kernel.code if i.opcode == "NANOSLEEP"]
        facts[name.replace("_facts<", "<")] = [int(s, 16) if s.startswith("0x") else None for s in sleeps]
    return facts


def blocks_per_multiprocessor(arch, row):
    """How many blocks fit; None where the number of threads is not known, 0 where one does not fit."""
    warps, blocks, shared, most = GPUS[arch]
    if not row["threads"] or row["dynamic_shared"] is None: return None
    per_block = row["static_shared"] + row["dynamic_shared"]
    if per_block > most: return 0
    own_warps, registers = math.ceil(row["threads"] / 32), math.ceil(row["registers"] * 32 / 256) * 256
    return min(blocks, warps // own_warps, 65536 // registers // own_warps, shared // (math.ceil((per_block + 1024) / 128) * 128))


def times_of(kernel, block, hot, rounds, more_rounds):
    """How often a block runs for a tile: those of the hot loop as often as a tile has parts."""
    if not rounds: return 1
    if block in kernel.loops[hot]: return rounds
    loop = kernel.innermost(block)
    multiplies = loop not in (None, kernel.outermost(hot)) and any(
        sass.opcode_of(i) in sass.PRODUCTS for i in kernel.instructions(kernel.loops[loop]))
    return more_rounds if multiplies else 1


def row_of(kernel, arch, of_ptxas, facts):
    """One line of the table."""
    dynamic, rounds, more_rounds = facts or (None if kernel.uses_shared_memory() and not of_ptxas["static_shared"] else 0, None, 1)
    hot = kernel.hot_loop()
    outer = kernel.outermost(hot) if hot is not None and rounds else hot
    path = kernel.hot_path(outer, hot, rounds or 1)
    parts = [(kernel.instructions([b]), times_of(kernel, b, hot, rounds, more_rounds)) for b in path]
    copies = [code for code, _ in parts if any(sass.opcode_of(i) == "LDGSTS" for i in code)]
    row = {"kernel": readable(kernel.name), "arch": arch, "threads": kernel.threads, **of_ptxas, "dynamic_shared": dynamic}
    row["blocks"] = blocks_per_multiprocessor(arch, row)
    row.setdefault("serialised", 0)
    row["spill_bytes"] = row["spill_stores"] + row["spill_loads"]
    row["shared_bytes"] = row["static_shared"] + (dynamic or 0)
    row["local_in_loops"] = kernel.local_in_loops()
    row.update(sass.counts_of(parts), copy_block=sum(map(len, copies)))
    row["loop_bytes"] = 16 * len(kernel.instructions(kernel.loops[outer] if outer is not None else kernel.order))
    row["serial_loads"] = kernel.serial_loads(outer, path)
    row["serial_on_any_way"] = kernel.serial_loads(kernel.outermost(hot) if hot is not None else None)
    row["predicted"] = model.predict(row)
    return row


def trains_in_bf16(name, names):
    """Whether a step in bf16 with the sizes of kernels_of.cu runs the kernel: not float's twin of another, nor other sizes."""
    if re.search(r"_facts<|Shape<bf16,32,|Shape<float|forward_kernel<\w*ForwardShape<.*?>,true,", name): return False
    base = name.split("<")[0]
    return "bf16" in name or "Warpgroup" in name or not any(other.startswith(base + "<") and "bf16" in other for other in names)


def rows_of(nvcc, nvdisasm, unit, arch):
    kernels, of_ptxas = compile_unit(nvcc, nvdisasm, unit, arch)
    facts, names = facts_of(kernels), [readable(k.name) for k in kernels]
    of_any_policy = {name: re.sub(r"(,false>,|Shape<\d+(?:,false)?>,)(false,)?\w+>$", r"\1\2Policy>", name) for name in names}
    return [row_of(k, arch, of_ptxas[k.name], facts.get(name) or facts.get(of_any_policy[name]))
            for name, k in sorted(zip(names, kernels), key=lambda both: both[0]) if trains_in_bf16(name, names)]


# --------------------------------------------------------------------------------------------------------------- table and budget

COLUMNS = {
    "kernel": lambda r: r["kernel"], "registers": lambda r: r["registers"],
    "spills, bytes": lambda r: f"{r['spill_stores']}/{r['spill_loads']}", "local in loops": lambda r: r["local_in_loops"],
    "shared memory": lambda r: f"{r['static_shared']}+{'?' if r['dynamic_shared'] is None else r['dynamic_shared']}",
    "blocks x warps": lambda r: f"{'?' if r['blocks'] is None else r['blocks']}x{r['threads'] // 32 if r['threads'] else '?'}",
    **{count.replace("_", " "): (lambda r, count=count: r[count]) for count in COUNTS},
    "predicted TFLOP/s": lambda r: "" if r["predicted"] is None else f"{'<= ' if model.is_bound(r) else ''}{r['predicted']}",
}


def print_tables(rows, compiler):
    print(f"Counts of machine code, not times; {compiler}. dev/README.md, \"Kernel report\", says what they are.")
    worst = 100 * max(map(abs, model.errors().values()))
    print(f"Predicted, not measured: on an H200, for attention kernels like FlashAttention-2's, whose speed the model gives within "
          f"{worst:.0f}%; <= where serial loads come on top." if model.calibrated() else
          f"uncalibrated: the model is off by {worst:.0f}% on FlashAttention-2, and nothing is predicted.")
    for arch in dict.fromkeys(r["arch"] for r in rows):
        print(f"\n### {arch}\n\n| {' | '.join(COLUMNS)} |\n| --- |{' --- |' * (len(COLUMNS) - 1)}")
        for row in rows:
            if row["arch"] == arch: print("| " + " | ".join(str(cell(row)) for cell in COLUMNS.values()) + " |")


def most(column, count):
    return math.ceil(1.02 * count) if column in WITH_SLACK else count


def write_budget(rows, compiler):
    lines = ["# What kernels may cost: KERNEL ARCHITECTURE COLUMN=MOST...; a column that is not named may be 0. Made by",
             "# `python3 dev/kernel_report/report.py --write-budget`. Another compiler makes other code, which is not compared.",
             f"compiler {compiler}"]
    for row in rows:
        lines.append(" ".join([row["kernel"], row["arch"], *(f"{c}={most(c, row[c])}" for c in BUDGETED if row[c])]))
    BUDGET.write_text("\n".join(lines) + "\n")


def over_budget(rows, compiler):
    """Lines that say what is above the budget; None where that is of another compiler."""
    found, budget = [], {}
    text = BUDGET.read_text() if BUDGET.exists() else stop(f"{BUDGET} is not there: --write-budget makes it")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    if lines[:1] != [["compiler", *compiler.split()]]: return None
    for kernel, arch, *columns in lines[1:]: budget[kernel, arch] = {c: int(n) for c, n in (pair.split("=") for pair in columns)}
    for row in rows:
        allowed = budget.get((row["kernel"], row["arch"]))
        if allowed is None: found.append(f"{row['kernel']} {row['arch']} has no line in {BUDGET.name}")
        else: found += [f"{row['kernel']} {row['arch']} {column}: {row[column]}, budget {allowed.get(column, 0)}"
                        for column in BUDGETED if row[column] > allowed.get(column, 0)]
    return found


def check_budget(rows, compiler):
    found = over_budget(rows, compiler)
    if found is None: stop(f"{BUDGET.name} is of another compiler than {compiler}; --write-budget makes it anew")
    for line in found: print(f"over budget: {line}", file=sys.stderr)
    if found: print("--write-budget takes these counts as the new budget, where that is meant", file=sys.stderr)
    return 1 if found else 0


def arguments():
    variants, usual = sorted(p.stem for p in (ROOT / "attention").glob("*.cuh")), ["causal", "asga", "step"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("units", nargs="*", metavar="UNIT", help="variants, whose attention is compiled; step, the other kernels of a "
                        "step; all (default: causal asga step)")
    parser.add_argument("--arch", nargs="+", default=list(GPUS), choices=list(GPUS))
    parser.add_argument("--check", action="store_true", help="exit code 1 where a count is above its budget")
    parser.add_argument("--write-budget", action="store_true", help="take today's counts as the budget")
    options = parser.parse_args()
    if options.write_budget and (options.units or options.arch != list(GPUS)): stop("--write-budget is for all usual kernels; name none")
    if unknown := set(options.units) - {*variants, "step", "all"}:
        stop(f"there is no attention/{min(unknown)}.cuh; the variants are: {' '.join(variants)}")
    options.units = [*variants, "step"] if "all" in options.units else options.units or usual
    return options


def main():
    options = arguments()
    nvcc = configuration()
    nvdisasm = find_nvdisasm(nvcc[0])
    compiler = "nvcc " + re.search(r"V([\d.]+)", run([nvcc[0], "--version"]).stdout)[1]
    WORK.mkdir(parents=True, exist_ok=True)
    units = [(u, a) for a in options.arch for u in options.units]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = sum(pool.map(lambda unit: rows_of(nvcc, nvdisasm, *unit), units), [])
    rows = list({(r["kernel"], r["arch"]): r for r in rows}.values())   # some kernels are in several units
    print_tables(rows, compiler)
    if options.write_budget: write_budget(rows, compiler)
    if options.check: sys.exit(check_budget(rows, compiler))


if __name__ == "__main__":
    main()
