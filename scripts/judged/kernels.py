"""Attention kernels of others, as a function of q, k, v (B, heads, T, HS) and a case that returns what torch differentiates."""
import functools
import importlib
import importlib.metadata
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attention_torch.parts import for_query_heads

from .judge import HALF


@dataclass
class Kernel:
    name: str
    run: Callable
    package: str = 'torch'             # whose version counts
    module: str = 'torch'              # that must be there
    devices: tuple = ('cpu', 'cuda')
    types: tuple = (torch.float32, *HALF)
    gradients: tuple = ('cpu', 'cuda')       # where it has them
    compiles: bool = False             # whether each case has to be compiled first
    takes: Callable = lambda case: True

    def missing(self, device):
        """Why it cannot run here, '' if it can."""
        if device not in self.devices: return f'needs {self.devices[0]}'
        try:
            importlib.import_module(self.module)
        except ImportError:
            return f'needs {self.package}'
        return ''

    def version(self):
        return f'{self.package} {importlib.metadata.version(self.package)}'


def results_of(kernel, numbers, case):
    """{name: tensor}, without gradients where there are none."""
    *leaves, dout = numbers
    with_gradients = dout.device.type in kernel.gradients
    leaves = [x.detach().requires_grad_(with_gradients) for x in leaves]
    out = kernel.run(*leaves, case)
    found = {'out': out.detach()}
    if with_gradients: found |= zip(('dq', 'dk', 'dv'), torch.autograd.grad(out, leaves, dout))
    return found


def sdpa(backend, repeats_keys=False):
    def run(q, k, v, case):
        if repeats_keys: k, v = for_query_heads(k, case.NH), for_query_heads(v, case.NH)
        mask = None if case.causal else case.visible(q.device)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=case.causal, enable_gqa=q.shape[1] != k.shape[1])
    return run


def flex_eager(q, k, v, case):
    hide = lambda score, b, h, i, j: torch.where(case.sees(i, j), score, -float('inf'))
    return flex_attention(q, k, v, score_mod=hide, enable_gqa=case.NH != case.NKV)


@functools.lru_cache(maxsize=1)
def compiled_for(case, dtype, device):
    torch.compiler.reset()      # compiled too often, a function silently runs as it is
    blocks = create_block_mask(lambda b, h, i, j: case.sees(i, j), None, None, case.T, case.T, device=device)
    return partial(torch.compile(flex_attention, dynamic=False), block_mask=blocks, enable_gqa=case.NH != case.NKV)


def flex_compiled(q, k, v, case):
    return compiled_for(case, q.dtype, q.device.type)(q, k, v)


def transformers_eager(q, k, v, case):
    from transformers.models.llama.modeling_llama import eager_attention_forward
    layer = SimpleNamespace(num_key_value_groups=case.NH // case.NKV, training=False)
    mask = torch.zeros(case.T, case.T, dtype=q.dtype, device=q.device).masked_fill(~case.visible(q.device), torch.finfo(q.dtype).min)
    return eager_attention_forward(layer, q, k, v, mask, case.HS ** -0.5)[0].transpose(1, 2)


def tokens_first(*heads):
    return [x.transpose(1, 2) for x in heads]


def flash_attention(q, k, v, case):
    from flash_attn import flash_attn_func, flash_attn_varlen_func
    window = (case.window or -1, 0)
    if not case.documents: return flash_attn_func(*tokens_first(q, k, v), causal=True, window_size=window).transpose(1, 2)
    starts, longest = lengths(q, case)
    rows = [x.flatten(0, 1) for x in tokens_first(q, k, v)]
    out = flash_attn_varlen_func(*rows, starts, starts, longest, longest, causal=True, window_size=window)
    return out.unflatten(0, (case.B, case.T)).transpose(1, 2)


def fla_naive(q, k, v, case):
    from fla.ops.attn.naive import naive_parallel_attn
    return naive_parallel_attn(*tokens_first(q, k, v), window_size=case.window + 1 if case.window else None)[0].transpose(1, 2)


def fla_parallel(q, k, v, case):
    from fla.ops.attn import parallel_attn
    window = case.window + 1 if case.window else None
    if not case.documents: return parallel_attn(*tokens_first(q, k, v), window_size=window).transpose(1, 2)
    rows = [x.flatten(0, 1)[None] for x in tokens_first(q, k, v)]
    out = parallel_attn(*rows, window_size=window, cu_seqlens=lengths(q, case)[0].long())
    return out[0].unflatten(0, (case.B, case.T)).transpose(1, 2)


def lengths(q, case):
    """Where the documents of all sequences begin, one after the other, and the length of the longest."""
    starts = [b * case.T + start for b in range(case.B) for start in (0, *case.documents)] + [case.B * case.T]
    return torch.tensor(starts, dtype=torch.int32, device=q.device), max(b - a for a, b in zip(starts, starts[1:]))


GPU = {'devices': ('cuda',)}
KERNELS = [
    Kernel('SDPA math', sdpa(SDPBackend.MATH)),
    Kernel('SDPA flash', sdpa(SDPBackend.FLASH_ATTENTION)),
    Kernel('SDPA memory-efficient', sdpa(SDPBackend.EFFICIENT_ATTENTION, repeats_keys=True), **GPU),
    Kernel('SDPA cuDNN', sdpa(SDPBackend.CUDNN_ATTENTION), types=HALF, **GPU),
    Kernel('FlexAttention, not compiled', flex_eager, gradients=('cuda',)),
    Kernel('FlexAttention, compiled', flex_compiled, gradients=('cuda',), compiles=True),
    Kernel('transformers eager (Llama)', transformers_eager, 'transformers', 'transformers'),
    Kernel('FlashAttention', flash_attention, 'flash-attn', 'flash_attn', types=HALF, **GPU),
    Kernel('fla naive_parallel_attn', fla_naive, 'fla-core', 'fla.ops.attn.naive', takes=lambda case: not case.documents),
    Kernel('fla parallel_attn', fla_parallel, 'fla-core', 'fla.ops.attn', **GPU),
]
