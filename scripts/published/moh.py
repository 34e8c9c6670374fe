"""Mixture-of-Head attention's released code (SkyworkAI/MoH): the attention of its DiT, made causal, with given q, k and v."""
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from .check import Check

SHARED, ACTIVE = 2, 2


TIMM = 'timm', 'timm.models', 'timm.models.vision_transformer', 'timm.layers'


def attention(a, w, check):
    dit = check.module('MoH-DiT/models.py', without=TIMM)
    dit.F = SimpleNamespace(softmax=F.softmax, one_hot=F.one_hot,   # images are not causal
                            scaled_dot_product_attention=partial(F.scaled_dot_product_attention, is_causal=True))
    layer = dit.MoHAttention(a.x.shape[-1], a.NH, shared_head=SHARED, routed_head=ACTIVE, head_dim=a.HS).double().eval()
    layer.fused_attn = True
    rows = lambda x: x.repeat_interleave(a.NH // x.shape[1], 1).transpose(1, 2)      # it has no grouped heads
    del layer.qkv, layer.wg.weight, layer.wg_0.weight, layer.wg_1.weight
    layer.qkv = lambda _: torch.stack((rows(a.q), rows(a.k), rows(a.v)), 2)
    layer.wg.weight, layer.wg_0.weight, layer.wg_1.weight = w['moh.w_r'], w['moh.w_h'], w['moh.w_s']
    layer.proj = torch.nn.Identity()
    return layer(a.x).view(a.B, a.T, a.NH, a.HS).transpose(1, 2)


CHECKS = [
    Check('moh', 'SkyworkAI/MoH, MoHAttention of its DiT', attention,
          {'moh_shared': SHARED, 'moh_active': ACTIVE, 'moh_balance': 0},
          ((2, 70, 6, 2), (1, 133, 6, 6), (1, 65, 6, 1)), repository='SkyworkAI/MoH',
          remark='made causal, with given q, k and v, without the balance loss'),
]
