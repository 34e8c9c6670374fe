"""Pictures of a report, as SVG text that needs nothing from outside."""

import io
import math
import re
from statistics import mean, median

from packages import require

require('matplotlib')
import matplotlib  # noqa: E402

matplotlib.use('Agg')
from matplotlib import pyplot  # noqa: E402

from analysis import cache_ratio, sweep_means  # noqa: E402

COLORS = [
    '#0072B2',
    '#D55E00',
    '#009E73',
    '#CC79A7',
    '#E69F00',
    '#56B4E9',
    '#000000',
    '#7F7F7F',
    '#8C564B',
    '#17BECF',
    '#BCBD22',
    '#9467BD',
]
MARKERS = 'osD^v'   # of the first twelve arms, the next twelve, ...
pyplot.rcParams.update(
    {
        'font.size': 9,
        'axes.axisbelow': True,
        'axes.grid': True,
        'grid.color': '#dddddd',
        'axes.edgecolor': '#888888',
        'svg.hashsalt': 'experiments',
        'svg.fonttype': 'none',
        'font.family': 'sans-serif',
    }
)


def svg(figure, label):
    """The figure as one <svg> element with a label for readers who do not see it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None, 'Creator': None})
    pyplot.close(figure)
    text = buffer.getvalue()
    text = re.sub(r'<metadata>.*?</metadata>', '', text[text.index('<svg') :], flags=re.DOTALL)
    clean = label.replace('&', 'and').replace('<', '').replace('"', "'")
    return text.replace('<svg ', f'<svg role="img" aria-label="{clean}" ', 1)


def axes(width=6.4, height=3.6, **labels):
    figure, ax = pyplot.subplots(figsize=(width, height), layout='constrained')
    ax.set(**labels)
    return figure, ax


def style(n):
    """Of the n-th arm."""
    return {'color': COLORS[n % len(COLORS)], 'marker': MARKERS[n // len(COLORS)]}


def legend_below(figure, ax):
    """Of more arms than there is room for beside the lines; the figure grows by it."""
    rows = math.ceil(len(ax.get_legend_handles_labels()[1]) / 5)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows)
    ax.legend(loc='upper center', bbox_to_anchor=(0.5, -0.16), ncols=5, fontsize=7)   # loc='outside ...' needs matplotlib 3.7


def forest(said):
    """Our interval of every comparison, and the paper's number beside it."""
    figure, ax = axes(7, 0.9 + 0.34 * len(said), xlabel='difference of validation loss, nats (negative: better)')
    for row, one in enumerate(reversed(said)):
        c = one.comparison
        if c.pairs >= 2:
            ax.errorbar(c.mean, row, xerr=c.half_width, fmt='o', color=COLORS[0], capsize=3)
        elif c.pairs:
            ax.plot(c.mean, row, 'o', color=COLORS[0], markerfacecolor='white')
        ax.plot(one.claim['number'], row, 'D', color=COLORS[1], markersize=6)
    ax.axvline(0, color='#444444', linewidth=0.8)
    ax.set_yticks(
        range(len(said)),
        [
            f'{s.claim["document"]}: {s.claim["arm"]} - {s.claim["against"]}' + (f', {s.setting}' if s.setting else '')
            for s in reversed(said)
        ],
    )
    ax.set_ylim(-0.7, len(said) - 0.3)
    ax.plot([], [], 'o', color=COLORS[0], label='ours, 95%')
    ax.plot([], [], 'D', color=COLORS[1], label='published')
    ax.legend(loc='best', fontsize=8)
    return svg(figure, 'differences with intervals, and the published numbers')


def mean_curve(arm, column):
    """[(x, mean loss)] over seeds, of validations that all sound runs have; x is step (0), tokens (1) or seconds (3)."""
    curves = [r['result']['validation'] for r in arm.records.values() if r['event'] == 'done']
    points = []
    for together in zip(*curves):
        if all(p[2] is not None and p[column] is not None for p in together):
            points.append((sum(p[column] for p in together) / len(together), sum(p[2] for p in together) / len(together)))
    return points


def line_of_each_arm(table, points_of, xlabel, ylabel, what):
    """Of points_of(arm), [(x, y)]; '' where no arm has any."""
    figure, ax = axes(xlabel=xlabel, ylabel=ylabel)
    for n, arm in enumerate(table.arms.values()):
        if points := points_of(arm):
            ax.plot(*zip(*points), **style(n), markersize=3, label=arm.name)
    if not ax.lines:
        pyplot.close(figure)
        return ''
    if len(ax.lines) > len(COLORS): legend_below(figure, ax)
    else: ax.legend(fontsize=8)
    return svg(figure, f'{table.title}: {what}')


def curves(table):
    """'' where the runs of a setting have only read a text: their single point is at step 0."""
    def points_of(arm):
        points = mean_curve(arm, 0)
        return points if points and points[-1][0] > 0 else []
    return line_of_each_arm(table, points_of, 'optimiser steps', 'validation loss, nats', 'loss curves')


def hull(points):
    """Points that no other one beats in both cost and loss, by cost."""
    best, kept = float('inf'), []
    for x, y in sorted(points):
        if y < best:
            kept.append((x, y))
            best = y
    return kept


def pareto(table, tables, timings):
    """Loss against FLOPs and against seconds over the settings of one experiment and scale, with the hull. Where step times were
    taken by turns, seconds are steps times these: runs of one table may come from several machines, or from a busy one."""
    figure, both = pyplot.subplots(1, 2, figsize=(8.4, 3.6), layout='constrained')
    together = [t for t in tables if t.experiment is table.experiment and t.scale == table.scale]
    names = list(dict.fromkeys(arm for t in together for arm in t.arms))
    times = {arm: median(t.values(arm, 'ms')) for t in timings for arm in t.arms}
    for ax, what in zip(both, ('FLOPs', 'seconds')):
        everything = []
        for n, name in enumerate(names):
            points = [(x, y) for t in together if name in t.arms for x, y in cost_of(t.arms[name], what, times.get(name))]
            if points:
                ax.plot(*zip(*points), 'o', markersize=4, color=COLORS[n % len(COLORS)], label=name)
            everything += points
        if everything:
            ax.plot(*zip(*hull(everything)), color='#444444', linewidth=1, drawstyle='steps-post', label='Pareto hull')
        ax.set(xlabel=f'{what} of a run', ylabel='validation loss, nats', xscale='log' if everything else 'linear')
    both[0].legend(fontsize=7)
    return svg(figure, f'{table.experiment.name}: loss against FLOPs and seconds')


def cost_of(arm, what, step_ms):
    """(cost, loss) of every sound run; `step_ms` may be None."""
    for record in arm.records.values():
        r = record['result']
        if record['event'] != 'done' or r['val_loss'] is None:
            continue
        tokens = r['validation'][-1][1] if r['validation'] else None
        if what == 'seconds': cost = r['steps'] * step_ms / 1e3 if step_ms else r['seconds']
        else: cost = tokens * r['flops_per_token'] if tokens and r.get('flops_per_token') else None
        if cost:
            yield cost, r['val_loss']


def rates(by_arm, lr, title):
    """Loss on the tuning half against the learning rate."""
    figure, ax = axes(xlabel='learning rate', ylabel='validation loss (tuning half), nats', xscale='log')
    for n, (arm, by_factor) in enumerate(by_arm.items()):
        if means := sweep_means(by_factor):
            ax.plot(
                [f * lr for f in means], list(means.values()), marker='o', markersize=3, color=COLORS[n % len(COLORS)], label=arm
            )
    ax.legend(fontsize=7)
    return svg(figure, title)


def distance(tables):
    """Accuracy on the items of tasks against the distance of the answer."""
    figure, ax = axes(xlabel='distance, tokens', ylabel='accuracy')
    for n, name in enumerate(dict.fromkeys(arm for t in tables for arm in t.arms)):
        points = []
        for t in tables:
            task = t.experiment.settings[t.setting].get('task', {})
            found = (
                [v for r in t.arms[name].records.values() for v in r['result'].get('accuracy', {}).values() if v is not None]
                if name in t.arms
                else []
            )
            if found and task.get('distance'):
                points.append((task['distance'], sum(found) / len(found)))
        if points:
            ax.plot(*zip(*sorted(points)), marker='o', color=COLORS[n % len(COLORS)], label=name)
    ax.axhline(1 / 16, color='#888888', linestyle='--', linewidth=1, label='chance')
    ax.set_ylim(-0.02, 1.02)
    ax.legend(fontsize=8)
    return svg(figure, 'accuracy against distance')


def density(tables):
    """Loss of gates and of what bounds them against the number of past blocks that a block of queries visits; the dense model's is
    the line below. '' where no setting chooses blocks."""
    figure, ax = axes(xlabel='past blocks of keys that are visited', ylabel='validation loss, nats')
    chosen = {t.setting: t.experiment.settings[t.setting].get('options', {}).get('seer-top-k') for t in tables}
    base = tables[0].experiment.baseline
    for n, name in enumerate(dict.fromkeys(arm for t in tables if chosen[t.setting] for arm in t.arms if arm != base)):
        points = [(chosen[t.setting], sum(losses) / len(losses)) for t in tables
                  if chosen[t.setting] and name in t.arms and (losses := list(t.arms[name].losses.values()))]
        if points: ax.plot(*zip(*sorted(points)), marker='o', markersize=3, color=COLORS[n % len(COLORS)], label=name)
    if not ax.lines:
        pyplot.close(figure)
        return ''
    dense = [loss for t in tables if not chosen[t.setting] and base in t.arms for loss in t.arms[base].losses.values()]
    if dense: ax.axhline(sum(dense) / len(dense), color='#888888', linestyle='--', linewidth=1, label=f'{base}, dense')
    ax.set_xscale('log', base=2)
    ax.legend(fontsize=8)
    return svg(figure, f'{tables[0].experiment.name}: loss against the blocks that are visited')


def times(timings):
    """Step time and peak memory of every arm against the length of a row, both on logarithmic axes."""
    figure, both = pyplot.subplots(1, 2, figsize=(8.4, 3.6), layout='constrained')
    for ax, key, label, unit in zip(both, ('ms', 'peak_bytes'), ('ms a step', 'peak memory, MiB'), (1, 2**20)):
        for n, name in enumerate(dict.fromkeys(arm for t in timings for arm in t.arms)):
            points = [(t.seq_len, median(t.values(name, key)) / unit) for t in timings if name in t.arms and t.values(name, key)]
            if points: ax.plot(*zip(*sorted(points)), marker='o', markersize=3, color=COLORS[n % len(COLORS)], label=name)
        ax.set(xlabel='tokens of a row', ylabel=label, xscale='log', yscale='log')
    both[0].legend(fontsize=7)
    return svg(figure, f'{timings[0].experiment.name}: time and memory against the length of a row')


def cache(writing, reading):
    """Loss and accuracy of what arms read, against the bytes that ./generate keeps of a text and the tokens that it writes in a second.
    Both are ratios to the baseline's on the same device, as not all arms write on all devices. Arms that keep nothing have no bytes."""
    figure, panels = pyplot.subplots(2, 2, figsize=(8.4, 6.8), layout='constrained', sharex='col', sharey='row')
    base = reading.experiment.baseline
    costs = {name: (cache_ratio(writing, name), median(1 / r for r in writing.values(name, 'ratio'))) for name in writing.arms}
    for row, (ylabel, of) in zip(panels, (('validation loss, nats', lambda arm: arm.sound),
                                          ('accuracy', lambda arm: list(arm.accuracies.values())))):
        row[0].set(ylabel=ylabel)
        for n, name in enumerate(costs):
            values = of(reading.arms[name]) if name in reading.arms else []
            for ax, cost in zip(row, costs[name]):
                if values and cost: ax.plot(cost, mean(values), **style(n), linestyle='', markersize=5, label=name)
    for ax, what in zip(panels[1], ('bytes of the cache', 'tokens/s')):
        ax.set_xlabel(f'{what}, of {base}\'s')
        ax.set_xscale('log', base=2)
        ax.xaxis.set_major_formatter(lambda x, _: f'{x:g}')
    legend_below(figure, panels[0][1])   # arms that keep nothing are there too
    return svg(figure, f'{writing.title}: loss and accuracy against bytes of the cache and tokens per second')


def series(table, key, label, x='optimiser steps'):
    """Anything that results keep as [[x, y], ...], mean over seeds; '' where no run has it."""
    def points_of(arm):
        kept = [r['result'][key] for r in arm.records.values() if r['result'].get(key)]
        return [(row[0][0], sum(p[1] for p in row) / len(row)) for row in zip(*kept)]
    return line_of_each_arm(table, points_of, x, label, label)
