"""What make_fixtures.py makes: the shape, form and attention variant of each fixture."""
from dataclasses import dataclass, field

import torch


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
    rope_scaling: dict = field(default_factory=dict)      # as in config.json; empty: none
    norm_eps: float = 1e-6
    variant: str = 'causal'
    settings: dict = field(default_factory=dict)      # of the variant, by their keys in config.json
    trains: tuple = ()             # where not empty: the ends of the names of the tensors that are not frozen
    seed: int = 0                  # of weights and tokens, beside the fixture's name
    storage: torch.dtype = torch.float32
    shard_size: str = '1GB'        # transformers splits the weights into parts of at most this size

    def __post_init__(self):
        self.qkv_bias, self.qk_norm = self.qwen2, not self.qwen2
        self.sigma_reparam = self.settings.get('sigma_reparam', 0)

    def attention(self, layer):
        return self.variant, self.settings


def scaled(rope_scaling, **form):
    return Form(**{'B': 1, 'T': 98, 'C': 16, 'NH': 2, 'NKV': 1, 'F': 32, 'V': 64, 'rope_theta': 1e4, 'rope_scaling': rope_scaling} | form)


# No T is a multiple of a power of two above 2; 67 and 70 are just above one tile of 64, 41 and 53 below.
FORMS = {
    'qwen3_gqa_tied': Form(NKV=2, T=67),
    'qwen3_mha_untied': Form(NKV=4, T=41, B=3, C=48, tied=False, rope_theta=1e4, norm_eps=1e-5),
    'qwen2_gqa_tied': Form(NKV=1, T=70, C=64, qwen2=True, rope_theta=1e4),
    'qwen2_gqa_tied_bf16': Form(NKV=2, T=53, C=64, qwen2=True, storage=torch.bfloat16),
    'qwen3_gqa_untied_sharded': Form(NKV=1, T=41, B=4, tied=False, shard_size='40KB'),
    # Texts three times as long as those of pretraining: pairs that keep their frequency, have a part of it, or have it divided.
    'rope_linear': scaled(dict(rope_type='linear', factor=4.0), qwen2=True, C=32),
    'rope_yarn': scaled(dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=32)),
    'rope_llama3': scaled(dict(rope_type='llama3', factor=4.0, original_max_position_embeddings=32, low_freq_factor=1.0,
                               high_freq_factor=4.0)),
    'asga': Form(NKV=2, T=67, variant='asga', settings={'asga_hidden': 16}),
    'asga_m8': Form(NKV=1, T=41, B=3, tied=False, variant='asga', settings={'asga_hidden': 8}),
    'asga_no_geometry': Form(NKV=2, T=53, variant='asga_no_geometry', settings={'asga_hidden': 16}),
    'asga_fixed': Form(NKV=2, T=67, variant='asga_fixed', settings={'attention_window': 8}),
    'asga_neither': Form(NKV=4, T=53, variant='asga_neither'),
}


def other(variant, T, settings={}, **form):
    """Of the other variants. Settings leave every rule something to decide: several windows, chunks, segments or blocks."""
    return Form(**{'NKV': 2, 'V': 96, 'B': 1, 'T': T, 'variant': variant, 'settings': settings} | form)


def of(variant, **settings):
    """A mechanism's own settings, by their keys in config.json."""
    return {f'{variant}_{key}': value for key, value in settings.items()}


DSA = {'attention_window': 8, 'attention_dense_until': 20}
SINKS = {'sinks_tokens': 3, 'attention_window': 7}
DENSE = {'read_window': 10 ** 9, 'read_sinks': 0}
MOSA = {'mosa_rho': 4, 'mosa_dense_heads': 2, 'mosa_rate': 0.05}
ROUTING = {'attention_window': 8} | of('routing', clusters=4, local_heads=2, rate=0.05, balanced=0)
SEER = of('seer', block=64, query=0, top_k=1, distil=1, distil_weight=1, distil_skip=0)
BLOCKS = of('adaptive_sparse', block=64, query=0, mask=2, top_k=1, dense_heads=2, head_threshold=0.3, distil=0, distil_weight=1,
            distil_skip=0)
SEER_R = of('seer_r', block=64, top_k=1, threshold=0.55, distil=1, distil_weight=1)
INDEXER = of('deepseek_sparse', heads=3, dim=32, top_k=12, distil=1, distil_weight=1)
FORMS |= {
    'sliding_window': other('sliding_window', 70, {'attention_window': 9}, B=2),
    'sinks': other('sinks', 70, SINKS),
    'sinks_cache': other('sinks_cache', 70, SINKS, NKV=1),
    'longformer': other('longformer', 70, {'longformer_globals': 5, 'attention_window': 6}),
    'strided': other('strided', 83, {'strided_stride': 9}),
    'fixed_factorized': other('fixed_factorized', 83, {'fixed_factorized_chunk': 12, 'fixed_factorized_summary': 3}),
    'bigbird': other('bigbird', 150, of('bigbird', block=16, window=3, globals=1, random=2, seed=5)),
    'deepspeed_fixed': other('deepspeed_fixed', 150, of('deepspeed_fixed', block=8, local=4, globals=2, per_head=1)),
    'longnet': other('longnet', 150, {'longnet_segment': 16, 'longnet_branches': 3, 'longnet_detach': 0}),
    'ppa': other('ppa', 67, B=2),
    'bam': other('bam', 67, B=2),
    'shaw': other('shaw', 67, {'shaw_clip': 6}, B=2),
    'dsa': other('dsa', 67, DSA),
    'dsa_no_gate': other('dsa_no_gate', 67, DSA, NKV=4),
    'dsa_fixed_window': other('dsa_fixed_window', 67, {'attention_window': 8}),
    'dsa_no_window': other('dsa_no_window', 67, NKV=1),
    'sink_logits': other('sink_logits', 70, {'attention_window': 9, 'sinks_tokens': 0}, B=2),
    'sink_logits_dense': other('sink_logits', 67, {'attention_window': 10 ** 9, 'sinks_tokens': 0}, NKV=1),
    'forgetting': other('forgetting', 70, DENSE | {'forgetting_rope': 0}, B=2),
    'forgetting_rope': other('forgetting', 67, DENSE | {'forgetting_rope': 1}, NKV=4),
    'gated': other('gated', 67, DENSE | {'gated_form': 1}, B=2),
    'gated_heads': other('gated', 53, DENSE | {'gated_form': 0}, NKV=4),
    'moh': other('moh', 53, {'moh_shared': 1, 'moh_active': 2, 'moh_balance': 0.5, 'moh_printed': 0}, B=2, seed=7),
    'moh_printed': other('moh', 41, {'moh_shared': 2, 'moh_active': 1, 'moh_balance': 0.5, 'moh_printed': 1}, NKV=4, seed=2),
    'mosa': other('mosa', 67, MOSA, seed=4),
    # Equal tokens have equal router scores in the first layer, and are equally near to a centroid: where places are counted, only a
    # large vocabulary leaves no tie for the last place.
    'mosa_choice': other('mosa', 27, MOSA | {'mosa_choice': 1}, B=2, NKV=1, V=256, seed=22),
    'routing': other('routing', 67, ROUTING, seed=2),
    'routing_balanced': other('routing', 23, ROUTING | {'routing_clusters': 3, 'routing_local_heads': 3, 'routing_balanced': 1},
                              V=256, seed=24),
    'nsa': other('nsa', 268, {'attention_window': 20} | of('nsa', block=8, stride=4, selected=4, shared_kv=0, choice=0), V=64, seed=1),
    'nsa_shared_kv': other('nsa', 270, {'attention_window': 15} | of('nsa', block=12, stride=8, selected=4, shared_kv=1, choice=1), V=64,
                           NKV=1),
    'adaptive_sparse': other('adaptive_sparse', 200, BLOCKS, seed=3),
    'adaptive_sparse_distil': other('adaptive_sparse', 200, BLOCKS | of('adaptive_sparse', query=1, distil=1, distil_weight=0.5), seed=16),
    'adaptive_sparse_soft': other('adaptive_sparse', 140, BLOCKS | of('adaptive_sparse', mask=0, dense_heads=0), V=64, seed=15),
    # Qwen2: a QK-norm takes the scales of q and k away again, which leaves their gamma a gradient of rounding errors.
    'adaptive_sparse_sigma': other('adaptive_sparse', 140, BLOCKS | of('adaptive_sparse', dense_heads=1) | {'sigma_reparam': 1}, V=64, NH=2,
                                   qwen2=True, rope_theta=1e4, seed=32),
    'infllm_v2': other('infllm_v2', 202, of('infllm_v2', kernel=12, stride=8, top_k=2, local=1), V=64, seed=2),
    'moba': other('moba', 210, {'moba_block': 64, 'moba_top_k': 3}, V=64, seed=2),
    'seer': other('seer', 200, SEER, B=2, V=64),
    'seer_alone': other('seer', 330, SEER | {'seer_query': 2, 'seer_distil': 2, 'seer_distil_skip': 0.4}, V=64,
                        trains=('w_gq', 'w_gk')),
    'seer_r': other('seer_r', 150, SEER_R, B=2, V=64, seed=6),
    'seer_r_alone': other('seer_r', 200, SEER_R | {'seer_r_distil': 2}, B=2, NKV=1, V=64, trains=('w_gq', 'w_gk')),
    'deepseek_sparse': other('deepseek_sparse', 31, INDEXER, B=2, seed=4),
    'deepseek_sparse_alone': other('deepseek_sparse', 67, INDEXER | {'deepseek_sparse_dim': 64, 'deepseek_sparse_distil': 2}, NKV=1,
                                   trains=tuple(f'deepseek_sparse.{name}' for name in
                                           ('wq', 'wk', 'k_norm.weight', 'k_norm.bias', 'weights_proj'))),
}
