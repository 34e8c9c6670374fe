"""What a trainer left behind: its log.jsonl and what it printed, as the result that goes into the ledger.

The log of an evaluation (--evaluate --eval-log FOLDER/log.jsonl) is read like that of a run: it has no steps.
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
    """The records of a log; a line that is cut is passed over, as the run is still going or was killed."""
    records = []
    try:
        lines = Path(path).read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        return records
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict): records.append(record)
    return records


def last_step(path):
    """How far a run has come, from the end of its log; 0 where there is none."""
    try:
        with open(path, 'rb') as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            found = re.findall(rb'^\{"step":(\d+),"tokens"', file.read(), re.MULTILINE)
        return int(found[-1]) if found else 0
    except OSError:
        return 0


def is_finished(records):
    return any(r.get('event') == 'done' for r in records)


def result_of(folder, printed=''):
    """What the ledger keeps of a finished run; `diverged` says why where it did. `printed` is the trainer's standard output."""
    records = read_log(Path(folder) / 'log.jsonl')
    config = next((r for r in records if r.get('event') == 'config'), {})
    done = next((r for r in records if r.get('event') == 'done'), {})
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
    result |= said(printed) | provenance(config) | evaluations(records) | attention(records) | turns(records) | writes(records)
    result |= by_position(records) | sparse_reading(records)
    if why := diverged(result, steps, config): result['diverged'] = why
    return result


def thinned(curve):
    """Means over stretches of equal length."""
    stretch = max(1, math.ceil(len(curve) / CURVE_POINTS))
    return [[curve[i:i + stretch][-1][0], round(statistics.mean(loss for _, loss in curve[i:i + stretch]), 4)]
            for i in range(0, len(curve), stretch)]


def diverged(result, steps, config):
    """Why a finished run counts as diverged: a loss that is no number, or one worse than guessing; '' for a sound run."""
    lost = [r for r in steps if not finite(r.get('loss')) and r.get('targets') != 0]   # a loss mask may hide all of a step's targets
    if lost or (result['validation'] and not finite(result['validation'][-1][2])):
        return 'a loss is not finite'
    guess = math.log(config.get('model', {}).get('vocab_size', 1 << 30))
    last = result['training'][-1][1] if result['training'] else None
    if last is not None and last > guess + WORSE_THAN_GUESSING:
        return f'ended at {last:.2f}, worse than a guess ({guess:.2f})'
    return ''


def said(printed):
    """The rows of the trainer's tables that a report wants."""
    rows = dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', printed, re.MULTILINE))
    found = {'machine': rows.get('device', '')}
    if FLOPS in rows: found['flops_per_token'] = flops_of(rows)
    return found


def flops_of(rows):
    """Of a token, or the bound of it that the trainer gives where the data decides."""
    return float(rows[FLOPS].removeprefix('at most '))


def provenance(config):
    """What the trainer itself says of where a run comes from; its hash of the shards that it read is other than the plan's of files."""
    found = {key: config[key] for key in ('machine', 'blas', 'flops_per_token', 'binary_hash') if config.get(key)}
    return found | ({'data_read': config['data_hash']} if config.get('data_hash') else {})


def evaluations(records):
    """Last accuracy of every file of items."""
    found = [r for r in records if r.get('event') == 'evaluation' and 'task' in r]
    if not found: return {}
    f1 = {r['task']: r['macro_f1'] for r in found if finite(r.get('macro_f1'))}
    return {'accuracy': {r['task']: r.get('acc_sum') for r in found}} | ({'macro_f1': f1} if f1 else {})


def turns(records):
    """What turns.py measured of a round."""
    found = next((r for r in records if r.get('event') == 'turns'), {})
    return {key: found[key] for key in ('ms', 'baseline_ms', 'ratio', 'baseline_peak_bytes', 'load') if key in found}


def writes(records):
    """What writing.py measured of a round."""
    found = next((r for r in records if r.get('event') == 'writes'), {})
    return {key: value for key, value in found.items() if key not in ('event', 'step')}


def by_position(records):
    """[[middle of a bin of positions, loss], ...] of the last evaluation; bins whose targets are all masked are left out."""
    bins = next((r.get('bins') for r in reversed(records) if r.get('event') == 'loss_by_position'), None) or []
    points = [[(b['first'] + b['last']) / 2, b['loss']] for b in bins if finite(b.get('loss'))]
    return {'by_position': points} if points else {}


def sparse_reading(records):
    """What --attention psa or adaspa has read: {validation or task: {pairs_read, mass_kept}}."""
    found = {r['of']: {key: r.get(key) for key in ('pairs_read', 'mass_kept')}
             for r in records if r.get('event') == 'sparse_reading' and 'of' in r}
    return {'sparse_reading': found} if found else {}


def mean_of(values):
    """Of all numbers in nested lists; None where there is none."""
    flat, stack = [], [values]
    while stack:
        item = stack.pop()
        if isinstance(item, list): stack.extend(item)
        elif finite(item): flat.append(item)
    return statistics.mean(flat) if flat else None


def attention(records):
    """Mean entropy, gates and concentration over layers and heads, at every look that the run took."""
    looks = [r for r in records if r.get('event') == 'attention']
    series = {}
    for key in ('entropy', 'gate', 'mass_95', 'mass_99'):
        points = [[r['step'], round(mean, 4)] for r in looks if (mean := mean_of(r.get(key))) is not None]
        if points: series[key] = points
    return series
