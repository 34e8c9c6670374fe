#!/usr/bin/env python3
"""The machine code of dev/bench_constants.cu: check_rate_kernels.py FOLDER prints `ok NAME` or `FAIL NAME: why` for each kernel.

Each must have in its loop what it says that it measures, as often as the source asks for it, and between its two looks at the clock:
a compiler that left some of it out, or moved it, would make a fine figure of nothing.
"""
import collections
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "dev" / "kernel_report"))
import report   # noqa: E402
import sass   # noqa: E402

AT_ONCE = 8 * 16   # AT_ONCE chains x ROUNDS_AT_ONCE of dev/rate_kernels.cuh
# Kernel: what its largest loop has, and how many other instructions it may have beside those.
EXPECTED = {
    "ProductRate": ({"HMMA": AT_ONCE}, 8), "FragmentRate": ({"LDSM": AT_ONCE}, 5 * AT_ONCE), "SumLink": ({"FFMA": AT_ONCE}, 8),
    "Exp2Link": ({"MUFU": AT_ONCE}, 8), "TanhLink": ({"MUFU": AT_ONCE, "FMUL": 2 * AT_ONCE, "FFMA": AT_ONCE}, 8),
    "chase_kernel": ({"LDG": 16}, 8), "relay_kernel": ({"LDG": 1, "NANOSLEEP": 1}, 8),
}


def wrong_with(kernel, expected, others):
    """What is wrong with a kernel, "" for nothing."""
    loops = [kernel.instructions(body) for body in kernel.loops.values()]
    counts = [collections.Counter(map(sass.opcode_of, loop)) for loop in loops]
    fitting = [n for n, count in enumerate(counts) if all(count[opcode] == times for opcode, times in expected.items())]
    if not fitting: return f"no loop has {expected}: {[dict(count) for count in counts]}"
    loop = loops[fitting[0]]
    if len(loop) - sum(expected.values()) > others: return f"{len(loop)} instructions in the loop for {expected}"
    clock = [i.address for i in kernel.code if "SR_CLOCK" in i.operands]
    if clock and not (len(clock) == 2 and clock[0] < loop[0].address and loop[-1].address < clock[1]):
        return f"the clock is read at {clock}, the loop is at {loop[0].address} to {loop[-1].address}"
    return ""


def main():
    nvcc, cubin = report.configuration(), pathlib.Path(sys.argv[1]) / "rates.cubin"
    report.run([*nvcc, "-x", "cu", "-cubin", "-arch=sm_90", "-o", cubin, "dev/bench_constants.cu"], report.ROOT)
    kernels = sass.parse(report.run([report.find_nvdisasm(nvcc[0]), cubin], report.ROOT).stdout)
    for name, (expected, others) in EXPECTED.items():
        found = [k for k in kernels if name in k.name]
        wrong = wrong_with(found[0], expected, others) if found else "there is no such kernel"
        print(f"FAIL machine code of {name}: {wrong}" if wrong else f"ok machine code of {name}")


if __name__ == "__main__":
    main()
