#!/usr/bin/env python3
"""Trains the same model in PyTorch and in this engine, in turns, and prints tokens per second, memory and the ratio of the two.

    make FLOAT32=1 train_causal train_asga train_asga_fixed      first
    python3 dev/compare_pytorch.py --check                       that both compute the same: tiny models in float32, on a CPU too
    python3 dev/compare_pytorch.py                               every row below, on a GPU
    python3 dev/compare_pytorch.py 124m window                   some of them

PyTorch gets what makes it fast: torch.compile, scaled_dot_product_attention through cuDNN where it can, FlexAttention for the
window, fused AdamW, bf16 activations. Its weights are float32 and rounded to bf16 where they are used, and their gradients leave
the products in bf16; the engine keeps float32 master weights beside a bf16 copy, and float32 gradients. Moments are float32 in both.
Both clip the gradient's norm and read the same random shards. Every turn is a process of its own; the first steps of each do not
count; the figures are medians over the steps of all turns. ASGA is written as plain tensor operations in PyTorch.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy
    import torch
except ImportError as error:
    print(f"compare_pytorch: {sys.executable} lacks {error.name}: {sys.executable} -m pip install torch numpy safetensors", file=sys.stderr)
    sys.exit(2)

from pytorch_qwen import Qwen, Shape, make_optimizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOW = 256


@dataclasses.dataclass
class Row:
    shape: Shape
    B: int
    T: int
    variant: str = "causal"   # "causal", "window", "asga"

    @property
    def program(self):
        return {"causal": "train_causal", "window": "train_asga_fixed", "asga": "train_asga"}[self.variant]


SMALL = Shape(V=50304, C=768, L=12, NH=12, NKV=12, HS=64, F=2048)   # 124M parameters
ROWS = {
    "124m": Row(SMALL, 64, 1024),
    "0.5b": Row(Shape(V=151936, C=896, L=24, NH=14, NKV=2, HS=64, F=4864, qwen2=True), 32, 1024),
    "1.5b": Row(Shape(V=151936, C=1536, L=28, NH=12, NKV=2, HS=128, F=8960, qwen2=True), 8, 1024),
    "124m-32k": Row(SMALL, 1, 32768),
    "window": Row(SMALL, 1, 32768, "window"),
    "asga": Row(SMALL, 8, 1024, "asga"),
}


# ------------------------------------------------------------------------------------------------------------------------ data

def write_shard(path, tokens, V):
    """Format: data/README.md."""
    wide = V > 65536
    header = numpy.zeros(256, numpy.int32)
    header[:3] = (20240801, 7, len(tokens)) if wide else (20240520, 1, len(tokens))
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(tokens.astype(numpy.uint32 if wide else numpy.uint16).tobytes())


def read_shard(path, V):
    return numpy.fromfile(path, numpy.uint32 if V > 65536 else numpy.uint16, offset=1024).astype(numpy.int64)


def random_tokens(count, V, seed=1):
    """Token k turns up about 1 / (k + 1) as often as token 0, as in text (Zipf)."""
    power = numpy.random.default_rng(seed).random(count)
    return numpy.minimum(V - 1, ((V + 1.0) ** power).astype(numpy.int64) - 1)


def batch_of(tokens, step, B, T, device):
    """Rows step B .. of the shard, as the engine cuts them with --shuffle 0: inputs and, shifted by one, targets."""
    rows = (len(tokens) - 1) // T
    at = [(step * B + b) % rows * T for b in range(B)]
    both = torch.stack([torch.from_numpy(tokens[n:n + T + 1]) for n in at])
    if device == "cuda":
        both = both.pin_memory().to(device, non_blocking=True)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


# ------------------------------------------------------------------------------------------------------------- one turn of each

def engine_turn(program, folder, shard, row, options, out):
    """Runs ./train_VARIANT; the records of its log."""
    command = [program, "--model", folder, "--train-data", shard, "--batch-size", row.B, "--seq-len", row.T, "--shuffle", 0,
               "--val-every", 0, "--sample-every", 0, "--plot", 0, "--out", out, *options]
    if row.variant == "window":
        command += ["--window", WINDOW] if "--window" not in options else []
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in open(out / "log.jsonl")]


def torch_worker(row, shard, steps, mode):
    """Trains and prints one line of JSON. Nothing waits for the device within the timed steps."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(1)
    model = Qwen(row.shape, row.variant, row.T, WINDOW, torch.bfloat16).cuda()
    mask = model.make_mask("cuda")
    optimizer = make_optimizer(model, fused=True)
    compiled = torch.compile(model, mode=mode)
    tokens = read_shard(shard, row.shape.V)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        q, kv = (torch.empty(row.B, heads, row.T, row.shape.HS, dtype=torch.bfloat16, device="cuda", requires_grad=True)
                 for heads in (row.shape.NH, row.shape.NKV))
        chosen = torch._fused_sdp_choice(q, kv, kv, is_causal=True, enable_gqa=row.shape.NKV < row.shape.NH)
        del q, kv
        for step in range(steps):
            marks[step].record()
            loss = compiled(*batch_of(tokens, step, row.B, row.T, "cuda"), mask)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        marks[steps].record()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    backend = {"window": "FlexAttention", "asga": "plain operations"}.get(row.variant) or SDPBackend(chosen).name
    print(json.dumps({"ms": [a.elapsed_time(b) for a, b in zip(marks, marks[1:])], "bytes": total - free, "backend": backend,
                      "loss": loss.item()}))


def torch_turn(name, shard, steps, mode):
    command = [sys.executable, __file__, "--worker", name, "--shard", str(shard), "--steps", str(steps), "--compile-mode", mode]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"PyTorch ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(name, options, work):
    """Turns of both; one line of the table."""
    row = ROWS[name]
    steps, warm_ups = options.steps, options.warm_ups
    shard, folder = work / f"{name}.bin", work / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(row.shape.config_json()))
    write_shard(shard, random_tokens(row.B * row.T * steps + row.T + 1, row.shape.V), row.shape.V)
    ours, theirs, ours_bytes, theirs_bytes, backend, trouble = [], [], 0, 0, "-", []
    for turn in range(options.turns):
        try:
            log = engine_turn(options.programs / row.program, folder, shard, row,
                              ["--steps", steps, "--checkpoint-every", 0, "--device", "cuda"], work / f"{name}-{turn}")
            ours += [record["tok_s"] for record in log if "tok_s" in record][warm_ups:]
            ours_bytes = max(ours_bytes, log[-1]["peak_bytes"])
        except RuntimeError as error:
            trouble.append(str(error))
        try:
            result = torch_turn(name, shard, steps, options.compile_mode)
            theirs += [row.B * row.T / (ms / 1e3) for ms in result["ms"][warm_ups:]]
            theirs_bytes, backend = max(theirs_bytes, result["bytes"]), result["backend"]
        except RuntimeError as error:
            trouble.append(str(error))
    speed = lambda rates: f"{statistics.median(rates):9,.0f}" if rates else "        -"
    ratio = f"{statistics.median(ours) / statistics.median(theirs):5.2f}" if ours and theirs else "    -"
    print(f"| {name:8} | {row.variant:7} | {row.B:2} | {row.T:5} | {speed(ours)} | {speed(theirs)} | {ratio} | "
          f"{ours_bytes / 2**30:6.1f} GiB | {theirs_bytes / 2**30:6.1f} GiB | {backend:19} |", flush=True)
    for sentence in dict.fromkeys(trouble):
        print(f"{name}: {sentence}", file=sys.stderr)
    return not trouble


# ---------------------------------------------------------------------------------------------- that both compute the same

def check(name, shape, variant, options, work, device):
    """The engine trains a few steps and saves; from there both go on, in float32, and their losses and norms must agree."""
    from safetensors.torch import load_file
    B, T, steps, window = 2, 48, 5, 16
    row = Row(shape, B, T, variant)
    shard, folder = work / f"{name}.bin", work / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape.config_json()))
    tokens = random_tokens(B * T * steps + 1, shape.V)
    write_shard(shard, tokens, shape.V)
    common = ["--precision", "fp32", "--device", device, "--warmup-steps", 0, "--grad-clip", 1]
    common += ["--window", window] if variant == "window" else []
    program = options.programs / row.program
    engine_turn(program, folder, shard, row, [*common, "--steps", 3, "--lr", 2e-2, "--checkpoint-every", 3], work / f"{name}-start")
    start = next((work / f"{name}-start").glob("step_*"))
    log = engine_turn(program, start, shard, row, [*common, "--steps", steps, "--lr", 5e-3, "--checkpoint-every", 0],
                      work / f"{name}-on")

    model = Qwen(shape, variant, T, window, torch.float32)
    model.load_state_dict({k: v.float() for k, v in load_file(start / "model.safetensors").items()}, strict=True)
    model, mask = model.to(device), model.make_mask(device)
    optimizer = make_optimizer(model, fused=False)
    worst = 0
    for step, record in enumerate(r for r in log if "tok_s" in r):
        loss = model(*batch_of(tokens, step, B, T, device), mask)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = record["lr"]
        optimizer.step()
        for here, there in ((loss.item(), record["loss"]), (norm.item(), record["grad_norm"])):
            worst = max(worst, abs(here - there) / abs(there)) if math.isfinite(here) else math.inf
    same = worst < 1e-4
    print(f"{'same' if same else 'DIFFERENT'}: {name} on the {device}, {steps} steps down to loss {loss.item():.4f}; the largest "
          f"relative difference of a loss or a gradient's norm is {worst:.1e}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--check", action="store_true", help="only compare losses, in float32")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT, help="folder of the engine's programs")
    parser.add_argument("--steps", type=int, default=40, help="of every turn")
    parser.add_argument("--warm-ups", type=int, default=10, help="of these, not counted")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--compile-mode", default="default", help="of torch.compile")
    parser.add_argument("--worker", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--shard", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return torch_worker(ROWS[options.worker], options.shard, options.steps, options.compile_mode)
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if options.steps <= options.warm_ups:
        parser.error("--steps must be more than --warm-ups")
    for program in sorted({options.programs / ROWS[name].program for name in options.rows or ROWS}):
        if not program.exists():
            parser.error(f"there is no {program}; make FLOAT32=1 {program.name} builds it")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if options.check:
            tiny = Shape(V=96, C=64, L=2, NH=4, NKV=2, HS=32, F=96, init_std=0.2)
            device = "cuda" if torch.cuda.is_available() else "cpu"
            cases = [("qwen3", tiny, "causal"), ("qwen2", dataclasses.replace(tiny, qwen2=True), "causal"),
                     ("window", tiny, "window"), ("asga", tiny, "asga")]
            return 0 if all([check(*case, options, work, device) for case in cases]) else 1
        if not torch.cuda.is_available():
            parser.error("PyTorch finds no GPU; --check works without one")
        print(f"{torch.cuda.get_device_name()}, {time.strftime('%Y-%m-%d')}; PyTorch {torch.__version__}, torch.compile mode "
              f"{options.compile_mode}; tokens/s, medians over {options.turns} turns of {options.steps - options.warm_ups} steps; "
              "memory of the whole card\n")
        print("| row      | variant |  B |     T |    engine |   PyTorch | ratio |     engine |    PyTorch | its attention       |\n"
              "|---|---|---|---|---|---|---|---|---|---|")
        return 0 if all([compare(name, options, work) for name in options.rows or ROWS]) else 1


if __name__ == "__main__":
    sys.exit(main())
