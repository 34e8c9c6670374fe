"""PyTorch's own attention: scaled_dot_product_attention, and FlexAttention in its form that materialises everything."""
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from .check import Check


def dense(a, _):
    return F.scaled_dot_product_attention(a.q, a.k, a.v, is_causal=True, enable_gqa=a.NH != a.NKV)


def flex(a, score_mod):
    return flex_attention(a.q, a.k, a.v, score_mod=score_mod, enable_gqa=a.NH != a.NKV)


def masked(visible):
    """`visible(i, j)` of tensors of positions."""
    hidden = -float('inf')
    return lambda a, _: flex(a, lambda score, b, h, i, j: torch.where((j <= i) & visible(i, j), score, hidden))


def flex_check(variant, visible, settings):
    return Check(variant, 'PyTorch, FlexAttention', masked(visible), settings, gradients=False, remark=FORWARD)


FORWARD = 'without compilation; on a CPU it has no gradients'
CHECKS = [
    Check('causal', 'PyTorch, scaled_dot_product_attention', dense),
    flex_check('causal', lambda i, j: j >= 0, {}),
    flex_check('sliding_window', lambda i, j: i - j <= 20, {'attention_window': 20}),
    flex_check('sinks', lambda i, j: (j < 3) | (i - j <= 9), {'sinks_tokens': 3, 'attention_window': 9}),
    flex_check('strided', lambda i, j: (i - j < 8) | ((i - j) % 8 == 0), {'strided_stride': 8}),
]
