"""Flips one bit of a weight in the memory of one of two ranks while they train, and expects the job to end before its next checkpoint.

    python3 tests/check_flipped_bit.py ./train_causal OUT RANK ZERO_STAGE

The learning rate is 0, so that memory holds the numbers of the first checkpoint, which is how to find them. Prints `ok` or `FAIL` as
the test scripts do. Needs Linux, and mpirun as in tests/checks.bash (LAUNCH: another command).
"""
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import time

TENSOR = "model.layers.1.mlp.up_proj.weight"


def ranks_of(job):
    """The process number of each rank, by rank."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = dict(part.split(b"=", 1) for part in file.read().split(b"\0") if b"=" in part)
            if variables.get(b"FLIPPED_BIT_JOB") == job.encode() and b"OMPI_COMM_WORLD_RANK" in variables:
                found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(name)
        except (OSError, ValueError):
            continue
    return found


def numbers_of(checkpoint):
    with open(checkpoint + "/model.safetensors", "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        begin, end = json.loads(file.read(length))[TENSOR]["data_offsets"]
        file.seek(8 + length + begin)
        return file.read(end - begin)


def places(pid, pattern):
    """Addresses of `pattern` in the process's writable memory."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p .* 0 ", line)
            if not match:
                continue
            begin, end = (int(n, 16) for n in match.groups())
            try:
                memory.seek(begin)
                text = memory.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
            at = text.find(pattern)
            while at >= 0:
                found.append(begin + at)
                at = text.find(pattern, at + 1)
    return found


def flip(pid, address):
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        byte = memory.read(1)[0]
        memory.seek(address)
        memory.write(bytes([byte ^ 16]))


def main():
    trainer, out, rank, zero = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    name = f"a flipped bit of rank {rank}, --zero-stage {zero}"
    command = shlex.split(os.environ.get("LAUNCH", "mpirun --oversubscribe")) + ["-np", "2"] + shlex.split(
        f"{trainer} --device cpu --model qwen-tiny --seq-len 64 --batch-size 8 --steps 100000 --lr 0 --checkpoint-every 100 --val-every 0 "
        f"--sample-every 0 --plot 0 --threads 1 --zero-stage {zero} --out {out}")
    with open(out + ".txt", "w") as output:
        job = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "FLIPPED_BIT_JOB": out})
    said = lambda: open(out + ".txt", errors="replace").read()
    announced = lambda: re.findall(r"^checkpoint (\S+)", said(), re.M)
    limit = time.time() + 60
    while not announced() and time.time() < limit and job.poll() is None:
        time.sleep(0.05)
    pid = ranks_of(out)[rank]
    numbers = numbers_of(announced()[0])
    addresses = places(pid, numbers)
    if not addresses:
        job.kill()
        return print(f"FAIL {name}: the tensor is nowhere in memory")
    for bit in (0, 8, 16):   # under ZeRO-1 one that flips during an update, a few per cent of a step, goes unnoticed: try again
        before = len(announced())
        for address in addresses:
            flip(pid, address + bit)
        while len(announced()) < before + 2 and job.poll() is None:
            time.sleep(0.02)
        if zero == "0" or job.poll() is not None:
            break
    try:
        code = job.wait(10)
    except subprocess.TimeoutExpired:
        job.kill()
        code = "none: it goes on"
    sentence = re.search(r"error: (.*)", said())
    sentence = sentence.group(1) if sentence else "no sentence"
    more = len(announced()) - before
    sound = code == 6 and TENSOR in sentence and f"rank {rank}" in sentence and more <= 1
    print(f"ok {name}" if sound else f"FAIL {name}: exit code {code}, {more} checkpoints after it, {sentence}")


main()
