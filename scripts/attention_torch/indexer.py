"""DeepSeek Sparse Attention: an indexer chooses the keys of every query, and learns from where attention looks."""
import math

import torch
import torch.nn.functional as F

from .parts import Tensor, for_query_heads, masked_softmax, scores


def index_scores(a, w, heads, dim):
    """I (B, T, T) = (heads dim)^-1/2 sum_h w_th ReLU(q_th.k_s); nothing goes back into x."""
    x, rotated = a.x.detach(), math.gcd(dim // 2, a.HS)

    def turned(y):
        return torch.cat((a.rope(y[..., :rotated], torch.arange(a.T)), y[..., rotated:]), -1)

    q = turned((x @ w['wq'].T).unflatten(-1, (heads, dim)).transpose(1, 2))
    k = turned(F.layer_norm(x @ w['wk'].T, (dim,), w['k_norm.weight'], w['k_norm.bias'], eps=1e-6)[:, None])
    return torch.einsum('bth,bhts->bts', x @ w['weights_proj'].T, (q @ k.transpose(-1, -2)).relu()) * (heads * dim) ** -0.5


def chosen_keys(index, top, causal, notes):
    """The `top` greatest of every row's past, the earlier of equal ones. Equal to 0 are all that no head of the indexer likes."""
    ranked = index.detach().masked_fill(~causal, -torch.inf).sort(stable=True, dim=-1, descending=True)
    if top < index.shape[-1]:
        last, next_one = ranked.values[..., top:, top - 1], ranked.values[..., top:, top]
        notes.chose((last - next_one)[(last != 0) | (next_one != 0)])
    return torch.zeros_like(index, dtype=torch.bool).scatter(-1, ranked.indices[..., :top], True) & causal


def deepseek_sparse(a, w, s, notes):
    s = {key.removeprefix('deepseek_sparse_'): value for key, value in s.items()}
    index = index_scores(a, w, s['heads'], s['dim'])
    visible = a.causal.expand(index.shape) if s['distil'] == 2 else chosen_keys(index, s['top_k'], a.causal, notes)
    weights = masked_softmax(scores(a.q, a.k), visible[:, None])[0]
    if s['distil']:
        teacher, student = weights.detach().mean(1), index.masked_fill(~visible, -torch.inf).log_softmax(-1)
        divergence = torch.where(visible, teacher * (teacher.log() - student), 0).sum(-1).mean()
        notes.auxiliary = notes.auxiliary + s['distil_weight'] * divergence
    return weights @ for_query_heads(a.v, a.NH)


def indexer_tensors(form, s):
    heads, dim = s['deepseek_sparse_heads'], s['deepseek_sparse_dim']
    return {'wq': Tensor((heads * dim, form.C), 0.3), 'wk': Tensor((dim, form.C), 0.3),
            'k_norm.weight': Tensor((dim,), 0.2, 1.0, decays=False), 'k_norm.bias': Tensor((dim,), 0.3, decays=False),
            'weights_proj': Tensor((heads, form.C), 0.5)}
