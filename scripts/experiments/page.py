"""The sections of a report, one for every experiment and scale: words, tables and pictures. report.py writes them in its forms."""
import figures
import tasks
from analysis import LEARNT
from claims import NATS
from plan import SCALES, TIMED, shape_name
from tables import arm_table, cache_table, comparison_table, recall_table, setting_table, sweep_table, time_table

SETTINGS_AS_ONE = 4   # with so many settings a table of arms x settings comes first
RATES = 'e6_lr'       # the experiment that sweeps the rate
SHORT = 3             # most commits and machines that are named
SERIES = [('entropy', 'entropy of attention, nats', 'optimiser steps'), ('gate', 'mean gate', 'optimiser steps'),
          ('mass_95', 'share of keys with 95% of the mass', 'optimiser steps'),
          ('mass_99', 'share of keys with 99% of the mass', 'optimiser steps'), ('by_position', 'loss, nats', 'position')]


def span(values, form='{:,}'):
    """'a' or 'a to b' of numbers; '' without any."""
    return ' to '.join(dict.fromkeys(form.format(v) for v in (min(values), max(values)))) if values else ''


def named(values):
    """Different words, the first few of them."""
    found = list(dict.fromkeys(value for value in values if value))
    return '; '.join(found[:SHORT]) + (f' and {len(found) - SHORT} more' if len(found) > SHORT else '')


def setup(report, e, scale):
    """[(what, words)] of the runs of an experiment at a scale."""
    runs = report.runs[(report.runs.experiment == e.name) & (report.runs.scale == scale)]
    reported = runs[~runs.stage.isin(['sweep', 'timing', *TIMED])]
    final = runs if reported.empty else reported
    results = [record['result'] for record in final.record]
    option = lambda name, of=final: {r['options'][name] for r in of.record if r.get('options', {}).get(name) is not None}
    rates, swept = span(option('lr'), '{:g}'), option('lr', runs[runs.stage == 'sweep'])
    found = {
        'model': named(map(model_of(e, scale), sorted(option('model')))),
        'parameters': span({r['parameters'] for r in results if r.get('parameters')}),
        'tokens of a run': span({r['validation'][-1][1] for r in results if r.get('validation') and r['validation'][-1][1]}),
        'optimiser steps': span({r['steps'] for r in results if r.get('steps')}),
        'T': span(option('seq-len')),
        'window': span(option('window')) + (f', dense until row {span(until)}' if (until := option('dense-until')) else ''),
        'learning rate': rates + (f', of {span(swept, "{:g}")} in the sweep' if swept and not reported.empty else ''),
        'data': named([e.scales[scale].get('data', 'bundled'), *sorted({r.get('data_hash', '') for r in final.record})]),
        'rounds' if runs.stage.isin(TIMED).all() else 'seeds': span(set(final.seed)),
        'machines': named(r.get('machine', '') for r in results),
        'commits': named(r.get('commit', '') for r in final.record),
    }
    return [(what, words) for what, words in found.items() if words]


def model_of(e, scale):
    """A function from the name of a model to words: presets keep their name, other shapes are described."""
    shapes = {shape_name(of['model']): of['model'] for of in [e.scales[scale], *e.settings.values()] if 'model' in of}
    shape = '{num_hidden_layers} layers of {hidden_size}, {num_attention_heads} heads, {num_key_value_heads} of keys and values'
    return lambda name: shape.format(**shapes[name]) if name in shapes else name


def warnings(report, e, scale):
    """Sentences on the limits of the numbers of a section."""
    found = [f'{arm}: the best rate of the sweep is its end point, x {factor:g}; a better one may lie beyond.'
             for arm, factor in report.end_points(e.name, scale)]
    found += other_rate(report, e, scale)
    tables = report.of(report.tables, e.name, scale)
    alone = {arm.name for t in tables for arm in t.arms.values() if len(arm.records) == 1}
    if alone:
        all_arms = {name for t in tables for name in t.arms}
        which = 'One run of each arm' if alone == all_arms else f'One run of each of {len(alone)} arms'
        if any(arm.accuracies for t in tables for arm in t.arms.values()):
            found.append(f'{which}: a number says that it has learnt its task ({LEARNT:.0%} of the items right or more) or '
                         'has not, and nothing of how far two arms that have learnt it, or have not, are apart.')
        else: found.append(f'{which}: differences have no interval.')
    return found


def other_rate(report, e, scale):
    """A warning if the runs of a section had one rate and the sweep found others better."""
    best = report.best_factors(RATES, scale)
    if not best or e.sweep or e.name == RATES: return []
    used, lr = e.scales[scale]['lr'], report.experiments[RATES].scales[scale]['lr']
    arms = dict.fromkeys(arm for t in report.of(report.tables, e.name, scale) for arm in t.arms if arm in best)
    better = [arm for arm in arms if best[arm] * lr != used]
    if not better: return []
    rates = ' or '.join(f'{rate:g}' for rate in sorted({best[arm] * lr for arm in better}))
    times = ', times what a setting says' if any('lr-times' in of.get('options', {}) for of in e.settings.values()) else ''
    return [f'These runs had one rate for all arms, {used:g}{times}. {RATES} found {rates} the best for {len(better)} of {len(arms)} '
            'arms that it has in common with this section, with its own model and data.']


def tables_of(report, e, scale):
    """(tables, tables to fold away), each (title, DataFrame)."""
    tables, sweeps = report.of(report.tables, e.name, scale), report.sweeps.get((e.name, scale))
    shown, folded, title = [(t.title, arm_table(t)) for t in tables], [], f'{e.name}, scale {scale}'
    if asked := asked_of(tables):   # the picture has the same numbers
        folded = shown if any(len(arm.records) > 1 for t in tables for arm in t.arms.values()) else []
        shown, folded = [], [(f'{title}: accuracy', recall_table(asked)), *folded]
    elif len(tables) >= SETTINGS_AS_ONE:
        folded = shown
        shown = [(f'{title}: validation loss, mean over seeds, and runs that diverged', setting_table(tables))]
    shown += [(f'{t.title}: other comparisons', of) for t in tables if not (of := comparison_table(t)).empty]
    if sweeps:
        (folded if tables else shown).append(
            (f'{title}: the sweep; sensitivity is the mean over rates of what they lose against the best (arXiv 2309.14322)',
             sweep_table(sweeps, e.scales[scale]['lr'])))
    shown += [(f'{t.title}: interleaved step times', time_table(t)) for t in report.of(report.timings, e.name, scale)]
    shown += [(f'{t.title}: interleaved ./generate', cache_table(t, report.reading_of(t)))
              for t in report.of(report.writings, e.name, scale)]
    return shown, folded


def asked_of(tables):
    """Tables of runs with the items of the task that they were trained on."""
    return [t for t in tables if t.experiment.settings.get(t.setting, {}).get('task') and any(a.accuracies for a in t.arms.values())]


def chance_of(tables):
    """Chance in words: of all tasks, or by setting where they differ."""
    chance = {t.label: 1 / len(tasks.make(t.experiment.settings[t.setting]['task'], 'items', 1).symbols) for t in tables}
    if len(set(chance.values())) == 1: return f'{next(iter(chance.values())):.2f}'
    return ', '.join(f'{value:.2f} ({label})' for label, value in chance.items())


def pictures(report, e, scale):
    """[(caption, svg)]."""
    tables, timings, found = report.of(report.tables, e.name, scale), report.of(report.timings, e.name, scale), []
    if lines := compared(report, e, scale):
        found.append(('Differences by seed with 95% intervals, and the published numbers', figures.forest(lines)))
    if sweeps := report.sweeps.get((e.name, scale)):
        found.append(('The sweep, on the tuning half of the validation tokens', figures.rates(e, scale, sweeps)))
    if asked := asked_of(tables):
        found.append((f'Accuracy on the items of every task, the best arms at the top; chance is {chance_of(asked)}; blank: not run. '
                      f'Beside the name, how many runs have learnt their task ({LEARNT:.0%} or more)', figures.recall(asked)))
    if tables and any(of.get('equal') in ('flops', 'seconds') for of in e.settings.values()):
        found.append(('Loss against FLOPs and seconds', figures.pareto(tables, timings)))
    found += [(f'{writing.title}: what it costs in loss and accuracy', figures.cache(writing, reading))
              for writing in report.of(report.writings, e.name, scale) if (reading := report.reading_of(writing))]
    if len({t.seq_len for t in timings}) > 1:
        found.append(('Time of a step and peak memory against the length of a row', figures.times(timings)))
    found.append((f'Training loss, mean over seeds, from {figures.NEAR:.0%} of a run on', figures.curves(tables)))
    found += [(f'{label[0].upper()}{label[1:]}, against the {x}, mean over seeds', figures.series(tables, key, label, x))
              for key, label, x in SERIES]
    return [(caption, svg) for caption, svg in found if svg]


def compared(report, e, scale):
    """[(name, comparison, published number or None)] of claims in nats and of the experiment's own comparisons."""
    found, claims = [], {(s.claim['arm'], s.claim['against'], s.setting): s.claim for s in report.verdicts
                         if s.claim['experiment'] == e.name and s.scale == scale and s.claim['unit'] == NATS}
    for t in report.of(report.tables, e.name, scale):
        for (arm, against), comparison in t.comparisons.items():
            claim, name = claims.get((arm, against, t.setting)), f'{arm} - {against}' + (f', {t.label}' if t.label else '')
            if not comparison.pairs or not (claim or (arm, against) in e.compare): continue
            found.append((f'{claim["document"]}: {name}', comparison, claim['number']) if claim else (name, comparison, None))
    return found


def lines(report, name, scale):
    """The sentence of each finding; the first one of a claim adds the words of its source."""
    found, before = [], None
    for one in report.verdicts:
        if one.claim['experiment'] != name or one.scale != scale: continue
        found.append(one.line + ('' if one.claim is before else f' As read: {one.claim["read"]}.'))
        before = one.claim
    return found


def sections(report):
    """The content of each experiment and scale."""
    there = set(zip(report.runs.experiment, report.runs.scale))
    for name, scale in [(name, scale) for name in report.experiments for scale in SCALES if (name, scale) in there]:
        e, (shown, folded) = report.experiments[name], tables_of(report, report.experiments[name], scale)
        yield {'name': name, 'scale': scale, 'title': e.title, 'question': e.question, 'left_open': e.left_open,
               'setup': setup(report, e, scale), 'labels': [(arm, of['label']) for arm, of in e.arms.items() if 'label' in of],
               'lines': lines(report, name, scale), 'warnings': warnings(report, e, scale), 'tables': shown, 'folded': folded,
               'pictures': pictures(report, e, scale), 'pilot_sd': report.pilot_sd(name, scale)}
