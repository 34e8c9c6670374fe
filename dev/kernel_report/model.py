"""The speed that counts predict for attention on an H200, and what that prediction has been held against: FlashAttention-2.

A warp goes once through the loop in
    cycles = 6.4 HMMA + instructions + 4 shared_cycles          (the numbers: constants.h)
of its scheduler: the tensor core takes 6.4 for a product of 16 x 8 x 16, the scheduler issues one instruction at a time, and shared
memory serves four schedulers. That the three add up, as if nothing overlapped, is not derived from the hardware: of the forms that
were tried it is the one that fits. One constant stands for the clock and for what does overlap; it comes from the same kernels, so
each is also predicted with the constant of the other three. A product is 4096 floating-point operations. Serial loads, barriers and
special functions are not in it: FlashAttention-2's kernels have too few of them to tell what they cost.
"""
import math
import pathlib
import re

# HMMA_CYCLES and others, which dev/bench_constants.cu measures on a GPU.
CONSTANTS = {name: float(number) for name, number in re.findall(
    r"(?m)^inline constexpr double (\w+) = ([\d.]+);", (pathlib.Path(__file__).resolve().parent / "constants.h").read_text())}
SCHEDULERS = int(CONSTANTS["SCHEDULERS"])
MULTIPROCESSORS, WITHIN = 132, 0.10

# Measured on an H200 through PyTorch 2.11.0, causal, T 8192, in TFLOP/s of visible pairs, 2026-11-20; and counted in the code for
# sm_90 of its libtorch_cuda.so: HMMA, instructions, shared_cycles, and the longest chain of serial loads.
FLASH_ATTENTION_2 = {
    "forward HS 64": (276, 256, 1660, 358, 0), "forward HS 128": (298, 256, 1217, 390, 0),
    "backward HS 64": (242, 320, 1503, 678, 1), "backward HS 128": (277, 320, 1085, 646, 1),
}


def work_per_cycle(hmma, instructions, shared_cycles):
    """Floating-point operations that all multiprocessors do in a cycle of the model."""
    cycles = CONSTANTS["HMMA_CYCLES"] * hmma + CONSTANTS["ISSUE_CYCLES"] * instructions + SCHEDULERS * shared_cycles
    return MULTIPROCESSORS * SCHEDULERS * 4096 * hmma / cycles


def constant_of(kernels):
    """Cycles of the model per second: the mean over kernels (measured TFLOP/s, HMMA, instructions, shared cycles, ...)."""
    return math.exp(sum(math.log(k[0] * 1e12 / work_per_cycle(*k[1:4])) for k in kernels) / len(kernels))


def errors():
    """How far each kernel's prediction, by the constant of the other three, is from what was measured."""
    off = {}
    for name, kernel in FLASH_ATTENTION_2.items():
        constant = constant_of([k for other, k in FLASH_ATTENTION_2.items() if other != name])
        off[name] = constant * work_per_cycle(*kernel[1:4]) / kernel[0] / 1e12 - 1
    return off


def calibrated():
    return all(abs(error) <= WITHIN for error in errors().values())


def predict(row):
    """TFLOP/s on an H200; None for kernels that are not like those which the model has been held against: code for sm_90, two warps
    for each scheduler, no more instructions for each HMMA."""
    like = row["arch"] == "sm_90" and row["HMMA"] and row["blocks"] and row["blocks"] * row["threads"] == 2 * SCHEDULERS * 32
    if not calibrated() or not like: return None
    if row["instructions"] / row["HMMA"] > max(kernel[2] / kernel[1] for kernel in FLASH_ATTENTION_2.values()): return None
    constant = constant_of(FLASH_ATTENTION_2.values())
    return round(constant * work_per_cycle(row["HMMA"], row["instructions"], row["shared_cycles"]) / 1e12)


def is_bound(row):
    """Whether a prediction is the most that the kernel can reach: it has more serial loads than any that the model knows."""
    return row["serial_loads"] > max(kernel[4] for kernel in FLASH_ATTENTION_2.values())
