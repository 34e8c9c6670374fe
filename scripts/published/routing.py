"""The Routing Transformer as lucidrains/routing-transformer has it: its routed heads."""
from functools import partial

import torch
import torch.nn.functional as F

from .check import Check

CLUSTERS = 5
UNUSED = ('local_attention', 'product_key_memory', 'mixture_of_experts', 'routing_transformer', 'routing_transformer.reversible')


def attention(a, w, check):
    module = check.module('routing_transformer/routing_transformer.py', UNUSED)
    scatter_mean = module.scatter_mean
    module.scatter_mean = partial(scatter_mean, eps=1e-300)      # it divides by the number of clusters and 1e-5
    layer = module.KmeansAttention(CLUSTERS, max(1, a.T // CLUSTERS), a.NH, a.HS, causal=True, shared_qk=True).double().eval()
    layer.kmeans.means, layer.kmeans.initted = F.normalize(w['routing.mu'], dim=-1), torch.tensor(True)
    # It normalises keys to length 1, so that queries longer by sqrt(HS) make its products ours.
    n = F.layer_norm(a.q_pre, (a.HS,), eps=1e-12)
    out, _ = layer(n * a.HS ** 0.5, n, a.v.repeat_interleave(a.NH // a.NKV, 1))
    module.scatter_mean = scatter_mean
    return out


CHECKS = [
    Check('routing', 'lucidrains/routing-transformer, KmeansAttention', attention,
          {'routing_clusters': CLUSTERS, 'routing_local_heads': 0, 'routing_balanced': 1, 'routing_rate': 0.05},
          repository='lucidrains/routing-transformer', imports=('einops',), rotates=False,
          remark='balanced clusters, queries and keys shared and normed as we do, queries times sqrt(HS), without the 1e-5 in its '
                 'mean over clusters; centroids given'),
]
