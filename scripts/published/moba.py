"""MoBA's released code (MoonshotAI/MoBA), its plain form, which computes in float32."""
import torch

from .check import Check

BLOCK, TOP = 64, 3


def naive(a, _, check):
    moba_attn_varlen_naive = check.module('moba/moba_naive.py').moba_attn_varlen_naive
    rows = lambda x, b: x[b].repeat_interleave(a.NH // x.shape[1], 0).transpose(0, 1)      # (T, NH, HS): it has no grouped heads
    out = [moba_attn_varlen_naive(rows(a.q, b), rows(a.k, b), rows(a.v, b), torch.tensor([0, a.T]), a.T, BLOCK, TOP)
           for b in range(a.B)]
    return torch.stack(out).transpose(1, 2)


CHECKS = [
    Check('moba', 'MoonshotAI/MoBA, moba_attn_varlen_naive', naive, {'moba_block': BLOCK, 'moba_top_k': TOP},
          ((1, 340, 4, 2), (2, 400, 2, 2), (1, 65, 2, 1)), repository='MoonshotAI/MoBA', in_float=True,
          remark='q and k after RoPE; keys repeated for each query head'),
]
