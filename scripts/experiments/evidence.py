"""Internal evidence: what follows from the documents' printed numbers, without a run. All numbers come from [[printed]] of claims.toml,
from hashes in ledgers or from measurements of GPUs. The statements open a report."""
import math
from typing import NamedTuple

import numpy
from scipy import stats as scipy

from packages import HERE, Refused
from verdicts import IDENTITY


class Statement(NamedTuple):
    title: str
    words: str


class Printed(dict):
    """{id: value} of [[printed]]."""

    def __missing__(self, name):
        raise Refused(f'{HERE / "claims.toml"}: [[printed]] has no {name}, from which evidence.py computes; add it with its source')


def statements(report):
    """All statements, in the order of the page."""
    p = Printed(report.printed)
    return [Statement(title, ' '.join(words)) for title, words in (
        ('"Neither" is the baseline', identity(p, report.findings)),
        ('A fixed window cannot cost what is printed', fixed_window(p)),
        ('The printed shape is not of the printed size', parameters(p)),
        ('Tokens, hours and loss do not fit', tokens(p)),
        ('One baseline and one mechanism with several results', repeated(p)),
        ('Percentages', percentages(p)),
        ('A window cannot save the memory', memory(p)),
        ('Speeds', speed(p, report.cards)),
        ('The gain is within its own errors', noise(p)))]


def identity(p, findings):
    """Equal weights hashes, and what a difference of two runs of one program says of others."""
    same = [one.found.pairs for one in findings if one.verdict.word == IDENTITY and one.claim['id'] == 'asga_neither']
    yield 'Without geometry and without sparsity ASGA computes dense attention'
    yield f'(weights hashes of {same[0]} of {same[0]} pairs here are equal).' if same else '(by its formula).'
    yield f'The {p["neither_000"] - p["baseline_000"]:+.3f} printed for it is the noise of two runs of one program.'
    yield f'{p["no_gate_002"] - p["baseline_002"]:+.3f} (no gating) and {p["fixed_002"] - p["baseline_000"]:+.3f} (fixed window)'
    yield 'are of that order.'


def fixed_window(p):
    """Rows in which the full model and the one with a fixed window differ, and what each would have to lose."""
    rows, lost = p['dense_until'] - p['window'], p['fixed_002'] - p['dsa_002']
    yield f'The two differ in rows {p["window"] + 1} to {p["dense_until"]} alone; in none if the rule is per sequence.'
    yield f'At T {p["tokens_002"]:,} these are {rows / p["tokens_002"]:.1%} of all, which would each have to lose'
    yield f'{lost * p["tokens_002"] / rows:.1f} nats for a mean of {lost:.3f}; at T {p["tokens_short"]:,}'
    yield f'{lost * p["tokens_short"] / rows:.2f}.'


def count_parameters(shape):
    """(parameters of a Qwen2.5 with tied embeddings, those of its embedding)."""
    wide, keys = shape['hidden'], shape['hidden'] // shape['heads'] * shape['key_heads']
    attention = 2 * wide * wide + 2 * wide * keys + wide + 2 * keys   # q, o; k, v; biases of q, k, v
    layer = attention + 3 * wide * shape['feed_forward'] + 2 * wide
    return shape['layers'] * layer + wide + shape['vocabulary'] * wide, shape['vocabulary'] * wide


def parameters(p):
    """The shape's parameters, and the arithmetic that its speed needs (6 FLOPs a parameter and token, without attention)."""
    shape, rate, said = p['shape_002'], p['rates_002'][0], p['parameters_002']
    n, embedding = count_parameters(shape)
    yield f'{shape["layers"]} layers of {shape["hidden"]:,}, feed-forwards of {shape["feed_forward"]:,} and {shape["heads"]} heads have'
    yield f'{n:,} parameters, as Qwen2.5-1.5B, not {said / 1e6:.0f} million; the embedding alone has {embedding / 1e6:.0f} million.'
    yield f'{rate:,} tokens/s are {6 * n * rate / 1e12:.0f} TFLOP/s at that size and {6 * said * rate / 1e12:.0f} at the printed one.'


def tokens(p):
    """Tokens and hours of the printed steps, with and without accumulation, and the loss of a public run after as many tokens."""
    rate, hours_of, gpus = p['rates_002'][0], lambda count: count / p['rates_002'][0] / 3600, p['gpus']
    total = p['batch'] * p['tokens_002'] * p['steps_002']
    more = total * p['accumulation']
    yield f'{p["steps_002"]} steps of {p["batch"]} rows of {p["tokens_002"]:,} are {total / 1e6:.0f} million tokens:'
    yield f'{hours_of(total):.1f} hours at {rate:,} tokens/s, {hours_of(total) / gpus:.1f} if that is one of {gpus} GPUs.'
    yield f'With {p["accumulation"]} accumulations they are {more / 1e9:.2f} billion: {hours_of(more):.0f} or'
    yield f'{hours_of(more) / gpus:.1f} hours. Document 004 prints {p["hours_004"][0]}.'
    steps, losses = map(numpy.array, zip(*p['log_124m']))
    seen = float(numpy.interp(-p['baseline_002'], -losses, steps)) * p['log_124m_batch']
    there = float(numpy.interp(math.log(total / p['log_124m_batch']), numpy.log(steps), losses))
    yield f'A public log of 124M parameters on FineWeb has {p["baseline_002"]:.2f} nats after {seen / 1e6:.0f} million tokens,'
    yield f'{there:.2f} after {total / 1e6:.0f} million and {losses[-1]:.2f} after {steps[-1] * p["log_124m_batch"] / 1e9:.1f} billion.'
    yield f'{p["steps_000"]:,} steps of {p["batch"]} rows are {seen / 1e6:.0f} million tokens only if rows have'
    yield f'{seen / p["steps_000"] / p["batch"]:.0f}.'


def repeated(p):
    """One baseline under several schedules; one mechanism with several times of a step and losses."""
    (fast, slow), (base, own) = p['rates_002'], p['hours_004']
    yield f'{p["baseline_002"]} is the baseline of {p["steps_002"]} steps at {p["lr_002"]:g} and of {p["steps_000"]:,} at {p["lr_000"]:g}.'
    yield 'DSA changes the time of a step by'
    yield f'{1 / p["efficiency_dsa_000"] - 1:+.0%} (000), {fast / slow - 1:+.0%} (002) and {own / base - 1:+.1%} (004), and ends at'
    yield f'{p["dsa_002"]} and {p["dsa_004"]}, {p["dsa_002"] - p["dsa_004"]:.3f} nats apart. At most one of each is right.'


def percentages(p):
    """The printed percentages, from the printed numbers."""
    gain, (big, small), (fast, slow) = p['baseline_002'] - p['dsa_004'], p['memory_002'], p['rates_002']
    yield f'{p["baseline_002"]} to {p["dsa_004"]} is {gain / p["baseline_002"]:.1%}, or {gain / p["dsa_004"]:.1%} of the smaller;'
    yield f'{p["gain_004"]}% is printed. {big} to {small} GB is {(big - small) / big:.0%} and {fast:,} to {slow:,} tokens/s is'
    yield f'{(fast - slow) / fast:.0%}, as printed.'


def memory(p):
    """Bytes of the scores of one layer and row in bf16."""
    scores = p['shape_002']['heads'] * p['tokens_002']**2 * 2
    yield f'At T {p["tokens_002"]:,} the scores of one layer and one row are {scores / 1e9:.1f} GB in bf16.'
    yield f'{p["memory_002"][0]} GB hold no model beside them, so that the baseline kept no scores, and a window has none to save.'


def speed(p, cards):
    """Printed relative speeds, and those of whole steps on GPUs."""
    yield f'A gate computes {p["gelus_000"]} GELUs for each pair of tokens and head, more than attention itself; documents print'
    yield f'{p["efficiency_asga_000"]} of the baseline\'s speed for asga and {p["efficiency_dsa_000"]} for dsa.'
    for card in cards:
        rate = {arm: card['whole_steps'][arm]['is'] for arm in ('causal', 'asga', 'dsa') if arm in card['whole_steps']}
        if len(rate) < 3: continue
        yield f'{card["gpu"]}, rows of 1,024, fused kernels: {rate["asga"] / rate["causal"]:.2f} and {rate["dsa"] / rate["causal"]:.2f}.'


def noise(p):
    """The gain of document 000 over its errors, read as standard errors or as standard deviations."""
    gain, own, base, n = p['baseline_000'] - p['dsa_000'], p['dsa_000_error'], p['baseline_000_error'], p['seeds_000']
    z, t = gain / math.hypot(own, base), gain / math.hypot(own, base) * math.sqrt(n)
    yield f'{p["dsa_000"]} +- {own} against {p["baseline_000"]} +- {base}: z = {z:.1f} if these are standard errors;'
    yield f't = {t:.1f} and p = {2 * scipy.t.sf(t, 2 * n - 2):.2f} if they are standard deviations of {n} seeds.'
