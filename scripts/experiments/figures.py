"""Pictures of a report, as SVG text that refers to nothing outside."""
import io
import math
import re
import textwrap
from statistics import mean, median

from analysis import by_accuracy, learnt, sweep_means
from packages import require

require('matplotlib').use('Agg')
from matplotlib import pyplot  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#7F7F7F', '#8C564B', '#17BECF', '#BCBD22',
          '#9467BD']
MARKERS, LINES = 'osD^v', ('-', '--', ':', '-.', '-')   # of the first twelve arms, the next twelve, ...
MOST_LINES = 16       # more cannot be told apart
NEAR = 0.2            # curves of training begin after this share of a run, whose loss would flatten the rest
LEGEND_ROW = 0.2      # inches
pyplot.rcParams.update({'font.size': 9, 'axes.axisbelow': True, 'axes.grid': True, 'grid.color': '#dddddd', 'axes.edgecolor': '#888888',
                        'svg.hashsalt': 'experiments', 'svg.fonttype': 'none', 'font.family': 'sans-serif'})


def svg(figure, label):
    """The figure as one <svg> element with a label for screen readers."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None, 'Creator': None})
    pyplot.close(figure)
    text = buffer.getvalue()
    text = re.sub(r'<metadata>.*?</metadata>', '', text[text.index('<svg'):], flags=re.DOTALL)
    clean = label.replace('&', 'and').replace('<', '').replace('"', "'")
    return text.replace('<svg ', f'<svg role="img" aria-label="{clean}" ', 1)


def styles(experiment, names, **more):
    """name -> its style, the same in all pictures of an experiment."""
    there, n = set(names), len(COLORS)
    return {name: {'color': COLORS[k % n], 'marker': MARKERS[k // n], 'linestyle': LINES[k // n], 'markersize': 3.5} | more
            for k, name in enumerate(experiment.arms) if name in there}


def grid(rows, columns, drawn, width=8.4, height=3.4, sharey=False):
    """(figure, axes by row and column) above a legend in a row of its own, so that it covers nothing. `drawn` is name -> style."""
    across = max(1, min(5, int(width / (0.065 * max(map(len, drawn)) + 0.5))))
    legend_height = LEGEND_ROW * (math.ceil(len(drawn) / across) + 1)
    figure = pyplot.figure(figsize=(width, rows * height + legend_height), layout='constrained')
    places = figure.add_gridspec(rows + 1, columns, height_ratios=[height] * rows + [legend_height])
    panels = []
    for n in range(rows * columns):
        same = {'sharey': panels[0]} if panels and sharey else {}
        panels.append(figure.add_subplot(places[n // columns, n % columns], **same))
        if same and n % columns: panels[-1].tick_params(labelleft=False)
    below = figure.add_subplot(places[rows, :])
    below.axis('off')
    handles = [Line2D([], [], label=name, **how) for name, how in drawn.items()]
    below.legend(handles=handles, loc='center', ncols=across, fontsize=8, frameon=False).set_in_layout(False)
    return figure, panels


def draw(ax, lines, drawn, powers='', **texts):
    """A line for each name -> [(x, y)], and texts of the axes. Axes named in `powers` are logarithmic with plain numbers."""
    for name, points in lines.items():
        if points: ax.plot(*zip(*points), **drawn[name] | ({'marker': ''} if len(points) > 20 else {}))
    ax.set(**texts)
    for name in powers:
        getattr(ax, f'set_{name}scale')('log', base=2)
        getattr(ax, f'{name}axis').set_major_formatter(lambda value, _: f'{value:g}')


def forest(lines):
    """The interval of every comparison, and the published number beside it: [(name, comparison, number or None)]."""
    ours, published = ({'color': COLORS[n], 'marker': marker, 'linestyle': ''} for n, marker in enumerate('oD'))
    drawn = {'ours, 95%': ours} | ({'published': published} if any(number is not None for _, _, number in lines) else {})
    figure, [ax] = grid(1, 1, drawn, 7.4, 0.7 + 0.34 * len(lines))
    for row, (_, c, number) in enumerate(reversed(lines)):
        if c.pairs >= 2: ax.errorbar(c.mean, row, xerr=c.half_width, capsize=3, **ours)
        else: ax.plot(c.mean, row, markerfacecolor='white', **ours)
        if number is not None: ax.plot(number, row, **published)
    ax.axvline(0, color='#444444', linewidth=0.8)
    ax.set_yticks(range(len(lines)), [name for name, _, _ in reversed(lines)])
    ax.set(ylim=(-0.7, len(lines) - 0.3), xlabel='difference of validation loss, nats (negative: better)')
    return svg(figure, 'differences with intervals, and the published numbers')


def panels(tables, points_of, xlabel, ylabel):
    """A panel for each table with a line for each arm of points_of(arm), [(x, y)]; '' where no arm has any, or too many have."""
    lines = {t.setting: {name: points for name, arm in t.arms.items() if (points := points_of(arm))} for t in tables}
    tables = [t for t in tables if lines[t.setting]]
    drawn = styles(tables[0].experiment, (name for t in tables for name in t.arms)) if tables else {}
    if not tables or len(drawn) > MOST_LINES: return ''
    columns = min(4, len(tables))
    rows = math.ceil(len(tables) / columns)
    figure, places = grid(rows, columns, drawn, *((5.2, 3) if columns == 1 else (2.6 * columns + 0.4, 2.4)), sharey=True)
    for ax, table in zip(places, tables):
        draw(ax, lines[table.setting], drawn)
        if len(tables) > 1: ax.set_title('\n'.join(textwrap.wrap(table.label, 36)), fontsize=8)
    for n, ax in enumerate(places):
        ax.set_visible(n < len(tables))
        if n % columns == 0: ax.set_ylabel(ylabel)
        if n >= (rows - 1) * columns: ax.set_xlabel(xlabel)
    return svg(figure, f'{tables[0].experiment.name}: {ylabel}')


def mean_curve(curves):
    """The mean over runs, which all have the same steps."""
    return [(together[0][0], mean(point[1] for point in together)) for together in zip(*curves)]


def curves(tables):
    """Training loss over the steps, mean over the sound runs of an arm."""
    def points_of(arm):
        points = mean_curve([r['result'].get('training', []) for r in arm.records.values() if r['event'] == 'done'])
        return [(step, loss) for step, loss in points if step >= NEAR * points[-1][0]]
    return panels(tables, points_of, 'optimiser steps', 'training loss, nats')


def series(tables, key, label, x='optimiser steps'):
    """A curve [[x, y], ...] of the results, mean over seeds."""
    return panels(tables, lambda arm: mean_curve([curve for curve in arm.values(key) if curve]), x, label)


def hull(points):
    """Points that no other one beats in both cost and loss, by cost."""
    best, kept = float('inf'), []
    for x, y in sorted(points):
        if y < best: kept.append((x, y))
        best = min(best, y)
    return kept


def pareto(tables, timings):
    """Loss against FLOPs and against seconds over the settings of an experiment and scale, with the hull. Seconds are steps times
    interleaved step times where there are any: runs of one table may come from several machines, or from a busy one."""
    edge = {'color': '#444444', 'linewidth': 1, 'drawstyle': 'steps-post'}
    drawn = styles(tables[0].experiment, (arm for t in tables for arm in t.arms), linestyle='') | {'Pareto hull': edge}
    figure, both = grid(1, 2, drawn, sharey=True)
    times = {arm: median(t.values(arm, 'ms')) for t in timings for arm in t.arms}
    for ax, what in zip(both, ('FLOPs', 'seconds')):
        lines = {name: [point for t in tables if name in t.arms for point in cost_of(t.arms[name], what, times.get(name))]
                 for name in drawn}
        everything = [point for points in lines.values() for point in points]
        costs = [x for x, _ in everything]
        draw(ax, lines | {'Pareto hull': hull(everything)}, drawn, xlabel=f'{what} of a run',
             xscale='log' if costs and max(costs) > 10 * min(costs) else 'linear')
    both[0].set_ylabel('validation loss, nats')
    return svg(figure, f'{tables[0].experiment.name}: loss against FLOPs and seconds')


def cost_of(arm, what, step_ms):
    """(cost, loss) of every sound run; `step_ms` may be None."""
    for record in arm.records.values():
        r = record['result']
        if record['event'] != 'done' or r['val_loss'] is None: continue
        tokens = r['validation'][-1][1] if r['validation'] else None
        if what == 'seconds': cost = r['steps'] * step_ms / 1e3 if step_ms else r['seconds']
        else: cost = tokens * r['flops_per_token'] if tokens and r.get('flops_per_token') else None
        if cost: yield cost, r['val_loss']


def rates(experiment, scale, by_arm):
    """Loss on the tuning half against the learning rate."""
    drawn, lr = styles(experiment, by_arm), experiment.scales[scale]['lr']
    figure, [ax] = grid(1, 1, drawn, 7.4, 3.8)
    draw(ax, {arm: [(factor * lr, loss) for factor, loss in sweep_means(of).items()] for arm, of in by_arm.items()}, drawn,
         xlabel='learning rate', ylabel='validation loss (tuning half), nats', xscale='log')
    tried = sorted({f * lr for by_factor in by_arm.values() for f in by_factor})
    ax.set_xticks(tried, [f'{rate:g}' for rate in tried])
    ax.minorticks_off()
    return svg(figure, f'{experiment.name}: loss against rate')


def recall(tables):
    """Accuracy on the items of tasks: a row for each arm, the best at the top, a column for each setting, blank without runs. Beside
    the name, how many of its runs have learnt their task."""
    names = by_accuracy(tables)
    value = lambda t, name: mean(found) if name in t.arms and (found := t.arms[name].accuracies.values()) else math.nan
    cells = [[value(t, name) for t in tables] for name in names]
    figure, ax = pyplot.subplots(figsize=(max(4, 2.6 + 0.75 * len(tables)), 1.3 + 0.21 * len(names)), layout='constrained')
    ax.pcolormesh(cells, cmap='Blues', vmin=0, vmax=1, edgecolors='white', linewidth=1)
    for row, of in enumerate(cells):
        for column, accuracy in enumerate(of):
            if math.isnan(accuracy): continue
            ax.text(column + 0.5, row + 0.5, f'{accuracy:.2f}', ha='center', va='center', fontsize=8,
                    color='white' if accuracy > 0.55 else '#222222')
    ax.set_yticks([n + 0.5 for n in range(len(names))], [f'{name}, {learnt(tables, name)}' for name in names])
    ax.set_xticks([n + 0.5 for n in range(len(tables))], ['\n'.join(textwrap.wrap(t.label, 14)) for t in tables], fontsize=7)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    ax.invert_yaxis()
    for edge in ax.spines.values(): edge.set_visible(False)
    return svg(figure, f'{tables[0].experiment.name}: accuracy of every arm in every setting')


def times(timings):
    """Step time and peak memory of every arm against the length of a row."""
    drawn = styles(timings[0].experiment, (arm for t in timings for arm in t.arms))
    figure, both = grid(1, 2, drawn)
    for ax, key, label, unit in zip(both, ('ms', 'peak_bytes'), ('ms a step', 'peak memory, MiB'), (1, 2**20)):
        lines = {name: sorted((t.seq_len, median(t.values(name, key)) / unit)
                              for t in timings if name in t.arms and t.values(name, key)) for name in drawn}
        draw(ax, lines, drawn, 'xy', xlabel='tokens of a row', ylabel=label)
    return svg(figure, f'{timings[0].experiment.name}: time and memory against the length of a row')


def cache(writing, reading):
    """Loss and accuracy of reading against the bytes of the cache and the speed of ./generate, as ratios to the baseline's on the same
    device, as not all arms write on all devices. Arms without a cache have no bytes."""
    drawn = styles(writing.experiment, writing.arms, linestyle='')
    figure, places = grid(2, 2, drawn, height=3)
    costs = {'bytes of the cache': writing.byte_ratio,
             'tokens/s': lambda name: median(1 / r for r in writing.values(name, 'ratio'))}
    losses = {'validation loss, nats': lambda arm: arm.sound, 'accuracy': lambda arm: list(arm.accuracies.values())}
    for n, ax in enumerate(places):
        (ylabel, values), (xlabel, cost) = list(losses.items())[n // 2], list(costs.items())[n % 2]
        lines = {name: [(cost(name), mean(values(reading.arms[name])))] for name in drawn
                 if name in reading.arms and values(reading.arms[name]) and cost(name)}
        draw(ax, lines, drawn, 'x', xlabel=f'{xlabel}, of {reading.experiment.baseline}\'s', ylabel=ylabel)
    return svg(figure, f'{writing.title}: loss and accuracy against bytes of the cache and tokens per second')
