#!/usr/bin/env python3
"""Writes tests/fixtures/gemma3: what make_fixtures.py writes, of a small model of Gemma 3's form, and the gradient of every tensor.

    python3 scripts/make_gemma_fixture.py [--out tests/fixtures/gemma3]

The numbers are those of the plain model below in float64, from exactly the float32 weights that lie in the folder; the script stops
where transformers' Gemma3ForCausalLM, which takes norms and RoPE in float32, computes others.
"""
import argparse
import json
import shutil
import sys
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

import attention_torch as attentions
from attention_torch.parts import attend, rope, scores
from fixture_forms import Form
from make_fixtures import (ADAM_EPS, BETA1, BETA2, GRAD_CLIP, LR, MIN_LR_FRAC, STEPS, WARMUP, WEIGHT_DECAY, make_tokens, mean_loss,
                           train)

# Seven layers, of which the sixth is of full attention, with what no two of Gemma's own keys have in common: head_dim is neither
# C / NH nor query_pre_attn_scalar, the window is smaller than a row, the bases of RoPE differ, and one of them is scaled.
FORM = Form(NKV=2, T=70, C=24, NH=4, HS=8, L=7, F=32, V=96)
QUERY_SCALAR, WINDOW, THETA, LOCAL_THETA, FACTOR = 12, 10, 1e5, 100.0, 2.0
LAYER_NORMS = ('input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm', 'post_feedforward_layernorm')


def slides(layer):
    return (layer + 1) % 6 != 0


def tensor_shapes():
    shapes = {'model.embed_tokens.weight': (FORM.V, FORM.C)}
    for layer in range(FORM.L):
        block, attn = f'model.layers.{layer}.', f'model.layers.{layer}.self_attn.'
        for name, rows in (('q', FORM.NH), ('k', FORM.NKV), ('v', FORM.NKV)):
            shapes[f'{attn}{name}_proj.weight'] = (rows * FORM.HS, FORM.C)
        shapes[attn + 'o_proj.weight'] = (FORM.C, FORM.NH * FORM.HS)
        shapes |= {f'{attn}{name}_norm.weight': (FORM.HS,) for name in 'qk'}
        shapes |= {f'{block}mlp.{name}_proj.weight': (FORM.F, FORM.C) for name in ('gate', 'up')}
        shapes[block + 'mlp.down_proj.weight'] = (FORM.C, FORM.F)
        shapes |= {f'{block}{name}.weight': (FORM.C,) for name in LAYER_NORMS}
    return shapes | {'model.norm.weight': (FORM.C,)}


def make_weights(generator):
    """Norms are those of Gemma less 1: some are near -1, where 1 + weight keeps more bits than weight."""
    deviation = {1: lambda shape: 0.4, 2: lambda shape: 0.8 * shape[1] ** -0.5}
    return {name: deviation[len(shape)](shape) * torch.randn(*shape, generator=generator) for name, shape in tensor_shapes().items()}


def forward(w, ids):
    """ids (B, T) -> logits (B, T, V), in the type of the weights."""
    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + FORM.norm_eps) * (1 + w[name + '.weight'])

    def linear(x, name):
        return F.linear(x, w[name + '.weight'])

    B, T = ids.shape
    positions = torch.arange(T, dtype=torch.float64)
    distance = positions[:, None] - positions
    x = w['model.embed_tokens.weight'][ids] * torch.tensor(FORM.C ** 0.5, dtype=torch.float32).double()
    for layer in range(FORM.L):
        block, attn = f'model.layers.{layer}.', f'model.layers.{layer}.self_attn.'
        normed = norm(x, block + 'input_layernorm')
        q, k, v = (linear(normed, f'{attn}{name}_proj').view(B, T, -1, FORM.HS).transpose(1, 2) for name in 'qkv')
        theta, factor = (LOCAL_THETA, 1) if slides(layer) else (THETA, FACTOR)
        q, k = (rope(norm(y, f'{attn}{name}_norm'), theta, positions / factor) for y, name in ((q, 'q'), (k, 'k')))
        visible = (distance >= 0) & (distance < (WINDOW if slides(layer) else T))
        heads = attend(scores(q, k) * (FORM.HS / QUERY_SCALAR) ** 0.5, visible, v)
        attended = linear(heads.transpose(1, 2).reshape(B, T, -1), attn + 'o_proj')
        x = x + norm(attended, block + 'post_attention_layernorm')
        normed = norm(x, block + 'pre_feedforward_layernorm')
        hidden = F.gelu(linear(normed, block + 'mlp.gate_proj'), approximate='tanh') * linear(normed, block + 'mlp.up_proj')
        x = x + norm(linear(hidden, block + 'mlp.down_proj'), block + 'post_feedforward_layernorm')
    return F.linear(norm(x, 'model.norm'), w['model.embed_tokens.weight'])


def save_folder(weights, folder):
    config = transformers.Gemma3TextConfig(
        vocab_size=FORM.V, hidden_size=FORM.C, intermediate_size=FORM.F, num_hidden_layers=FORM.L, num_attention_heads=FORM.NH,
        num_key_value_heads=FORM.NKV, head_dim=FORM.HS, rms_norm_eps=FORM.norm_eps, max_position_embeddings=128, sliding_window=WINDOW,
        query_pre_attn_scalar=QUERY_SCALAR, bos_token_id=None, pad_token_id=None, eos_token_id=FORM.V - 1,
        rope_parameters={'full_attention': {'rope_type': 'linear', 'factor': FACTOR, 'rope_theta': THETA},
                         'sliding_attention': {'rope_type': 'default', 'rope_theta': LOCAL_THETA}})
    model = transformers.Gemma3ForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {'lm_head.weight'}, (missing, unexpected)
    model.tie_weights()
    model.save_pretrained(folder)


def differences_from_transformers(folder, ids, targets, batches, logits, gradients, curve):
    """The largest: of a logit, of a gradient relative to its tensor's largest, of a loss or norm of the curve (relative)."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation='eager')
    theirs = model(ids).logits
    mean_loss(theirs, targets).backward()
    own = dict(model.named_parameters())
    found = {'logits': (theirs - logits).abs().max().item(),
             'gradients_relative': max(((own[name].grad - g).abs().max() / g.abs().max()).item() for name, g in gradients.items())}
    trained, _ = train(FORM, own, lambda x: (model(x).logits, attentions.Notes()), batches)
    found['curve_relative'] = max(abs(a[key] / b[key] - 1) for a, b in zip(trained, curve) for key in ('loss', 'grad_norm'))
    if not (found['logits'] < 1e-5 and found['gradients_relative'] < 1e-5 and found['curve_relative'] < 3e-5):
        sys.exit(f'{folder}: the plain model differs from transformers: {found}')
    return found


def main():
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description='writes the reference fixture of Gemma 3')
    parser.add_argument('--out', type=Path, default=Path('tests/fixtures/gemma3'))
    folder = parser.parse_args().out
    generator = torch.Generator().manual_seed(3)
    stored = make_weights(generator)
    tokens = make_tokens(FORM, (FORM.B, FORM.T + 1), generator)
    batches = make_tokens(FORM, (STEPS, FORM.B, FORM.T + 1), generator)
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_folder(stored, folder)

    w = {name: value.double().requires_grad_() for name, value in stored.items()}
    logits = forward(w, ids)
    loss = mean_loss(logits, targets)
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in w.items()}
    curve, _ = train(FORM, w, lambda x: (forward(w, x), attentions.Notes()), batches)
    # The engine has 1 + weight: these are the norms of what it has.
    final = {name: (p + (p.dim() == 1)).norm().item() for name, p in w.items()}
    found = differences_from_transformers(folder, ids, targets, batches, logits.detach(), gradients, curve)
    record = {
        'variant': 'sliding_window', 'versions': {'torch': torch.__version__, 'transformers': transformers.__version__},
        'loss': loss.item(), 'gradient_norms': {name: g.norm().item() for name, g in gradients.items()},
        'training': {'steps': STEPS, 'warmup_steps': WARMUP, 'lr': LR, 'min_lr_frac': MIN_LR_FRAC, 'weight_decay': WEIGHT_DECAY,
                     'beta1': BETA1, 'beta2': BETA2, 'adam_eps': ADAM_EPS, 'grad_clip': GRAD_CLIP},
        'curve': curve, 'final_weight_norms': final, 'difference_from_transformers': found}
    (folder / 'fixture.json').write_text(json.dumps(record, indent=1) + '\n')
    safetensors.torch.save_file({'input_ids': ids.int().contiguous(), 'targets': targets.int().contiguous(),
                                 'logits': logits.detach().float(), 'batches': batches.int()}
                                | {'gradient.' + name: g.float() for name, g in gradients.items()}, folder / 'fixture.safetensors')
    print(f'gemma3: loss {loss.item():.4f}, curve {curve[0]["loss"]:.4f} -> {curve[-1]["loss"]:.4f}, differs from transformers by {found}')


if __name__ == '__main__':
    main()
