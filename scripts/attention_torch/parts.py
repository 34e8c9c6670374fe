"""What the mechanisms are made of: a layer's inputs, RoPE, scores, softmax under a mask, and notes about a forward pass."""
import math
from dataclasses import dataclass, field

import torch


@dataclass
class Inputs:
    """Of one attention layer. Query head h reads key/value head h / (NH / NKV)."""
    x: torch.Tensor        # (B, T, C), the block's normed input
    q_pre: torch.Tensor    # (B, NH, T, HS) after QK-norm, before RoPE
    k_pre: torch.Tensor    # (B, NKV, T, HS) likewise
    v: torch.Tensor        # (B, NKV, T, HS)
    theta: float
    layer: int
    layers: int            # of the model
    scaling: dict = field(default_factory=dict)      # "rope_scaling" of config.json

    def __post_init__(self):
        self.B, self.NH, self.T, self.HS = self.q_pre.shape
        self.NKV = self.k_pre.shape[1]
        everywhere = torch.arange(self.T)
        self.q, self.k = self.rope(self.q_pre, everywhere), self.rope(self.k_pre, everywhere)
        self.i, self.j = everywhere[:, None], everywhere[None, :]
        self.causal = self.j <= self.i     # (T, T), as all masks, or (.., NH, T, T)

    def rope(self, x, positions):
        """Rotates the two halves of every head of x (B, heads, T, width) by position * frequency; positions (T). A width below HS, its
        divisor, has every (HS / width)-th frequency."""
        frequency, factor = rope_frequencies(self.theta, self.HS, self.scaling)
        kind = torch.promote_types(x.dtype, torch.float32)      # in half precision positions would be rounded
        angle = positions.to(kind)[:, None] * torch.tensor(frequency[::self.HS // x.shape[-1]], dtype=kind)
        cos, sin = ((factor * wave.repeat(1, 2)).to(x.dtype) for wave in (angle.cos(), angle.sin()))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


@dataclass
class Notes:
    """What a forward pass has to say beside its result."""
    auxiliary: torch.Tensor | float = 0.0          # the mechanisms' own losses, of all layers: added to the task's loss
    moves: dict = field(default_factory=dict)      # statistic -> g; a step takes w -= rate g
    states: dict = field(default_factory=dict)     # the model's own tensor -> what it is after the step
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


def rope_frequencies(theta, HS, s):
    """Radians per position of every pair of channels (HS / 2), and the factor of all cosines and sines. s, "rope_scaling" of config.json,
    divides frequencies by s['factor'] but for the share that it keeps: as transformers' modeling_rope_utils.py (YaRN: arXiv 2309.00071)."""
    plain = [theta ** (-2 * d / HS) for d in range(HS // 2)]
    kind, attention_factor = s.get('rope_type', 'default'), 1.0
    if kind == 'default':
        return plain, attention_factor
    kept = [0.0] * len(plain)
    turns = s.get('original_max_position_embeddings', 0) / (2 * math.pi)      # of a frequency of 1 within the texts of pretraining
    if kind == 'llama3':
        slow, fast = s['low_freq_factor'], s['high_freq_factor']
        kept = [(turns * f - slow) / (fast - slow) for f in plain]
    if kind == 'yarn':
        low, high = (HS * math.log(turns / beta) / (2 * math.log(theta)) for beta in (s.get('beta_fast', 32), s.get('beta_slow', 1)))
        if s.get('truncate', True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, HS - 1)
        kept = [1 - (d - low) / (high - low or 0.001) for d in range(len(plain))]
        attention_factor = s.get('attention_factor') or 0.1 * math.log(s['factor']) + 1
    kept = [min(max(share, 0), 1) for share in kept]
    return [f * (share + (1 - share) / s['factor']) for f, share in zip(plain, kept)], attention_factor


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


def window(a, s):
    return a.i - a.j <= s['attention_window']
