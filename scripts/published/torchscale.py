"""LongNet's released code (microsoft/torchscale): DilatedAttention, with the FlashAttention that it calls in plain PyTorch."""
from types import SimpleNamespace

import torch

from attention_torch.parts import masked_softmax, scores

from .check import Check

SEGMENT, BRANCHES = 16, 2


def flash_attention(q, k, v, dropout, bias, scale, is_causal):
    """(B, T, heads, HS) -> the same, and log-sum-exps (B, heads, T)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    P, lse = masked_softmax(scores(q, k), torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril())
    return (P @ v).transpose(1, 2), lse


def dilated(a, _, check):
    attention = check.module('torchscale/component/multihead_attention.py', ('apex', 'apex.normalization'))
    attention.flash_attn_func = flash_attention
    module = check.module('torchscale/component/dilated_attention.py')
    args = SimpleNamespace(flash_attention=True, multiway=False, xpos_rel_pos=False, layernorm_eps=1e-5, seq_parallel=False,
                           segment_length=[SEGMENT * 2 ** n for n in range(BRANCHES)], dilated_ratio=[2 ** n for n in range(BRANCHES)])
    layer = module.DilatedAttention(args, a.NH * a.HS, a.NH, self_attention=True)
    for name in ('q_proj', 'k_proj', 'v_proj', 'out_proj'): setattr(layer, name, torch.nn.Identity())
    # Its first half of the heads keeps even tokens, the second odd ones; ours take turns.
    order = (torch.arange(a.NH) % 2).argsort(stable=True)
    tokens = lambda heads: heads.repeat_interleave(a.NH // heads.shape[1], 1)[:, order].transpose(1, 2).flatten(2)
    out, _ = layer(tokens(a.q), tokens(a.k), tokens(a.v), is_causal=True)
    return out.view(a.B, a.T, a.NH, a.HS).transpose(1, 2)[:, order.argsort()]


CHECKS = [
    Check('longnet', 'microsoft/torchscale, DilatedAttention', dilated,
          {'longnet_segment': SEGMENT, 'longnet_branches': BRANCHES, 'longnet_detach': 1},
          repository='microsoft/torchscale', imports=('einops',),
          remark='two branches, heads in another order: it gives neighbouring heads the same offset, we the next; '
                 'FlashAttention in plain PyTorch'),
]
