"""The plain PyTorch forms beside the kernels of flash-linear-attention (package fla-core), which compute in float32."""
import torch
import torch.nn.functional as F

from attention_torch.nsa import NSA_TILE, compress, nsa_selection, shares_of_blocks
from attention_torch.parts import Notes

from .check import Check

CMP, SLC = 0, 1
WINDOW = 12
NSA = {'nsa_block': 8, 'nsa_stride': 8, 'nsa_selected': 4, 'attention_window': 20, 'nsa_shared_kv': 1, 'nsa_choice': 0}
NSA_SIZES = ((1, 340, 4, 2), (2, 290, 4, 1), (1, 65, 2, 2))
NSA_BY_TILES = NSA | {'nsa_block': NSA_TILE, 'nsa_stride': NSA_TILE}   # compressed blocks are those that are chosen
TILES_SIZES = ((1, 640, 4, 2), (2, 500, 4, 1), (1, 65, 2, 2))


def tokens_first(*heads):
    """(B, heads, T, HS) -> (B, T, heads, HS)."""
    return [x.transpose(1, 2) for x in heads]


def forgetting(a, w):
    from fla.ops.forgetting_attn.naive import naive_forgetting_attn
    gate = F.logsigmoid(F.linear(a.x, w['forgetting.w_f'], w['forgetting.b_f']))
    return naive_forgetting_attn(*tokens_first(a.q_pre, a.k_pre, a.v), gate).transpose(1, 2)


def windowed(a, w):
    from fla.ops.attn.naive import naive_parallel_attn
    return naive_parallel_attn(*tokens_first(a.q, a.k, a.v), window_size=WINDOW + 1, sink_bias=w.get('sink_logits.s'))[0].transpose(1, 2)


def only(branch):
    """Opens the gate of one branch of nsa, whatever the token, and shuts the others."""
    def prepare(inputs, tensors):
        inputs['x'][..., 0] = 1
        gates = torch.zeros_like(tensors['nsa.w_g'])
        rows = gates.shape[0] // 3
        gates[:, 0] = -1e4
        gates[branch * rows:(branch + 1) * rows, 0] = 1e4
        tensors['nsa.w_g'] = gates
    return prepare


def own(w):
    return {name.removeprefix('nsa.'): tensor for name, tensor in w.items()}


def nsa_selected(a, w):
    from fla.ops.nsa.naive import naive_nsa_selection
    shares, ends = shares_of_blocks(a, compress(a.k_pre, own(w), 'phi_k', NSA), NSA)
    selected = nsa_selection(a, NSA, shares.detach(), ends, Notes())[:, ::a.NH // a.NKV, :, ::NSA_TILE]     # (B, NKV, T, blocks)
    numbers = torch.where(selected, torch.arange(selected.shape[-1]), -1)
    return naive_nsa_selection(*tokens_first(a.q, a.k, a.v), numbers.transpose(1, 2), NSA_TILE).transpose(1, 2)


def nsa_chosen(a, w):
    from fla.ops.nsa.naive import naive_nsa_selection, naive_nsa_topk
    with torch.no_grad():
        q, keys = tokens_first(a.q_pre, compress(a.k_pre, own(w), 'phi_k', NSA_BY_TILES))
        if a.T % NSA_TILE: keys = torch.cat([keys, torch.zeros_like(keys[:, :1])], 1)   # the last, incomplete block has a number, too
        numbers = naive_nsa_topk(q, keys, NSA_BY_TILES['nsa_selected'], NSA_TILE, a.HS ** -0.5)
    return naive_nsa_selection(*tokens_first(a.q, a.k, a.v), numbers, NSA_TILE).transpose(1, 2)


def nsa_compressed(a, w):
    from fla.ops.nsa.naive import naive_nsa_compression
    keys, values = compress(a.k_pre, own(w), 'phi_k', NSA), compress(a.v, own(w), 'phi_v', NSA)
    out, _ = naive_nsa_compression(*tokens_first(a.q_pre, keys, values), NSA['nsa_block'], a.HS ** -0.5)
    return out.transpose(1, 2)


HERE = {'package': 'fla-core', 'in_float': True}
IN_DOUBLE = {'package': 'fla-core', 'imports': ('fla.ops.attn.naive',)}
CHECKS = [
    Check('sliding_window', 'flash-linear-attention, naive_parallel_attn', windowed, {'attention_window': WINDOW}, **IN_DOUBLE),
    Check('sink_logits', 'flash-linear-attention, naive_parallel_attn', windowed, {'attention_window': WINDOW}, **IN_DOUBLE,
          remark='sink_bias, and a window'),
    Check('forgetting', 'flash-linear-attention, naive_forgetting_attn', forgetting, {'forgetting_rope': 0}, rotates=False,
          imports=('fla.ops.forgetting_attn.naive',), **HERE),
    Check('nsa', 'flash-linear-attention, naive_nsa_selection', nsa_selected, NSA, NSA_SIZES, prepare=only(SLC),
          imports=('fla.ops.nsa.naive',), **HERE,
          remark='selected blocks alone, the choice by scripts/attention_torch: its own compression is a mean, ours the paper\'s network'),
    Check('nsa', 'flash-linear-attention, naive_nsa_topk and naive_nsa_selection', nsa_chosen, NSA_BY_TILES, TILES_SIZES, prepare=only(SLC),
          imports=('fla.ops.nsa.naive',), **HERE, remark='selected blocks alone, the choice by theirs, by compressed keys that do not overlap'),
    Check('nsa', 'flash-linear-attention, naive_nsa_compression', nsa_compressed, NSA, NSA_SIZES, prepare=only(CMP),
          imports=('fla.ops.nsa.naive',), **HERE, remark='compressed keys alone, blocks that do not overlap'),
]
