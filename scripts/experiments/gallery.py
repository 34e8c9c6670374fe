#!/usr/bin/env python3
"""attention/GALLERY.md, every variant's results, pictures and formula, and the table of variants in attention/README.md.

    make all build/dev/attention_layer && python3 scripts/experiments/gallery.py      # trains a small model of each; reads results/
    python3 scripts/experiments/gallery.py --draw moba                                # the pictures of one variant alone
    python3 scripts/experiments/gallery.py --print causal dsa                         # the page of these two, to standard output

Exit codes: 0 done, 1 a program is missing or failed, 2 usage, 3 data.
"""
import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from packages import EXIT_DATA, HERE, ROOT, Refused, guarded   # first: it names packages that are missing
import jinja2
import numpy
import pandas as pd
from matplotlib import pyplot
from matplotlib.colors import LogNorm
from PIL import Image

from analysis import Report
from plan import cards
from prepare import QWEN3
from report import Section
from shards import ids, write_whole
from tables import EMPTY, as_markdown, interval, number

sys.path.insert(0, str(ROOT / 'scripts'))
from export_gguf import tensors_of  # noqa: E402
from variant_table import rows, run, run_program, source, write_table  # noqa: E402

GALLERY = ROOT / 'attention/GALLERY.md'
LOSSES = ('e2_dsa', 'e1_asga', 'e5_isoflop')   # experiments with a loss against causal's, the best one first
T, LINE = 512, 4             # pixels of a mask, and between those of two heads
CELL = 4                     # tokens on a side of a cell of mean attention
TEXTS = 4                    # of the validation tokens, over which attention is averaged
SHAPE = {'vocab_size': 512, 'hidden_size': 128, 'num_hidden_layers': 1, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 32,
         'intermediate_size': 384, 'rope_theta': 1e4}   # attention_layer's RoPE has this base
# Keys of config.json with numbers; others are settings of the mechanism.
OF_MODEL = {*QWEN3, *SHAPE, 'attention_dropout', 'max_window_layers', 'sliding_window', 'sigma_reparam',
            'bos_token_id', 'eos_token_id'}
OWN_VALUES = ('nsa',)        # whose values are not the model's
TRAINING = ('--steps', 300, '--batch-size', 2, '--lr', 3e-3, '--warmup-steps', 25, '--val-every', 0, '--sample-every', 0, '--plot', 0,
            '--threads', 1, '--device', 'cpu')

WINDOW = ('--window', 96)
FORMS = {  # options that show a variant's pattern in 512 tokens
    'adaptive_sparse': ('--adaptive-sparse-top-k', 2, '--adaptive-sparse-mask', 1),
    'asga_fixed': WINDOW,
    'bigbird': ('--bigbird-block', 32),
    'deepseek_sparse': ('--deepseek-sparse-top-k', 64),
    'deepspeed_fixed': ('--deepspeed-fixed-block', 32),
    'dsa': (*WINDOW, '--dense-until', 192),
    'dsa_fixed_window': WINDOW,
    'dsa_no_gate': (*WINDOW, '--dense-until', 192),
    'fixed_factorized': ('--fixed-factorized-chunk', 64, '--fixed-factorized-summary', 8),
    'infllm_v2': ('--infllm-v2-top-k', 2, '--infllm-v2-local', 1),
    'longformer': (*WINDOW, '--global-tokens', 32),
    'longnet': ('--longnet-segment', 64),
    'moba': ('--moba-block', 64, '--moba-top-k', 3),
    'nsa': ('--window', 63, '--nsa-selected', 3),
    'routing': (*WINDOW, '--routing-clusters', 8),
    'seer': ('--seer-top-k', 2),
    'seer_r': ('--seer-r-top-k', 2),
    'sinks': (*WINDOW, '--sinks', 16),
    'sinks_cache': (*WINDOW, '--sinks', 16),
    'sliding_window': WINDOW,
    'strided': ('--stride', 32),
}


def draw(variant, folder):
    """Train a model of one layer and draw VARIANT.png in a folder: its mask, and its mean attention."""
    with tempfile.TemporaryDirectory() as work:
        work, form = Path(work), (*FORMS.get(variant, ()), '--seq-len', T)
        (work / 'config.json').write_text(json.dumps(QWEN3 | SHAPE))
        run(variant, *form, *TRAINING, '--model', work, '--out', work / 'run')
        checkpoint, drawn = max((work / 'run').glob('step_*')), work / 'mask.png'
        run(variant, *form, '--model', checkpoint, '--show-mask', drawn)
        seen = 1 - mean_of_heads(numpy.asarray(Image.open(drawn).convert('L')) / 255)
        save(seen, None if variant in OWN_VALUES else mean_attention(variant, checkpoint, work), folder / f'{variant}.png')


def mean_attention(variant, checkpoint, work):
    """(T, T) weights of values in outputs, mean over heads and texts. attention_layer computes the layer with unit vectors as values,
    as many at once as a head has numbers."""
    w, config = dict(tensors_of(checkpoint / 'model.safetensors')), json.loads((checkpoint / 'config.json').read_text())
    NH, NKV, HS, eps = (config[key] for key in ('num_attention_heads', 'num_key_value_heads', 'head_dim', 'rms_norm_eps'))
    normed = lambda x, name: x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f'model.layers.0.{name}.weight']
    prefix = 'model.layers.0.self_attn.'
    own = {name.removeprefix(prefix): tensor for name, tensor in w.items() if re.match(prefix + '(?![qkvo]_(proj|norm))', name)}
    settings = [f'{key}={value}' for key, value in config.items() if key not in OF_MODEL and type(value) in (int, float)]
    tokens, total = numpy.array(ids(ROOT / 'data/bundled/sotu_val_000000.bin', TEXTS * T)).reshape(TEXTS, T), 0
    for text in tokens:
        x = normed(w['model.embed_tokens.weight'][text], 'input_layernorm')
        q, k = (normed((x @ w[f'{prefix}{name}_proj.weight'].T).reshape(T, -1, HS), f'self_attn.{name}_norm') for name in 'qk')
        units = numpy.eye(T).reshape(T, T // HS, 1, HS).swapaxes(0, 1).repeat(NKV, 2)   # (T / HS, T, NKV, HS)
        each = lambda part: numpy.broadcast_to(part, (T // HS, *part.shape))
        write_tensors(work / 'in', own | {'x': each(x), 'qkv': numpy.concatenate([each(q), each(k), units], 2),
                                          'dout': numpy.zeros((T // HS, T, NH, HS))})
        run_program('build/dev/attention_layer', variant, work / 'in', work / 'out', *settings)
        total = total + dict(tensors_of(work / 'out'))['out'].mean(2)      # (T / HS, T, HS)
        (work / 'out').unlink()
    return total.swapaxes(0, 1).reshape(T, T) / TEXTS


def write_tensors(path, arrays):
    """Write a safetensors file of arrays in float32."""
    header, parts, end = {}, [], 0
    for name, array in arrays.items():
        parts.append(array.astype('<f4').tobytes())
        header[name] = {'dtype': 'F32', 'shape': array.shape, 'data_offsets': [end, end := end + len(parts[-1])]}
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, 'little') + head + b''.join(parts))


def mean_of_heads(mask):
    """The mean of the heads' masks, which --show-mask draws side by side where they differ."""
    rows, columns = (1 + (size - T) // (T + LINE) for size in mask.shape)
    at = [(row * (T + LINE), column * (T + LINE)) for row in range(rows) for column in range(columns)]
    return numpy.mean([mask[y:y + T, x:x + T] for y, x in at], axis=0)


def save(seen, attention, path):
    """Save a mask (grey: keys that only some heads see) and mean attention beside it, where there is one, with axes."""
    panels = {'visible keys': seen} | ({} if attention is None else {'mean attention': attention})
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 4), layout='constrained')
    if attention is None: axes[1].set_axis_off()
    for ax, (title, shown) in zip(axes, panels.items()):
        scale = {'vmin': 0, 'vmax': 1}
        if shown is attention:
            shown, scale = shown.reshape(T // CELL, CELL, T // CELL, CELL).mean((1, 3)), {'norm': LogNorm(1e-4, 1, clip=True)}
        image = ax.imshow(shown, cmap='Greys', extent=(0, T, T, 0), interpolation='nearest', **scale)
        if 'norm' in scale: figure.colorbar(image, ax=ax, shrink=0.8)
        ax.set(title=title, xlabel='key', ylabel='query', xticks=range(0, T + 1, 128), yticks=range(0, T + 1, 128))
        ax.grid(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    Image.open(path).convert('L').quantize(8, dither=Image.Dither.NONE).save(path, optimize=True)


def formula(variant):
    """The first indented lines of the comment at the top of the variant's file; an ablation has none of its own."""
    comment = re.match(r'(//.*\n)*', (ROOT / f'attention/{variant}.cuh').read_text(encoding='utf-8'))[0]
    found = re.search(r'(^// {3,}.*\n)+', comment, re.MULTILINE)
    return '\n'.join(line.removeprefix('//     ') for line in found[0].splitlines()) if found else ''


def results(report, linked):
    """A row for each arm of e4_speed: its costs at the greatest length that was measured, its difference of loss, its step on a GPU.
    The names of `linked` arms lead to their sections."""
    costs = [(title, found) for title, found, _ in Section(report, 'e4_speed', 'reduced').costs()]
    rows = []
    for arm in report.experiments['e4_speed'].arms:
        if not any(arm in found for _, found in costs): continue
        rows.append({'mechanism': f'[{arm}](#{arm})' if arm in linked else arm} |
                    {title: at_most(found.get(arm)) for title, found in costs} | {'difference of loss': difference(report, arm)} |
                    {f'step, {gpu}': number(steps.get(arm), '.2f') for gpu, (_, steps) in cards().items()})
    return as_markdown(pd.DataFrame(rows)).replace(' | ', '|')


def at_most(found):
    """The value of the greatest length; shorter ones than 32,768 tokens are named."""
    if not found: return EMPTY
    length = max(found, key=lambda tokens: tokens or 0)
    value = f'{found[length]:,.0f}' if found[length] >= 100 else f'{found[length]:#.3g}'
    return value if length in (None, 32768) else f'{value} ({length:,.0f})'


def difference(report, arm):
    """The difference of its validation loss to causal's, of the first experiment with two pairs."""
    found = (report.comparisons.get((name, 'reduced', setting), {}).get((arm, 'causal'))
             for name in LOSSES for setting in report.experiments[name].settings)
    return next((interval(c) for c in found if c and c.pairs >= 2), EMPTY)


def page(report, variants):
    """The text of the gallery."""
    gpus = '; '.join(f'{gpu}, 134M parameters, 32 x 1,024 tokens, {date}' for gpu, (date, _) in cards().items())
    entries = [{'variant': variant, 'form': ' '.join(map(str, FORMS.get(variant, ()))), 'source': source(variant),
                'formula': formula(variant)} for variant in variants]
    template = jinja2.Template((HERE / 'gallery.md.j2').read_text(encoding='utf-8'), trim_blocks=True)
    return template.render(gpus=gpus, entries=entries, results=results(report, variants)).rstrip() + '\n'


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--print', nargs='+', metavar='VARIANT', help='print the page of these variants; draw and write nothing')
    parser.add_argument('--draw', nargs='+', metavar='VARIANT', help='draw the pictures of these variants; write no page')
    options = parser.parse_args(arguments)
    variants = [variant for variant, form in rows(None) if not form]
    for unknown in {*(options.print or ()), *(options.draw or ())} - {*variants}: raise Refused(f'{unknown}: there is no attention/{unknown}.cuh')
    text = page(Report(sorted(map(str, (HERE / 'results').glob('*.jsonl')))), options.print or variants)
    if options.print:
        print(text, end='')
        return 0
    try:
        for variant in options.draw or variants: draw(variant, ROOT / 'dev/pictures')
        if options.draw: return 0
        write_whole(GALLERY, text.encode())
        write_table()
    except OSError as error:
        raise Refused(f'{error.filename}: cannot be written ({error.strerror})', EXIT_DATA) from error
    return 0


if __name__ == '__main__':
    guarded(main)
