"""How far a kernel may be from attention, and what is wrong with it.

Exact is attention in double, by scripts/attention_torch, which the fixtures of our tests and scripts/check_published.py hold against
our own kernels in double; PyTorch alone is needed for it, so that it is where the kernel is. What a kernel that accumulates in float32
may be off by follows from where it has to round: with u the unit roundoff of its numbers and w that of float32, A = |q||k|^T / sqrt(HS),

    P_ij     relative  e_ij = u + w (A_ij + sum_j P_ij A_ij)               P rounded for its product with v, scores accumulated
    out      (P e) |v| + u |out|
    dv       (P e)^T |dout| + u |dv|
    dS_ij    P_ij (e_ij |dP_ij - D_i| + w |dout||v|^T + <|dout_i|, bound of out_i>) + u |dS_ij|
    dq, dk   bound of dS times |k|, |q|, / sqrt(HS), + u |dq|, u |dk|;     dk and dv also u for each head of a group

to first order and for each number by itself, and where numbers are too small for u, half their distance. The length of sums is not in
it, so a kernel is wrong only where an error is more than 1 of that and more than TWICE what the plain kernel below has anywhere, which
does just that rounding. In bfloat16 this lets a single number be 1% off, which is one or two units of its last place; so in half
precision errors are also averaged over many DRAWS of the inputs, in which rounding cancels and a bias of one number does not.
"""
import functools
import math
from dataclasses import replace

import torch

from attention_torch.parts import for_query_heads, masked_softmax, scores

NAMES = ('out', 'dq', 'dk', 'dv')
TWICE, DRAWS = 2.0, 80
FEW = 1         # more numbers than that are wrong by a rule, which may have a name
HALF = torch.bfloat16, torch.float16


def of_groups(x, NKV):
    """(B, NH, T, HS) -> (B, NKV, T, HS), summed over the heads that share keys."""
    return x.unflatten(1, (NKV, -1)).sum(2)


def exact(numbers, case, factor=1.0, without_head=None, rounds_scores=False, unit=None):
    """{name: (what is right, how far off rounding may be)} in double; or of suspected errors: scores times a factor, dk without the
    part of one query head, scores rounded to the number type, products in a coarser one with its `unit`."""
    kind = torch.finfo(numbers[0].dtype)
    u, w, tiny = kind.eps / 2, torch.finfo(torch.float32).eps / 2, kind.smallest_normal * kind.eps / 2
    if unit: u = w = unit
    rounding = lambda x: u * x.abs() + tiny
    q, k, v, dout = (x.double() for x in numbers)
    scale = factor * case.HS ** -0.5
    K, V = for_query_heads(k, case.NH), for_query_heads(v, case.NH)
    P, _ = masked_softmax(factor * scores(q, k), case.visible(q.device))
    out = P @ V
    dP, D = dout @ V.mT, (dout * out).sum(-1, keepdim=True)
    dS = P * (dP - D)
    A = scale * q.abs() @ K.abs().mT
    e = u + w * (A + (P * A).sum(-1, keepdim=True))
    if rounds_scores:
        S = (scale * q @ K.mT).abs()
        e = e + u * (S + (P * S).sum(-1, keepdim=True))
    off_P = P * e + tiny
    off_out = off_P @ V.abs() + rounding(out)
    off_dP = w * dout.abs() @ V.abs().mT + (dout.abs() * off_out).sum(-1, keepdim=True)
    off_dS = P * (e * (dP - D).abs() + off_dP) + rounding(dS)
    dq, dk, dv = scale * dS @ K, scale * dS.mT @ q, P.mT @ dout
    off_dk, off_dv = scale * off_dS.mT @ q.abs() + rounding(dk), off_P.mT @ dout.abs() + rounding(dv)
    if without_head is not None: dk[:, without_head] = 0
    grouped = lambda x: of_groups(x, case.NKV)
    dk, dv = grouped(dk), grouped(dv)
    return {'out': (out, off_out), 'dq': (dq, scale * off_dS @ K.abs() + rounding(dq)),
            'dk': (dk, grouped(off_dk) + rounding(dk)), 'dv': (dv, grouped(off_dv) + rounding(dv))}


def plain(numbers, case):
    """Attention as kernels in this number type compute it: sums in float32, and P, dS and results rounded."""
    dtype = numbers[0].dtype
    rounded = lambda x: x.to(dtype).float()
    q, k, v, dout = (x.float() for x in numbers)
    K, V, scale = for_query_heads(k, case.NH), for_query_heads(v, case.NH), case.HS ** -0.5
    P, _ = masked_softmax(scale * (q @ K.mT), case.visible(q.device))
    out = rounded(rounded(P) @ V)
    dS = rounded(P * (dout @ V.mT - (dout * out).sum(-1, keepdim=True)))
    results = out, scale * dS @ K, of_groups(scale * dS.mT @ q, case.NKV), of_groups(rounded(P).mT @ dout, case.NKV)
    return {name: x.to(dtype) for name, x in zip(NAMES, results)}


def ratios(found, right, off):
    """Errors in units of what rounding may do; infinite where there is no number."""
    return ((found.double() - right).abs() / off).nan_to_num(nan=math.inf, posinf=math.inf)


def worst(found, truth):
    """{name: largest ratio} of the results that there are."""
    return {name: ratios(x, *truth[name]).max().item() for name, x in found.items()}


def limits_of(cases, dtype, device):
    """{name: the largest ratio that a kernel may have}, and the plain kernel's."""
    most = dict.fromkeys(NAMES, 0.0)
    for case in cases:
        numbers = case.numbers(dtype, device)
        for name, ratio in worst(plain(numbers, case), exact(numbers, case)).items(): most[name] = max(most[name], ratio)
    return {name: max(1.0, TWICE * ratio) for name, ratio in most.items()}, most


def bias(compute, case, dtype, device):
    """{name: mean over draws of the ratios, above 0 where numbers are too large}."""
    sums = {}
    for draw in range(DRAWS):
        numbers = case.numbers(dtype, device, draw)
        truth, found = exact(numbers, case), compute(numbers, case)
        for name, x in found.items():
            right, off = truth[name]
            sums[name] = sums.get(name, 0.0) + (x.double() - right) * right.sign() / off / DRAWS
    return sums


@functools.cache
def bias_of_plain(case, dtype, device):
    return bias(plain, case, dtype, device)


def what_is_biased(compute, case, dtype, device):
    """In words; '' when nothing is more than TWICE what it is of the plain kernel anywhere, which is scaled to a kernel that spreads
    more, or when this is no half precision."""
    if dtype not in HALF: return ''
    spread = lambda mean: (mean - mean.mean()).abs().mean()
    of_plain, said = bias_of_plain(case, dtype, device), []
    for name, mean in bias(compute, case, dtype, device).items():
        usual = of_plain[name].abs().max() * max(1.0, spread(mean) / spread(of_plain[name]).clamp(min=1e-9))
        many = int((mean.abs() > TWICE * usual).sum())
        at = [int(n) for n in torch.unravel_index(mean.abs().argmax(), mean.shape)]
        if many: said.append(f'{name}: {share_of(many, mean)} biased, the worst at {place(at)}')
    return '; '.join(said)


def bits_differ(first, again):
    """Names of results whose bits are not the same."""
    raw = lambda x: x.contiguous().view(torch.uint8)
    return [name for name in first if not torch.equal(raw(first[name]), raw(again[name]))]


def suspicions(case):
    """(words, exact's arguments) of errors that kernels are known for, as far as the case can show them."""
    yield 'looks one key ahead', {'case': replace(case, ahead=1)}
    yield 'does not see its own key', {'case': replace(case, ahead=-1)}
    if case.window: yield 'window one key too long', {'case': replace(case, window=case.window + 1)}
    if case.window > 1: yield 'window one key too short', {'case': replace(case, window=case.window - 1)}
    if case.window or case.documents: yield 'plain causal mask', {'case': replace(case, window=0, documents=())}
    yield 'scores without 1/sqrt(HS)', {'case': case, 'factor': case.HS ** 0.5}
    for h in range(case.NH): yield f'dk lacks query head {h}', {'case': case, 'without_head': h}
    yield 'rounds scores', {'case': case, 'rounds_scores': True}
    yield 'products as of TF32', {'case': case, 'unit': 2.0 ** -11}


def what_is_wrong(found, numbers, case, limits):
    """In words; '' when nothing is."""
    truth = exact(numbers, case)
    wrong = [name for name, ratio in worst(found, truth).items() if ratio > limits[name]]
    if not wrong: return ''
    few = sum(int((ratios(found[name], *truth[name]) > limits[name]).sum()) for name in wrong) <= FEW
    for words, arguments in suspicions(case) if not few else ():
        suspected = exact(numbers, **arguments)
        if all(ratio <= limits[name] for name, ratio in worst(found, suspected).items()): return words
    return '; '.join(place_of_error(name, found[name], truth[name], limits[name]) for name in wrong)


def place(at):
    return 'b {} h {} t {} d {}'.format(*at)


def share_of(many, x):
    return f'{many} of {x.numel()} numbers' if many > 1 else 'one number'


def place_of_error(name, found, truth, limit):
    ratio = ratios(found, *truth)
    at = [int(n) for n in torch.unravel_index(ratio.argmax(), ratio.shape)]
    is_, be = found[tuple(at)].item(), truth[0][tuple(at)].item()
    off = f'{is_:.4g} for {be:.4g}' if be == 0 or not math.isfinite(is_) else f'{100 * (is_ / be - 1):+.2g}%'
    return f'{name}: {share_of(int((ratio > limit).sum()), ratio)}, the worst at {place(at)}, {off}'
