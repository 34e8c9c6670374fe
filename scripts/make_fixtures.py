#!/usr/bin/env python3
"""Writes the reference fixtures under tests/fixtures/, against which the engine's whole-model tests compare.

    python3 scripts/make_fixtures.py [--out tests/fixtures] [NAME ...]

needs torch, transformers, numpy and safetensors (pip install). Only whoever changes the fixtures runs it: they are kept in git.
tests/fixtures/README.md describes the files. Every number is computed in float64 by the plain model below, starting from exactly
the float32 (or bfloat16) weights that lie in the folder. For the forms that transformers has, the script checks the plain model
against transformers, logits and the whole 20-step curve, and stops when they disagree.

Shapes as in the engine: B batch, T tokens, C channels, L layers, V vocabulary; NH query heads, NKV key/value heads, HS head size.
"""
import argparse
import json
import math
import shutil
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

STEPS, WARMUP, LR, MIN_LR_FRAC = 20, 5, 3e-3, 0.1
WEIGHT_DECAY, BETA1, BETA2, ADAM_EPS, GRAD_CLIP = 0.1, 0.9, 0.95, 1e-8, 1.0


@dataclass
class Form:
    """One fixture: the shape of the model, its form, its attention variant, how its weights are stored."""
    NKV: int
    T: int
    B: int = 2
    C: int = 32
    NH: int = 4
    HS: int = 16
    L: int = 2
    F: int = 64
    V: int = 128
    qwen2: bool = False            # Qwen2: biases of q, k and v, no QK-norm. Otherwise Qwen3: QK-norm, no bias.
    tied: bool = True
    rope_theta: float = 1e6
    norm_eps: float = 1e-6
    variant: str = 'causal'
    hidden: int = 16               # m, the width of ASGA's gate
    window: int = 8                # left reach of asga_fixed: row i sees keys i-window..i
    storage: torch.dtype = torch.float32
    shard_size: str = '1GB'        # transformers splits the weights into parts of at most this size


# No T is a multiple of a power of two above 2; 67 and 70 are just above one tile of 64, 41 and 53 below.
FORMS = {
    'qwen3_gqa_tied': Form(NKV=2, T=67),
    'qwen3_mha_untied': Form(NKV=4, T=41, B=3, C=48, tied=False, rope_theta=1e4, norm_eps=1e-5),
    'qwen2_gqa_tied': Form(NKV=1, T=70, C=64, qwen2=True, rope_theta=1e4),
    'qwen2_gqa_tied_bf16': Form(NKV=2, T=53, C=64, qwen2=True, storage=torch.bfloat16),
    'qwen3_gqa_untied_sharded': Form(NKV=1, T=41, B=4, tied=False, shard_size='40KB'),
    'asga': Form(NKV=2, T=67, variant='asga'),
    'asga_m8': Form(NKV=1, T=41, B=3, tied=False, variant='asga', hidden=8),
    'asga_no_geometry': Form(NKV=2, T=53, variant='asga_no_geometry'),
    'asga_fixed': Form(NKV=2, T=67, variant='asga_fixed'),
    'asga_neither': Form(NKV=4, T=53, variant='asga_neither'),
}
LEARNED_GATE = ('asga', 'asga_no_geometry')
LEARNED_SCALE = ('asga', 'asga_fixed')


# ---------------------------------------------------------------------------------------------------------------------------
# The plain model: a dictionary of weights by Hugging Face name, and a forward pass that materialises everything.

def make_weights(form, generator):
    """Random weights, large enough that every term (norm weights, biases, the gate) moves the loss."""
    def normal(*shape, mean=0.0, deviation=1.0):
        return mean + deviation * torch.randn(*shape, generator=generator)

    def linear(out_features, in_features):
        return normal(out_features, in_features, deviation=0.8 * in_features ** -0.5)

    w = {'model.embed_tokens.weight': normal(form.V, form.C, deviation=0.3)}
    for layer in range(form.L):
        block, attn = f'model.layers.{layer}.', f'model.layers.{layer}.self_attn.'
        for name, rows in (('q', form.NH), ('k', form.NKV), ('v', form.NKV)):
            w[f'{attn}{name}_proj.weight'] = linear(rows * form.HS, form.C)
            if form.qwen2:
                w[f'{attn}{name}_proj.bias'] = normal(rows * form.HS, deviation=0.3)
            elif name != 'v':
                w[f'{attn}{name}_norm.weight'] = normal(form.HS, mean=1.2, deviation=0.2)
        w[f'{attn}o_proj.weight'] = linear(form.C, form.NH * form.HS)
        if form.variant in LEARNED_GATE:
            w[f'{attn}asga.w1_q'] = normal(form.NH, form.hidden, form.HS, deviation=0.3)
            w[f'{attn}asga.w1_k'] = normal(form.NH, form.hidden, form.HS, deviation=0.3)
            w[f'{attn}asga.b1'] = normal(form.NH, form.hidden, deviation=0.5)
            w[f'{attn}asga.w2'] = normal(form.NH, form.hidden, deviation=0.6)
            w[f'{attn}asga.b2'] = normal(form.NH, deviation=0.5)
        if form.variant in LEARNED_SCALE:
            w[f'{attn}asga.gamma'] = normal(form.NH, mean=1.5, deviation=0.5)
        w[f'{block}mlp.gate_proj.weight'] = linear(form.F, form.C)
        w[f'{block}mlp.up_proj.weight'] = linear(form.F, form.C)
        w[f'{block}mlp.down_proj.weight'] = linear(form.C, form.F)
        w[f'{block}input_layernorm.weight'] = normal(form.C, mean=1.0, deviation=0.2)
        w[f'{block}post_attention_layernorm.weight'] = normal(form.C, mean=1.0, deviation=0.2)
    w['model.norm.weight'] = normal(form.C, mean=1.0, deviation=0.2)
    if not form.tied:
        w['lm_head.weight'] = normal(form.V, form.C, deviation=0.3)
    return {name: value.to(form.storage) for name, value in w.items()}


def rmsnorm(x, weight, eps):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rope(x, theta):
    """Rotates the two halves of every head of x (B, heads, T, HS) by position * theta^(-2d/HS)."""
    T, HS = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, HS, 2, dtype=x.dtype) / HS)
    angle = torch.arange(T, dtype=x.dtype)[:, None] * frequency
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def asga_gate(form, w, attn, q, k):
    """s = sigmoid(b2 + W2 . GELU(W1q LN(q_i) + b1 + W1k LN(k_j))), (B, NH, T, T). q and k: after QK-norm, before RoPE, NH heads."""
    normed_q, normed_k = (F.layer_norm(x, (form.HS,), eps=1e-5) for x in (q, k))
    a = torch.einsum('hmd,bhtd->bhtm', w[attn + 'asga.w1_q'], normed_q) + w[attn + 'asga.b1'][:, None]
    b = torch.einsum('hmd,bhtd->bhtm', w[attn + 'asga.w1_k'], normed_k)
    g = F.gelu(a[:, :, :, None] + b[:, :, None], approximate='tanh')      # (B, NH, T, T, m)
    return torch.sigmoid(torch.einsum('hm,bhijm->bhij', w[attn + 'asga.w2'], g) + w[attn + 'asga.b2'][:, None, None])


def attention(form, w, attn, x):
    """x (B, T, C), the normed input of the block -> (B, T, C)."""
    B, T, _ = x.shape

    def project(name, heads):
        y = F.linear(x, w[f'{attn}{name}_proj.weight'], w.get(f'{attn}{name}_proj.bias'))
        y = y.view(B, T, heads, form.HS).transpose(1, 2)                  # (B, heads, T, HS)
        norm = w.get(f'{attn}{name}_norm.weight')
        y = y if norm is None else rmsnorm(y, norm, form.norm_eps)
        return y.repeat_interleave(form.NH // heads, dim=1)               # query head h reads key/value head h / (NH/NKV)

    q, k, v = project('q', form.NH), project('k', form.NKV), project('v', form.NKV)
    scores = rope(q, form.rope_theta) @ rope(k, form.rope_theta).transpose(-1, -2) * form.HS ** -0.5
    if form.variant in LEARNED_SCALE:
        scores = scores * F.softplus(w[attn + 'asga.gamma'])[:, None, None]
    if form.variant in LEARNED_GATE:
        scores = scores * asga_gate(form, w, attn, q, k)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    visible = distance >= 0
    if form.variant == 'asga_fixed':
        visible = visible & (distance <= form.window)
    probabilities = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return F.linear((probabilities @ v).transpose(1, 2).reshape(B, T, -1), w[attn + 'o_proj.weight'])


def forward(form, w, ids):
    """ids (B, T) -> logits (B, T, V)."""
    x = w['model.embed_tokens.weight'][ids]
    for layer in range(form.L):
        block = f'model.layers.{layer}.'
        normed = rmsnorm(x, w[block + 'input_layernorm.weight'], form.norm_eps)
        x = x + attention(form, w, block + 'self_attn.', normed)
        normed = rmsnorm(x, w[block + 'post_attention_layernorm.weight'], form.norm_eps)
        hidden = F.silu(F.linear(normed, w[block + 'mlp.gate_proj.weight'])) * F.linear(normed, w[block + 'mlp.up_proj.weight'])
        x = x + F.linear(hidden, w[block + 'mlp.down_proj.weight'])
    x = rmsnorm(x, w['model.norm.weight'], form.norm_eps)
    return F.linear(x, w['model.embed_tokens.weight' if form.tied else 'lm_head.weight'])


def mean_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---------------------------------------------------------------------------------------------------------------------------
# Training

def decays(name, tensor):
    """Weight decay acts on matrices only. b1 is a bias, one per head, although it has two dimensions."""
    return tensor.dim() >= 2 and not name.endswith('asga.b1')


def learning_rate(step):
    """step counts from 0."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return LR * (MIN_LR_FRAC + (1 - MIN_LR_FRAC) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def train(weights, logits_of, batches):
    """Trains `weights` in place; one record per step, measured before its update. batches (STEPS, B, T+1)."""
    groups = [{'params': [p for n, p in weights.items() if decays(n, p)], 'weight_decay': WEIGHT_DECAY},
              {'params': [p for n, p in weights.items() if not decays(n, p)], 'weight_decay': 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS)
    curve = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(step)
        optimizer.zero_grad()
        loss = mean_loss(logits_of(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), GRAD_CLIP)
        optimizer.step()
        curve.append({'step': step + 1, 'loss': loss.item(), 'grad_norm': norm.item(), 'lr': learning_rate(step)})
    return curve


def make_tokens(form, shape, generator):
    """Sequences with something to learn: seven times in ten the next token follows from the current one."""
    tokens = torch.randint(form.V, shape, generator=generator)
    follows = torch.rand(shape, generator=generator) < 0.7
    for t in range(1, shape[-1]):
        tokens[..., t] = torch.where(follows[..., t], (5 * tokens[..., t - 1] + 3) % form.V, tokens[..., t])
    return tokens


# ---------------------------------------------------------------------------------------------------------------------------
# Hugging Face folders

def hugging_face_config(form):
    sizes = dict(vocab_size=form.V, hidden_size=form.C, num_hidden_layers=form.L, num_attention_heads=form.NH,
                 num_key_value_heads=form.NKV, intermediate_size=form.F, rms_norm_eps=form.norm_eps,
                 rope_parameters={'rope_type': 'default', 'rope_theta': form.rope_theta}, rope_theta=form.rope_theta,
                 tie_word_embeddings=form.tied, max_position_embeddings=128, bos_token_id=None, eos_token_id=form.V - 1,
                 attn_implementation='sdpa')
    if form.qwen2:
        return transformers.Qwen2Config(**sizes)
    return transformers.Qwen3Config(head_dim=form.HS, attention_bias=False, **sizes)


def transformers_model(form, weights):
    kind = transformers.Qwen2ForCausalLM if form.qwen2 else transformers.Qwen3ForCausalLM
    model = kind(hugging_face_config(form))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= ({'lm_head.weight'} if form.tied else set()), (missing, unexpected)
    model.tie_weights()
    return model


def save_folder(form, weights, folder):
    """causal: as transformers writes it. Other variants: the same files, the variant's tensors and keys added."""
    if form.variant == 'causal':
        transformers_model(form, weights).to(form.storage).save_pretrained(folder, max_shard_size=form.shard_size)
        return
    config = json.loads(hugging_face_config(form).to_json_string())
    config |= {'architectures': ['Qwen3ForCausalLM'], 'rope_theta': form.rope_theta, 'attention_variant': form.variant}
    if form.variant in LEARNED_GATE:
        config['asga_hidden'] = form.hidden
    if form.variant == 'asga_fixed':
        config['attention_window'] = form.window
    (folder / 'config.json').write_text(json.dumps(config, indent=2, sort_keys=True) + '\n')
    safetensors.torch.save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})


def difference_from_transformers(form, folder, ids, batches, logits, curve):
    """Largest differences between the plain model and the saved folder as transformers reads it: of a logit (absolute), and of
    a loss or gradient norm of the curve (relative). transformers takes norms and RoPE in float32 even in a float64 model, so the
    differences are those of float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation='sdpa')
    with torch.no_grad():
        of_logits = (model(ids).logits - logits).abs().max().item()
    theirs = train(dict(model.named_parameters()), lambda x: model(x).logits, batches)
    of_curve = max(abs(a[key] / b[key] - 1) for a, b in zip(theirs, curve) for key in ('loss', 'grad_norm'))
    if not (of_logits < 1e-5 and of_curve < 3e-5):
        sys.exit(f'{folder}: the plain model differs from transformers by {of_logits} in a logit, {of_curve} in the curve')
    return of_logits, of_curve


def write_fixture(name, form, folder):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    stored = make_weights(form, generator)
    tokens = make_tokens(form, (form.B, form.T + 1), generator)
    batches = make_tokens(form, (STEPS, form.B, form.T + 1), generator)
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_folder(form, stored, folder)

    weights = {n: value.double().requires_grad_() for n, value in stored.items()}
    logits = forward(form, weights, ids)
    loss = mean_loss(logits, targets)
    loss.backward()
    gradient_norms = {n: p.grad.norm().item() for n, p in weights.items()}
    curve = train(weights, lambda x: forward(form, weights, x), batches)
    record = {
        'variant': form.variant, 'versions': {'torch': torch.__version__, 'transformers': transformers.__version__},
        'loss': loss.item(), 'gradient_norms': gradient_norms,
        'training': {'steps': STEPS, 'warmup_steps': WARMUP, 'lr': LR, 'min_lr_frac': MIN_LR_FRAC, 'weight_decay': WEIGHT_DECAY,
                     'beta1': BETA1, 'beta2': BETA2, 'adam_eps': ADAM_EPS, 'grad_clip': GRAD_CLIP},
        'curve': curve, 'final_weight_norms': {n: p.norm().item() for n, p in weights.items()}}
    summary = f'{name}: loss {loss.item():.4f}, curve {curve[0]["loss"]:.4f} -> {curve[-1]["loss"]:.4f}'
    if form.variant == 'causal':
        of_logits, of_curve = difference_from_transformers(form, folder, ids, batches, logits.detach(), curve)
        record['difference_from_transformers'] = {'logits': of_logits, 'curve_relative': of_curve}
        summary += f', differs from transformers by {of_logits:.1e} in a logit, {of_curve:.1e} in the curve'
    (folder / 'fixture.json').write_text(json.dumps(record, indent=1) + '\n')
    safetensors.torch.save_file({'input_ids': ids.int().contiguous(), 'targets': targets.int().contiguous(),
                                 'logits': logits.detach().float(), 'batches': batches.int()}, folder / 'fixture.safetensors')
    print(summary, flush=True)


def main():
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description='writes the reference fixtures of the whole-model tests')
    parser.add_argument('--out', type=Path, default=Path('tests/fixtures'))
    parser.add_argument('names', nargs='*', metavar='NAME', help=f'all by default: {" ".join(FORMS)}')
    options = parser.parse_args()
    for name in options.names or FORMS:
        write_fixture(name, FORMS[name], options.out / name)


if __name__ == '__main__':
    main()
