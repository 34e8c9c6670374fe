"""SeerAttention's released gate (microsoft/SeerAttention, attn_gate.py of prefill) and its choice of blocks."""
import torch

from attention_torch.blocks import distillation, spread
from attention_torch.parts import attend, scores

from .check import Check

BLOCK, THRESHOLD = 64, 0.3
FLASH = ('flash_attn', 'flash_attn.layers', 'flash_attn.layers.rotary', 'flash_attn.bert_padding')
SEER = ('seer_attn', 'seer_attn.modules', 'seer_attn.modules.common')


def gate_scores(a, w, check, softmax):
    """Its scores of past blocks, (B, NH, N, N); a block's own score, which ours has not, is hidden by the mask that it is given."""
    common = check.module('seer_attn/modules/common.py', FLASH)
    module = check.module('seer_attn/prefill_sparse/attn_gate.py', FLASH + SEER)
    module.apply_rotary_pos_emb, module.repeat_kv, module.repeat_kv_varlen = (
        common.apply_rotary_pos_emb, common.repeat_kv, common.repeat_kv_varlen)
    gate = module.ATTNGATE_CLASSES['Qavg_Kmaxminavg'](BLOCK, a.HS, a.HS, a.NKV, a.NH, force_double=True).double()
    del gate.mask_linear_q.weight, gate.mask_linear_k.weight
    gate.mask_linear_q.weight, gate.mask_linear_k.weight = w['seer.w_gq'].transpose(1, 2), w['seer.w_gk'].transpose(1, 2)
    starts = torch.arange(0, a.T, BLOCK)
    angle = starts[:, None].double() * a.theta ** (-torch.arange(0, a.HS, 2).double() / a.HS)
    cos, sin = (f(angle).repeat(1, 2)[None] for f in (torch.cos, torch.sin))
    past = torch.ones(len(starts), len(starts), dtype=torch.bool).tril(-1)
    return gate(a.q_pre.transpose(1, 2), a.k_pre.transpose(1, 2), past, (cos, sin), softmax), common


def sparse(a, w, check):
    shares, common = gate_scores(a, w, check, softmax=True)
    chosen = common.get_sparse_attn_mask_from_threshold(shares, THRESHOLD)
    own = torch.eye(shares.shape[-1], dtype=torch.bool)
    return attend(scores(a.q, a.k), a.causal & spread((chosen & (shares > 0)) | own, a, BLOCK), a.v)


def distilled(a, w, check):
    gate, _ = gate_scores(a, w, check, softmax=False)
    return attend(scores(a.q, a.k), a.causal, a.v), a.B * a.T * distillation(a, gate, BLOCK, 0)      # attention_layer: a loss per token


SIZES = ((2, 340, 4, 2), (1, 400, 4, 4), (1, 150, 4, 1))      # of two blocks, one is past, and its share is 1 whatever a gate says
HERE = {'sizes': SIZES, 'repository': 'microsoft/SeerAttention'}
CHECKS = [
    Check('seer', 'microsoft/SeerAttention, AttnGate and threshold', sparse,
          {'seer_block': BLOCK, 'seer_query': 2, 'seer_threshold': THRESHOLD, 'seer_distil': 0}, **HERE,
          remark='Qavg_Kmaxminavg over past blocks alone, the own one always visited; attention under its mask by '
                 'scripts/attention_torch, its own being a GPU kernel'),
    Check('seer', 'microsoft/SeerAttention, AttnGate, its gradients', distilled,
          {'seer_block': BLOCK, 'seer_query': 2, 'seer_distil': 2}, **HERE,
          remark='through its gate; the loss and the pooled map, a GPU kernel there, by scripts/attention_torch'),
]
