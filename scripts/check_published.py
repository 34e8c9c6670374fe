#!/usr/bin/env python3
"""Compares our attention layers with code that others have published: results of naive(), of the kernel in double and in float32, and
all gradients of the latter two.

    make build/dev/attention_layer
    python3 scripts/check_published.py                          # with what is installed
    python3 scripts/check_published.py --code FOLDER forgetting moba      # and with clones of repositories in FOLDER
    python3 scripts/check_published.py --table                  # writes the table in attention/README.md
    python3 scripts/check_published.py --module mine.py         # with your own PyTorch module: a file like those of scripts/published

Needs torch and safetensors (pip install); each check says what else it needs, a package or a clone, and is left out without it.
Nothing of these is part of this project: the files of scripts/published only call them. What differs from our reading is said
there, and in the header of the variant's file.

Exit codes: 0 all agree, 1 one does not, 2 usage.
"""
import argparse
import runpy
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import safetensors.torch
import torch

import attention_torch
from attention_torch.parts import Inputs
from published import CHECKS, Missing

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / 'build/dev/attention_layer'
README = ROOT / 'attention/README.md'
BEGIN, END = '<!-- made by scripts/check_published.py -->', '<!-- end of the table of agreements -->'
C = 24                   # of x, in attention_layer
CLOSE = 2e-6             # relative to the largest number, of float32 files and sums in double
CLOSE_FLOAT = 2e-5       # where either side has computed in float32


def draw(check, size):
    """Inputs, tensors and a gradient of the result, as float32 can hold them; and which of the tensors are learned."""
    B, T, NH, NKV = size
    generator = torch.Generator().manual_seed(zlib.crc32(f'{check.name} {size}'.encode()))
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    form = SimpleNamespace(C=C, NH=NH, NKV=NKV, HS=check.HS, T=T, L=1)
    _, declare, _ = attention_torch.TABLE.get(check.variant, (None, lambda *_: {}, ()))   # of a new mechanism `prepare` draws the tensors
    own = declare(form, check.settings)
    prefix = attention_torch.tensor_prefix(check.variant)
    tensors = {prefix + name: of.mean + of.deviation * normal(*of.shape) for name, of in own.items()}
    inputs = {'x': normal(B, T, C), 'qkv': normal(B, T, NH + 2 * NKV, check.HS)}
    check.prepare(inputs, tensors)
    fixed = {prefix + name for name, of in own.items() if of.rate}
    return inputs, tensors, normal(B, T, NH, check.HS), [name for name in tensors if name not in fixed]


def ours(check, inputs, tensors, dout, folder):
    """What attention_layer makes of them."""
    safetensors.torch.save_file(inputs | tensors | {'dout': dout}, folder / 'in.safetensors')
    settings = [f'{key}={value:g}' for key, value in check.settings.items()]
    done = subprocess.run([PROGRAM, check.variant, folder / 'in.safetensors', folder / 'out.safetensors', *settings],
                          capture_output=True, text=True)
    if done.returncode: sys.exit(f'{check.name}: {done.stderr.strip()}')
    return safetensors.torch.load_file(folder / 'out.safetensors')


def theirs(check, inputs, tensors, dout, learned):
    """The same by the published code; no gradients where it has none, nor of what follows statistics in place of a loss."""
    leaves = {name: value.double().requires_grad_(check.gradients) for name, value in (inputs | tensors).items()}
    NH = dout.shape[2]
    heads = leaves['qkv'].transpose(1, 2)                        # (B, NH + 2 NKV, T, HS)
    NKV = (heads.shape[1] - NH) // 2
    q, k, v = heads.split([NH, NKV, NKV], 1)
    a = Inputs(leaves['x'], q, k, v, 1e4, 0, 1)
    if not check.rotates: a.q, a.k = a.q_pre, a.k_pre
    own = {name: leaves[name] for name in tensors}
    found = check.run(a, own, check) if check.repository else check.run(a, own)
    out, own_loss = found if isinstance(found, tuple) else (found, 0.0)
    out = out.double().transpose(1, 2)
    result = {'out': out.detach()}
    if check.gradients:
        ((out * dout.double()).sum() + own_loss).backward()
        gradient = lambda name: torch.zeros_like(leaves[name]) if leaves[name].grad is None else leaves[name].grad
        result |= {'dqkv': gradient('qkv'), 'dx': gradient('x')} | {'d.' + name: gradient(name) for name in learned}
    return result


def distance(mine, reference):
    """Largest difference relative to the largest number of the reference; of two zeros 0."""
    scale = reference.abs().max().item()
    return (mine.double() - reference).abs().max().item() / (scale or 1.0)


def compare(check):
    """{what: worst distance} over all sizes; of double and of float32."""
    worst = {}
    for size in check.sizes:
        inputs, tensors, dout, learned = draw(check, size)
        with tempfile.TemporaryDirectory() as folder:
            mine = ours(check, inputs, tensors, dout, Path(folder))
        reference = theirs(check, inputs, tensors, dout, learned)
        for what, wanted in reference.items():
            kind = 'result' if what == 'out' else 'gradients'
            for name, key in (('', kind), ('float32.', 'float32 ' + kind)):
                worst[key] = max(worst.get(key, 0.0), distance(mine[name + what], wanted))
        worst['naive'] = max(worst.get('naive', 0.0), distance(mine['naive'], reference['out']))
    return worst


def row(check, worst):
    number = lambda what: f'{worst[what]:.0e}' if what in worst else '-'
    return [check.variant, check.source, check.version(), ', '.join('x'.join(map(str, size)) for size in check.sizes),
            f'{max(worst["naive"], worst["result"]):.0e}', number('gradients'), number('float32 result'), number('float32 gradients'),
            check.remark]


HEAD = ['variant', 'published code', 'version', 'B x T x NH x NKV', 'result', 'gradients', 'float32 kernel', 'its gradients',
        'how it was called']


def markdown(rows):
    line = lambda cells: '| ' + ' | '.join(cells) + ' |'
    return '\n'.join([line(HEAD), line(['---'] * len(HEAD)), *map(line, rows)])


def rows_written(text):
    """{(variant, published code): cells} of the table that is there."""
    lines = text.split(BEGIN + '\n')[1].split(END)[0].splitlines()[2:]
    cells = [line.strip('| ').split(' | ') for line in lines]
    return {tuple(row[:2]): row + [''] * (len(HEAD) - len(row)) for row in cells}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('variants', nargs='*', metavar='VARIANT', help='default: all')
    parser.add_argument('--code', type=Path, help='folder with clones of repositories')
    parser.add_argument('--module', type=Path, help='Python file with a list CHECKS to use instead')
    parser.add_argument('--table', action='store_true', help='write the table in attention/README.md')
    options = parser.parse_args()
    if options.module and options.table: parser.error('--table is of scripts/published, not of a --module')
    if options.module and not options.module.is_file(): parser.error(f'--module {options.module}: is no file')
    checks = runpy.run_path(options.module)['CHECKS'] if options.module else CHECKS
    if unknown := set(options.variants) - {check.variant for check in checks}:
        parser.error(f'nothing is compared for {", ".join(sorted(unknown))}; there is {", ".join(sorted({c.variant for c in checks}))}')
    if not PROGRAM.exists(): sys.exit(f'{PROGRAM.relative_to(ROOT)} is not there; make build/dev/attention_layer')
    rows, failed, before = [], False, rows_written(README.read_text())
    for check in checks:
        rows.append(before.get((check.variant, check.source)))   # stays where the check cannot be made, or is not asked for
        if options.variants and check.variant not in options.variants: continue
        try:
            check.load(options.code)
        except Missing as missing:
            print(f'{check.name}: left out: {missing}')
            continue
        worst = compare(check)
        good = all(d <= (CLOSE_FLOAT if check.in_float or what.startswith('float32') else CLOSE) for what, d in worst.items())
        failed = failed or not good
        rows[-1] = row(check, worst)
        print(f'{"ok" if good else "DIFFERS"} {check.name}: ' + ', '.join(f'{what} {d:.1e}' for what, d in worst.items()), flush=True)
    if options.table:
        text = README.read_text()
        before, rest = text.split(BEGIN + '\n')
        README.write_text(before + BEGIN + '\n' + markdown(filter(None, rows)) + '\n' + END + rest.split(END)[1])
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
