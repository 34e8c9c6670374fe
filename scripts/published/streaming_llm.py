"""StreamingLLM's released code (mit-han-lab/streaming-llm): its Llama attention and its cache, token by token, softmax in float32."""
import contextlib
import io
from types import SimpleNamespace

import torch

from .check import Check

SINKS, LEFT = 3, 9


def stream(a, _, check):
    module = check.module('streaming_llm/pos_shift/modify_llama.py')
    with contextlib.redirect_stdout(io.StringIO()):
        cache = check.module('streaming_llm/kv_cache.py').StartRecentKVCache(SINKS, LEFT)
    angle = torch.arange(a.T)[:, None].double() * a.theta ** (-torch.arange(0, a.HS, 2).double() / a.HS)
    cos, sin = (f(angle).repeat(1, 2)[None, None] for f in (torch.cos, torch.sin))
    tokens = lambda heads: heads.transpose(1, 2).flatten(2)
    q, k, v = tokens(a.q_pre), tokens(a.k_pre), tokens(a.v)
    layer = SimpleNamespace(config=SimpleNamespace(pretraining_tp=1), num_heads=a.NH, num_key_value_heads=a.NKV, head_dim=a.HS,
                            num_key_value_groups=a.NH // a.NKV, hidden_size=a.NH * a.HS, o_proj=lambda out: out,
                            rotary_emb=lambda *_, **__: (cos, sin))
    past, found = None, []
    for t in range(a.T):
        layer.q_proj, layer.k_proj, layer.v_proj = (lambda _, x=x: x[:, t:t + 1] for x in (q, k, v))
        position = torch.tensor([[past[0][0].shape[2] if past else 0]])
        out, _, kept = module.llama_pos_shift_attention_forward(
            layer, a.x[:, t:t + 1], position_ids=position, past_key_value=past[0] if past else None, use_cache=True)
        past = cache([kept])
        found.append(out)
    return torch.cat(found, 1).view(a.B, a.T, a.NH, a.HS).transpose(1, 2)


CHECKS = [
    Check('sinks_cache', 'mit-han-lab/streaming-llm, Llama with its cache', stream, {'sinks_tokens': SINKS, 'attention_window': LEFT},
          repository='mit-han-lab/streaming-llm', imports=('transformers.models.llama.modeling_llama',), in_float=True,
          remark='start_size 3, recent_size 9, evicted after every token'),
]
