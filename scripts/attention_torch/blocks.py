"""Blocks of keys that a learned gate chooses, and how it learns from dense attention. The choice has no gradient."""
import torch
import torch.nn.functional as F

from .parts import Tensor, attend, for_query_heads, masked_softmax, scores


def block_scores(a, w, block, query):
    """The block gate (B, NH, N, N): query 0 is the block's first token, 1 the mean of the block before, 2 of the block itself."""
    starts = torch.arange(0, a.T, block)
    k_parts, q_parts = a.k_pre.split(block, 2), a.q_pre.split(block, 2)
    pooled_k = torch.stack([torch.cat((p.amax(2), p.amin(2), p.mean(2)), -1) for p in k_parts], 2)    # (B, NKV, N, 3 HS)
    means = [p.mean(2) for p in q_parts]
    pooled_q = torch.stack({0: [p[:, :, 0] for p in q_parts], 1: [torch.zeros_like(means[0])] + means[:-1], 2: means}[query], 2)
    k_gate = a.rope(torch.einsum('hod,bhnd->bhno', w['w_gk'], pooled_k), starts)
    q_gate = a.rope(torch.einsum('hod,bhnd->bhno', w['w_gq'], pooled_q), starts)
    return scores(q_gate, k_gate)


def chosen_among(gate, own, s, notes):
    """(.., rows, blocks): of the blocks before own (rows), each row's, the top_k with the greatest scores and, with a threshold, those of
    them with more than this share of the softmax. A sink, block 0, is in addition to these."""
    blocks, top, threshold, sink = torch.arange(gate.shape[-1]), s['top_k'], s.get('threshold', 0), s.get('sink', 0)
    past = (blocks < own[:, None]) & (blocks >= sink)
    candidates = gate.detach().masked_fill(~past, -torch.inf)
    ranked = candidates.sort(stable=True, dim=-1, descending=True)
    if 0 < top < len(blocks):
        notes.chose((ranked.values[..., top - 1] - ranked.values[..., top])[..., own - sink > top])
    chosen = torch.zeros(gate.shape, dtype=torch.bool)
    chosen = chosen.scatter_(-1, ranked.indices[..., :top], ranked.values[..., :top] > -torch.inf)
    if threshold > 0:
        share = candidates.softmax(-1)
        notes.chose((share - threshold).abs()[chosen])
        chosen &= share > threshold
    return chosen | ((blocks < sink) & (blocks < own[:, None]))


def chosen_blocks(gate, s, notes):
    """(B, NH, N, N): of every row of blocks its own one and the chosen ones. A threshold chooses without top_k."""
    N = gate.shape[-1]
    choice = s | {'top_k': N} if s.get('threshold', 0) > 0 else s
    return chosen_among(gate, torch.arange(N), choice, notes) | torch.eye(N, dtype=torch.bool)


def own_and(chosen, a, block):
    """The pairs (B, heads, T, T) of every token with the chosen blocks and, causally, its own."""
    chosen = F.pad(chosen, (0, -(-a.T // block) - chosen.shape[-1])) | (torch.arange(-(-a.T // block)) == a.i // block)
    return a.causal & chosen[..., a.j[0] // block]


def moba(a, w, s, notes):
    """Every token and head sees its own block and the k - 1 past ones whose mean keys have the greatest products with its query."""
    block, top = s['moba_block'], s['moba_top_k'] - 1
    whole = a.T // block
    means = a.k[:, :, :whole * block].unflatten(2, (whole, block)).mean(3)
    gate = (a.q @ for_query_heads(means, a.NH).transpose(-1, -2)).detach()     # (B, NH, T, whole blocks)
    return attend(scores(a.q, a.k), own_and(chosen_among(gate, a.i[:, 0] // block, {'top_k': top}, notes), a, block), a.v)


@torch.no_grad()
def peaks_of_map(a, block):
    """(B, NH, N, N): the greatest number of dense attention's map in every pair of blocks."""
    dense, N = masked_softmax(scores(a.q, a.k), a.causal)[0], -(-a.T // block)
    rows = [dense[:, :, r * block:(r + 1) * block].amax(2) for r in range(N)]
    return torch.stack([torch.stack([row[..., c * block:(c + 1) * block].amax(-1) for c in range(N)], -1) for row in rows], 2)


def divergences(peaks, gate, past):
    """KL(teacher || softmax of the scores) of every row, over its past blocks. The teacher is the greatest weight of dense attention in
    each of them, divided by their sum; no gradient goes into it."""
    peaks = peaks * past
    teacher, student = peaks / peaks.sum(-1, keepdim=True), gate.masked_fill(~past, -torch.inf).log_softmax(-1)
    return torch.where(past, teacher * (teacher.log() - student), 0).sum(-1)


def distillation(a, gate, block, skip):
    """Mean over sequences, heads and rows of blocks behind the skipped share; the first has no past."""
    N = gate.shape[-1]
    rows = slice(max(1, int(skip * N)), N)
    past = torch.ones(N, N, dtype=torch.bool).tril(-1)[rows]
    peaks = peaks_of_map(a, block)[:, -gate.shape[1]:, rows]
    return divergences(peaks, gate[:, :, rows], past).mean() if len(past) else 0.0


def spread(blocks, a, block):
    """(.., N, N) -> (.., T, T)."""
    return blocks[..., a.i // block, a.j // block]


def adaptive_sparse(a, w, s, notes):
    """Dense heads first. In the others z = a + log sigmoid(score) in the chosen blocks, z = a in the own one; and a head that
    thinks little of a token (sigmoid(w.[q; k] + b) below the threshold) is off for it. mask 0: all blocks count as chosen; 1: z = a in
    those that are. With distil 2 attention is dense."""
    s = {key.removeprefix('adaptive_sparse_'): value for key, value in s.items()}
    block, dense, theta = s['block'], s['dense_heads'], s['head_threshold']
    if dense < 0:   # four, at most half of the heads, in whole groups that share keys
        dense = min(4, a.NH // 2) // (a.NH // a.NKV) * (a.NH // a.NKV)
    gate = block_scores(a, w, block, s['query'])[:, dense:]
    if s['distil']:
        notes.auxiliary = notes.auxiliary + s['distil_weight'] * distillation(a, gate, block, s['distil_skip'])
    if s['distil'] == 2:
        return attend(scores(a.q, a.k), a.causal, a.v)
    chosen = chosen_blocks(gate, s, notes) if s['mask'] else torch.ones_like(gate, dtype=torch.bool)
    modulated = torch.ones_like(chosen[0, 0]).tril(-1) & (s['mask'] != 1)
    modulator = torch.where(modulated, F.logsigmoid(gate), torch.zeros_like(gate))
    z = scores(a.q, a.k)
    z = torch.cat((z[:, :dense], z[:, dense:] + spread(modulator, a, block)), 1)
    everything = torch.ones_like(chosen[:, :1]).expand(-1, dense, -1, -1)
    out = attend(z, a.causal & spread(torch.cat((everything, chosen), 1), a, block), a.v)

    if theta < 0:
        return out
    both = torch.cat((a.q_pre, for_query_heads(a.k_pre, a.NH)), -1)        # (B, NH, T, 2 HS)
    on = torch.sigmoid(torch.einsum('bhtd,hd->bht', both, w['head.weight']) + w['head.bias'][:, None])[:, dense:]
    notes.chose((on - theta).abs())
    factor = torch.cat((torch.ones_like(on[:, :1]).expand(-1, dense, -1), on * (on >= theta)), 1)
    return out * factor[..., None]


def adaptive_sparse_tensors(form, s):
    of_heads = {'head.weight': Tensor((form.NH, 2 * form.HS), 0.2), 'head.bias': Tensor((form.NH,), 0.3, decays=False)}
    return gate_tensors(form, s) | (of_heads if s['adaptive_sparse_head_threshold'] >= 0 else {})


def gate_tensors(form, s):
    return {'w_gq': Tensor((form.NH, form.HS, form.HS), 0.3), 'w_gk': Tensor((form.NKV, form.HS, 3 * form.HS), 0.2)}


def seer(a, w, s, notes):
    """Own block and the chosen ones; the gate learns from the dense map alone. With distil 2 attention is dense, and with query 3 the
    dense map chooses instead of a gate."""
    s = {key.removeprefix('seer_'): value for key, value in s.items()}
    block = s['block']
    gate = peaks_of_map(a, block).log() if s['query'] == 3 else block_scores(a, w, block, s['query'])
    if s['distil']:
        notes.auxiliary = notes.auxiliary + s['distil_weight'] * distillation(a, gate, block, s['distil_skip'])
    if s['distil'] == 2:
        return attend(scores(a.q, a.k), a.causal, a.v)
    return attend(scores(a.q, a.k), a.causal & spread(chosen_blocks(gate, s, notes), a, block), a.v)


def token_scores(a, w, block):
    """The block gate for single tokens (B, NKV, T, whole blocks); nothing goes back into q and k."""
    whole = a.T // block
    q = a.q_pre.detach().unflatten(1, (a.NKV, -1)).transpose(2, 3).flatten(3)     # (B, NKV, T, the group's heads)
    k = a.k_pre.detach()[:, :, :whole * block].unflatten(2, (whole, block))
    pooled = torch.cat((k.amax(3), k.amin(3), k.mean(3)), -1)                     # (B, NKV, whole, 3 HS)
    q_gate = a.rope(torch.einsum('hod,bhtd->bhto', w['w_gq'], q), torch.arange(a.T))
    return scores(q_gate, a.rope(torch.einsum('hod,bhnd->bhno', w['w_gk'], pooled), torch.arange(whole) * block))


def token_distillation(a, gate, block):
    """Mean over sequences, key/value heads and tokens; those of the first block have no past, and add 0. The teacher is that of the heads
    which share keys."""
    whole = gate.shape[-1]
    dense = masked_softmax(scores(a.q, a.k), a.causal)[0].detach()[..., :whole * block]
    peaks = dense.unflatten(-1, (whole, block)).amax(-1).unflatten(1, (a.NKV, -1)).amax(2)[:, :, block:]
    past = (torch.arange(whole) < a.i // block)[block:]
    return divergences(peaks, gate[:, :, block:], past).sum() / (a.B * a.NKV * a.T)


def seer_r(a, w, s, notes):
    """Every token and key/value head sees its own block and past ones that the gate chooses: the top_k with the greatest scores, and of
    them, with a threshold, those with more than this share of the softmax. The gate learns as seer's. With distil 2 attention is dense."""
    s = {key.removeprefix('seer_r_'): value for key, value in s.items()}
    block, gate = s['block'], token_scores(a, w, s['block'])
    if s['distil']:
        notes.auxiliary = notes.auxiliary + s['distil_weight'] * token_distillation(a, gate, block)
    if s['distil'] == 2:
        return attend(scores(a.q, a.k), a.causal, a.v)
    chosen = chosen_among(gate, a.i[:, 0] // block, s, notes)
    visible = own_and(chosen, a, block).repeat_interleave(a.NH // a.NKV, 1)
    return attend(scores(a.q, a.k), visible, a.v)


def token_gate_tensors(form, s):
    return {'w_gq': Tensor((form.NKV, form.HS, form.NH // form.NKV * form.HS), 0.2), 'w_gk': Tensor((form.NKV, form.HS, 3 * form.HS), 0.2)}
