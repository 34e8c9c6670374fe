#!/usr/bin/env python3
"""Loss curves from the log.jsonl files of one or several runs, as a PNG.

    python3 scripts/plot_loss.py out/asga/log.jsonl --out loss.png
    python3 scripts/plot_loss.py out/causal/log.jsonl out/asga/log.jsonl --labels baseline ASGA --difference --axis tokens

Training loss is drawn raw (faint) and smoothed, validation loss as points. --axis tokens or seconds (of training steps) puts runs of
unlike steps beside each other; --difference adds a panel of each run's loss minus the first's, at equal places on that axis. Exit
codes: 0 done, 1 nothing to plot, 2 usage, 3 no matplotlib.
"""
import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000']   # told apart by colour-blind readers too
AXES = {'steps': 'optimiser steps', 'tokens': 'tokens', 'seconds': 'seconds of training'}
VALIDATION = {'linestyle': '--', 'linewidth': 1, 'marker': 'o', 'markersize': 5, 'markerfacecolor': 'white', 'markeredgewidth': 1.4}


@dataclass
class Run:
    label: str
    steps: dict = field(default_factory=dict)         # step -> its record
    validations: dict = field(default_factory=dict)   # step -> its record

    def curve(self, key, axis):
        """Places on the axis, and values: key "loss" of training or "val_loss", in nats per token."""
        import numpy
        records = self.steps if key == 'loss' else self.validations
        steps = sorted(step for step in records if is_number(records[step].get(key)))
        values = [records[step][key] for step in steps]
        if axis == 'steps' or not steps: return steps, values
        logged = 'ms' if axis == 'seconds' else axis
        known = sorted(step for step in self.steps if is_number(self.steps[step].get(logged)))
        if not known: sys.exit(f'{self.label}: its log has no {axis}; --axis steps draws it')
        places = [self.steps[step][logged] for step in known]
        return numpy.interp(steps, known, numpy.cumsum(places) / 1000 if axis == 'seconds' else places), values


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


def records_of(path):
    """The records of a log. The last line may be half of one: the run was killed or is still going."""
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            if number < len(lines): print(f'{path}:{number}: not JSON, skipped', file=sys.stderr)
            continue
        if isinstance(record, dict): yield record


def read_log(path, label):
    run, last = Run(label), -1
    for record in records_of(path):
        step = record.get('step')
        if not is_number(step) or 'event' in record: continue
        if 'loss' in record:
            if step <= last:   # resumed from an earlier step: what was logged beyond it was lost
                run.steps, run.validations = ({s: one for s, one in of.items() if s < step} for of in (run.steps, run.validations))
            last = step
            run.steps[step] = record
        if is_number(record.get('val_loss')): run.validations[step] = record
    return run


def smooth(values):
    """Exponential moving average over a fiftieth of the run; over less at the start, where the loss falls fast."""
    average, result = 0.0, []
    for i, value in enumerate(values):
        horizon = max(1.0, min(len(values) / 50, 1 + i / 16))
        average += (value - average) / horizon
        result.append(average)
    return result


def draw_difference(axes, run, first, color, axis):
    """The losses of a run minus those of the first, where both have some."""
    import numpy
    for key, style in (('loss', {'linewidth': 1.5}), ('val_loss', {'marker': 'o', 'linestyle': '--', 'linewidth': 1, 'markersize': 4})):
        (x, y), (x0, y0) = run.curve(key, axis), first.curve(key, axis)
        if not y or not y0: continue
        if key == 'loss': y, y0 = smooth(y), smooth(y0)
        inside = [n for n, place in enumerate(x) if x0[0] <= place <= x0[-1]]
        axes.plot([x[n] for n in inside], [y[n] - numpy.interp(x[n], x0, y0) for n in inside], color=color, **style)


def draw_run(axes, run, color, axis):
    name = run.label
    if run.validations:
        last = run.validations[max(run.validations)]
        bits = last.get('val_bpb')
        name += f' (validation {last["val_loss"]:.3f}' + (f', {bits:.3f} bits per byte)' if is_number(bits) else ')')
    x, losses = run.curve('loss', axis)
    if losses:
        axes.plot(x, losses, color=color, alpha=0.22, linewidth=0.8)
        axes.plot(x, smooth(losses), color=color, linewidth=1.8, label=name)
    axes.plot(*run.curve('val_loss', axis), color=color, **VALIDATION, zorder=3, label=None if losses else name)


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
    axes.xaxis.set_major_formatter(pyplot.matplotlib.ticker.EngFormatter(sep=''))   # 12M
    axes.set_xlim(left=0)
    axes.grid(color='#dddddd', linewidth=0.6)
    below.set_xlabel(AXES[options.axis])
    axes.set_ylabel('loss, nats per token')
    handles = [*axes.get_legend_handles_labels()[0], pyplot.Line2D([], [], color='#666666', linewidth=1.8, label='training, smoothed')]
    if any(run.validations for run in runs): handles.append(pyplot.Line2D([], [], color='#666666', **VALIDATION, label='validation'))
    axes.legend(handles=handles, loc='upper right', frameon=True, framealpha=0.9, edgecolor='none')
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
    parser.add_argument('--axis', choices=AXES, default='steps', help='horizontal axis (default steps)')
    parser.add_argument('--difference', action='store_true', help='panel of the differences to the first run')
    options = parser.parse_args()
    if options.labels and len(options.labels) != len(options.logs):
        parser.error(f'--labels: {len(options.labels)} names for {len(options.logs)} logs')
    runs = []
    for path, label in zip(options.logs, labels_of(options.logs, options.labels)):
        try:
            run = read_log(path, label)
        except OSError as error:
            sys.exit(f'{path}: {error.strerror}')
        if run.validations or any(is_number(record['loss']) for record in run.steps.values()):
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
