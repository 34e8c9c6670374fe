"""Scores that are changed before the softmax."""
import torch
import torch.nn.functional as F

from .parts import Tensor, attend, for_query_heads, scores, window
from .patterns import leading_and_window, read_through_window


def asga(gate, scale, windowed=False):
    """z = c s_ij a_ij, c = softplus(gamma) or constant,   s_ij = sigmoid(b2 + W2.GELU(W1q LN(q_i) + b1 + W1k LN(k_j))), q and k before RoPE."""
    def heads(a, w, s, notes):
        z = scores(a.q, a.k)
        if scale:
            z = z * F.softplus(w['gamma'])[:, None, None]
        elif gate:
            z = z * s.get('asga_scale', 1)
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


def bam(a, w, s, notes):
    """A generalized Gaussian prior instead of RoPE: z = a_ij - exp(scale) (i - j + 1e-5)^shape."""
    distance = (a.i - a.j).clamp(min=0) + 1e-5
    prior = w['scale'].exp()[:, None, None] * distance ** w['shape'][:, None, None]
    return attend(scores(a.q_pre, a.k_pre) - prior, a.causal, a.v)


def bam_tensors(form, s):
    return {'shape': Tensor((form.NH,), 0.3, mean=0.8, decays=False), 'scale': Tensor((form.NH,), 0.5, mean=-1.5, decays=False)}


def shaw(a, w, s, notes):
    """A key for every distance up to K, and no RoPE: z = q_i.(k_j + a_min(i-j, K)) / sqrt(HS)."""
    table = w['a_k'][(a.i - a.j).clamp(0, s['shaw_clip'])]       # (T, T, HS)
    z = scores(a.q_pre, a.k_pre) + torch.einsum('bhid,ijd->bhij', a.q_pre, table) * a.HS ** -0.5
    return attend(z, a.causal, a.v)


def shaw_tensors(form, s):
    return {'a_k': Tensor((s['shaw_clip'] + 1, form.HS), 0.5)}


def sink_logits(a, w, s, notes):
    """One more column of scores, the same in every row, whose probability is dropped."""
    z = scores(a.q, a.k).masked_fill(~(a.causal & leading_and_window('sinks_tokens')(a, s)), -torch.inf)
    sink = w['s'][:, None, None].expand(a.B, a.NH, a.T, 1)
    return torch.cat((z, sink), -1).softmax(-1)[..., :-1] @ for_query_heads(a.v, a.NH)


def sink_logits_tensors(form, s):
    return {'s': Tensor((form.NH,), 1.0, mean=1.0, decays=False)}


def forgetting(a, w, s, notes):
    """z = a_ij + the sum of log f_l, l from j + 1 to i: of all gates between. In double: a difference of two long sums."""
    c = F.logsigmoid(F.linear(a.x, w['w_f'], w['b_f'])).transpose(1, 2).double().cumsum(-1)     # (B, NH, T)
    z = scores(a.q, a.k) if s['forgetting_rope'] else scores(a.q_pre, a.k_pre)
    return attend(z + (c[..., :, None] - c[..., None, :]).to(z.dtype), a.causal & read_through_window(a, s), a.v)


def forgetting_tensors(form, s):
    return {'w_f': Tensor((form.NH, form.C), 0.3), 'b_f': Tensor((form.NH,), 1.0, mean=1.0, decays=False)}
