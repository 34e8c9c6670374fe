"""Heads that choose the tokens they work on. No choice has a gradient."""
import torch
import torch.nn.functional as F

from .parts import Tensor, attend, for_query_heads, per_token, scores, window


def mosa(a, w, s, notes):
    """Dense heads first; a sparse head works on the tokens with r > tau and the first one, and weighs them by r. As published it
    works on the T / rho tokens of each sequence with the greatest r, at least two, of which the first one is one in any case."""
    dense = mosa_dense_heads(a.NH, s)
    if dense == a.NH:
        return attend(scores(a.q, a.k), a.causal, a.v)
    r = torch.sigmoid(F.linear(a.x, w['w_r']))                             # (B, T, sparse heads)
    if s.get('mosa_choice'):
        others = max(2, int(a.T / s['mosa_rho'])) - 1
        ranked = r[:, 1:].detach().sort(1, descending=True)
        if others < a.T - 1:
            notes.chose(ranked.values[:, others - 1] - ranked.values[:, others])
        chosen = torch.zeros_like(r, dtype=torch.bool).scatter(1, 1 + ranked.indices[:, :others], True)
    else:
        notes.chose((r - w['tau'])[:, 1:].abs())
        chosen = r > w['tau']
    chosen[:, 0] = True
    notes.moves['tau'] = 1 / s['mosa_rho'] - chosen.to(r.dtype).mean((0, 1))
    everywhere = torch.ones(a.B, a.T, dense, dtype=r.dtype)
    works = torch.cat((everywhere.bool(), chosen), -1).transpose(1, 2)     # (B, NH, T)
    out = attend(scores(a.q, a.k), a.causal & works[..., :, None] & works[..., None, :], a.v)
    return out * per_token(torch.cat((everywhere, r), -1))


def mosa_dense_heads(NH, s):
    return min(4, NH // 2) if s['mosa_dense_heads'] < 0 else s['mosa_dense_heads']


def mosa_tensors(form, s):
    sparse = form.NH - mosa_dense_heads(form.NH, s)
    if sparse == 0:
        return {}
    return {'w_r': Tensor((sparse, form.C), 0.25), 'tau': Tensor((sparse,), 0.05, mean=0.6, rate=s['mosa_rate'])}


def routing(a, w, s, notes):
    """Local heads first; in the others a token attends to the earlier ones of its clusters: the one with the nearest centroid, or,
    in the balanced form, all those whose centroids it is among the T / K nearest of; what it finds in them is averaged."""
    local, K = routing_local_heads(a.NH, s), s['routing_clusters']
    here = attend(scores(a.q[:, :local], for_query_heads(a.k, a.NH)[:, :local]), a.causal & window(a, s),
                  for_query_heads(a.v, a.NH)[:, :local])
    if local == a.NH:
        return here
    n = F.layer_norm(a.q_pre[:, local:], (a.HS,), eps=1e-12)               # (B, NH - local, T, HS)
    centroids = F.normalize(w['mu'], dim=-1)                               # (NH - local, K, HS)
    nearness = torch.einsum('bhtd,hkd->bhtk', F.normalize(n, dim=-1), centroids).detach()
    if s['routing_balanced']:
        size = max(1, a.T // K)
        ranked = nearness.sort(-2, descending=True)
        if size < a.T:
            notes.chose(ranked.values[..., size - 1, :] - ranked.values[..., size, :])
        members = torch.zeros_like(nearness).scatter(-2, ranked.indices[..., :size, :], 1.0)     # (B, NH - local, T, K)
    else:
        best = nearness.topk(min(2, K), -1).values
        notes.chose(best[..., 0] - best[..., -1] if K > 1 else best[..., :0])
        members = F.one_hot(nearness.argmax(-1), K).to(n.dtype)
    found = torch.zeros_like(n)
    for cluster in members.bool().unbind(-1):
        together = a.causal & cluster[..., :, None] & cluster[..., None, :]
        others = together & (a.j < a.i)
        visible = torch.where(others.any(-1, keepdim=True), others, together)  # itself only where it is alone
        found = found + attend(scores(n, n), visible, for_query_heads(a.v, a.NH)[:, local:])
    pull = members.sum((0, 2))[..., None] * w['mu'] - torch.einsum('bhtk,bhtd->hkd', members, F.normalize(n, dim=-1))
    notes.moves['mu'] = (K / (a.B * a.T) * pull).detach()
    return torch.cat((here, found / members.sum(-1, keepdim=True).clamp(min=1)), 1)


def routing_local_heads(NH, s):
    return NH // 2 if s['routing_local_heads'] < 0 else s['routing_local_heads']


def routing_tensors(form, s):
    routed = form.NH - routing_local_heads(form.NH, s)
    if routed == 0:
        return {}
    return {'mu': Tensor((routed, s['routing_clusters'], form.HS), form.HS ** -0.5, rate=s['routing_rate'])}
