"""Attention functions of Hugging Face's transformers."""
import math
from types import SimpleNamespace

import torch

from .check import Check


def gpt_oss(a, w):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
    layer = SimpleNamespace(sinks=w['sink_logits.s'], num_key_value_groups=a.NH // a.NKV, training=False)
    hidden = ~(a.causal & (a.i - a.j <= 12))
    mask = torch.zeros(a.T, a.T, dtype=a.q.dtype).masked_fill(hidden, -math.inf)
    return eager_attention_forward(layer, a.q, a.k, a.v, mask, a.HS ** -0.5)[0].transpose(1, 2)


CHECKS = [
    Check('sink_logits', 'transformers, eager attention of GptOss', gpt_oss, {'attention_window': 12}, package='transformers',
          imports=('transformers.models.gpt_oss.modeling_gpt_oss',), remark='a window, as its alternate layers have'),
]
