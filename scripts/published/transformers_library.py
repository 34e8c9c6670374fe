"""Attention functions, and an indexer, of Hugging Face's transformers."""
import math
from types import SimpleNamespace

import torch

from .check import Check


def gpt_oss(a, w):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
    layer = SimpleNamespace(sinks=w['sink_logits.s'], num_key_value_groups=a.NH // a.NKV, training=False)
    hidden = ~(a.causal & (a.i - a.j <= 12))
    mask = torch.zeros(a.T, a.T, dtype=a.q.dtype).masked_fill(hidden, -math.inf)
    return eager_attention_forward(layer, a.q, a.k, a.v, mask, a.HS ** -0.5)[0].transpose(1, 2)


DEEPSEEK = {'deepseek_sparse_heads': 8, 'deepseek_sparse_dim': 32, 'deepseek_sparse_top_k': 12, 'deepseek_sparse_distil': 0}
ROTATED = 16   # of an index head's numbers


def indexer_of(C, w):
    """DeepSeek's indexer with the weights of deepseek_sparse; its queries come from the layer's input, without a latent between."""
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
    shape = SimpleNamespace(hidden_size=C, q_lora_rank=C, index_n_heads=DEEPSEEK['deepseek_sparse_heads'],
                            index_head_dim=DEEPSEEK['deepseek_sparse_dim'], qk_rope_head_dim=ROTATED,
                            index_topk=DEEPSEEK['deepseek_sparse_top_k'])
    indexer = DeepseekV32Indexer(shape, 0).double()
    theirs = {'wq': 'wq_b.weight', 'wk': 'wk.weight', 'k_norm.weight': 'k_norm.weight', 'k_norm.bias': 'k_norm.bias',
              'weights_proj': 'weights_proj.weight'}
    indexer.load_state_dict({name: w[f'deepseek_sparse.{ours}'].detach() for ours, name in theirs.items()})
    return indexer


def deepseek(a, w):
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import eager_attention_forward
    angle = torch.arange(a.T, dtype=torch.float64)[:, None] * a.theta ** (-torch.arange(0, ROTATED, 2, dtype=torch.float64) / ROTATED)
    angle = torch.cat((angle, angle), -1)[None]
    hidden = torch.zeros(1, a.T, a.T, dtype=torch.float64).masked_fill(~a.causal, -math.inf)
    chosen = indexer_of(a.x.shape[-1], w)(a.x.detach(), a.x.detach(), (angle.cos(), angle.sin()), hidden, None).long()
    sees = torch.zeros(*chosen.shape[:2], a.T, dtype=torch.bool).scatter(-1, chosen, True) & a.causal
    mask = torch.zeros(sees.shape, dtype=a.q.dtype).masked_fill(~sees, -math.inf)[:, None]
    layer = SimpleNamespace(num_key_value_groups=a.NH // a.NKV, training=False)
    return eager_attention_forward(layer, a.q, a.k, a.v, mask, a.HS ** -0.5)[0].transpose(1, 2)


CHECKS = [
    Check('sink_logits', 'transformers, eager attention of GptOss', gpt_oss, {'attention_window': 12}, package='transformers',
          imports=('transformers.models.gpt_oss.modeling_gpt_oss',), remark='a window, as its alternate layers have'),
    Check('deepseek_sparse', 'transformers, DeepseekV32Indexer', deepseek, DEEPSEEK, package='transformers',
          imports=('transformers.models.deepseek_v32.modeling_deepseek_v32',), remark='the choice; what the indexer learns has no other code'),
]
