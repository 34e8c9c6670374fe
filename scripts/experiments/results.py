"""The result of a run: what the ledger keeps of a trainer's log.jsonl and standard output.

Logs of evaluations (--evaluate --eval-log FOLDER/log.jsonl) and of rounds (turns.py) have the same form, without steps.
"""
import json
import math
import re
import statistics
from pathlib import Path

CURVE_POINTS = 60          # of the training loss, so that a ledger stays small
FLOPS = 'FLOPs per token of training'   # a row of the trainer's tables
WORSE_THAN_GUESSING = 0.5  # nats above the loss of a uniform guess


def finite(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_log(path):
    """The records of a log; a line that a running or killed program has cut is passed over."""
    records = []
    try:
        lines = Path(path).read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        return records
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return [record for record in records if isinstance(record, dict)]


def first(records, event):
    """The first record of an event, {} without any."""
    return next((r for r in records if r.get('event') == event), {})


def last_step(path):
    """The last step at the end of a log, 0 without any."""
    try:
        with open(path, 'rb') as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            found = re.findall(rb'^\{"step":(\d+),"tokens"', file.read(), re.MULTILINE)
        return int(found[-1]) if found else 0
    except OSError:
        return 0


def result_of(folder, printed=''):
    """The result of a finished run; `diverged` gives the reason where it did. `printed` is the trainer's standard output."""
    records = read_log(Path(folder) / 'log.jsonl')
    config, done = first(records, 'config'), first(records, 'done')
    steps = [r for r in records if 'grad_norm' in r and 'event' not in r]
    validations = [r for r in records if 'val_loss' in r and 'event' not in r]
    times = [r['ms'] for r in steps if finite(r.get('ms'))]
    seconds_at, total = {}, 0.0
    for r in steps:
        total += (r.get('ms') or 0) / 1e3
        seconds_at[r['step']] = round(total, 3)
    tokens_at = {r['step']: r.get('tokens') for r in steps}
    result = {
        'val_loss': done.get('val_loss') if finite(done.get('val_loss')) else None,
        'train_loss': done.get('loss') if finite(done.get('loss')) else None,
        'val_bpb': validations[-1].get('val_bpb') if validations else None,
        'weights_hash': done.get('weights_hash'), 'peak_bytes': done.get('peak_bytes'), 'parameters': config.get('parameters'),
        'steps': steps[-1]['step'] if steps else 0, 'tokens': steps[-1].get('tokens') if steps else 0, 'seconds': round(total, 3),
        'ms': round(statistics.median(times), 3) if times else None,
        'validation': [[r['step'], tokens_at.get(r['step']), r['val_loss'], seconds_at.get(r['step'])] for r in validations],
        'training': thinned([[r['step'], r['loss']] for r in steps if finite(r.get('loss'))]),
    }
    result |= from_tables(printed) | provenance(config) | evaluations(records) | attention(records) | rounds(records)
    result |= by_position(records) | sparse_reading(records)
    if why := diverged(result, steps, config): result['diverged'] = why
    return result


def thinned(curve):
    """Means over stretches of equal length."""
    stretch = max(1, math.ceil(len(curve) / CURVE_POINTS))
    parts = [curve[i:i + stretch] for i in range(0, len(curve), stretch)]
    return [[part[-1][0], round(statistics.mean(loss for _, loss in part), 4)] for part in parts]


def diverged(result, steps, config):
    """Why a finished run counts as diverged: a loss that is not finite or worse than guessing; '' for a sound run."""
    lost = [r for r in steps if not finite(r.get('loss')) and r.get('targets') != 0]   # a mask may hide all targets of a step
    if lost or (result['validation'] and not finite(result['validation'][-1][2])): return 'a loss is not finite'
    guess = math.log(config.get('model', {}).get('vocab_size', 1 << 30))
    last = result['training'][-1][1] if result['training'] else None
    if last is not None and last > guess + WORSE_THAN_GUESSING: return f'ended at {last:.2f}, worse than a guess ({guess:.2f})'
    return ''


def table_rows(printed):
    """{row: value} of the trainer's tables."""
    return dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', printed, re.MULTILINE))


def from_tables(printed):
    """Rows that a report needs."""
    rows = table_rows(printed)
    return {'machine': rows.get('device', '')} | ({'flops_per_token': flops_of(rows)} if FLOPS in rows else {})


def flops_of(rows):
    """FLOPs per token, or their bound where they depend on the data."""
    return float(rows[FLOPS].removeprefix('at most '))


def provenance(config):
    """The trainer's record of its origin. Its hash is of the shards it read, the plan's of files."""
    found = {key: config[key] for key in ('machine', 'blas', 'flops_per_token', 'binary_hash') if config.get(key)}
    return found | ({'data_read': config['data_hash']} if config.get('data_hash') else {})


def evaluations(records):
    """Last accuracy, and macro F1, of every file of items."""
    found = [r for r in records if r.get('event') == 'evaluation' and 'task' in r]
    if not found: return {}
    f1 = {r['task']: r['macro_f1'] for r in found if finite(r.get('macro_f1'))}
    return {'accuracy': {r['task']: r.get('acc_sum') for r in found}} | ({'macro_f1': f1} if f1 else {})


def rounds(records):
    """Measurements of turns.py."""
    turns, writes = first(records, 'turns'), first(records, 'writes')
    kept = {key: turns[key] for key in ('ms', 'baseline_ms', 'ratio', 'baseline_peak_bytes', 'load') if key in turns}
    return kept | {key: value for key, value in writes.items() if key not in ('event', 'step')}


def by_position(records):
    """[[middle of a bin of positions, loss], ...] of the last evaluation, without bins whose targets are all masked."""
    bins = next((r.get('bins') for r in reversed(records) if r.get('event') == 'loss_by_position'), None) or []
    points = [[(b['first'] + b['last']) / 2, b['loss']] for b in bins if finite(b.get('loss'))]
    return {'by_position': points} if points else {}


def sparse_reading(records):
    """Shares that --attention psa or adaspa has read: {validation or task: {pairs_read, mass_kept}}."""
    found = {r['of']: {key: r.get(key) for key in ('pairs_read', 'mass_kept')}
             for r in records if r.get('event') == 'sparse_reading' and 'of' in r}
    return {'sparse_reading': found} if found else {}


def numbers_in(values):
    """All finite numbers in nested lists."""
    if isinstance(values, list): return [number for value in values for number in numbers_in(value)]
    return [values] if finite(values) else []


def attention(records):
    """Curves of mean entropy, gates and concentration over layers and heads."""
    curves = {}
    for key in ('entropy', 'gate', 'mass_95', 'mass_99'):
        points = [[r['step'], round(statistics.mean(found), 4)] for r in records
                  if r.get('event') == 'attention' and (found := numbers_in(r.get(key)))]
        if points: curves[key] = points
    return curves
