#!/usr/bin/env python3
"""Loss curves from the log.jsonl files of one or several runs, as a PNG.

    python3 scripts/plot_loss.py out/asga/log.jsonl --out loss.png
    python3 scripts/plot_loss.py out/*/log.jsonl --out compare.png --log-y
    python3 scripts/plot_loss.py out/causal/log.jsonl out/asga/log.jsonl --labels baseline ASGA --difference --axis tokens

Training loss is drawn raw (faint) and smoothed, validation loss as points. Steps are below, tokens above; bits per byte on the right
where the log has them. --axis tokens or seconds (of training steps) puts runs of unlike steps beside each other; --difference adds a
panel of each run's loss minus the first's, at equal places on that axis. Exit codes: 0 done, 1 nothing to plot, 2 usage, 3 no matplotlib.
"""
import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000']   # told apart by colour-blind readers too


@dataclass
class Run:
    label: str
    loss: dict = field(default_factory=dict)         # step -> training loss, nats per token
    val_loss: dict = field(default_factory=dict)     # step -> validation loss, nats per token
    tokens: dict = field(default_factory=dict)       # step -> tokens seen so far
    seconds: dict = field(default_factory=dict)      # step -> seconds of training steps so far
    bits_per_nat: list = field(default_factory=list)  # val_bpb / val_loss: a property of the text and the tokenizer
    last_step: float = -1


def load_matplotlib():
    """matplotlib.pyplot. A python3 of the user's own (conda, pyenv) often lacks what the system's has: then that one takes over."""
    try:
        import matplotlib
    except ImportError:
        system = '/usr/bin/python3'
        tried = os.environ.get('PLOT_LOSS_TRIED_SYSTEM_PYTHON')
        check = [system, '-c', 'import matplotlib']
        if not tried and os.access(system, os.X_OK) and subprocess.run(check, stderr=subprocess.DEVNULL).returncode == 0:
            os.environ['PLOT_LOSS_TRIED_SYSTEM_PYTHON'] = '1'
            os.execv(system, [system, *sys.argv])
        print('no plot: matplotlib is missing (apt install python3-matplotlib, or pip install matplotlib)', file=sys.stderr)
        sys.exit(3)
    matplotlib.use('Agg')
    from matplotlib import pyplot
    return pyplot


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def add_record(run, record):
    step = record.get('step')
    if not is_number(step) or 'event' in record:
        return
    if 'loss' in record:
        if step <= run.last_step:                    # resumed from an earlier step: what was logged beyond it was lost
            for series in (run.loss, run.val_loss, run.tokens, run.seconds):
                for later in [s for s in series if s >= step]:
                    del series[later]
        run.last_step = step
        if is_number(record['loss']):
            run.loss[step] = record['loss']
        if is_number(record.get('tokens')):
            run.tokens[step] = record['tokens']
        if is_number(record.get('ms')):
            run.seconds[step] = run.seconds.get(max(run.seconds, default=0), 0.0) + record['ms'] / 1000
    if is_number(record.get('val_loss')):
        run.val_loss[step] = record['val_loss']
        if is_number(record.get('val_bpb')) and record['val_loss'] > 0:
            run.bits_per_nat.append(record['val_bpb'] / record['val_loss'])


def read_log(path, label):
    run = Run(label)
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            if number < len(lines):                  # the last line may be half-written: the run was killed or is still going
                print(f'{path}:{number}: not JSON, skipped', file=sys.stderr)
            continue
        if isinstance(record, dict):
            add_record(run, record)
    return run


def smooth(values):
    """Exponential moving average over a fiftieth of the run; over less at the start, where the loss falls fast."""
    average, result = 0.0, []
    for i, value in enumerate(values):
        horizon = max(1.0, min(len(values) / 50, 1 + i / 16))
        average += (value - average) / horizon
        result.append(average)
    return result


def common_ratio(ratios):
    """The ratio that all runs share within half a percent; None when there is none, so that no axis shows a wrong scale."""
    ratios = [r for r in ratios if r]
    if not ratios or max(ratios) > 1.005 * min(ratios):
        return None
    return median(ratios)


def tokens_per_step(run):
    steps = sorted(run.tokens)
    if len(steps) < 2:
        return None
    return (run.tokens[steps[-1]] - run.tokens[steps[0]]) / (steps[-1] - steps[0])


def places(run, steps, axis):
    """Where steps are on the axis. A step without a record of its own, as of a validation, has the place of the last before it."""
    known = {'steps': {}, 'tokens': run.tokens, 'seconds': run.seconds}[axis]
    if axis == 'steps': return list(steps)
    found, ordered, at = [], sorted(known), 0
    for step in steps:
        while at + 1 < len(ordered) and ordered[at + 1] <= step: at += 1
        found.append(known[ordered[at]] if ordered else float('nan'))
    return found


def draw_difference(axes, run, first, color, axis):
    """The losses of a run minus those of the first, where both have some."""
    import numpy
    for of_run, of_first, style in ((run.loss, first.loss, {'linewidth': 1.5}),
                                    (run.val_loss, first.val_loss, {'marker': 'o', 'linestyle': '--', 'linewidth': 1, 'markersize': 4})):
        if not of_run or not of_first: continue
        (x, y), (x0, y0) = ((places(r, sorted(losses), axis), [losses[s] for s in sorted(losses)])
                            for r, losses in ((run, of_run), (first, of_first)))
        if of_run is run.loss: y, y0 = smooth(y), smooth(y0)
        inside = [n for n, place in enumerate(x) if x0[0] <= place <= x0[-1]]
        axes.plot([x[n] for n in inside], [y[n] - numpy.interp(x[n], x0, y0) for n in inside], color=color, **style)


def draw_run(axes, run, color, axis):
    name = run.label
    if run.val_loss:
        last = run.val_loss[max(run.val_loss)]
        name += f' (validation {last:.3f}'
        name += f', {last * median(run.bits_per_nat):.3f} bits per byte)' if run.bits_per_nat else ')'
    steps = sorted(run.loss)
    losses = [run.loss[s] for s in steps]
    if steps:
        x = places(run, steps, axis)
        axes.plot(x, losses, color=color, alpha=0.22, linewidth=0.8)
        axes.plot(x, smooth(losses), color=color, linewidth=1.8, label=name)
    steps = sorted(run.val_loss)
    if steps:
        axes.plot(places(run, steps, axis), [run.val_loss[s] for s in steps], color=color, linestyle='--', linewidth=1, marker='o', markersize=5,
                  markerfacecolor='white', markeredgewidth=1.4, zorder=3, label=None if run.loss else name)


def count(value, _=None):
    """12,000,000 -> 12M, for tick labels."""
    for size, suffix in ((1e12, 'T'), (1e9, 'B'), (1e6, 'M'), (1e3, 'K')):
        if abs(value) >= size:
            return f'{value / size:g}{suffix}'
    return f'{value:g}'


def scale_axis(make, ratio):
    """A second axis that shows `ratio` times the first."""
    return make(functions=(lambda x: x * ratio, lambda x: x / ratio))


def draw(runs, options):
    pyplot = load_matplotlib()
    pyplot.rcParams.update({'font.size': 10, 'axes.edgecolor': '#888888', 'axes.axisbelow': True})
    differs = options.difference
    figure, panels = pyplot.subplots(1 + differs, figsize=(9, 5.2 + 2.6 * differs), layout='constrained', squeeze=False, sharex=True,
                                     height_ratios=(2, 1)[:1 + differs])
    axes, below = panels[0][0], panels[-1][0]
    for i, run in enumerate(runs):
        draw_run(axes, run, COLORS[i % len(COLORS)], options.axis)
        if differs and i: draw_difference(below, run, runs[0], COLORS[i % len(COLORS)], options.axis)
    if differs:
        below.axhline(0, color=COLORS[0], linewidth=1)
        below.grid(color='#dddddd', linewidth=0.6)
        below.set_ylabel(f'minus {runs[0].label}')
    if options.log_y:
        axes.set_yscale('log')
        axes.yaxis.set_major_locator(pyplot.matplotlib.ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(pyplot.FuncFormatter(lambda y, _: f'{y:g}'))
        axes.yaxis.set_minor_formatter(pyplot.NullFormatter())
    axes.xaxis.set_major_formatter(pyplot.FuncFormatter(count))
    axes.set_xlim(left=0)
    axes.grid(color='#dddddd', linewidth=0.6)
    below.set_xlabel({'steps': 'optimiser steps', 'tokens': 'tokens', 'seconds': 'seconds of training'}[options.axis])
    axes.set_ylabel('loss, nats per token')
    ratio = common_ratio([tokens_per_step(run) for run in runs])
    if ratio and options.axis == 'steps':
        top = scale_axis(lambda **k: axes.secondary_xaxis('top', **k), ratio)
        top.set_xlabel('tokens')
        top.xaxis.set_major_formatter(pyplot.FuncFormatter(count))
    ratio = common_ratio([median(run.bits_per_nat) for run in runs if run.bits_per_nat])
    if ratio:
        right = scale_axis(lambda **k: axes.secondary_yaxis('right', **k), ratio)
        right.set_ylabel('bits per byte')
        if options.log_y:
            right.yaxis.set_major_locator(pyplot.matplotlib.ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            right.yaxis.set_major_formatter(pyplot.FuncFormatter(lambda y, _: f'{y:g}'))
            right.yaxis.set_minor_formatter(pyplot.NullFormatter())
    handles, _ = axes.get_legend_handles_labels()
    legend_handles = handles + [pyplot.Line2D([], [], color='#666666', linewidth=1.8, label='training, smoothed')]
    if any(run.val_loss for run in runs):
        legend_handles.append(pyplot.Line2D([], [], color='#666666', linestyle='--', linewidth=1, marker='o', markersize=5,
                                            markerfacecolor='white', markeredgewidth=1.4, label='validation'))
    axes.legend(handles=legend_handles, loc='upper right', frameon=True, framealpha=0.9, edgecolor='none')
    if options.title:
        axes.set_title(options.title)
    save(figure, options.out, 150)


def save(figure, path, dpi):
    """Writes the picture; its name says the format."""
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in ['', *formats]:
        print(f'{path}: no format {path.suffix}; there are: {", ".join(sorted(formats))}', file=sys.stderr)
        sys.exit(2)
    final = path if path.suffix else path.with_name(path.name + '.png')
    unfinished = final.with_name(f'{final.name}.{os.getpid()}.tmp')
    unfinished.unlink(missing_ok=True)
    try:
        with open(unfinished, 'xb') as file:   # new, and renamed: a link of either name is replaced, not followed
            figure.savefig(file, dpi=dpi, format=final.suffix[1:].lower())
        unfinished.replace(final)
    finally:
        unfinished.unlink(missing_ok=True)


def labels_of(paths, given):
    """A run is called after its folder, or after its whole path where two folders have the same name."""
    if given:
        return given
    names = [path.resolve().parent.name for path in paths]
    return [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('logs', nargs='+', type=Path, metavar='LOG', help='log.jsonl of a run')
    parser.add_argument('--out', type=Path, default=Path('loss.png'), help='the picture to write (default loss.png)')
    parser.add_argument('--labels', nargs='+', metavar='NAME', help='one per log; the folders\' names by default')
    parser.add_argument('--title')
    parser.add_argument('--axis', choices=('steps', 'tokens', 'seconds'), default='steps', help='horizontal axis (default steps)')
    parser.add_argument('--difference', action='store_true', help='panel of the differences to the first run')
    parser.add_argument('--log-y', action='store_true', help='logarithmic loss axis')
    options = parser.parse_args()
    if options.labels and len(options.labels) != len(options.logs):
        parser.error(f'--labels: {len(options.labels)} names for {len(options.logs)} logs')
    runs = []
    for path, label in zip(options.logs, labels_of(options.logs, options.labels)):
        try:
            run = read_log(path, label)
        except OSError as error:
            sys.exit(f'{path}: {error.strerror}')
        if run.loss or run.val_loss:
            runs.append(run)
        else:
            print(f'{path}: no step with a loss yet, nothing to plot', file=sys.stderr)
    if not runs:
        sys.exit(1)
    if options.difference and len(runs) < max(2, len(options.logs)):
        print('--difference needs two logs with losses, of which the first is the baseline', file=sys.stderr)
        sys.exit(2)
    try:
        draw(runs, options)
    except OSError as error:
        sys.exit(f'{options.out}: {error.strerror}')


if __name__ == '__main__':
    main()
