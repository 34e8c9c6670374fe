"""What a comparison cannot say, computed from ledgers: sentences of report.py and compare.py beside its differences."""
from statistics import mean

import numpy
import pandas as pd
from scipy.stats import entropy

import shards
import stats

CONTEXT = 0.02   # nats; a baseline that gains less from context beyond a window loses nothing to it
APART = 0.3      # nats between training and validation loss, before any token was read twice


def cautions(trained, baseline, comparisons, all_runs, unigram=None):
    """Sentences on the runs of one table; `all_runs` may have the baseline's loss by position, `unigram` is unigram_loss()."""
    base = trained[trained.arm == baseline]
    found = [*no_context(base, all_runs), *other_text(base), *no_better_than_unigram(base, unigram)]
    shrinking = [f'{arm} - {against} from {c.half:+.3f} to {c.mean:+.3f}' for (arm, against), c in comparisons.items()
                 if c.shrinks and c.adjusted < stats.ALPHA]
    if shrinking: found.append(f'From half of the tokens to all of them differences still shrink: {", ".join(shrinking)}.')
    return found


def no_context(base, all_runs):
    """One sentence where the baseline's loss stops falling behind the first positions of a row."""
    curves = [record for record in all_runs.record if same_model(record, base)]
    gains = [gain for record in curves if (gain := context_gain(record['result']['by_position'])) is not None]
    if not gains or mean(gains) >= CONTEXT: return []
    return [f'The baseline uses no context beyond a window: its loss behind position 32 is {mean(gains):+.3f} nats above that in the '
            f'second half of a row ({curves[0]["experiment"]}). What a window hides cannot be seen here.']


def same_model(record, base):
    """Whether a record has the loss by position of a baseline's model, text and rows."""
    key = lambda r: (r.get('variant'), r.get('data_hash'), *(r.get('options', {}).get(name) for name in ('model', 'seq-len')))
    return bool(record['result'].get('by_position')) and key(record) in map(key, base.record)


def context_gain(curve):
    """Loss at positions 33 to 64 (or of the first bin behind 32) minus the mean loss beyond half of the row."""
    early = next((loss for middle, loss in curve if middle > 32), None)
    late = [loss for middle, loss in curve if middle > (curve[-1][0] + curve[0][0]) / 2]
    return early - mean(late) if early is not None and len(late) > 1 else None


def other_text(base):
    """One sentence where training and validation differ in kind: their losses are apart at the first validation, when a model has
    memorised nothing, and at the last."""
    gaps = [gap for record in base.record if (gap := loss_gaps(record['result']))]
    first, last = map(mean, zip(*gaps)) if gaps else (0, 0)
    if first * last <= 0 or min(abs(first), abs(last)) < APART: return []
    return [f'Training and validation text differ in kind: their losses are {first:+.2f} nats apart at the first validation, '
            f'{last:+.2f} at the last.']


def loss_gaps(result):
    """Validation loss minus training loss, at the first and the last validation of a run; None for one that trained nothing."""
    seen = [(step, loss) for step, _, loss, _ in result.get('validation') or [] if step and loss is not None]
    if not seen or not result.get('training'): return None
    return [loss - float(numpy.interp(step, *zip(*result['training']))) for step, loss in (seen[0], seen[-1])]


def no_better_than_unigram(base, unigram):
    if unigram is None or base.loss.isna().all() or base.loss.mean() < unigram: return []
    return [f'The baseline has learnt no context: its loss of {base.loss.mean():.2f} nats is not below the {unigram:.2f} of a unigram '
            'model.']


def unigram_loss(paths):
    """Entropy in nats of the unigram distribution of the tokens in these shards; None without any."""
    counts = pd.Series(dtype=float)
    for path in paths:
        magic, _, tokens, content = shards.read(path)
        ids = numpy.frombuffer(content, '<u2' if magic == shards.MAGIC_16 else '<u4', tokens)
        counts = counts.add(pd.Series(numpy.bincount(ids)), fill_value=0)
    return float(entropy(counts)) if counts.any() else None
