"""Gated attention's released code (qiuzh20/gated_attention): its Qwen3 layer, whose softmax is in float32."""
import math
from types import SimpleNamespace

import torch

from .check import Check

TRANSFORMERS = ['transformers'] + ['transformers.' + name for name in (       # of which newer ones lack some names
    'activations', 'cache_utils', 'configuration_utils', 'generation', 'modeling_attn_mask_utils', 'modeling_outputs',
    'modeling_rope_utils', 'modeling_utils', 'utils')]


def rope_tables(a):
    angle = torch.arange(a.T)[:, None].double() * a.theta ** (-torch.arange(0, a.HS, 2).double() / a.HS)
    return tuple(f(angle).repeat(1, 2)[None] for f in (torch.cos, torch.sin))


def attention(per_element):
    def run(a, w, check):
        module = check.module('modeling_qwen3.py', TRANSFORMERS)
        config = SimpleNamespace(
            hidden_size=a.x.shape[-1], num_attention_heads=a.NH, head_dim=a.HS, num_key_value_heads=a.NKV, rope_theta=a.theta,
            max_position_embeddings=a.T, attention_dropout=0.0, use_qk_norm=False, qkv_bias=False,
            headwise_attn_output_gate=not per_element, elementwise_attn_output_gate=per_element, rope_scaling=None)
        module.Qwen3RotaryEmbedding = lambda **_: None      # cos and sin are arguments
        layer = module.Qwen3Attention(config, 0).double().eval()
        # Its query projection has, group by group of heads, queries and then what opens the gates.
        groups = lambda of_heads: of_heads.reshape(a.B, a.T, a.NKV, -1)
        tokens = lambda heads: heads.transpose(1, 2).flatten(2)
        gates = torch.nn.functional.linear(a.x, w['gated.w_theta'])
        del layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj
        layer.q_proj = lambda _: torch.cat((groups(tokens(a.q_pre)), groups(gates)), -1).flatten(2)
        layer.k_proj, layer.v_proj, layer.o_proj = lambda _: tokens(a.k_pre), lambda _: tokens(a.v), lambda out: out
        mask = torch.zeros(a.T, a.T, dtype=a.x.dtype).masked_fill(~a.causal, -math.inf)[None, None]
        return layer(a.x, mask, position_embeddings=rope_tables(a))[0].view(a.B, a.T, a.NH, a.HS).transpose(1, 2)
    return run


HERE = {'repository': 'qiuzh20/gated_attention', 'in_float': True}
REMARK = 'the query projection put together of given queries and our gates'
CHECKS = [
    Check('gated', 'qiuzh20/gated_attention, elementwise', attention(True), {'gated_form': 1}, remark=REMARK, **HERE),
    Check('gated', 'qiuzh20/gated_attention, headwise', attention(False), {'gated_form': 0}, remark=REMARK, **HERE),
]
