#!/usr/bin/env python3
"""Heat maps over layers and heads of what attention did during a run, from its log.jsonl (--monitor-every), as a PNG.

    python3 scripts/plot_attention.py out/asga/log.jsonl --out attention.png
    python3 scripts/plot_attention.py out/asga/log.jsonl --all               # a row of maps per look, 24 looks at most

A row sees `pairs` keys; entropy is that of its weights, in nats and as a share of log(keys); mass_95 and mass_99 are the fewest
keys that hold 95% and 99% of its weight, as a share of those that it sees. What the variant does not have (a gate, say) is left
out; a head that collapsed has a cross. Where a layer sums several softmaxes (nsa), each has a row of maps of its own beside one of
what pairs and tiles add up to; layers that lack a softmax are blank in its maps. Exit codes: 0 done, 1 nothing to plot, 2 usage,
3 no matplotlib.
"""
import argparse
import sys
from pathlib import Path

from plot_loss import load_matplotlib, records_of, save

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
    'gate_reach': ('farthest sum in a gate', 0, None),
}


LARGEST_PICTURE = 60000   # pixels on a side: more than 65535 a PNG of matplotlib cannot have
MOST_LOOKS = 24           # in one picture: each takes matplotlib seconds


def read_looks(path):
    """(step, branch) -> {map: (L, NH) with a number}, and which heads "collapsed". A resumed run's later look at a step replaces the
    earlier."""
    import numpy
    looks = {}
    for record in records_of(path):
        if record.get('event') != 'attention': continue
        looks = {of: look for of, look in looks.items() if of[0] != record['step']}
        for key, table in record.items():
            name, _, branch = key.partition('.')   # "entropy", or "entropy.slc" of the branch slc
            table = numpy.array(table, float) if name in MAPS else table   # null becomes NaN
            if name == 'collapsed' or name in MAPS and not numpy.isnan(table).all():
                looks.setdefault((record['step'], branch), {})[name] = table
    return {of: looks[of] for of in sorted(looks, key=lambda of: of[0]) if set(looks[of]) & set(MAPS)}


def draw_map(pyplot, axes, looks, of, name):
    import numpy
    (step, branch), look, (title, low, high) = of, looks[of], MAPS[name]
    if name not in look:
        axes.set_axis_off()
        return
    every = [other[name] for (_, b), other in looks.items() if b == branch and name in other]        # one scale for all looks
    low = min(map(numpy.nanmin, every)) if low is None else low
    high = max(map(numpy.nanmax, every)) if high is None else high
    image = axes.imshow(look[name], vmin=low, vmax=high if high > low else low + 1, cmap='viridis', aspect='auto')
    axes.figure.colorbar(image, ax=axes, fraction=0.08)
    axes.set_title(f'{branch + ": " if branch else ""}{title}, step {step}', fontsize=9)
    axes.set_xlabel('head')
    axes.set_ylabel('layer')
    axes.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    if name.endswith('entropy') and look.get('collapsed'):
        layers, heads = zip(*look['collapsed'])
        axes.plot(heads, layers, 'rx', markersize=7)


def draw(pyplot, looks, out):
    """A row of maps for each look and branch."""
    names = [name for name in MAPS if any(name in look for look in looks.values())]
    layers, heads = next(look[name] for look in looks.values() for name in names if name in look).shape
    width, height = max(3.1, 0.28 * heads + 1.4), max(2.2, 0.28 * layers + 1.0)
    figure, all_axes = pyplot.subplots(len(looks), len(names), figsize=(width * len(names), height * len(looks)), squeeze=False,
                                       layout='constrained')
    for of_row, of in zip(all_axes, looks):
        for axes, name in zip(of_row, names):
            draw_map(pyplot, axes, looks, of, name)
    save(figure, out, min(130, LARGEST_PICTURE / max(figure.get_size_inches())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('log', type=Path, metavar='LOG', help='log.jsonl of a run')
    parser.add_argument('--out', type=Path, default=Path('attention.png'), help='the picture to write (default attention.png)')
    parser.add_argument('--all', action='store_true', help=f'every look, one below the other; at most {MOST_LOOKS} of them, evenly spaced')
    options = parser.parse_args()
    pyplot = load_matplotlib()
    try:
        looks = read_looks(options.log)
    except OSError as error:
        sys.exit(f'{options.log}: {error.strerror}')
    steps = list(dict.fromkeys(step for step, _ in looks))
    if not steps: sys.exit(f'{options.log}: no look at attention to plot; train with --monitor-every N')
    if not options.all:
        steps = steps[-1:]
    elif len(steps) > MOST_LOOKS:
        print(f'note: {MOST_LOOKS} of {len(steps)} looks, evenly spaced', file=sys.stderr)
        steps = [steps[n * (len(steps) - 1) // (MOST_LOOKS - 1)] for n in range(MOST_LOOKS)]
    try:
        draw(pyplot, {of: look for of, look in looks.items() if of[0] in steps}, options.out)
    except OSError as error:
        sys.exit(f'{options.out}: {error.strerror}')


if __name__ == '__main__':
    main()
