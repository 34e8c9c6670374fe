"""Every attention mechanism of attention/*.cuh in plain PyTorch: dense matrices, autograd, one small function each. Written from the
papers' formulas and each variant's header comment, not from its kernels, so that the two are proofs of each other.

A mechanism is heads(a, w, s, notes) -> (B, NH, T, HS), what the output projection reads:
    a      the layer's inputs (class Inputs)
    w      the variant's own tensors by the last part of their name: w['gate.weight']
    s      its settings by their key in config.json: s['attention_window']
    notes  where it leaves a loss of its own, what statistics move by, and how near its choices were (class Notes)
and tensors(a's sizes, s) says which tensors it has. TABLE lists them all.

Names as in the engine: B batch, T tokens, C channels; NH query heads, NKV key/value heads, HS head size; i query, j key, h head.
"""
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass
class Inputs:
    """Of one attention layer. Query head h reads key/value head h / (NH / NKV)."""
    x: torch.Tensor        # (B, T, C), the block's normed input
    q_pre: torch.Tensor    # (B, NH, T, HS) after QK-norm, before RoPE
    k_pre: torch.Tensor    # (B, NKV, T, HS) likewise
    v: torch.Tensor        # (B, NKV, T, HS)
    theta: float
    layer: int

    def __post_init__(self):
        self.B, self.NH, self.T, self.HS = self.q_pre.shape
        self.NKV = self.k_pre.shape[1]
        everywhere = torch.arange(self.T)
        self.q, self.k = rope(self.q_pre, self.theta, everywhere), rope(self.k_pre, self.theta, everywhere)
        self.i, self.j = everywhere[:, None], everywhere[None, :]
        self.causal = self.j <= self.i     # (T, T), as all masks, or (.., NH, T, T)


@dataclass
class Notes:
    """What a forward pass has to say beside its result."""
    auxiliary: torch.Tensor | float = 0.0          # the mechanisms' own losses, all layers; the objective adds it to the task's loss
    moves: dict = field(default_factory=dict)      # statistic -> g; a step takes w -= rate g
    margin: float = math.inf                       # of all choices, how near the nearest was to another outcome

    def chose(self, gaps):
        if gaps.numel():
            self.margin = min(self.margin, gaps.min().item())


@dataclass
class Tensor:
    """A tensor of a mechanism, with the random weights that a fixture starts from."""
    shape: tuple
    deviation: float
    mean: float = 0.0
    decays: bool = True     # whether AdamW's weight decay acts on it
    rate: float = 0.0       # above 0: a statistic, which AdamW leaves alone


# ---------------------------------------------------------------------------------------------------------------------------
# What they are made of

def rope(x, theta, positions):
    """Rotates the two halves of every head of x (B, heads, T, HS) by position * theta^(-2d/HS); positions (T)."""
    HS = x.shape[-1]
    frequency = theta ** (-torch.arange(0, HS, 2, dtype=x.dtype) / HS)
    angle = positions.to(x.dtype)[:, None] * frequency
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def for_query_heads(keys, NH):
    """(B, NKV, ...) -> (B, NH, ...)."""
    return keys.repeat_interleave(NH // keys.shape[1], dim=1)


def scores(q, k):
    """q (B, NH, T, HS), k (B, NKV, S, HS) -> q_i.k_j / sqrt(HS) (B, NH, T, S)."""
    return q @ for_query_heads(k, q.shape[1]).transpose(-1, -2) * q.shape[-1] ** -0.5


def masked_softmax(z, visible):
    """Softmax over the visible keys, and its log-sum-exp; 0 and -infinity in rows that see nothing."""
    sees = visible.expand(z.shape).any(-1, keepdim=True)
    z = z.masked_fill(sees & ~visible, -math.inf)
    return z.softmax(-1) * sees, z.logsumexp(-1).masked_fill(~sees.squeeze(-1), -math.inf)


def attend(z, visible, v):
    return masked_softmax(z, visible)[0] @ for_query_heads(v, z.shape[1])


def per_token(gate):
    """A gate (B, T, NH) as a factor of outputs (B, NH, T, HS)."""
    return gate.transpose(1, 2)[..., None]


def masked(mask):
    """The mechanism that is plain attention under mask(a, s)."""
    return lambda a, w, s, notes: attend(scores(a.q, a.k), a.causal & mask(a, s), a.v)


def no_tensors(form, s):
    return {}


# ---------------------------------------------------------------------------------------------------------------------------
# Static patterns

def window(a, s):
    return a.i - a.j <= s['attention_window']


def leading_and_window(count):
    """sinks and longformer: the first tokens are visible to all. (A global row i sees all j <= i, which are global themselves.)"""
    return lambda a, s: window(a, s) | (a.j < s[count]) | (a.i < s[count])


def strided(a, s):
    l = s['strided_stride']
    return (a.i - a.j <= l) | ((a.i - a.j) % l == 0)


def fixed_factorized(a, s):
    l, c = s['fixed_factorized_chunk'], s['fixed_factorized_summary']
    return (a.i // l == a.j // l) | (a.j % l >= l - c)


def deepspeed_fixed(a, s):
    """Own chunk of L blocks, and G blocks of every chunk; with layouts per head, head h takes the h-th G from the end, in turn."""
    r, c = a.i // s['deepspeed_fixed_block'], a.j // s['deepspeed_fixed_block']
    L, G = s['deepspeed_fixed_local'], s['deepspeed_fixed_globals']
    p = torch.arange(a.NH)[:, None, None] % (L // G) * s['deepspeed_fixed_per_head']
    return (r // L == c // L) | ((L - (p + 1) * G <= c % L) & (c % L < L - p * G))


def bigbird(a, s):
    r, c = a.i // s['bigbird_block'], a.j // s['bigbird_block']
    drawn = torch.zeros(a.NH, a.T, a.T, dtype=torch.bool)
    for h in range(a.NH):
        for row in range(a.T // s['bigbird_block'] + 1):
            for block in bigbird_draws(s['bigbird_seed'], a.layer, h, row, s['bigbird_random']):
                drawn[h] |= (r == row) & (c == block)
    return (r - c <= s['bigbird_window'] // 2) | (c < s['bigbird_globals']) | drawn


def bigbird_draws(seed, layer, h, row, parts):
    """The blocks [0, row) in parts as equal as can be, the longer ones first, and one block of each. The paper's generator does not
    matter, but it must be the engine's: the finaliser of MurmurHash3 over seed, layer, head, and row and part."""
    def scrambled(x):
        x &= 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        return x ^ (x >> 16)

    of_head = scrambled(scrambled(scrambled(seed) + layer) + h)
    for n, part in enumerate(torch.arange(row).tensor_split(parts)):
        if len(part):
            yield part[0].item() + (scrambled(of_head + row * 64 + n) * len(part) >> 32)


def sinks_cache(a, w, s, notes):
    """Keys of the window at their distance in the text; a sink that has left it, at its distance in the cache of s + left + 1."""
    sinks, left = s['sinks_tokens'], s['attention_window']
    in_cache = rope(a.q_pre, a.theta, torch.arange(a.T).clamp(max=sinks + left))
    z = torch.where(window(a, s), scores(a.q, a.k), scores(in_cache, a.k))
    return attend(z, a.causal & (window(a, s) | (a.j < sinks)), a.v)


def longnet(a, w, s, notes):
    """Branches of segments w 2^n with every 2^n-th token, mixed by their log-sum-exps."""
    outs, lses, h = [], [], torch.arange(a.NH)[:, None, None]
    for n in range(s['longnet_branches']):
        segment, dilation = s['longnet_segment'] * 2 ** n, 2 ** n
        kept_i, kept_j = a.i % dilation == h % dilation, a.j % dilation == h % dilation
        visible = a.causal & (a.i // segment == a.j // segment) & kept_i & kept_j
        probabilities, lse = masked_softmax(scores(a.q, a.k), visible)
        outs.append(probabilities @ for_query_heads(a.v, a.NH))
        lses.append(lse)
    alpha = torch.stack(lses).softmax(0)
    alpha = alpha.detach() if s.get('longnet_detach') else alpha
    return (alpha[..., None] * torch.stack(outs)).sum(0)


# ---------------------------------------------------------------------------------------------------------------------------
# Learned scores

def asga(gate, scale, windowed=False):
    """z = softplus(gamma) s_ij a_ij,   s_ij = sigmoid(b2 + W2.GELU(W1q LN(q_i) + b1 + W1k LN(k_j))), q and k before RoPE."""
    def heads(a, w, s, notes):
        z = scores(a.q, a.k)
        if scale:
            z = z * F.softplus(w['gamma'])[:, None, None]
        if gate:
            normed_q, normed_k = (F.layer_norm(x, (a.HS,), eps=1e-5) for x in (a.q_pre, for_query_heads(a.k_pre, a.NH)))
            of_query = torch.einsum('hmd,bhtd->bhtm', w['w1_q'], normed_q) + w['b1'][:, None]
            of_key = torch.einsum('hmd,bhtd->bhtm', w['w1_k'], normed_k)
            g = F.gelu(of_query[:, :, :, None] + of_key[:, :, None], approximate='tanh')      # (B, NH, T, T, m)
            z = z * torch.sigmoid(torch.einsum('hm,bhijm->bhij', w['w2'], g) + w['b2'][:, None, None])
        return attend(z, a.causal & window(a, s) if windowed else a.causal, a.v)

    def tensors(form, s):
        own, m = {}, s.get('asga_hidden')
        if gate:
            own = {'w1_q': Tensor((form.NH, m, form.HS), 0.3), 'w1_k': Tensor((form.NH, m, form.HS), 0.3),
                   'b1': Tensor((form.NH, m), 0.5, decays=False), 'w2': Tensor((form.NH, m), 0.6),
                   'b2': Tensor((form.NH,), 0.5, decays=False)}
        if scale:
            own['gamma'] = Tensor((form.NH,), 0.5, mean=1.5, decays=False)
        return own
    return heads, tensors


def ppa(a, w, s, notes):
    """Likelihood times prior: z = sigma a_ij - lambda (i - j)."""
    sigma, decay = F.softplus(w['scale']), F.softplus(w['rho'])
    return attend(sigma[:, None, None] * scores(a.q, a.k) - decay[:, None, None] * (a.i - a.j), a.causal, a.v)


def ppa_tensors(form, s):
    return {'rho': Tensor((form.NH,), 1.0, mean=-1.5, decays=False), 'scale': Tensor((form.NH,), 0.5, mean=0.5, decays=False)}


def shaw(a, w, s, notes):
    """A key for every distance up to K, and no RoPE: z = q_i.(k_j + a_min(i-j, K)) / sqrt(HS)."""
    table = w['a_k'][(a.i - a.j).clamp(0, s['shaw_clip'])]       # (T, T, HS)
    z = scores(a.q_pre, a.k_pre) + torch.einsum('bhid,ijd->bhij', a.q_pre, table) * a.HS ** -0.5
    return attend(z, a.causal, a.v)


def shaw_tensors(form, s):
    return {'a_k': Tensor((s['shaw_clip'] + 1, form.HS), 0.5)}


# ---------------------------------------------------------------------------------------------------------------------------
# Gates on heads

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


def moh(a, w, s, notes):
    """Shared heads, K of the routed ones for every token, and a loss that asks for even use of them (in the released code's form)."""
    NS, K = s['moh_shared'], s['moh_active']
    NR = a.NH - NS
    p_s, p_r = F.linear(a.x, w['w_s']).softmax(-1), F.linear(a.x, w['w_r']).softmax(-1)
    shared, routed = F.linear(a.x, w['w_h']).softmax(-1).split(1, -1)      # (B, T, 1) each
    best = p_r.topk(K + 1, -1)
    notes.chose(best.values[..., K - 1] - best.values[..., K])
    chosen = torch.zeros_like(p_r).scatter(-1, best.indices[..., :K], 1.0)
    of_chosen = p_r * chosen
    gates = torch.cat((2 * shared * NS * p_s, 2 * routed * K * of_chosen / of_chosen.sum(-1, keepdim=True)), -1)
    balance = NR * (p_r.mean(1) * chosen.mean(1)).sum(-1)                  # (B): of every sequence by itself
    notes.auxiliary = notes.auxiliary + s['moh_balance'] * balance.mean()
    return attend(scores(a.q, a.k), a.causal, a.v) * per_token(gates)


def moh_tensors(form, s):
    NS = s['moh_shared']
    return {'w_s': Tensor((NS, form.C), 0.25), 'w_r': Tensor((form.NH - NS, form.C), 0.25), 'w_h': Tensor((2, form.C), 0.25)}


# ---------------------------------------------------------------------------------------------------------------------------
# Choices of tokens

def mosa(a, w, s, notes):
    """Dense heads first; a sparse head works on the tokens with r > tau and the first one, and weighs them by r."""
    dense = s['mosa_dense_heads']
    r = torch.sigmoid(F.linear(a.x, w['w_r']))                             # (B, T, sparse heads)
    notes.chose((r - w['tau'])[:, 1:].abs())
    chosen = r > w['tau']
    chosen[:, 0] = True
    notes.moves['tau'] = 1 / s['mosa_rho'] - chosen.to(r.dtype).mean((0, 1))
    everywhere = torch.ones(a.B, a.T, dense, dtype=r.dtype)
    works = torch.cat((everywhere.bool(), chosen), -1).transpose(1, 2)     # (B, NH, T)
    out = attend(scores(a.q, a.k), a.causal & works[..., :, None] & works[..., None, :], a.v)
    return out * per_token(torch.cat((everywhere, r), -1))


def mosa_tensors(form, s):
    sparse = form.NH - s['mosa_dense_heads']
    return {'w_r': Tensor((sparse, form.C), 0.25), 'tau': Tensor((sparse,), 0.05, mean=0.6, rate=s['mosa_rate'])}


def routing(a, w, s, notes):
    """Local heads first; in the others a token attends to the earlier ones whose nearest centroid is its own."""
    local, K = s['routing_local_heads'], s['routing_clusters']
    here = attend(scores(a.q[:, :local], for_query_heads(a.k, a.NH)[:, :local]), a.causal & window(a, s),
                  for_query_heads(a.v, a.NH)[:, :local])
    n = F.layer_norm(a.q_pre[:, local:], (a.HS,), eps=1e-12)               # (B, NH - local, T, HS)
    centroids = F.normalize(w['mu'], dim=-1)                               # (NH - local, K, HS)
    nearness = torch.einsum('bhtd,hkd->bhtk', F.normalize(n, dim=-1), centroids).detach()
    best = nearness.topk(2, -1).values
    notes.chose(best[..., 0] - best[..., 1])
    cluster = nearness.argmax(-1)
    together = a.causal & (cluster[..., :, None] == cluster[..., None, :])
    others = together & (a.j < a.i)
    visible = torch.where(others.any(-1, keepdim=True), others, together)  # itself only where it is alone
    members = F.one_hot(cluster, K).to(n.dtype)                            # (B, NH - local, T, K)
    pull = members.sum((0, 2))[..., None] * centroids - torch.einsum('bhtk,bhtd->hkd', members, F.normalize(n, dim=-1))
    notes.moves['mu'] = (K / (a.B * a.T) * pull).detach()
    return torch.cat((here, attend(scores(n, n), visible, for_query_heads(a.v, a.NH)[:, local:])), 1)


def routing_tensors(form, s):
    return {'mu': Tensor((form.NH - s['routing_local_heads'], s['routing_clusters'], form.HS), 1.0, rate=s['routing_rate'])}


# ---------------------------------------------------------------------------------------------------------------------------
# Choices of blocks

NSA_TILE = 64    # tokens of a block that is selected, and of the queries that share a selection


def nsa(a, w, s, notes):
    """Attention to compressed keys, to selected blocks, and to a window; summed with a gate each."""
    l, d = s['nsa_block'], s['nsa_stride']

    def project(name):
        return F.linear(a.x, w[name]).view(a.B, a.T, a.NKV, a.HS).transpose(1, 2)

    def compress(keys, phi):
        blocks = keys.unfold(2, l, d).transpose(-1, -2) + w[phi + '.pe']   # (B, NKV, blocks, l, HS)
        return F.linear(F.gelu(F.linear(blocks.flatten(-2), w[phi + '.w1'], w[phi + '.b1']), approximate='tanh'), w[phi + '.w2'])

    k_cmp, v_cmp = compress(project('w_k_cmp'), 'phi_k'), compress(project('w_v_cmp'), 'phi_v')
    ends = torch.arange(k_cmp.shape[2]) * d + l - 1                        # of the compressed blocks
    shares, _ = masked_softmax(scores(a.q_pre, k_cmp), ends <= a.i)        # (B, NH, T, blocks)
    cmp = shares @ for_query_heads(v_cmp, a.NH)

    k_slc = rope(project('w_k_slc'), a.theta, torch.arange(a.T))
    slc = attend(scores(a.q, k_slc), a.causal & nsa_selection(a, s, shares.detach(), ends, notes), project('w_v_slc'))
    win = attend(scores(a.q, a.k), a.causal & window(a, s), a.v)
    gates = torch.sigmoid(F.linear(a.x, w['w_g'])).view(a.B, a.T, 3, a.NH)
    return sum(per_token(gates[:, :, n]) * out for n, out in enumerate((cmp, slc, win)))


def nsa_selection(a, s, shares, ends, notes):
    """(B, NH, T, T): whether the tile of token i has selected the block of token j, by what its first token's heads look at."""
    tiles = -(-a.T // NSA_TILE)
    starts = ends - s['nsa_block'] + 1
    first = torch.arange(tiles)[:, None] * NSA_TILE
    shared_tokens = (torch.minimum(first + NSA_TILE, ends + 1) - torch.maximum(first, starts)).clamp(min=0)    # (tiles, blocks)
    of_tile = shares[:, :, ::NSA_TILE].unflatten(1, (a.NKV, -1)).sum(2)    # (B, NKV, tiles, blocks)
    importance = of_tile @ shared_tokens.T.to(shares.dtype) / s['nsa_stride']
    selected = torch.zeros(a.B, a.NKV, tiles, tiles, dtype=torch.bool)
    for r in range(tiles):
        forced = sorted({0, max(r - 1, 0), r})
        selected[:, :, r, forced] = True
        free = s['nsa_selected'] - len(forced)
        rest = importance[:, :, r, 1:max(r - 1, 1)]                        # blocks 1 .. r - 2
        order = rest.sort(-1, descending=True)
        if free < rest.shape[-1]:
            notes.chose(order.values[..., free - 1] - order.values[..., free] if free else torch.ones(0))
        selected[:, :, r] |= torch.zeros_like(selected[:, :, r]).scatter(-1, order.indices[..., :free] + 1, True)
    return for_query_heads(selected, a.NH)[:, :, a.i // NSA_TILE, a.j // NSA_TILE]


def nsa_tensors(form, s):
    own = {name: Tensor((form.NKV * form.HS, form.C), 0.15) for name in ('w_k_cmp', 'w_v_cmp', 'w_k_slc', 'w_v_slc')}
    width = s['nsa_block'] * form.HS
    for phi in ('phi_k.', 'phi_v.'):
        own |= {phi + 'pe': Tensor((s['nsa_block'], form.HS), 0.5), phi + 'w1': Tensor((form.HS, width), 1.5 * width ** -0.5),
                phi + 'b1': Tensor((form.HS,), 0.3, decays=False), phi + 'w2': Tensor((form.HS, form.HS), 0.4)}
    return own | {'w_g': Tensor((3 * form.NH, form.C), 0.3)}


def block_scores(a, w, block, query):
    """The block gate (B, NH, N, N): query 0 is the block's first token, 1 the mean of the block before, 2 of the block itself."""
    starts = torch.arange(0, a.T, block)
    k_parts, q_parts = a.k_pre.split(block, 2), a.q_pre.split(block, 2)
    pooled_k = torch.stack([torch.cat((p.amax(2), p.amin(2), p.mean(2)), -1) for p in k_parts], 2)    # (B, NKV, N, 3 HS)
    means = [p.mean(2) for p in q_parts]
    pooled_q = torch.stack({0: [p[:, :, 0] for p in q_parts], 1: [torch.zeros_like(means[0])] + means[:-1], 2: means}[query], 2)
    k_gate = rope(torch.einsum('hod,bhnd->bhno', w['w_gk'], pooled_k), a.theta, starts)
    q_gate = rope(torch.einsum('hod,bhnd->bhno', w['w_gq'], pooled_q), a.theta, starts)
    return scores(q_gate, k_gate)


def chosen_blocks(gate, top, notes):
    """(B, NH, N, N): a row's own block and the `top` past ones with the greatest scores."""
    N = gate.shape[-1]
    chosen = torch.eye(N, dtype=torch.bool).expand(gate.shape).clone()
    for r in range(1, N):
        order = gate[:, :, r, :r].detach().sort(-1, descending=True)
        chosen[:, :, r] |= torch.zeros_like(chosen[:, :, r]).scatter(-1, order.indices[..., :top], True)
        if 0 < top < r:
            notes.chose(order.values[..., top - 1] - order.values[..., top])
    return chosen


def distillation(a, gate, block, skip):
    """Mean over sequences, heads and rows of blocks of KL(teacher || softmax of the scores), over the past blocks of each row. The
    teacher is dense attention's map, the greatest of every pair of blocks, divided by its sum; no gradient goes into it."""
    with torch.no_grad():
        dense = masked_softmax(scores(a.q, a.k), a.causal)[0][:, -gate.shape[1]:]
    N, divergences = gate.shape[-1], []
    for r in range(max(1, int(skip * N)), N):
        rows = dense[:, :, r * block:(r + 1) * block]
        peaks = torch.stack([rows[..., c * block:(c + 1) * block].amax((-1, -2)) for c in range(r)], -1)
        teacher = peaks / peaks.sum(-1, keepdim=True)
        divergences.append((teacher * (teacher.log() - gate[:, :, r, :r].log_softmax(-1))).sum(-1))
    return torch.stack(divergences).mean()


def spread(blocks, a, block):
    """(.., N, N) -> (.., T, T)."""
    return blocks[..., a.i // block, a.j // block]


def adaptive_sparse(a, w, s, notes):
    """Dense heads first. In the others z = a + log sigmoid(score) in the chosen blocks, z = a in the own one; and a head that thinks
    little of a token (sigmoid(w.[q; k] + b) below the threshold) is off for it."""
    block, dense, theta = s['adaptive_sparse_block'], s['adaptive_sparse_dense_heads'], s['adaptive_sparse_head_threshold']
    gate = block_scores(a, w, block, s['adaptive_sparse_query'])[:, dense:]
    if s['adaptive_sparse_distil']:
        notes.auxiliary = notes.auxiliary + s['adaptive_sparse_distil_weight'] * distillation(a, gate, block, s['adaptive_sparse_distil_skip'])
    chosen = chosen_blocks(gate, s['adaptive_sparse_top_k'], notes)
    past = torch.ones_like(chosen[0, 0]).tril(-1)
    modulator = torch.where(past, F.logsigmoid(gate), torch.zeros_like(gate))
    z = scores(a.q, a.k)
    z = torch.cat((z[:, :dense], z[:, dense:] + spread(modulator, a, block)), 1)
    everything = torch.ones_like(chosen[:, :1]).expand(-1, dense, -1, -1)
    out = attend(z, a.causal & spread(torch.cat((everything, chosen), 1), a, block), a.v)

    both = torch.cat((a.q_pre, for_query_heads(a.k_pre, a.NH)), -1)        # (B, NH, T, 2 HS)
    on = torch.sigmoid(torch.einsum('bhtd,hd->bht', both, w['head.weight']) + w['head.bias'][:, None])[:, dense:]
    notes.chose((on - theta).abs())
    factor = torch.cat((torch.ones_like(on[:, :1]).expand(-1, dense, -1), on * (on >= theta)), 1)
    return out * factor[..., None]


def adaptive_sparse_tensors(form, s):
    return gate_tensors(form, s) | {'head.weight': Tensor((form.NH, 2 * form.HS), 0.2), 'head.bias': Tensor((form.NH,), 0.3, decays=False)}


def gate_tensors(form, s):
    return {'w_gq': Tensor((form.NH, form.HS, form.HS), 0.3), 'w_gk': Tensor((form.NKV, form.HS, 3 * form.HS), 0.2)}


def seer(a, w, s, notes):
    """Own block and the chosen ones; the gate learns from the dense map alone. With distil 2 attention is dense."""
    gate = block_scores(a, w, s['seer_block'], s['seer_query'])
    if s['seer_distil']:
        notes.auxiliary = notes.auxiliary + s['seer_distil_weight'] * distillation(a, gate, s['seer_block'], s['seer_distil_skip'])
    if s['seer_distil'] == 2:
        return attend(scores(a.q, a.k), a.causal, a.v)
    return attend(scores(a.q, a.k), a.causal & spread(chosen_blocks(gate, s['seer_top_k'], notes), a, s['seer_block']), a.v)


# ---------------------------------------------------------------------------------------------------------------------------

def everything(a, s):
    return a.causal


# variant -> (heads, tensors)
TABLE = {
    'causal': (masked(everything), no_tensors),
    'sliding_window': (masked(window), no_tensors),
    'sinks': (masked(leading_and_window('sinks_tokens')), no_tensors),
    'sinks_cache': (sinks_cache, no_tensors),
    'longformer': (masked(leading_and_window('longformer_globals')), no_tensors),
    'strided': (masked(strided), no_tensors),
    'fixed_factorized': (masked(fixed_factorized), no_tensors),
    'bigbird': (masked(bigbird), no_tensors),
    'deepspeed_fixed': (masked(deepspeed_fixed), no_tensors),
    'longnet': (longnet, no_tensors),
    'asga': asga(gate=True, scale=True),
    'asga_no_geometry': asga(gate=True, scale=False),
    'asga_fixed': asga(gate=False, scale=True, windowed=True),
    'asga_neither': asga(gate=False, scale=False),
    'ppa': (ppa, ppa_tensors),
    'shaw': (shaw, shaw_tensors),
    'dsa': dsa(gate=True, rule='late'),
    'dsa_no_gate': dsa(gate=False, rule='late'),
    'dsa_fixed_window': dsa(gate=True, rule='all'),
    'dsa_no_window': dsa(gate=True, rule=None),
    'moh': (moh, moh_tensors),
    'mosa': (mosa, mosa_tensors),
    'routing': (routing, routing_tensors),
    'nsa': (nsa, nsa_tensors),
    'adaptive_sparse': (adaptive_sparse, adaptive_sparse_tensors),
    'seer': (seer, gate_tensors),
}
# Whose objective has a loss of its own beside the task's.
OWN_LOSS = ('moh', 'adaptive_sparse', 'seer')


def tensor_prefix(variant):
    """Of a variant's tensors, behind 'model.layers.N.self_attn.': ablations share their names with the whole."""
    return variant.split('_')[0] + '.' if variant.startswith(('asga', 'dsa')) else variant + '.'
