#!/usr/bin/env python3
"""Writes text with the same model in this engine and in transformers, on the CPU, and prints what share of the memory's rate each
reaches: a step has to read every matrix once, and the keys and values of each text.

    make build/dev/bench_writing && python3 dev/compare_decoding.py
    python3 dev/compare_decoding.py --model qwen-7m --rounds 2 --tokens 8      a short try

Random weights; causal attention with a cache on both sides, transformers with its own (DynamicCache, sdpa), greedy. Everything is
measured in turns, round after round, with the same number of threads: reading memory, the engine and transformers, in float32 and in
bf16, with 1, 4 and 8 texts side by side. A figure is the median over the rounds in which the process had its processors ("busy"),
each with the rate of memory of its own round; of the rounds that were least disturbed if it never had them. The models stay in memory:
for qwen3-0.6b four of them, 8 GB.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUSY = 0.93   # of the processors' time: with less, others ran beside


class Engine:
    def __init__(self, o):
        program = [str(ROOT / "build/dev/bench_writing"), o.model, str(o.prompt), str(o.tokens), str(o.threads), "float32", "bf16"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self.answer()
        self.machine, self.config = first["machine"], first["config"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("compare_decoding.py: error: bench_writing ended")
        return json.loads(line)

    def ask(self, task):
        print(task, file=self.process.stdin, flush=True)
        return self.answer()


class Transformers:
    """The same shape in a type of numbers."""

    def __init__(self, config, dtype, o):
        self.o = o
        config = transformers.Qwen3Config(**config, attn_implementation="sdpa")
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        self.model = transformers.Qwen3ForCausalLM(config).eval()
        torch.set_default_dtype(before)

    @torch.inference_mode()
    def write(self, texts):
        V = self.model.config.vocab_size
        ids = (torch.arange(texts * self.o.prompt) * 7919 % V).view(texts, self.o.prompt)
        out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for _ in range(self.o.tokens - 1):
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            out = self.model(input_ids=ids, past_key_values=out.past_key_values, use_cache=True)
        seconds = time.perf_counter() - start
        now = resource.getrusage(resource.RUSAGE_SELF)
        busy = (now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime) / (seconds * self.o.threads)
        return {"seconds": seconds / (self.o.tokens - 1), "busy": busy}


def median_of(turns):
    """Of what the turns (value, busy) are worth: those that had their processors, or the least disturbed third."""
    quiet = [value for value, busy in turns if busy >= BUSY]
    least = [value for value, _ in sorted(turns, key=lambda turn: -turn[1])[:max(1, len(turns) // 3)]]
    return statistics.median(quiet or least), len(quiet)


def measure(o, engine, references):
    """{(who, stored, texts): [(seconds, share of the memory's rate, busy)]} and the rates of memory."""
    turns, rates = {}, []
    for number in range(o.rounds):
        read = engine.ask("read")
        rates.append((read["bytes"] / read["seconds"], read["busy"]))
        for stored in ("float32", "bf16"):
            for texts in o.texts:
                own = engine.ask(f"{stored} {texts}")
                other = references[stored].write(texts)
                for who, turn in (("engine", own), ("transformers", other)):
                    share = own["bytes"] / turn["seconds"] / rates[-1][0]
                    turns.setdefault((who, stored, texts, own["bytes"]), []).append((turn["seconds"], share, min(turn["busy"], read["busy"])))
        print(f"round {number + 1} of {o.rounds}: {rates[-1][0] / 1e9:.1f} GB/s, busy {rates[-1][1]:.2f}", file=sys.stderr)
    return turns, rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    engine = Engine(o)
    references = {"float32": Transformers(engine.config, torch.float32, o), "bf16": Transformers(engine.config, torch.bfloat16, o)}
    turns, rates = measure(o, engine, references)

    rate, quiet = median_of(rates)
    print(f"{engine.machine}; torch {torch.__version__}, transformers {transformers.__version__}; {o.model}, {o.prompt} tokens of prompt, "
          f"{o.tokens} written, {o.rounds} rounds\nreading memory: {rate / 1e9:.1f} GB/s ({quiet} rounds undisturbed)\n")
    print("| | numbers | texts | bytes of a step | ms | tokens/s | of the memory's rate | undisturbed rounds |\n|---|---|---|---|---|---|---|---|")
    for (who, stored, texts, size), all_turns in sorted(turns.items(), key=lambda item: (item[0][1] == "bf16", item[0][2], item[0][0])):
        seconds, quiet = median_of([(turn[0], turn[2]) for turn in all_turns])
        share, _ = median_of([(turn[1], turn[2]) for turn in all_turns])
        print(f"| {who} | {stored} | {texts} | {size / 1e6:.0f} MB | {1e3 * seconds:.1f} | {texts / seconds:.1f} | {100 * share:.0f}% | {quiet} |")


if __name__ == "__main__":
    main()
