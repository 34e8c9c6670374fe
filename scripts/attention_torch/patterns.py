"""Static patterns, and those that are put together from them."""
import torch

from .parts import attend, for_query_heads, masked_softmax, scores, window


def masked(mask):
    """The mechanism that is plain attention under mask(a, s)."""
    return lambda a, w, s, notes: attend(scores(a.q, a.k), a.causal & mask(a, s), a.v)


def everything(a, s):
    return a.causal


def leading_and_window(count):
    """sinks and longformer: the first tokens are visible to all. (A global row i sees all j <= i, which are global themselves.)"""
    return lambda a, s: window(a, s) | (a.j < s[count]) | (a.i < s[count])


def read_through_window(a, s):
    """A window that is not the mechanism's own, with sinks."""
    return (a.i - a.j <= s['read_window']) | (a.j < s['read_sinks'])


def strided(a, s):
    l = s['strided_stride']
    return (a.i - a.j <= l) | ((a.i - a.j) % l == 0)


def fixed_factorized(a, s):
    l, c = s['fixed_factorized_chunk'], s['fixed_factorized_summary']
    return (a.i // l == a.j // l) | (a.j % l >= l - c)


def deepspeed_fixed(a, s):
    """Own chunk of L blocks, and G blocks of every chunk; with layouts per head, head h takes the h-th G from the end, in turn."""
    r, c = a.i // s['deepspeed_fixed_block'], a.j // s['deepspeed_fixed_block']
    L, G = s['deepspeed_fixed_local'], s['deepspeed_fixed_globals']
    p = torch.arange(a.NH)[:, None, None] % (L // G) * s['deepspeed_fixed_per_head']
    return (r // L == c // L) | ((L - (p + 1) * G <= c % L) & (c % L < L - p * G))


def bigbird(a, s):
    r, c = a.i // s['bigbird_block'], a.j // s['bigbird_block']
    blocks = a.T // s['bigbird_block'] + 1
    drawn = torch.zeros(a.NH, blocks, blocks, dtype=torch.bool)
    for h in range(a.NH):
        for row in range(blocks):
            for block in bigbird_draws(s['bigbird_seed'], a.layer, h, row, s['bigbird_random']):
                drawn[h, row, block] = True
    return (r - c <= s['bigbird_window'] // 2) | (c < s['bigbird_globals']) | drawn[:, r, c]


def bigbird_draws(seed, layer, h, row, parts):
    """The blocks [0, row) in parts as equal as can be, the longer ones first, and one block of each. The paper's generator does not
    matter, but it must be the engine's: the finaliser of MurmurHash3 over seed, layer, head, and row and part."""
    def scrambled(x):
        x &= 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        return x ^ (x >> 16)

    of_head = scrambled(scrambled(scrambled(seed) + layer) + h)
    for n, part in enumerate(torch.arange(row).tensor_split(parts)):
        if len(part):
            yield part[0].item() + (scrambled(of_head + row * 64 + n) * len(part) >> 32)


def sinks_cache(a, w, s, notes):
    """Keys of the window at their distance in the text; a sink that has left it, at its distance in the cache of s + left + 1."""
    sinks, left = s['sinks_tokens'], s['attention_window']
    in_cache = a.rope(a.q_pre, torch.arange(a.T).clamp(max=sinks + left))
    z = torch.where(window(a, s), scores(a.q, a.k), scores(in_cache, a.k))
    return attend(z, a.causal & (window(a, s) | (a.j < sinks)), a.v)


def longnet(a, w, s, notes):
    """Branches of segments w 2^n with every 2^n-th token, mixed by their log-sum-exps."""
    outs, lses, h = [], [], torch.arange(a.NH)[:, None, None]
    for n in range(s['longnet_branches']):
        segment, dilation = s['longnet_segment'] * 2 ** n, 2 ** n
        kept_i, kept_j = a.i % dilation == h % dilation, a.j % dilation == h % dilation
        visible = a.causal & (a.i // segment == a.j // segment) & kept_i & kept_j
        probabilities, lse = masked_softmax(scores(a.q, a.k), visible)
        outs.append(probabilities @ for_query_heads(a.v, a.NH))
        lses.append(lse)
    alpha = torch.stack(lses).softmax(0)
    alpha = alpha.detach() if s.get('longnet_detach') else alpha
    return (alpha[..., None] * torch.stack(outs)).sum(0)
