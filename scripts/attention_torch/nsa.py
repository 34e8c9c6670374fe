"""Native Sparse Attention, and InfLLM-V2, which selects blocks in the same way."""
import torch
import torch.nn.functional as F

from .parts import Tensor, attend, for_query_heads, masked_softmax, per_token, scores, window

NSA_TILE = 64    # tokens of a block that is selected, and of the queries that share a selection with nsa_choice 1


def compress(keys, w, phi, s):
    """(B, NKV, T, HS) -> (B, NKV, blocks, HS) by the network phi."""
    if keys.shape[2] < s['nsa_block']:
        return keys[:, :, :0]
    blocks = keys.unfold(2, s['nsa_block'], s['nsa_stride']).transpose(-1, -2) + w[phi + '.pe']   # (B, NKV, blocks, l, HS)
    return F.linear(F.gelu(F.linear(blocks.flatten(-2), w[phi + '.w1'], w[phi + '.b1']), approximate='tanh'), w[phi + '.w2'])


def shares_of_blocks(a, k_cmp, s):
    """Attention to the compressed keys (B, NH, T, blocks), and the last token of each block."""
    ends = torch.arange(k_cmp.shape[2]) * s['nsa_stride'] + s['nsa_block'] - 1
    return masked_softmax(scores(a.q_pre, k_cmp), ends <= a.i)[0], ends


def nsa(a, w, s, notes):
    """Attention to compressed keys, to selected blocks, and to a window; summed with a gate each. The first two have projections of
    their own, or with nsa_shared_kv all have the model's (compressed keys before RoPE)."""
    def project(name):
        if s['nsa_shared_kv']:
            return a.v if name.startswith('w_v') else a.k_pre
        return F.linear(a.x, w[name]).view(a.B, a.T, a.NKV, a.HS).transpose(1, 2)

    shares, ends = shares_of_blocks(a, compress(project('w_k_cmp'), w, 'phi_k', s), s)
    cmp = shares @ for_query_heads(compress(project('w_v_cmp'), w, 'phi_v', s), a.NH)
    k_slc = a.rope(project('w_k_slc'), torch.arange(a.T))
    slc = attend(scores(a.q, k_slc), a.causal & nsa_selection(a, s, shares.detach(), ends, notes), project('w_v_slc'))
    win = attend(scores(a.q, a.k), a.causal & window(a, s), a.v)
    gates = torch.sigmoid(F.linear(a.x, w['w_g'])).view(a.B, a.T, 3, a.NH)
    return sum(per_token(gates[:, :, n]) * out for n, out in enumerate((cmp, slc, win)))


def nsa_selection(a, s, shares, ends, notes):
    """(B, NH, T, T): whether token i has selected the block of token j, by what its heads look at; with nsa_choice 1 the first token
    of its tile has."""
    every = NSA_TILE if s.get('nsa_choice') else 1
    tiles = -(-a.T // NSA_TILE)
    starts = ends - s['nsa_block'] + 1
    first = torch.arange(tiles)[:, None] * NSA_TILE
    shared_tokens = (torch.minimum(first + NSA_TILE, ends + 1) - torch.maximum(first, starts)).clamp(min=0)    # (tiles, blocks)
    of_group = shares[:, :, ::every].unflatten(1, (a.NKV, -1)).sum(2)      # (B, NKV, rows, blocks)
    importance = of_group @ shared_tokens.T.to(shares.dtype) / s['nsa_stride']
    selected = torch.zeros(*importance.shape, dtype=torch.bool)
    for row in range(importance.shape[2]):
        r = row * every // NSA_TILE
        forced = sorted({0, max(r - 1, 0), r})
        selected[:, :, row, forced] = True
        free = s['nsa_selected'] - len(forced)
        rest = importance[:, :, row, 1:max(r - 1, 1)]                      # blocks 1 .. r - 2
        order = rest.sort(-1, descending=True)
        if free < rest.shape[-1]:
            notes.chose(order.values[..., free - 1] - order.values[..., free] if free else torch.ones(0))
        selected[:, :, row] |= torch.zeros_like(selected[:, :, row]).scatter(-1, order.indices[..., :free] + 1, True)
    return for_query_heads(selected, a.NH)[:, :, a.i // every, a.j // NSA_TILE]


def infllm_v2(a, w, s, notes):
    """Every token and key head sees the first block, the last ones, and those whose best mean key gets the most attention."""
    length, stride, local, top = (s['infllm_v2_' + key] for key in ('kernel', 'stride', 'local', 'top_k'))
    means = a.k.unfold(2, length, stride).mean(-1) if a.T >= length else a.k[:, :, :0]
    starts, first = torch.arange(means.shape[2]) * stride, torch.arange(0, a.T, NSA_TILE)[:, None]
    shares = masked_softmax(scores(a.q, means), starts + length - 1 <= a.i)[0].detach().unflatten(1, (a.NKV, -1)).sum(2)
    overlap = (starts < first + NSA_TILE) & (starts + length > first)                                     # (blocks, means)
    best = torch.stack([shares[..., row].amax(-1) if row.any() else shares.new_zeros(shares.shape[:-1]) for row in overlap], -1)
    block, own = first[:, 0] // NSA_TILE, a.i // NSA_TILE
    chosen = ((block < 1) | (block > own - local)) & (block <= own)
    free = best.masked_fill((block < 1) | (block > own - local), -1).sort(dim=-1, descending=True, stable=True)
    if 0 < top - 1 < len(block):
        gap = (free.values[..., top - 2] - free.values[..., top - 1])[..., (own > top + local - 1)[:, 0]]
        notes.chose(gap[gap > 0])   # 0: neighbours that share their best mean, and the earlier one is chosen
    picked = torch.zeros(best.shape, dtype=torch.bool).scatter(-1, free.indices[..., :top - 1], free.values[..., :top - 1] >= 0)
    return attend(scores(a.q, a.k), a.causal & for_query_heads(picked | chosen, a.NH)[..., a.j[0] // NSA_TILE], a.v)


def nsa_tensors(form, s):
    projections = () if s['nsa_shared_kv'] else ('w_k_cmp', 'w_v_cmp', 'w_k_slc', 'w_v_slc')
    own = {name: Tensor((form.NKV * form.HS, form.C), 0.15) for name in projections}
    width = s['nsa_block'] * form.HS
    for phi in ('phi_k.', 'phi_v.'):
        own |= {phi + 'pe': Tensor((s['nsa_block'], form.HS), 0.5), phi + 'w1': Tensor((form.HS, width), 1.5 * width ** -0.5),
                phi + 'b1': Tensor((form.HS,), 0.3, decays=False), phi + 'w2': Tensor((form.HS, form.HS), 0.4)}
    return own | {'w_g': Tensor((3 * form.NH, form.C), 0.3)}
