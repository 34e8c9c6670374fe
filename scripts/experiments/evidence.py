"""Internal evidence: what follows from the documents' printed numbers, without a run. [[statements]] of claims.toml are its words, whose
numbers are those of [printed] or derived from them here. They open a report."""
import math

import numpy
from scipy import stats as scipy

from claims import IDENTITY
from packages import HERE, Refused


class Printed(dict):
    """{id: value} of [printed]."""

    def __missing__(self, name):
        raise Refused(f'{HERE / "claims.toml"}: [printed] has no {name}, from which evidence.py computes; add it with its source')


def statements(report):
    """[(title, words)] of all statements."""
    p = Printed(report.printed)
    numbers = Printed(p | derived(p) | measured(report))
    return [(row['title'], row['words'].format_map(numbers)) for row in report.statements]


def derived(p):
    """{name: number} of what the statements say beside printed numbers: lengths in tokens, losses in nats, times in hours."""
    baseline, dsa, rate, slower = p['baseline_000'], p['dsa_000'], *p['rates_002']
    differing, window_cost = p['dense_until'] - p['window'], p['fixed_002'] - p['dsa_002']   # rows of "full" against "fixed window"
    parameters, embedding = count_parameters(p)
    tokens = p['batch'] * p['tokens_002'] * p['steps_002']
    hours, accumulated = tokens / rate / 3600, tokens * p['accumulation']
    steps, losses = map(numpy.array, zip(*p['log_124m']))
    seen = float(numpy.interp(-p['baseline_002'], -losses, steps)) * p['log_124m_batch']   # tokens at which the log has that loss
    z = (baseline - dsa) / math.hypot(p['dsa_000_error'], p['baseline_000_error'])
    t, n = z * math.sqrt(p['seeds_000']), p['seeds_000']
    gain, (large, small) = p['baseline_002'] - p['dsa_004'], p['memory_002']
    return {
        'neither': p['neither_000'] - baseline, 'no_gate': p['no_gate_002'] - p['baseline_002'], 'fixed': p['fixed_002'] - baseline,
        'first_row': p['window'] + 1, 'share_long': differing / p['tokens_002'], 'window_cost': window_cost,
        'lost_long': window_cost * p['tokens_002'] / differing, 'lost_short': window_cost * p['tokens_short'] / differing,
        'parameters': parameters, 'embedding_millions': embedding / 1e6, 'said_millions': p['parameters_002'] / 1e6, 'rate': rate,
        'tflops': 6 * parameters * rate / 1e12, 'said_tflops': 6 * p['parameters_002'] * rate / 1e12,
        'millions': tokens / 1e6, 'hours': hours, 'hours_each': hours / p['gpus'], 'billions': accumulated / 1e9,
        'more_hours': hours * p['accumulation'], 'more_each': hours * p['accumulation'] / p['gpus'], 'said_hours': p['hours_004'][0],
        'seen_millions': seen / 1e6, 'loss_there': float(numpy.interp(math.log(tokens / p['log_124m_batch']), numpy.log(steps), losses)),
        'log_loss': losses[-1], 'log_billions': steps[-1] * p['log_124m_batch'] / 1e9, 'row': seen / p['steps_000'] / p['batch'],
        'time_000': 1 / p['efficiency_dsa_000'] - 1, 'time_002': rate / slower - 1, 'time_004': p['hours_004'][1] / p['hours_004'][0] - 1,
        'apart': p['dsa_002'] - p['dsa_004'], 'gain': gain / p['baseline_002'], 'gain_of_smaller': gain / p['dsa_004'], 'large': large,
        'small': small, 'memory_gain': (large - small) / large, 'slower': slower, 'rate_loss': (rate - slower) / rate,
        'scores_gb': p['heads'] * p['tokens_002']**2 * 2 / 1e9, 'z': z, 't': t, 'p': 2 * float(scipy.t.sf(t, 2 * n - 2))}


def count_parameters(p):
    """(parameters of a Qwen2.5 with tied embeddings, those of its embedding)."""
    wide, keys = p['hidden'], p['hidden'] // p['heads'] * p['key_heads']
    attention = 2 * wide * wide + 2 * wide * keys + wide + 2 * keys   # q, o; k, v; biases of q, k, v
    layer = attention + 3 * wide * p['feed_forward'] + 2 * wide
    return p['layers'] * layer + wide + p['vocabulary'] * wide, p['vocabulary'] * wide


def measured(report):
    """Pairs of runs of asga_neither and causal with equal weights hashes, and speeds against causal's on the first GPU that has them."""
    pairs = sum(one.found.pairs for one in report.findings if one.verdict.word == IDENTITY and one.claim['id'] == 'asga_neither')
    for gpu, (_, steps) in report.cards.items():
        if {'asga', 'dsa'} <= set(steps):
            return {'pairs': pairs, 'card': gpu, 'asga_speed': 1 / steps['asga'], 'dsa_speed': 1 / steps['dsa']}
    raise Refused('dev/gpu: no measurement of whole steps of causal, asga and dsa; dev/gpu/results.py adds them')
