#!/usr/bin/env python3
"""Writes the reference fixtures under tests/fixtures/, against which the engine's whole-model tests compare.

    python3 scripts/make_fixtures.py [--out tests/fixtures] [NAME ...]

needs torch, transformers, numpy and safetensors (pip install). Only whoever changes the fixtures runs it: they are kept in git.
tests/fixtures/README.md describes the files. Every number is computed in float64 by the plain model of attention_torch/ (the text that
checkpoints carry), starting from exactly the float32 (or bfloat16) weights that lie in the folder. For the forms that transformers
has, the script checks the plain model against transformers, logits and the whole 20-step curve, and stops when they disagree.

A mechanism that chooses (the greatest scores, a threshold, the nearest centroid) would choose otherwise after rounding where two
outcomes are nearly equal. The script stops when any choice of any step is that near; another Form.seed makes other weights.

Shapes as in the engine: B batch, T tokens, C channels, L layers, V vocabulary; NH query heads, NKV key/value heads, HS head size.
"""
import argparse
import json
import math
import shutil
import sys
import zlib
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

import attention_torch as attentions
from attention_torch import qwen
from fixture_forms import FORMS

STEPS, WARMUP, LR, MIN_LR_FRAC = 20, 5, 3e-3, 0.1
WEIGHT_DECAY, BETA1, BETA2, ADAM_EPS, GRAD_CLIP = 0.1, 0.9, 0.95, 1e-8, 1.0
MOMENTUM, MUON_SHAPES, MUON_STEPS = 0.95, {'tall': (9, 4), 'wide': (3, 7), 'square': (5, 5)}, 4
SMALLEST_MARGIN = 1e-4    # of a choice: some hundred times what float32 makes of scores


# ----------------------------------------------------------------------------------------------------------------- Weights

def make_weights(form, generator):
    w = {name: tensor.mean + tensor.deviation * torch.randn(*tensor.shape, generator=generator)
         for name, tensor in qwen.tensors(form).items()}
    return {name: (F.normalize(value, dim=0) if name.endswith('.sigma_u') else value).to(form.storage) for name, value in w.items()}


def mean_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---------------------------------------------------------------------------------------------------------------- Training

def roles(form, names):
    """For every tensor: 'decays' or 'plain' (AdamW with weight decay or without), 'frozen', 'state' (the model's own, not the
    loss's), or a statistic's rate. The model's matrices decay, its vectors do not."""
    own, result = qwen.own_tensors(form, 0), {}
    for name, dimensions in names.items():
        tensor = own.get(name.split('self_attn.')[-1])
        if tensor and tensor.rate:
            result[name] = tensor.rate
        elif form.trains and not name.endswith(form.trains):
            result[name] = 'frozen'
        elif name.endswith('.sigma_u'):
            result[name] = 'state'
        else:
            result[name] = 'decays' if (tensor.decays if tensor else dimensions >= 2) else 'plain'
    return result


def learning_rate(step):
    """step counts from 0."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return LR * (MIN_LR_FRAC + (1 - MIN_LR_FRAC) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def train(form, weights, logits_and_notes, batches):
    """Trains `weights` in place; one record per step, measured before its update. batches (STEPS, B, T+1). And the nearest that any
    choice was to another one."""
    role = roles(form, {name: p.dim() for name, p in weights.items()})
    groups = [{'params': [p for n, p in weights.items() if role[n] == 'decays'], 'weight_decay': WEIGHT_DECAY},
              {'params': [p for n, p in weights.items() if role[n] == 'plain'], 'weight_decay': 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS)
    trained = [p for group in groups for p in group['params']]
    curve, margin = [], math.inf
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(step)
        optimizer.zero_grad()
        logits, notes = logits_and_notes(batch[:, :-1])
        loss = mean_loss(logits, batch[:, 1:])
        (loss + notes.auxiliary).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, GRAD_CLIP)
        optimizer.step()
        with torch.no_grad():
            for name, g in notes.moves.items():
                weights[name] -= role[name] * g
            for name, value in notes.states.items():
                weights[name].copy_(value)
        margin = min(margin, notes.margin)
        curve.append({'step': step + 1, 'loss': loss.item(), 'grad_norm': norm.item(), 'lr': learning_rate(step),
                      **own_loss(form, notes)})
    return curve, margin


def own_loss(form, notes):
    return {'auxiliary_loss': torch.as_tensor(notes.auxiliary).item()} if form.variant in attentions.OWN_LOSS else {}


def make_tokens(form, shape, generator):
    """Sequences with something to learn: seven times in ten the next token follows from the current one."""
    tokens = torch.randint(form.V, shape, generator=generator)
    follows = torch.rand(shape, generator=generator) < 0.7
    for t in range(1, shape[-1]):
        tokens[..., t] = torch.where(follows[..., t], (5 * tokens[..., t - 1] + 3) % form.V, tokens[..., t])
    return tokens


# ---------------------------------------------------------------------------------------------------- Hugging Face folders

def hugging_face_config(form):
    sizes = dict(vocab_size=form.V, hidden_size=form.C, num_hidden_layers=form.L, num_attention_heads=form.NH,
                 num_key_value_heads=form.NKV, intermediate_size=form.F, rms_norm_eps=form.norm_eps,
                 rope_parameters={'rope_type': 'default', 'rope_theta': form.rope_theta} | form.rope_scaling, rope_theta=form.rope_theta,
                 tie_word_embeddings=form.tied, max_position_embeddings=128 if form.T <= 128 else 512,
                 bos_token_id=None, eos_token_id=form.V - 1, attn_implementation='sdpa')
    if form.qwen2:
        return transformers.Qwen2Config(**sizes)
    if form.variant == 'sliding_window':
        sizes |= dict(use_sliding_window=True, sliding_window=form.settings['attention_window'] + 1, max_window_layers=0,
                      layer_types=['sliding_attention'] * form.L)
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
    kind = 'Qwen2ForCausalLM' if form.qwen2 else 'Qwen3ForCausalLM'
    config |= {'architectures': [kind], 'rope_theta': form.rope_theta, 'attention_variant': form.variant}
    config |= form.settings
    (folder / 'config.json').write_text(json.dumps(config, indent=2, sort_keys=True) + '\n')
    safetensors.torch.save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})


def difference_from_transformers(form, folder, ids, batches, logits, curve):
    """Largest differences between the plain model and the saved folder as transformers reads it: of a logit (absolute), and of
    a loss or gradient norm of the curve (relative). transformers takes norms and RoPE in float32 even in a float64 model, so the
    differences are those of float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation='sdpa')
    with torch.no_grad():
        of_logits = (model(ids).logits - logits).abs().max().item()
    theirs, _ = train(form, dict(model.named_parameters()), lambda x: (model(x).logits, attentions.Notes()), batches)
    of_curve = max(abs(a[key] / b[key] - 1) for a, b in zip(theirs, curve) for key in ('loss', 'grad_norm'))
    if not (of_logits < 1e-5 and of_curve < 3e-5):
        sys.exit(f'{folder}: the plain model differs from transformers by {of_logits} in a logit, {of_curve} in the curve')
    return of_logits, of_curve


def write_fixture(name, form, folder):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + form.seed)
    stored = make_weights(form, generator)
    tokens = make_tokens(form, (form.B, form.T + 1), generator)
    batches = make_tokens(form, (STEPS, form.B, form.T + 1), generator)
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_folder(form, stored, folder)

    weights = {n: value.double().requires_grad_() for n, value in stored.items()}
    logits, notes = qwen.forward(form, weights, ids)
    loss = mean_loss(logits, targets)
    (loss + notes.auxiliary).backward()
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in weights.items()} | notes.moves
    gradient_norms = {n: g.norm().item() for n, g in gradients.items()}
    curve, margin = train(form, weights, lambda x: qwen.forward(form, weights, x), batches)
    margin = min(margin, notes.margin)
    if margin < SMALLEST_MARGIN:
        sys.exit(f'{name}: a choice is as near as {margin:.1e} to another one; choose another seed')
    record = {
        'variant': form.variant, 'versions': {'torch': torch.__version__, 'transformers': transformers.__version__},
        'loss': loss.item(), **own_loss(form, notes), 'gradient_norms': gradient_norms,
        'training': {'steps': STEPS, 'warmup_steps': WARMUP, 'lr': LR, 'min_lr_frac': MIN_LR_FRAC, 'weight_decay': WEIGHT_DECAY,
                     'beta1': BETA1, 'beta2': BETA2, 'adam_eps': ADAM_EPS, 'grad_clip': GRAD_CLIP},
        'curve': curve, 'final_weight_norms': {n: p.norm().item() for n, p in weights.items()}}
    summary = f'{name}: loss {loss.item():.4f}, curve {curve[0]["loss"]:.4f} -> {curve[-1]["loss"]:.4f}'
    if margin < math.inf:
        record['smallest_margin'] = margin
        summary += f', smallest margin of a choice {margin:.1e}'
    if form.variant in ('causal', 'sliding_window'):
        of_logits, of_curve = difference_from_transformers(form, folder, ids, batches, logits.detach(), curve)
        record['difference_from_transformers'] = {'logits': of_logits, 'curve_relative': of_curve}
        summary += f', differs from transformers by {of_logits:.1e} in a logit, {of_curve:.1e} in the curve'
    (folder / 'fixture.json').write_text(json.dumps(record, indent=1) + '\n')
    safetensors.torch.save_file({'input_ids': ids.int().contiguous(), 'targets': targets.int().contiguous(),
                                 'logits': logits.detach().float(), 'batches': batches.int()}, folder / 'fixture.safetensors')
    print(summary, flush=True)


# -------------------------------------------------------------------------------------------------------------------- Muon

def orthogonalised(u):
    """The Newton-Schulz iterations of torch.optim.Muon in the type of u, (OUT, IN); torch's own round to bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (u.T if u.shape[0] > u.shape[1] else u) / u.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def write_muon(folder):
    """Steps of Muon in float64 on matrices of several shapes, and the check of their formula against torch.optim.Muon."""
    generator = torch.Generator().manual_seed(1)
    matrices, worst = {}, 0.0
    for name, (rows, columns) in MUON_SHAPES.items():
        w, *gradients = torch.randn(1 + MUON_STEPS, rows, columns, generator=generator, dtype=torch.float64)
        theirs = torch.nn.Parameter(w.float())
        optimizer = torch.optim.Muon([theirs], lr=LR, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM, adjust_lr_fn='match_rms_adamw')
        steps, m, start = [], torch.zeros_like(w), w
        for g in gradients:
            before, theirs_before = w, theirs.detach().double()
            m = MOMENTUM * m + (1 - MOMENTUM) * g
            x = orthogonalised(MOMENTUM * m + (1 - MOMENTUM) * g)
            w = w * (1 - LR * WEIGHT_DECAY) - LR * 0.2 * max(rows, columns) ** 0.5 * x
            theirs.grad = g.float()
            optimizer.step()
            step = w - before
            worst = max(worst, ((theirs.detach().double() - theirs_before - step).norm() / step.norm()).item())
            steps.append({'gradient': g.flatten().tolist(), 'momentum': m.flatten().tolist(), 'weights': w.flatten().tolist()})
        matrices[name] = {'shape': [rows, columns], 'start': start.flatten().tolist(), 'steps': steps}
    if not worst < 0.05:
        sys.exit(f'{folder}: a step differs from torch.optim.Muon by {worst} of its length, more than bfloat16 explains')
    folder.mkdir(parents=True, exist_ok=True)
    record = {'versions': {'torch': torch.__version__}, 'lr': LR, 'weight_decay': WEIGHT_DECAY, 'difference_from_torch': worst,
              'matrices': matrices}
    (folder / 'fixture.json').write_text(json.dumps(record) + '\n')
    print(f'{folder.name}: a step differs from torch.optim.Muon in bfloat16 by at most {worst:.1e} of its length', flush=True)


def main():
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description='writes the reference fixtures of the whole-model tests')
    parser.add_argument('--out', type=Path, default=Path('tests/fixtures'))
    parser.add_argument('names', nargs='*', metavar='NAME', help=f'all by default: {" ".join(FORMS)} muon')
    options = parser.parse_args()
    for name in options.names or [*FORMS, 'muon']:
        if name == 'muon':
            write_muon(options.out / name)
        else:
            write_fixture(name, FORMS[name], options.out / name)


if __name__ == '__main__':
    main()
