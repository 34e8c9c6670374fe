"""The result of a run: what the ledger keeps of a trainer's log.jsonl and standard output.

Logs of evaluations (--evaluate --eval-log FOLDER/log.jsonl) and of rounds (turns.py) have the same form, without steps.
"""
import json
import math
import re
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from statistics import mean, median

CURVE_POINTS = 60          # of the training loss, so that a ledger stays small
FLOPS = 'FLOPs per token of training'   # a row of the trainer's tables
WORSE_THAN_GUESSING = 0.5  # nats above the loss of a uniform guess
OF_ROUNDS = ('ms', 'baseline_ms', 'ratio', 'baseline_peak_bytes', 'load')


def finite(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def finite_numbers(values):
    """All finite numbers in nested lists."""
    if isinstance(values, list): return [number for value in values for number in finite_numbers(value)]
    return [values] if finite(values) else []


def read_log(path):
    """event -> its records in a log, None for those of steps; a line that a running or killed program has cut is passed over."""
    events = defaultdict(list)
    try:
        lines = Path(path).read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        return events
    for line in lines:
        try:
            record = json.loads(line)
            events[record.get('event')].append(record)
        except (ValueError, AttributeError):
            continue
    return events


def last_step(path):
    """The last step at the end of a log, 0 without any."""
    try:
        with open(path, 'rb') as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            found = re.findall(rb'^\{"step":(\d+),"tokens"', file.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def table_rows(printed):
    """{row: value} of the trainer's tables."""
    return dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', printed, re.MULTILINE))


def flops_of(rows):
    """FLOPs per token, or their bound where they depend on the data."""
    return float(rows[FLOPS].removeprefix('at most '))


def loss_of_sweep(result):
    """The loss by which a rate is chosen: on the tuning half of the validation tokens, where there is one."""
    return result.get('tune_loss', result.get('val_loss'))


def of_report_half(validations, sources):
    """(records of validations on the half of results alone, loss at the end on the other) of a run that validates on both."""
    by_half = {(Path(r['source']).stem, r['step']): r for r in sources}
    if not any(half == 'tune' for half, _ in by_half): return validations, {}
    own = [r | {'val_loss': half['source_loss'], 'val_bpb': half['source_bpb']}
           for r in validations if (half := by_half.get(('report', r['step'])))]
    return own, {'tune_loss': by_half['tune', own[-1]['step']]['source_loss']} if own else {}


def result_of(folder, printed=''):
    """The result of a finished run; `diverged` gives the reason where it did. `printed` is the trainer's standard output."""
    events, rows = read_log(Path(folder) / 'log.jsonl'), table_rows(printed)
    config, done, turns, writes = (next(iter(events[event]), {}) for event in ('config', 'done', 'turns', 'writes'))
    steps, validations = ([r for r in events[None] if key in r] for key in ('grad_norm', 'val_loss'))
    validations, tuned = of_report_half(validations, events['source_validation'])
    times = [r['ms'] for r in steps if finite(r.get('ms'))]
    seconds = [round(total, 3) for total in accumulate((r.get('ms') or 0) / 1e3 for r in steps)]
    tokens_at, seconds_at = {r['step']: r.get('tokens') for r in steps}, {r['step']: s for r, s in zip(steps, seconds)}
    result = {
        'val_loss': last if finite(last := validations[-1]['val_loss'] if tuned else done.get('val_loss')) else None,
        'train_loss': done.get('loss') if finite(done.get('loss')) else None,
        'val_bpb': validations[-1].get('val_bpb') if validations else None,
        'weights_hash': done.get('weights_hash'), 'peak_bytes': done.get('peak_bytes'), 'parameters': config.get('parameters'),
        'steps': steps[-1]['step'] if steps else 0, 'tokens': steps[-1].get('tokens') if steps else 0,
        'seconds': seconds[-1] if seconds else 0.0, 'ms': round(median(times), 3) if times else None,
        'validation': [[r['step'], tokens_at.get(r['step']), r['val_loss'], seconds_at.get(r['step'])] for r in validations],
        'training': thinned([[r['step'], r['loss']] for r in steps if finite(r.get('loss'))]),
        'machine': rows.get('device', ''),
    }
    result |= tuned
    if FLOPS in rows: result['flops_per_token'] = flops_of(rows)
    result |= {key: config[key] for key in ('machine', 'blas', 'flops_per_token', 'binary_hash') if config.get(key)}
    if config.get('data_hash'): result['data_read'] = config['data_hash']   # of the shards that were read; the plan's is of files
    result |= evaluations(events)
    for key in ('entropy', 'gate', 'mass_95', 'mass_99'):   # means over layers and heads
        points = [[r['step'], round(mean(found), 4)] for r in events['attention'] if (found := finite_numbers(r.get(key)))]
        if points: result[key] = points
    result |= {key: turns[key] for key in OF_ROUNDS if key in turns}
    result |= {key: value for key, value in writes.items() if key not in ('event', 'step')}
    if why := diverged(result, steps, config): result['diverged'] = why
    return result


def thinned(curve):
    """Means over stretches of equal length."""
    stretch = max(1, math.ceil(len(curve) / CURVE_POINTS))
    parts = [curve[i:i + stretch] for i in range(0, len(curve), stretch)]
    return [[part[-1][0], round(mean(loss for _, loss in part), 4)] for part in parts]


def diverged(result, steps, config):
    """Why a finished run counts as diverged: a loss that is not finite or worse than guessing; '' for a sound run."""
    lost = [r for r in steps if not finite(r.get('loss')) and r.get('targets') != 0]   # a mask may hide all targets of a step
    if lost or (result['validation'] and not finite(result['validation'][-1][2])): return 'a loss is not finite'
    guess = math.log(config.get('model', {}).get('vocab_size', 1 << 30))
    last = result['training'][-1][1] if result['training'] else None
    if last is not None and last > guess + WORSE_THAN_GUESSING: return f'ended at {last:.2f}, worse than a guess ({guess:.2f})'
    return ''


def evaluations(events):
    """Last accuracy and macro F1 of every file of items; [[middle of a bin of positions, loss], ...] of the last evaluation without
    bins whose targets are all masked; shares that --attention psa or adaspa has read, of the validation tokens or of items."""
    found, of_items = {}, [r for r in events['evaluation'] if 'task' in r]
    if of_items: found['accuracy'] = {r['task']: r.get('acc_sum') for r in of_items}
    by_step = defaultdict(list)
    for r in of_items: by_step[r.get('step')].append(r.get('acc_sum'))
    if len(by_step) > 1: found['accuracy_at'] = [[step, mean(shares)] for step, shares in by_step.items() if all(map(finite, shares))]
    if f1 := {r['task']: r['macro_f1'] for r in of_items if finite(r.get('macro_f1'))}: found['macro_f1'] = f1
    bins = events['loss_by_position'][-1].get('bins') or [] if events['loss_by_position'] else []
    if points := [[(b['first'] + b['last']) / 2, b['loss']] for b in bins if finite(b.get('loss'))]: found['by_position'] = points
    if read := {r['of']: {key: r.get(key) for key in ('pairs_read', 'mass_kept')} for r in events['sparse_reading'] if 'of' in r}:
        found['sparse_reading'] = read
    return found
