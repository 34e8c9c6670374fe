"""Gates on the outputs of heads."""
import torch
import torch.nn.functional as F

from .parts import Tensor, attend, per_token, scores, window
from .patterns import read_through_window


def dsa(gate, rule):
    """A gate per token and head, and a window: of all rows, of those from dense_until on ('late'), or none (None)."""
    def heads(a, w, s, notes):
        visible = a.causal
        if rule == 'all':
            visible = visible & window(a, s)
        if rule == 'late':
            visible = visible & (window(a, s) | (a.i + 1 <= s['attention_dense_until']))
        out = attend(scores(a.q, a.k), visible, a.v)
        return out * per_token(torch.sigmoid(F.linear(a.x, w['gate.weight'], w['gate.bias']))) if gate else out

    def tensors(form, s):
        if not gate:
            return {}
        return {'gate.weight': Tensor((form.NH, form.C), 0.3), 'gate.bias': Tensor((form.NH,), 0.5, decays=False)}
    return heads, tensors


def gated(a, w, s, notes):
    """A sigmoid of the block's input times every element of what a head found, or times all of a head."""
    gates = torch.sigmoid(F.linear(a.x, w['w_theta']))                     # (B, T, NH * HS) or (B, T, NH)
    return attend(scores(a.q, a.k), a.causal & read_through_window(a, s), a.v) * gates.view(a.B, a.T, a.NH, -1).transpose(1, 2)


def gated_tensors(form, s):
    return {'w_theta': Tensor((form.NH * (form.HS if s['gated_form'] else 1), form.C), 0.25)}


def moh(a, w, s, notes):
    """Shared heads, K of the routed ones for every token, and a loss that asks for even use of them. The released code scales them
    so that the gates' mean is 1; as printed, all gates of a token add up to at most 1."""
    NS, K = moh_heads(a.NH, s)
    NR = a.NH - NS
    p_s = F.linear(a.x, w['w_s']).softmax(-1) if NS else a.x[..., :0]
    p_r = F.linear(a.x, w['w_r']).softmax(-1)
    shared, routed = F.linear(a.x, w['w_h']).softmax(-1).split(1, -1)      # (B, T, 1) each
    best = p_r.topk(min(K + 1, NR), -1)
    if K < NR:
        notes.chose(best.values[..., K - 1] - best.values[..., K])
    chosen = torch.zeros_like(p_r).scatter(-1, best.indices[..., :K], 1.0)
    of_chosen = p_r * chosen
    balance = (p_r.mean(1) * chosen.mean(1)).sum(-1).mean()                # of every sequence by itself
    if s['moh_printed']:
        gates = torch.cat((shared * p_s, routed * of_chosen), -1)
    else:
        gates = torch.cat((2 * shared * NS * p_s, 2 * routed * K * of_chosen / of_chosen.sum(-1, keepdim=True)), -1)
        balance = NR * balance
    notes.auxiliary = notes.auxiliary + s['moh_balance'] * balance / a.layers      # averaged over layers
    return attend(scores(a.q, a.k), a.causal, a.v) * per_token(gates)


def moh_heads(NH, s):
    """Shared heads, and how many of the others a token chooses."""
    shared = NH // 4 if s['moh_shared'] < 0 else s['moh_shared']
    return shared, s['moh_active'] or (NH - shared + 1) // 2


def moh_tensors(form, s):
    NS, _ = moh_heads(form.NH, s)
    of_shared = {'w_s': Tensor((NS, form.C), 0.25)} if NS else {}
    return of_shared | {'w_r': Tensor((form.NH - NS, form.C), 0.25), 'w_h': Tensor((2, form.C), 0.25)}
