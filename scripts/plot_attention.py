#!/usr/bin/env python3
"""Heat maps over layers and heads of what attention did during a run, from its log.jsonl (--monitor-every), as a PNG.

    python3 scripts/plot_attention.py out/asga/log.jsonl --out attention.png
    python3 scripts/plot_attention.py out/asga/log.jsonl --step 500          # the last look up to step 500
    python3 scripts/plot_attention.py out/asga/log.jsonl --all               # a row of maps per look, 24 looks at most

A row sees `pairs` keys; entropy is that of its weights, in nats and as a share of log(keys); mass_95 and mass_99 are the fewest
keys that hold 95% and 99% of its weight, as a share of those that it sees. What the variant does not have (a gate, say) is left
out; a head that collapsed has a cross. Where a layer sums several softmaxes (nsa), each has a row of maps of its own beside one of
what pairs and tiles add up to; layers that lack a softmax are blank in its maps. Exit codes: 0 done, 1 nothing to plot, 2 usage,
3 no matplotlib.
"""
import argparse
import json
import math
import sys
from pathlib import Path

from plot_loss import load_matplotlib, save

# key in the log: title, lowest and highest value of the colours (None: as the data has it)
MAPS = {
    'entropy': ('entropy, nats', 0, None),
    'normalised_entropy': ('entropy / log(keys)', 0, 1),
    'mass_95': ('keys with 95% of the mass', 0, 1),
    'mass_99': ('keys with 99% of the mass', 0, 1),
    'pairs': ('pairs seen, share of causal', 0, None),
    'tiles': ('tiles visited, share of causal', 0, None),
    'gate': ('gate, mean', None, None),
    'gate_off': ('gate, share of zeros', 0, 1),
    'pair_gate': ('gate on pairs, mean', 0, 1),
}


LARGEST_PICTURE = 60000   # pixels on a side: more than 65535 a PNG of matplotlib cannot have
MOST_LOOKS = 24           # in one picture: each takes matplotlib seconds


def key_of(name, branch):
    """A map's key in the log: "entropy", or "entropy.slc" where a layer sums several softmaxes."""
    return f'{name}.{branch}' if branch else name


def branch_of(key):
    return key.partition('.')[2]


def is_map(key):
    return key.partition('.')[0] in MAPS


def numbers(table):
    """null becomes NaN."""
    return [[math.nan if x is None else float(x) for x in row] for row in table]


def read_looks(path):
    """step -> {key: (L, NH)} of looks that have a number; a resumed run's later look at the same step replaces the earlier."""
    looks = {}
    for line in path.read_text(encoding='utf-8', errors='replace').splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue                                     # half-written: the run was killed or is still going
        if isinstance(record, dict) and record.get('event') == 'attention':
            looks[record['step']] = {key: numbers(record[key]) for key in record
                                     if is_map(key) or key.partition('.')[0] == 'collapsed'}
    return {step: look for step, look in looks.items() if any(known(table) for key, table in look.items() if is_map(key))}


def known(table):
    return [x for row in table for x in row if not math.isnan(x)]


def draw_map(pyplot, axes, looks, step, name, branch):
    look, (title, low, high) = looks[step], MAPS[name]
    key = key_of(name, branch)
    every = [x for other in looks.values() for x in known(other.get(key, []))]        # one scale for all looks
    if not every or key not in look:
        axes.set_axis_off()
        return
    low = min(every) if low is None else low
    high = max(every) if high is None else high
    image = axes.imshow(look[key], vmin=low, vmax=high if high > low else low + 1, cmap='viridis', aspect='auto')
    axes.figure.colorbar(image, ax=axes, fraction=0.08)
    axes.set_title(f'{branch + ": " if branch else ""}{title}, step {step}', fontsize=9)
    axes.set_xlabel('head')
    axes.set_ylabel('layer')
    axes.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    collapsed = look.get(key_of('collapsed', branch))
    if name.endswith('entropy') and collapsed:
        layers, heads = zip(*collapsed)
        axes.plot(heads, layers, 'rx', markersize=7)


def draw(looks, options):
    """A row of maps for each look and branch; the names of maps and the (step, branch) of rows are those that have a number."""
    pyplot = load_matplotlib()
    tables = {(step, key): table for step, look in looks.items() for key, table in look.items() if is_map(key) and known(table)}
    names = [name for name in MAPS if any(key.partition('.')[0] == name for _, key in tables)]
    rows = list(dict.fromkeys((step, branch_of(key)) for step, key in tables))
    shape = next(iter(tables.values()))
    width, height = max(3.1, 0.28 * len(shape[0]) + 1.4), max(2.2, 0.28 * len(shape) + 1.0)
    figure, all_axes = pyplot.subplots(len(rows), len(names), figsize=(width * len(names), height * len(rows)), squeeze=False,
                                       layout='constrained')
    for of_row, (step, branch) in zip(all_axes, rows):
        for axes, name in zip(of_row, names):
            draw_map(pyplot, axes, looks, step, name, branch)
    if options.title:
        figure.suptitle(options.title)
    save(figure, options.out, min(130, LARGEST_PICTURE / max(figure.get_size_inches())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('log', type=Path, metavar='LOG', help='log.jsonl of a run')
    parser.add_argument('--out', type=Path, default=Path('attention.png'), help='the picture to write (default attention.png)')
    which = parser.add_mutually_exclusive_group()
    which.add_argument('--step', type=int, help='the last look up to this step; the last of all by default')
    which.add_argument('--all', action='store_true', help=f'every look, one below the other; at most {MOST_LOOKS} of them, evenly spaced')
    parser.add_argument('--title')
    options = parser.parse_args()
    try:
        looks = dict(sorted(read_looks(options.log).items()))
    except OSError as error:
        sys.exit(f'{options.log}: {error.strerror}')
    steps = [step for step in looks if options.step is None or step <= options.step]
    if not steps:
        why = (f'up to step {options.step}; of {len(looks)} the first is of step {min(looks)}, the last of step {max(looks)}'
               if looks else 'to plot; train with --monitor-every N')
        print(f'{options.log}: no look at attention {why}', file=sys.stderr)
        sys.exit(1)
    if not options.all:
        steps = steps[-1:]
    elif len(steps) > MOST_LOOKS:
        print(f'note: {MOST_LOOKS} of {len(steps)} looks, evenly spaced', file=sys.stderr)
        steps = [steps[n * (len(steps) - 1) // (MOST_LOOKS - 1)] for n in range(MOST_LOOKS)]
    try:
        draw({step: looks[step] for step in steps}, options)
    except OSError as error:
        sys.exit(f'{options.out}: {error.strerror}')


if __name__ == '__main__':
    main()
