#!/usr/bin/env python3
"""dev/attention_layer on numbers that are made here, without any package: its naive form, double and float32 agree, and settings count.
Prints `ok NAME` or `FAIL NAME: why`. tests/published.sh runs it.

    python3 tests/check_attention_layer.py FOLDER      writes FOLDER/in and FOLDER/partial, which lacks a tensor
"""
import json
import math
import struct
import subprocess
import sys
from pathlib import Path

from checks import check_all

folder = Path(sys.argv[1])
B, T, NH, NKV, HS, C = 1, 90, 2, 1, 8, 24
SHAPES = {'x': [B, T, C], 'qkv': [B, T, NH + 2 * NKV, HS], 'dout': [B, T, NH, HS]}


def write(path, names):
    header, data = {}, b''
    for name in names:
        numbers = [math.sin(1.7 * n * n + len(name)) for n in range(math.prod(SHAPES[name]))]
        header[name] = {'dtype': 'F32', 'shape': SHAPES[name], 'data_offsets': [len(data), len(data) + 4 * len(numbers)]}
        data += struct.pack(f'<{len(numbers)}f', *numbers)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(head)) + head + data)


def read(path):
    raw = path.read_bytes()
    size, = struct.unpack('<Q', raw[:8])
    spans = {name: [8 + size + at for at in of['data_offsets']] for name, of in json.loads(raw[8:8 + size]).items() if name != '__metadata__'}
    return {name: struct.unpack(f'<{(end - begin) // 4}f', raw[begin:end]) for name, (begin, end) in spans.items()}


def outputs(window):
    out = folder / f'window_{window}'
    subprocess.run(['build/dev/attention_layer', 'sliding_window', folder / 'in', out, f'attention_window={window}'], check=True)
    return read(out)


def apart(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


write(folder / 'in', SHAPES)
write(folder / 'partial', ['x', 'qkv'])
narrow, wide = outputs(20), outputs(89)
check_all('published: naive, double and float32 of a layer agree', max(narrow['naive']) > 0.1, apart(narrow['naive'], narrow['out']) < 1e-6,
          apart(narrow['out'], narrow['float32.out']) < 1e-5)
check_all('published: and so do its gradients', max(narrow['dqkv']) > 0.1, apart(narrow['dqkv'], narrow['float32.dqkv']) < 1e-4)
check_all('published: a setting counts', apart(narrow['out'][-8:], wide['out'][-8:]) > 1e-5)
