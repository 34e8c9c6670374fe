#!/usr/bin/env python3
"""Loss curves from the log.jsonl files of one or several runs, as a PNG.

    python3 scripts/plot_loss.py out/asga/log.jsonl --out loss.png
    python3 scripts/plot_loss.py out/*/log.jsonl --out compare.png --log-y
    python3 scripts/plot_loss.py out/asga/log.jsonl out/causal/log.jsonl --labels ASGA baseline --out compare.png

Training loss is drawn raw (faint) and smoothed, validation loss as points. Steps are below, tokens above; bits per byte on the right
where the log has them. Exit codes: 0 done, 1 nothing to plot, 2 usage, 3 no matplotlib.
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
            for series in (run.loss, run.val_loss, run.tokens):
                for later in [s for s in series if s >= step]:
                    del series[later]
        run.last_step = step
        if is_number(record['loss']):
            run.loss[step] = record['loss']
        if is_number(record.get('tokens')):
            run.tokens[step] = record['tokens']
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


def draw_run(axes, run, color):
    name = run.label
    if run.val_loss:
        last = run.val_loss[max(run.val_loss)]
        name += f' (validation {last:.3f}'
        name += f', {last * median(run.bits_per_nat):.3f} bits per byte)' if run.bits_per_nat else ')'
    steps = sorted(run.loss)
    losses = [run.loss[s] for s in steps]
    if steps:
        axes.plot(steps, losses, color=color, alpha=0.22, linewidth=0.8)
        axes.plot(steps, smooth(losses), color=color, linewidth=1.8, label=name)
    steps = sorted(run.val_loss)
    if steps:
        axes.plot(steps, [run.val_loss[s] for s in steps], color=color, linestyle='--', linewidth=1, marker='o', markersize=5,
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
    figure, axes = pyplot.subplots(figsize=(9, 5.2), layout='constrained')
    for i, run in enumerate(runs):
        draw_run(axes, run, COLORS[i % len(COLORS)])
    if options.log_y:
        axes.set_yscale('log')
        axes.yaxis.set_major_locator(pyplot.matplotlib.ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(pyplot.FuncFormatter(lambda y, _: f'{y:g}'))
        axes.yaxis.set_minor_formatter(pyplot.NullFormatter())
    axes.xaxis.set_major_formatter(pyplot.FuncFormatter(count))
    axes.set_xlim(left=0)
    axes.grid(color='#dddddd', linewidth=0.6)
    axes.set_xlabel('optimiser steps')
    axes.set_ylabel('loss, nats per token')
    ratio = common_ratio([tokens_per_step(run) for run in runs])
    if ratio:
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
    try:
        draw(runs, options)
    except OSError as error:
        sys.exit(f'{options.out}: {error.strerror}')


if __name__ == '__main__':
    main()
