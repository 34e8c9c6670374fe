#!/usr/bin/env python3
"""Trains the same model in PyTorch and in this engine, in turns, and prints tokens per second, memory and the ratio of the two.

    make train_causal train_asga train_asga_fixed      first
    python3 dev/compare_pytorch.py                     every row below, on a GPU
    python3 dev/compare_pytorch.py 124m window         some of them

PyTorch gets what makes it fast: torch.compile, scaled_dot_product_attention through cuDNN where it can, FlexAttention for the
window, fused AdamW, bf16 activations. Its weights are float32 and rounded to bf16 where they are used, and their gradients leave
the products in bf16; the engine keeps float32 master weights beside a bf16 copy, and float32 gradients. Moments are float32 in both.
Both clip the gradient's norm and read the same random shards. Every turn is a process of its own; the first steps of each do not
count; the figures are medians over the steps of all turns. The model is scripts/attention_torch, with PyTorch's own attention where
it has any; ASGA is plain tensor operations.
"""
import argparse
import dataclasses
import json
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
    print(f"compare_pytorch: {sys.executable} lacks {error.name}: {sys.executable} -m pip install torch numpy", file=sys.stderr)
    sys.exit(2)

from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from attention_torch import TABLE, qwen   # noqa: E402
from fixture_forms import Form   # noqa: E402

SMALL = Form(V=50304, C=768, L=12, NH=12, NKV=12, HS=64, F=2048, B=64, T=1024)   # 124M parameters
LONG = dataclasses.replace(SMALL, B=1, T=32768)
STEPS, WARM_UPS = 40, 10   # of a turn; warm-ups do not count
ROWS = {
    "124m": SMALL,
    "0.5b": Form(V=151936, C=896, L=24, NH=14, NKV=2, HS=64, F=4864, qwen2=True, B=32, T=1024),
    "1.5b": Form(V=151936, C=1536, L=28, NH=12, NKV=2, HS=128, F=8960, qwen2=True, B=8, T=1024),
    "124m-32k": LONG,
    "window": dataclasses.replace(LONG, variant="asga_fixed", settings={"attention_window": 256}),
    "asga": dataclasses.replace(SMALL, B=8, variant="asga", settings={"asga_hidden": 16}),
}


# ----------------------------------------------------------------------------------------------------------------------- models

def write_config(form, path):
    """The engine's config.json of a form."""
    kind = "Qwen2" if form.qwen2 else "Qwen3"
    path.write_text(json.dumps({
        "architectures": [kind + "ForCausalLM"], "model_type": kind.lower(), "vocab_size": form.V, "hidden_size": form.C,
        "num_hidden_layers": form.L, "num_attention_heads": form.NH, "num_key_value_heads": form.NKV, "head_dim": form.HS,
        "intermediate_size": form.F, "rms_norm_eps": form.norm_eps, "rope_theta": form.rope_theta, "initializer_range": 0.02,
        "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "max_position_embeddings": 32768,
        "attention_variant": form.variant, **form.settings}))


class Model(torch.nn.Module):
    """The plain model on float32 parameters, which are rounded to bf16 where they are used. forward() is the mean cross-entropy in
    nats per token."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        for name, tensor in qwen.tensors(form).items():
            parameter = torch.nn.Parameter(tensor.mean + tensor.deviation * torch.randn(*tensor.shape))
            self.register_parameter(name.replace(".", "/"), parameter)

    def named(self):
        return {name.replace("/", "."): p for name, p in self.named_parameters()}

    def forward(self, tokens, targets):
        logits, _ = qwen.forward(self.form, {name: p.bfloat16() for name, p in self.named().items()}, tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def take_own_attention(form):
    """PyTorch's fast attention in place of dense matrices."""
    def causal(a, w, s, notes):
        return F.scaled_dot_product_attention(a.q, a.k, a.v, is_causal=True, enable_gqa=a.NKV < a.NH)

    TABLE["causal"] = (causal, *TABLE["causal"][1:])
    if form.variant == "asga_fixed":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        reach = form.settings["attention_window"]
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j <= reach), None, None, form.T, form.T)

        def window(a, w, s, notes):
            scaled = a.q * F.softplus(w["gamma"])[:, None, None]
            return flex_attention(scaled, a.k, a.v, block_mask=mask, enable_gqa=a.NKV < a.NH)

        TABLE["asga_fixed"] = (window, *TABLE["asga_fixed"][1:])


def make_optimizer(model):
    """The engine's defaults; matrices decay, norms and biases do not."""
    decays = lambda name, p: p.ndim > 1 and not name.endswith("b1")
    named = model.named().items()
    groups = [{"params": [p for n, p in named if decays(n, p)], "weight_decay": 0.1},
              {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)


# ------------------------------------------------------------------------------------------------------------------------ data

def write_shard(path, tokens, V):
    """Format: data/README.md."""
    wide = V > 65536
    header = numpy.zeros(256, numpy.int32)
    header[:3] = (20240801, 7, len(tokens)) if wide else (20240520, 1, len(tokens))
    path.write_bytes(header.tobytes() + tokens.astype(numpy.uint32 if wide else numpy.uint16).tobytes())


def tokens_of(row):
    """Random tokens for all steps. Token k turns up about 1 / (k + 1) as often as token 0, as in text (Zipf)."""
    power = numpy.random.default_rng(1).random(row.B * row.T * STEPS + row.T + 1)
    return numpy.minimum(row.V - 1, ((row.V + 1.0) ** power).astype(numpy.int64) - 1)


def batch_of(tokens, step, row):
    """Rows step B .. of the shard, as the engine cuts them with --shuffle 0: inputs and, shifted by one, targets."""
    rows = (len(tokens) - 1) // row.T
    at = [(step * row.B + b) % rows * row.T for b in range(row.B)]
    both = torch.stack([torch.from_numpy(tokens[n:n + row.T + 1]) for n in at]).pin_memory().to("cuda", non_blocking=True)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


# ------------------------------------------------------------------------------------------------------------- one turn of each

def run(who, command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{who} ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def engine_turn(program, folder, shard, row, out):
    """Runs ./train_VARIANT; the records of its log."""
    run(program, [program, "--model", folder, "--train-data", shard, "--batch-size", row.B, "--seq-len", row.T, "--shuffle", 0,
                  "--val-every", 0, "--sample-every", 0, "--plot", 0, "--out", out, "--steps", STEPS, "--checkpoint-every", 0,
                  "--device", "cuda"])
    return [json.loads(line) for line in open(out / "log.jsonl")]


def torch_worker(row):
    """Trains and prints one line of JSON. Nothing waits for the device within the timed steps."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_default_device("cuda")   # also of the masks and positions that the model makes
    torch.manual_seed(1)
    take_own_attention(row)
    model = Model(row)
    optimizer = make_optimizer(model)
    compiled = torch.compile(model)
    tokens = tokens_of(row)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        q, kv = (torch.empty(row.B, heads, row.T, row.HS, dtype=torch.bfloat16, device="cuda", requires_grad=True)
                 for heads in (row.NH, row.NKV))
        chosen = torch._fused_sdp_choice(q, kv, kv, is_causal=True, enable_gqa=row.NKV < row.NH)
        del q, kv
        for step in range(STEPS):
            marks[step].record()
            loss = compiled(*batch_of(tokens, step, row))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        marks[STEPS].record()
    torch.cuda.synchronize()
    backend = {"asga_fixed": "FlexAttention", "asga": "plain operations"}.get(row.variant) or SDPBackend(chosen).name
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    print(json.dumps({"ms": times, "bytes": torch.cuda.max_memory_reserved(), "backend": backend}))


def compare(name, options, work):
    """Turns of both; one line of the table."""
    row = ROWS[name]
    shard, folder = work / f"{name}.bin", work / name
    folder.mkdir()
    write_config(row, folder / "config.json")
    write_shard(shard, tokens_of(row), row.V)
    ours, theirs, ours_bytes, theirs_bytes, backend, trouble = [], [], 0, 0, "-", []
    for turn in range(options.turns):
        try:
            log = engine_turn(options.programs / f"train_{row.variant}", folder, shard, row, work / f"{name}-{turn}")
            ours += [record["tok_s"] for record in log if "tok_s" in record][WARM_UPS:]
            ours_bytes = max(ours_bytes, log[-1]["peak_bytes"])
        except RuntimeError as error:
            trouble.append(str(error))
        try:
            result = json.loads(run("PyTorch", [sys.executable, __file__, "--worker", name]).strip().splitlines()[-1])
            theirs += [row.B * row.T / (ms / 1e3) for ms in result["ms"][WARM_UPS:]]
            theirs_bytes, backend = max(theirs_bytes, result["bytes"]), result["backend"]
        except RuntimeError as error:
            trouble.append(str(error))
    speed = lambda rates: f"{statistics.median(rates):9,.0f}" if rates else "        -"
    ratio = f"{statistics.median(ours) / statistics.median(theirs):5.2f}" if ours and theirs else "    -"
    print(f"| {name:8} | {row.variant:10} | {row.B:2} | {row.T:5} | {speed(ours)} | {speed(theirs)} | {ratio} | "
          f"{ours_bytes / 2**30:6.1f} GiB | {theirs_bytes / 2**30:6.1f} GiB | {backend:19} |", flush=True)
    for sentence in dict.fromkeys(trouble):
        print(f"{name}: {sentence}", file=sys.stderr)
    return not trouble


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT, help="folder of the engine's programs")
    parser.add_argument("--turns", type=int, default=3, help=f"turns of {STEPS} steps, of which {WARM_UPS} do not count (default 3)")
    parser.add_argument("--worker", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return torch_worker(ROWS[options.worker])
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    for program in sorted({options.programs / f"train_{ROWS[name].variant}" for name in options.rows or ROWS}):
        if not program.exists():
            parser.error(f"there is no {program}; make {program.name} builds it")
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        print(f"{torch.cuda.get_device_name()}, {time.strftime('%Y-%m-%d')}; PyTorch {torch.__version__}, torch.compile; tokens/s, "
              f"medians over {options.turns} turns of {STEPS - WARM_UPS} steps; memory that each allocates on the GPU\n")
        print("| row      | variant    |  B |     T |    engine |   PyTorch | ratio |     engine |    PyTorch | its attention       |\n"
              "|---|---|---|---|---|---|---|---|---|---|")
        return 0 if all([compare(name, options, work) for name in options.rows or ROWS]) else 1


if __name__ == "__main__":
    sys.exit(main())
