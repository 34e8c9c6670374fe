#!/usr/bin/env python3
"""attention/GALLERY.md: of every variant its mask as the engine draws it, its text, its cost and what experiments found.

    python3 scripts/experiments/gallery.py                      # make all first; ledgers of results/; pictures in dev/pictures
    python3 scripts/experiments/gallery.py --print --variants causal dsa       # to standard output, without pictures
    python3 scripts/experiments/gallery.py --check              # whether GALLERY.md and the table of variants say what is so now

A picture is of a fresh model, 512 tokens of the bundled text and windows and blocks so small that a pattern shows: rows are
queries, columns keys, a panel for each kind of head. Exit codes: 0 done, 1 a program is missing or failed, or --check finds another
text, 2 usage, 3 data.
"""
import argparse
import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from statistics import mean, median

from packages import EXIT_DATA, EXIT_FAILED, Refused, guarded, require

require('scipy')
from analysis import Report                                                  # noqa: E402
from plan import HERE                                                        # noqa: E402
from prepare import ROOT, write_whole                                        # noqa: E402
from tables import interval                                                  # noqa: E402

sys.path.insert(0, str(ROOT / 'scripts'))
from variant_table import LENGTHS, README, facts, percent, place, rows, run, source, table as table_of_variants   # noqa: E402

GALLERY = ROOT / 'attention/GALLERY.md'
TOO_FEW = ('e10_stability', 'e13_budget')   # one or two pairs a setting: no interval, or one of up to 2 nats
WHOLE_STEPS = 'whole steps of 134M, B 32, T 1024'   # what dev/gpu_day.sh trains

WINDOW = ('--window', 96)
FORMS = {  # what shows a variant's pattern in 512 tokens
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


def compressed(png):
    """The same PNG, smaller: the engine stores pixels as they are."""
    chunks, at, pixels = [], 8, b''
    while at < len(png):
        size, kind = struct.unpack('>I4s', png[at:at + 8])
        content = png[at + 8:at + 8 + size]
        at += size + 12
        if kind == b'IDAT': pixels += content
        else: chunks.append((kind, content))
    chunks.insert(-1, (b'IDAT', zlib.compress(zlib.decompress(pixels), 9)))
    return png[:8] + b''.join(struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))
                              for kind, content in chunks)


def picture(variant, folder):
    """Draws VARIANT.png in a folder."""
    with tempfile.TemporaryDirectory() as work:
        drawn = Path(work) / 'mask.png'
        run(variant, *FORMS.get(variant, ()), '--model', 'qwen-1m', '--seq-len', 512, '--show-mask', drawn)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f'{variant}.png', compressed(drawn.read_bytes()))


def text(variant):
    """The comment at the top of the variant's file, which has formula, source and what is read into it."""
    lines = []
    for line in (ROOT / f'attention/{variant}.cuh').read_text(encoding='utf-8').splitlines():
        if not line.startswith('//'): break
        lines.append(line[3:])
    return '\n'.join(lines)


def whole_steps(variant):
    """Lines of the GPUs that have trained it, from the files that dev/gpu/results.py keeps, one per card."""
    lines = []
    for path in sorted((ROOT / 'dev/gpu').glob('*.json')):
        card = json.loads(path.read_text(encoding='utf-8'))
        measured, causal = (card.get('whole_steps', {}).get(name) for name in (variant, 'causal'))
        if not measured or not causal: continue
        ratio = '' if variant == 'causal' else f' {causal["is"] / measured["is"]:.2f} of causal\'s,'
        lines.append(f'- step time, {card["gpu"]}:{ratio} {measured["is"]:,.0f} tokens/s ({WHOLE_STEPS}, {measured["date"]})')
    return lines


def speed(report, variant):
    """Step times against causal's: by turns as ledgers have them, and whole steps on GPUs."""
    lines = []
    for timing in report.timings if report else []:
        ratios = timing.values(variant, 'ratio') if variant in timing.arms and variant != timing.experiment.baseline else []
        if not ratios: continue
        machine = timing.values(variant, 'machine')[-1]
        lines.append(f'- step time, {timing.title}: {median(ratios):.2f} of causal\'s ({len(ratios)} rounds, {machine})')
    return lines + whole_steps(variant)


def counted(count, what):
    return f'{count} {what}{"s" * (count > 1)}'


def found(report, variant):
    """What the ledgers have of it, a line for every setting: accuracies, then losses."""
    accuracies, losses = [], []
    for table in report.tables if report else []:
        arm = table.arms.get(variant)
        if arm is None or table.experiment.name in TOO_FEW: continue
        if arm.accuracies:
            accuracies.append(f'- {table.title}: {mean(arm.accuracies.values()):.0%} right, {counted(len(arm.accuracies), "run")}')
        elif comparison := table.comparisons.get((variant, table.experiment.baseline)):
            losses.append(f'- {table.title}: {interval(comparison)} nats against {table.experiment.baseline}, '
                          f'{counted(comparison.pairs, "pair")}')
        elif arm.sound and variant == table.experiment.baseline:
            losses.append(f'- {table.title}: {mean(arm.sound):.4f} nats, {counted(len(arm.sound), "run")}')
    return accuracies + losses or ['- no run so far']


def entry(variant, report, options):
    parameters, causal, shares = facts(variant, (), options.model)
    cost = ', '.join(f'{percent(shares[T][0])} of the pairs and {percent(shares[T][1])} of the tiles at {T}' for T in LENGTHS)
    form = ' '.join(map(str, FORMS.get(variant, ())))
    return '\n'.join([
        f'## {variant}', '', f'<img src="../dev/pictures/{variant}.png" width="320" alt="{source(variant)}">', '',
        f'`./train_{variant} {form}`'.replace(' `', '`') + f', {parameters:,} parameters with qwen-7m; at its defaults {cost}.', '',
        '```text', text(variant), '```', '', *speed(report, variant), *found(report, variant), ''])


def page(report, variants, options):
    head = ['# The survey in pictures', '',
            'Made by `python3 scripts/experiments/gallery.py` from the programs, their sources and the ledgers of',
            '`scripts/experiments/results`. Rows of a picture are queries, columns keys, black is seen; a fresh model reads 512',
            'tokens of the bundled text with the options that stand below it. Below the text are step times against causal\'s, accuracies',
            'and losses, of the scales they name: [Published claims, run again](../scripts/experiments/README.md). Of e10_stability nothing',
            'is here: its two pairs a setting have intervals of up to 2 nats.', '']
    return '\n'.join(head + [entry(variant, report, options) for variant in variants])


def check(report, variants, options):
    """Refuses a GALLERY.md or a table of variants that has another text; of --variants their entries alone are looked for."""
    kept, readme = GALLERY.read_text(encoding='utf-8'), README.read_text(encoding='utf-8')
    begin, end = place(readme)
    if options.variants: same = all(entry(variant, report, options) in kept for variant in variants)
    else: same = kept == page(report, variants, options)
    if not same: raise Refused(f'{GALLERY}: is not what ledgers, sources and programs say; gallery.py writes it', EXIT_FAILED)
    if not options.variants and readme[begin:end] != table_of_variants(options, readme[begin:end]):
        raise Refused(f'{README}: its table of variants is not what the programs say; variant_table.py writes it', EXIT_FAILED)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--print', action='store_true', help='to standard output, and draw nothing')
    parser.add_argument('--check', action='store_true', help='end with 1 where GALLERY.md or the table of variants has another text')
    parser.add_argument('--variants', nargs='+', help='these alone, with --print or --check')
    parser.add_argument('--ledger', nargs='+', help='default: all of scripts/experiments/results')
    options = parser.parse_args()
    options.model, options.time = 'qwen-7m', False
    if options.variants and not (options.print or options.check): parser.error('--variants needs --print or --check')
    ledgers = options.ledger or sorted(map(str, (HERE / 'results').glob('*.jsonl')))
    variants = [variant for variant, form in rows(None) if not form]
    for unknown in set(options.variants or []) - set(variants):
        raise Refused(f'{unknown}: there is no attention/{unknown}.cuh')
    asked = [variant for variant in variants if variant in (options.variants or variants)]
    report = Report(ledgers) if ledgers else None
    if options.check: return check(report, asked, options)
    made = page(report, asked, options)
    if options.print:
        print(made, end='')
        return 0
    try:
        for variant in variants: picture(variant, ROOT / 'dev/pictures')
        write_whole(GALLERY, made.encode())
    except OSError as error:
        raise Refused(f'{error.filename}: cannot be written ({error.strerror})', EXIT_DATA) from error
    return 0


if __name__ == '__main__':
    guarded(main)
