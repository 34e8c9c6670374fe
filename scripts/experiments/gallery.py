#!/usr/bin/env python3
"""attention/GALLERY.md, a page with every variant's mask, formula and results, and the table of variants in attention/README.md.

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
from PIL import Image

from analysis import Report, cards
from shards import write_whole
from tables import interval

sys.path.insert(0, str(ROOT / 'scripts'))
from variant_table import rows, run, source, write_table  # noqa: E402

GALLERY = ROOT / 'attention/GALLERY.md'
LOSSES = ('e2_dsa', 'e1_asga', 'e5_isoflop')   # experiments with a loss against causal's, the best one first
RECALL = ['copy_32', 'copy_64', 'copy_128']    # settings of e7_recall: letters from 32, 64 and 128 tokens back

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
        run(variant, *FORMS.get(variant, ()), '--model', 'qwen-1m', '--seq-len', 512, '--show-mask', drawn)
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(drawn).save(folder / f'{variant}.png', optimize=True)   # the engine stores pixels as they are


def formula(variant):
    """The first indented lines of the comment at the top of the variant's file; an ablation has none of its own."""
    comment = re.match(r'(//.*\n)*', (ROOT / f'attention/{variant}.cuh').read_text(encoding='utf-8'))[0]
    found = re.search(r'(^// {3,}.*\n)+', comment, re.MULTILINE)
    return '\n'.join(line.removeprefix('//     ') for line in found[0].splitlines()) if found else ''


def results(report, variant):
    """A variant's loss against causal's, or copies where there is none, and the time of its step."""
    figures = [f'loss {interval(c)} ({name}, {c.pairs} pairs)' for name in LOSSES
               for (experiment, scale, _), of in report.comparisons.items() if (experiment, scale) == (name, 'reduced')
               and (c := of.get((variant, 'causal'))) and c.pairs >= 2][:1]
    runs = report.trained
    copies = runs[(runs.experiment == 'e7_recall') & (runs.scale == 'reduced') & (runs.arm == variant) & runs.setting.isin(RECALL)]
    if len(shares := copies.groupby('setting').accuracy.mean().dropna()) == len(RECALL) and not figures:
        figures = [f'copy {", ".join(f"{shares[setting]:.2f}" for setting in RECALL)}']
    if variant != 'causal':
        figures += [f'step {card["whole_steps"]["causal"]["is"] / card["whole_steps"][variant]["is"]:.2f}'
                    for card in cards() if variant in card['whole_steps']]
    line = '; '.join(figures)
    return line[:1].upper() + line[1:]


def page(report, variants):
    """The text of the gallery."""
    gpus = '; '.join(f'{card["gpu"]}, 134M parameters, 32 x 1,024 tokens, {card["whole_steps"]["causal"]["date"]}' for card in cards())
    entries = [{'variant': variant, 'form': ' '.join(map(str, FORMS.get(variant, ()))), 'source': source(variant),
                'formula': formula(variant), 'results': results(report, variant)} for variant in variants]
    template = jinja2.Template((HERE / 'gallery.md.j2').read_text(encoding='utf-8'), trim_blocks=True)
    return template.render(gpus=gpus, entries=entries).rstrip() + '\n'


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
