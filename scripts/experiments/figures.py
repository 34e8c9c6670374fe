"""Pictures of a report, as SVG text that refers to nothing outside."""
import io
import math
import re
import textwrap
from statistics import median

import matplotlib
import pandas as pd
from matplotlib import pyplot
from matplotlib.lines import Line2D

from claims import TRANSIENT

matplotlib.use('Agg')

COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#7F7F7F', '#8C564B', '#17BECF', '#BCBD22',
          '#9467BD']
MARKERS, LINES = 'osD^v', ('-', '--', ':', '-.', '-')   # of the first twelve arms, the next twelve, ...
MOST_LINES = 16       # more cannot be told apart
NEAR = 0.2            # curves of training begin after this share of a run, whose loss would flatten the rest
pyplot.rcParams.update({'font.size': 9, 'axes.axisbelow': True, 'axes.grid': True, 'grid.color': '#dddddd', 'axes.edgecolor': '#888888',
                        'svg.hashsalt': 'experiments', 'svg.fonttype': 'none', 'font.family': 'sans-serif',
                        'legend.frameon': False})


def svg(figure, label):
    """The figure as one <svg> element with a label for screen readers."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None, 'Creator': None}, bbox_inches='tight')
    pyplot.close(figure)
    text = buffer.getvalue()
    text = re.sub(r'<metadata>.*?</metadata>', '', text[text.index('<svg'):], flags=re.DOTALL)
    clean = label.replace('&', 'and').replace('<', '').replace('"', "'")
    return text.replace('<svg ', f'<svg role="img" aria-label="{clean}" ', 1)


def draw_panels(e, panels, xlabel, ylabel, linestyle=None, log_x=False):
    """A panel for each title -> {arm: [(x, y)]}, with one legend; '' where no arm has points, or too many have. An arm has the same
    style in all pictures of an experiment."""
    panels = {title: lines for title, lines in panels.items() if any(lines.values())}
    names = {arm for lines in panels.values() for arm, points in lines.items() if points}
    if not panels or len(names) > MOST_LINES: return ''
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, places = pyplot.subplots(rows, columns, sharey=True, squeeze=False, layout='constrained',
                                     figsize=(6.4, 3.6) if columns == 1 else (2.6 * columns + 0.6, 2.6 * rows + 0.6))
    handles, n = [], len(COLORS)
    for k, arm in enumerate([*e.arms, 'Pareto hull']):
        if arm not in names: continue
        style = {'color': COLORS[k % n], 'marker': MARKERS[k // n], 'linestyle': linestyle or LINES[k // n], 'markersize': 3.5}
        if arm == 'Pareto hull': style = {'color': '#444444', 'linewidth': 1, 'drawstyle': 'steps-post'}
        handles.append(Line2D([], [], label=arm, **style))
        for ax, lines in zip(places.flat, panels.values()):
            if points := lines.get(arm): ax.plot(*zip(*points), **style | ({'marker': ''} if len(points) > 20 else {}))
    for k, (ax, title) in enumerate(zip(places.flat, panels)):
        ax.set(xlabel=xlabel or title, ylabel=ylabel if k % columns == 0 else '')
        if log_x: stretch(ax, {x for points in panels[title].values() for x, _ in points})
        if len(panels) > 1 and xlabel: ax.set_title('\n'.join(textwrap.wrap(title, 36)), fontsize=8)
    for ax in places.flat[len(panels):]: ax.set_visible(False)
    figure.legend(handles=handles, loc='outside lower center', ncols=4, fontsize=8)
    return svg(figure, f'{e.name}: {ylabel}')


def stretch(ax, xs):
    """A logarithmic axis where numbers are far apart, with a tick at each if they are few."""
    if max(xs) <= 10 * min(xs): return
    ax.set_xscale('log')
    if len(xs) > 9: return
    ax.set_xticks(sorted(xs), [f'{x:g}' for x in sorted(xs)])
    ax.minorticks_off()


def mean_curve(runs, key):
    """The mean over sound runs of a curve [[x, y], ...] of their results."""
    curves = [record['result'].get(key) for record in runs.record if record['event'] == 'done']
    return [(points[0][0], sum(y for _, y in points) / len(points)) for points in zip(*filter(None, curves))]


def draw_series(e, runs, key, label, x, begin=0.0, baseline=None):
    """A curve of the results behind a share `begin` of its length; with a baseline its difference to that arm's."""
    def late(own):
        points = mean_curve(own, key)
        return [(at, value) for at, value in points if at >= begin * points[-1][0]]
    panels = {e.label(setting): {arm: late(own) for arm, own in of.groupby('arm', sort=False)}
              for setting, of in runs.groupby('setting', sort=False)}
    for lines in panels.values() if baseline else ():
        base = dict(lines.pop(baseline, []))
        for arm, points in lines.items(): lines[arm] = [(at, value - base[at]) for at, value in points if at in base]
    return draw_panels(e, panels, x, label)


def draw_pareto(e, runs, timed):
    """Loss against FLOPs and against seconds over the settings of an experiment and scale, with the hull. Seconds are steps times
    interleaved step times where there are any: runs of one table may come from several machines, or from a busy one."""
    step_ms = timed.groupby('arm').ms.median()
    counted = lambda r: r.get('flops_per_token') and r.get('validation')
    flops = lambda arm, r: r['validation'][-1][1] * r['flops_per_token'] if counted(r) else None
    seconds = lambda arm, r: r['steps'] * step_ms[arm] / 1e3 if arm in step_ms else r['seconds']
    panels = {}
    for what, cost_of in (('FLOPs of a run', flops), ('seconds of a run', seconds)):
        costs = [cost_of(arm, record['result']) for arm, record in zip(runs.arm, runs.record)]
        points = runs.assign(cost=pd.Series(costs, runs.index, dtype=float)).dropna(subset=['cost', 'loss'])
        points = points.sort_values(['cost', 'loss'])
        best = points[points.loss < points.loss.cummin().shift(fill_value=math.inf)]
        panels[what] = {arm: list(zip(own.cost, own.loss)) for arm, own in points.groupby('arm')}
        panels[what]['Pareto hull'] = list(zip(best.cost, best.loss))
    return draw_panels(e, panels, '', 'validation loss, nats', linestyle='none', log_x=True)


def draw_costs(e, panels):
    """A row for each arm, in the order of the plan, and a panel for each (title, {arm: {length: value}}, logarithmic or not): a dot for
    each length (None: one value for all), a dash where an arm has none. A grey line is the baseline's value where it has one."""
    panels = [panel for panel in panels if panel[1]]
    arms = [arm for arm in e.arms if any(arm in found for _, found, _ in panels)]
    lengths = sorted({length for _, found, _ in panels for of in found.values() for length in of if length})
    if not lengths: return ''
    shades = {None: COLORS[0]} | {length: pyplot.cm.viridis(0.9 * k / max(1, len(lengths) - 1)) for k, length in enumerate(lengths)}
    figure, places = pyplot.subplots(1, len(panels), sharey=True, squeeze=False, layout='constrained',
                                     figsize=(1.2 + 1.7 * len(panels), 1.2 + 0.19 * len(arms)))
    for ax, (title, found, log) in zip(places.flat, panels):
        ax.set_title('\n'.join(textwrap.wrap(title, 24)), fontsize=8)
        ax.tick_params(axis='x', labelsize=7)
        if log: ax.set_xscale('log')
        for row, values in enumerate([found.get(arm, {}) for arm in arms]):
            if not values: ax.text(0.03, row, '-', transform=ax.get_yaxis_transform(), color='#aa3333', va='center')
            for length, value in values.items(): ax.plot(value, row, marker='o', markersize=3.5, color=shades[length])
        base = found.get(e.baseline, {}).values()
        if base and max(base) < 1.5 * min(base): ax.axvline(median(base), color='#888888', linewidth=0.8)
    places.flat[0].set_yticks(range(len(arms)), arms, fontsize=7)
    places.flat[0].set_ylim(len(arms) - 0.4, -0.6)
    dots = [Line2D([], [], color=shades[n], marker='o', linestyle='', markersize=4, label=f'{n:,.0f} tokens') for n in lengths]
    figure.legend(handles=dots, loc='outside lower center', ncols=len(dots), fontsize=8)
    return svg(figure, 'quality and costs of every arm')


def draw_forest(lines, multiples=False):
    """The interval of every row [(name, (low, middle, high), published number or None, whether the difference still shrinks)], a white
    dot for one pair; with `multiples` the numbers are of a published difference, which is 1."""
    figure, ax = pyplot.subplots(figsize=(7.4, 0.9 + (0.24 if multiples else 0.34) * len(lines)), layout='constrained')
    for row, (_, (low, middle, high), number, shrinks) in enumerate(reversed(lines)):
        style = {'color': '#aaaaaa' if shrinks else COLORS[0], 'marker': 'o', 'markersize': 4, 'linestyle': ''}
        style['label'] = TRANSIENT if shrinks else 'ours, 95%'
        if math.isnan(low): ax.plot(middle, row, markerfacecolor='white', **style)
        else: ax.errorbar(middle, row, xerr=[[middle - low], [high - middle]], capsize=2, **style)
        if number is not None: ax.plot(number, row, color=COLORS[1], marker='D', markersize=4, linestyle='', label='published')
    ax.axvline(0, color='#444444', linewidth=0.8)
    ax.set_yticks(range(len(lines)), [line[0] for line in reversed(lines)], fontsize=7 if multiples else 9)
    label = 'difference of validation loss, nats (negative: better)'
    if multiples:
        label = 'ours as a multiple of the published difference (negative: opposite sign)'
        ax.set_xscale('symlog', linthresh=1)
        ax.set_xticks([-10, -1, 0, 1, 10], ['-10', '-1', 'none', 'published', '10 x'])
    ax.set(ylim=(-0.7, len(lines) - 0.3), xlabel=label)
    handles = dict(zip(*reversed(ax.get_legend_handles_labels())))   # one entry for each label
    figure.legend(handles.values(), handles, loc='outside lower center', ncols=3, fontsize=8)
    return svg(figure, 'differences with intervals, and the published numbers')
