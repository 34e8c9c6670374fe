#!/usr/bin/env python3
"""attention/GALLERY.md, a page with every variant's mask, formula and results, and the table of variants in attention/README.md.

    python3 scripts/experiments/gallery.py                                     # make all first; reads the ledgers of results/
    python3 scripts/experiments/gallery.py --print --variants causal dsa       # to standard output, without pictures and table

Exit codes: 0 done, 1 a program is missing or failed, 2 usage, 3 data.
"""
import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from statistics import mean

from packages import EXIT_DATA, HERE, ROOT, Refused, guarded, require

require('PIL', 'scipy', 'statsmodels', 'pandas')
from PIL import Image                                                        # noqa: E402

from analysis import Report                                                  # noqa: E402
from shards import write_whole                                               # noqa: E402
from tables import interval                                                  # noqa: E402

sys.path.insert(0, str(ROOT / 'scripts'))
from variant_table import rows, run, source, write_table                     # noqa: E402

GALLERY = ROOT / 'attention/GALLERY.md'
LOSSES = ('e2_dsa', 'e1_asga', 'e5_isoflop')   # experiments with a loss against causal's, the best one first
RECALL = ('copy_32', 'copy_64', 'copy_128')    # settings of e7_recall: letters from 32, 64 and 128 tokens back
HEAD = '''\
# The survey in pictures

Made by `python3 scripts/experiments/gallery.py` from programs, sources and ledgers.

- **Pictures**: rows are queries, columns keys, black is visible. A fresh model reads 512 tokens of the bundled text with the
  options under the picture. A mask shows nothing of a mechanism that weighs all keys.
- **Loss**: difference of validation loss to causal's in nats, by seed, with its 95% interval (0.85M parameters, 500 steps, bytes). Such
  differences still shrink at this budget: no verdict on a mechanism at another size.
- **Copy**: share of letters copied right from 32, 64 and 128 tokens back, chance 0.06 (0.46M parameters, windows of 16, one or two
  runs: learnt or not learnt).
- **Step**: time of a whole training step relative to causal's ({gpus}).

More: [Published claims, run again](../scripts/experiments/README.md) and the headers of `attention/*.cuh`.
'''

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
    'longformer': (*WINDOW, '--global-tokens', 32),
    'longnet': ('--longnet-segment', 64),
    'moba': ('--moba-block', 64, '--moba-top-k', 3),
    'nsa': ('--window', 63, '--nsa-selected', 3),
    'routing': (*WINDOW, '--routing-clusters', 8),
    'seer': ('--seer-top-k', 2),
    'sinks': (*WINDOW, '--sinks', 16),
    'sinks_cache': (*WINDOW, '--sinks', 16),
    'sliding_window': WINDOW,
    'strided': ('--stride', 32),
}


def picture(variant, folder):
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
    return ['```text', *(line.removeprefix('//     ') for line in found[0].splitlines()), '```', ''] if found else []


def cards():
    """Measurements that dev/gpu/results.py keeps, one file per GPU, with whole steps of causal."""
    found = [json.loads(path.read_text(encoding='utf-8')) for path in sorted((ROOT / 'dev/gpu').glob('*.json'))]
    return [card for card in found if 'causal' in card.get('whole_steps', {})]


def results(report, variant):
    """Its result figures: loss against causal's, or copies where there is none, and the time of a step."""
    tables = {(t.experiment.name, t.setting): t for t in report.tables if t.scale == 'reduced' and variant in t.arms}
    compared = [(name, c) for name in LOSSES for (e, _), t in tables.items() if e == name
                and (c := t.comparisons.get((variant, t.experiment.baseline))) and c.pairs >= 2]
    figures = [f'loss {interval(c)} ({name}, {c.pairs} pairs)' for name, c in compared[:1]]
    copies = [t.arms[variant].accuracies.values() for setting in RECALL if (t := tables.get(('e7_recall', setting)))]
    if copies and all(copies) and not figures: figures.append(f'copy {", ".join(f"{mean(found):.2f}" for found in copies)}')
    if variant != 'causal':
        figures += [f'step {card["whole_steps"]["causal"]["is"] / card["whole_steps"][variant]["is"]:.2f}'
                    for card in cards() if variant in card['whole_steps']]
    line = '; '.join(figures)
    return [line[:1].upper() + line[1:] + '.', ''] if line else []


def entry(variant, report):
    form = ' '.join(map(str, FORMS.get(variant, ())))
    return '\n'.join([f'## {variant}', '', f'<img src="../dev/pictures/{variant}.png" width="320" alt="mask of {variant}">', '',
                      *([f'`{form}`', ''] if form else []), f'{source(variant)}.', '', *formula(variant), *results(report, variant)])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--print', action='store_true', help='print the page; draw and write nothing')
    parser.add_argument('--variants', nargs='+', help='a page of these variants, with --print')
    parser.add_argument('--ledger', nargs='+', help='ledgers (default: all of scripts/experiments/results)')
    options = parser.parse_args(arguments)
    if options.variants and not options.print: parser.error('--variants needs --print')
    variants = [variant for variant, form in rows(None) if not form]
    for unknown in set(options.variants or []) - set(variants):
        raise Refused(f'{unknown}: there is no attention/{unknown}.cuh')
    report = Report(options.ledger or sorted(map(str, (HERE / 'results').glob('*.jsonl'))))
    gpus = '; '.join(f'{card["gpu"]}, 134M parameters, 32 x 1,024 tokens, {card["whole_steps"]["causal"]["date"]}' for card in cards())
    page = '\n'.join([HEAD.format(gpus=gpus), *(entry(one, report) for one in variants if one in (options.variants or variants))])
    if options.print:
        print(page, end='')
        return 0
    try:
        for variant in variants: picture(variant, ROOT / 'dev/pictures')
        write_whole(GALLERY, page.encode())
        write_table()
    except OSError as error:
        raise Refused(f'{error.filename}: cannot be written ({error.strerror})', EXIT_DATA) from error
    return 0


if __name__ == '__main__':
    guarded(main)
