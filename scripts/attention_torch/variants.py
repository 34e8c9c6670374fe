"""Every attention mechanism of attention/*.cuh in plain PyTorch: dense matrices, autograd, one small function each. Written from
the papers' formulas and each variant's header comment, not from its kernels, so that the two are proofs of each other.

A mechanism is heads(a, w, s, notes) -> (B, NH, T, HS), what the output projection reads:
    a      the layer's inputs (class Inputs)
    w      the variant's own tensors by the last part of their name: w['gate.weight']
    s      its settings by their key in config.json: s['attention_window']
    notes  where it leaves a loss of its own, what statistics move by, and how near its choices were (class Notes)
and tensors(form, s) says which tensors it has in a model of the sizes form.C, form.NH, form.NKV, form.HS. TABLE lists them all.

Names as in the engine: B batch, T tokens, C channels; NH query heads, NKV key/value heads, HS head size; i query, j key, h head.
"""
from .blocks import adaptive_sparse, adaptive_sparse_tensors, gate_tensors, moba, seer, seer_r, token_gate_tensors
from .gates import dsa, gated, gated_tensors, moh, moh_tensors
from .indexer import deepseek_sparse, indexer_tensors
from .learned_scores import (asga, bam, bam_tensors, forgetting, forgetting_tensors, ppa, ppa_tensors, shaw, shaw_tensors,
                             sink_logits, sink_logits_tensors)
from .nsa import infllm_v2, nsa, nsa_tensors
from .parts import window
from .patterns import (bigbird, deepspeed_fixed, everything, fixed_factorized, leading_and_window, longnet, masked, sinks_cache,
                       strided)
from .tokens import mosa, mosa_tensors, routing, routing_tensors


def no_tensors(form, s):
    return {}


# variant -> (heads, tensors, the keys in config.json of the settings that it reads, those that matter to training alone among them)
DISTILLATION = ('distil', 'distil_weight', 'distil_skip')
TABLE = {
    'causal': (masked(everything), no_tensors, ()),
    'sliding_window': (masked(window), no_tensors, ('attention_window',)),
    'sinks': (masked(leading_and_window('sinks_tokens')), no_tensors, ('sinks_tokens', 'attention_window')),
    'sinks_cache': (sinks_cache, no_tensors, ('sinks_tokens', 'attention_window')),
    'longformer': (masked(leading_and_window('longformer_globals')), no_tensors, ('longformer_globals', 'attention_window')),
    'strided': (masked(strided), no_tensors, ('strided_stride',)),
    'fixed_factorized': (masked(fixed_factorized), no_tensors, ('fixed_factorized_chunk', 'fixed_factorized_summary')),
    'bigbird': (masked(bigbird), no_tensors, tuple(f'bigbird_{key}' for key in ('block', 'window', 'globals', 'random', 'seed'))),
    'deepspeed_fixed': (masked(deepspeed_fixed), no_tensors,
                        tuple(f'deepspeed_fixed_{key}' for key in ('block', 'local', 'globals', 'per_head'))),
    'longnet': (longnet, no_tensors, ('longnet_segment', 'longnet_branches', 'longnet_detach')),
    'asga': (*asga(gate=True, scale=True), ('asga_hidden', 'asga_scale')),
    'asga_no_geometry': (*asga(gate=True, scale=False), ('asga_hidden', 'asga_scale')),
    'asga_fixed': (*asga(gate=False, scale=True, windowed=True), ('attention_window', 'asga_scale')),
    'asga_neither': (*asga(gate=False, scale=False), ()),
    'ppa': (ppa, ppa_tensors, ()),
    'bam': (bam, bam_tensors, ()),
    'shaw': (shaw, shaw_tensors, ('shaw_clip',)),
    'dsa': (*dsa(gate=True, rule='late'), ('attention_window', 'attention_dense_until')),
    'dsa_no_gate': (*dsa(gate=False, rule='late'), ('attention_window', 'attention_dense_until')),
    'dsa_fixed_window': (*dsa(gate=True, rule='all'), ('attention_window',)),
    'dsa_no_window': (*dsa(gate=True, rule=None), ()),
    'sink_logits': (sink_logits, sink_logits_tensors, ('sinks_tokens', 'attention_window')),
    'forgetting': (forgetting, forgetting_tensors, ('forgetting_rope', 'read_window', 'read_sinks')),
    'gated': (gated, gated_tensors, ('gated_form', 'read_window', 'read_sinks')),
    'moh': (moh, moh_tensors, ('moh_shared', 'moh_active', 'moh_balance', 'moh_printed')),
    'mosa': (mosa, mosa_tensors, ('mosa_rho', 'mosa_dense_heads', 'mosa_rate', 'mosa_choice')),
    'routing': (routing, routing_tensors,
                ('attention_window',) + tuple(f'routing_{key}' for key in ('clusters', 'local_heads', 'rate', 'balanced'))),
    'nsa': (nsa, nsa_tensors, ('nsa_block', 'nsa_stride', 'nsa_selected', 'nsa_choice', 'attention_window', 'nsa_shared_kv')),
    'infllm_v2': (infllm_v2, no_tensors, tuple(f'infllm_v2_{key}' for key in ('kernel', 'stride', 'top_k', 'local'))),
    'adaptive_sparse': (adaptive_sparse, adaptive_sparse_tensors,
                        tuple(f'adaptive_sparse_{key}' for key in ('block', 'query', 'mask', 'top_k', 'threshold', 'sink', 'dense_heads',
                                                                   'head_threshold', 'ste', *DISTILLATION))),
    'seer': (seer, gate_tensors, tuple(f'seer_{key}' for key in ('block', 'query', 'top_k', 'threshold', 'sink', *DISTILLATION))),
    'seer_r': (seer_r, token_gate_tensors, tuple(f'seer_r_{key}' for key in ('block', 'top_k', 'threshold', 'distil', 'distil_weight'))),
    'moba': (moba, no_tensors, ('moba_block', 'moba_top_k')),
    'deepseek_sparse': (deepseek_sparse, indexer_tensors,
                        tuple(f'deepseek_sparse_{key}' for key in ('heads', 'dim', 'top_k', 'distil', 'distil_weight'))),
}
# Whose objective has a loss of its own beside the task's.
OWN_LOSS = ('moh', 'adaptive_sparse', 'seer', 'seer_r', 'deepseek_sparse')


def looks_ahead(variant, s):
    """Whether an output may depend on later tokens: published forms that choose among all tokens of a text."""
    return bool({'mosa': s.get('mosa_choice'), 'routing': s.get('routing_balanced'),
                 'seer': s.get('seer_query', 0) >= 2 and s.get('seer_distil') != 2}.get(variant))


def tensor_prefix(variant):
    """Of a variant's tensors, behind 'model.layers.N.self_attn.': ablations share their names with the whole."""
    return variant.split('_')[0] + '.' if variant.startswith(('asga', 'dsa')) else variant + '.'
