#!/usr/bin/env python3
"""attention/GALLERY.md, every variant's results, mask and formula, and the table of variants in attention/README.md.

    python3 scripts/experiments/gallery.py                                     # make all first; reads the ledgers of results/
    python3 scripts/experiments/gallery.py --print causal dsa      # the page of these two, to standard output

Exit codes: 0 done, 1 a program is missing or failed, 2 usage, 3 data.
"""
import argparse
import re
import sys
import tempfile
from pathlib import Path

from packages import EXIT_DATA, HERE, ROOT, Refused, guarded   # first: it names packages that are missing
import jinja2
import numpy
import pandas as pd
from matplotlib import pyplot
from PIL import Image

from analysis import Report
from plan import cards
from report import Section
from shards import write_whole
from tables import EMPTY, as_markdown, interval

sys.path.insert(0, str(ROOT / 'scripts'))
from variant_table import rows, run, source, write_table  # noqa: E402

GALLERY = ROOT / 'attention/GALLERY.md'
LOSSES = ('e2_dsa', 'e1_asga', 'e5_isoflop')   # experiments with a loss against causal's, the best one first
T, LINE = 512, 4             # pixels of a mask, and between those of two heads

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
    """Draw VARIANT.png in a folder."""
    with tempfile.TemporaryDirectory() as work:
        drawn = Path(work) / 'mask.png'
        run(variant, *FORMS.get(variant, ()), '--model', 'qwen-1m', '--seq-len', T, '--show-mask', drawn)
        save(1 - mean_of_heads(numpy.asarray(Image.open(drawn).convert('L')) / 255), folder / f'{variant}.png')


def mean_of_heads(mask):
    """The mean of the heads' masks, which --show-mask draws side by side where they differ."""
    rows, columns = (1 + (size - T) // (T + LINE) for size in mask.shape)
    at = [(row * (T + LINE), column * (T + LINE)) for row in range(rows) for column in range(columns)]
    return numpy.mean([mask[y:y + T, x:x + T] for y, x in at], axis=0)


def save(seen, path):
    """Save a mask with axes; grey: keys that only some heads see."""
    figure, ax = pyplot.subplots(figsize=(4, 4), layout='constrained')
    ax.imshow(seen, cmap='Greys', vmin=0, vmax=1, interpolation='nearest')
    ax.set(xlabel='key', ylabel='query', xticks=range(0, T + 1, 128), yticks=range(0, T + 1, 128))
    ax.grid(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    Image.open(path).convert('L').quantize(16, dither=Image.Dither.NONE).save(path, optimize=True)


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
                    {title: at_most(found.get(arm)) for title, found in costs} |
                    {'difference of loss': difference(report, arm)} | {f'step, {card["gpu"]}': on_card(card, arm) for card in cards()})
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


def on_card(card, arm):
    steps = card['whole_steps']
    return f'{steps["causal"]["is"] / steps[arm]["is"]:.2f}' if arm in steps else EMPTY


def page(report, variants):
    """The text of the gallery."""
    gpus = '; '.join(f'{card["gpu"]}, 134M parameters, 32 x 1,024 tokens, {card["whole_steps"]["causal"]["date"]}' for card in cards())
    entries = [{'variant': variant, 'form': ' '.join(map(str, FORMS.get(variant, ()))), 'source': source(variant),
                'formula': formula(variant)} for variant in variants]
    template = jinja2.Template((HERE / 'gallery.md.j2').read_text(encoding='utf-8'), trim_blocks=True)
    return template.render(gpus=gpus, entries=entries, results=results(report, variants)).rstrip() + '\n'


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--print', nargs='+', metavar='VARIANT', help='print the page of these variants; draw and write nothing')
    options = parser.parse_args(arguments)
    variants = [variant for variant, form in rows(None) if not form]
    for unknown in set(options.print or []) - set(variants): raise Refused(f'{unknown}: there is no attention/{unknown}.cuh')
    text = page(Report(sorted(map(str, (HERE / 'results').glob('*.jsonl')))), options.print or variants)
    if options.print:
        print(text, end='')
        return 0
    try:
        for variant in variants: draw(variant, ROOT / 'dev/pictures')
        write_whole(GALLERY, text.encode())
        write_table()
    except OSError as error:
        raise Refused(f'{error.filename}: cannot be written ({error.strerror})', EXIT_DATA) from error
    return 0


if __name__ == '__main__':
    guarded(main)
