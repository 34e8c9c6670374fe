"""A Qwen language model in plain PyTorch, for dev/compare_pytorch.py: Qwen2 or Qwen3 form, with causal, windowed or ASGA attention.
Parameters have the names that checkpoints have, so that load_state_dict() takes the engine's files."""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@dataclasses.dataclass
class Shape:
    """Qwen3 form (QK-norm), or Qwen2 form (QKV bias); the head is the embedding."""
    V: int
    C: int
    L: int
    NH: int
    NKV: int
    HS: int
    F: int
    qwen2: bool = False
    eps: float = 1e-6
    theta: float = 1e6
    init_std: float = 0.02

    def config_json(self):
        form = "Qwen2" if self.qwen2 else "Qwen3"
        return {"architectures": [form + "ForCausalLM"], "model_type": form.lower(), "vocab_size": self.V, "hidden_size": self.C,
                "num_hidden_layers": self.L, "num_attention_heads": self.NH, "num_key_value_heads": self.NKV, "head_dim": self.HS,
                "intermediate_size": self.F, "rms_norm_eps": self.eps, "rope_theta": self.theta, "initializer_range": self.init_std,
                "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "max_position_embeddings": 32768}


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)


class Linear(nn.Linear):
    """Weights are float32 and rounded to the activations' type where they are used."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


def rotate(x, cosine, sine):
    """RoPE: number d of a head turns with number d + HS / 2."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).to(x.dtype)


class Asga(nn.Module):
    """The tensors of ASGA (attention/asga.cuh): a learned pairwise gate, a geometric scale per head, or the scale alone."""

    def __init__(self, shape, gate, m=16):
        super().__init__()
        normal = lambda *sizes: nn.Parameter(torch.randn(*sizes) * 0.02)
        if gate:
            self.w1_q, self.w1_k = normal(shape.NH, m, shape.HS), normal(shape.NH, m, shape.HS)
            self.b1, self.b2 = nn.Parameter(torch.zeros(shape.NH, m)), nn.Parameter(torch.zeros(shape.NH))
            self.w2 = normal(shape.NH, m)
        self.gamma = nn.Parameter(torch.full((shape.NH,), math.log(math.expm1(2.0 if gate else 1.0))))

    def gate(self, q, k):
        """(B, NH, T, T) from q and k (B, NH, T, HS) before RoPE."""
        A = torch.einsum("bhtd,hmd->bhtm", F.layer_norm(q.float(), q.shape[-1:]), self.w1_q) + self.b1[:, None]
        B = torch.einsum("bhtd,hmd->bhtm", F.layer_norm(k.float(), k.shape[-1:]), self.w1_k)
        hidden = F.gelu((A[:, :, :, None] + B[:, :, None]).to(q.dtype), approximate="tanh")
        return torch.sigmoid((hidden * self.w2[:, None, None].to(q.dtype)).sum(-1) + self.b2[:, None, None])


class Attention(nn.Module):
    def __init__(self, shape, variant):
        super().__init__()
        self.shape, self.variant = shape, variant
        Q, KV = shape.NH * shape.HS, shape.NKV * shape.HS
        self.q_proj, self.k_proj, self.v_proj = (Linear(shape.C, width, bias=shape.qwen2) for width in (Q, KV, KV))
        self.o_proj = Linear(Q, shape.C, bias=False)
        if not shape.qwen2:
            self.q_norm, self.k_norm = RMSNorm(shape.HS, shape.eps), RMSNorm(shape.HS, shape.eps)
        if variant != "causal":
            self.asga = Asga(shape, gate=variant == "asga")

    def forward(self, x, cosine, sine, mask):
        s = self.shape
        B, T, _ = x.shape
        q, k, v = (p(x).view(B, T, heads, s.HS).transpose(1, 2)
                   for p, heads in ((self.q_proj, s.NH), (self.k_proj, s.NKV), (self.v_proj, s.NKV)))
        if not s.qwen2:
            q, k = self.q_norm(q), self.k_norm(k)
        out = self.attend(q, k, rotate(q, cosine, sine), rotate(k, cosine, sine), v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, s.NH * s.HS))

    def attend(self, q_pre, k_pre, q, k, v, mask):
        grouped = self.shape.NKV < self.shape.NH
        if self.variant == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        q = q * F.softplus(self.asga.gamma)[:, None, None].to(q.dtype)   # the scale of the scores
        if self.variant == "window" and torch.is_tensor(mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        if self.variant == "window":
            return flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)
        group = self.shape.NH // self.shape.NKV
        k, k_pre, v = (x.repeat_interleave(group, 1) for x in (k, k_pre, v))
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(self.shape.HS) * self.asga.gate(q_pre, k_pre)
        return scores.masked_fill(~mask, -math.inf).softmax(-1).to(v.dtype) @ v


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj, self.up_proj = Linear(shape.C, shape.F, bias=False), Linear(shape.C, shape.F, bias=False)
        self.down_proj = Linear(shape.F, shape.C, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape, variant):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(shape.C, shape.eps), RMSNorm(shape.C, shape.eps)
        self.self_attn, self.mlp = Attention(shape, variant), MLP(shape)

    def forward(self, x, cosine, sine, mask):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape, variant):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.V, shape.C)
        self.layers = nn.ModuleList(Block(shape, variant) for _ in range(shape.L))
        self.norm = RMSNorm(shape.C, shape.eps)


class Qwen(nn.Module):
    """Parameters have the names that checkpoints have. forward() is the mean cross-entropy in nats per token."""

    def __init__(self, shape, variant, T, window, dtype):
        super().__init__()
        self.model, self.dtype, self.variant, self.T, self.window = Decoder(shape, variant), dtype, variant, T, window
        for name, p in self.named_parameters():
            if name.endswith("proj.weight") or name.endswith("embed_tokens.weight"):
                nn.init.normal_(p, std=shape.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        angle = torch.arange(T)[:, None] * shape.theta ** (-torch.arange(0, shape.HS, 2) / shape.HS)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def make_mask(self, device):
        """What the variant's attention reads beside q, k and v; made once. FlexAttention has no backward pass on the CPU."""
        sees = lambda b, h, i, j: (i >= j) & (i - j <= (self.window if self.variant == "window" else self.T))
        if self.variant == "causal":
            return None
        if self.variant == "window" and device == "cuda":
            return create_block_mask(sees, None, None, self.T, self.T, device=device)
        position = torch.arange(self.T, device=device)
        return sees(0, 0, position[:, None], position)

    def forward(self, tokens, targets, mask):
        x = self.model.embed_tokens(tokens).to(self.dtype)
        for layer in self.model.layers:
            x = layer(x, self.cosine, self.sine, mask)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight.to(self.dtype))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_optimizer(model, fused):
    """The engine's defaults; matrices decay, norms and biases do not."""
    decays = lambda name, p: p.ndim > 1 and not name.endswith("b1")
    named = list(model.named_parameters())
    groups = [{"params": [p for n, p in named if decays(n, p)], "weight_decay": 0.1},
              {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=fused)
