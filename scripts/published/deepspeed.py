"""DeepSpeed's sparse layouts (deepspeedai/DeepSpeed, sparsity_config.py); its kernels need a GPU, so attention is PyTorch's."""
import torch
import torch.nn.functional as F

from .check import Check

BLOCK, LOCAL = 16, 4


def fixed(globals_, per_head):
    def run(a, _, check):
        module = check.module('deepspeed/ops/sparse_attention/sparsity_config.py')
        config = module.FixedSparsityConfig(a.NH, BLOCK, per_head, LOCAL, globals_, 'unidirectional',
                                            num_different_global_patterns=LOCAL // globals_ if per_head else 1)
        blocks = config.make_layout(-(-a.T // BLOCK) * BLOCK).bool()
        visible = a.causal & blocks[:, a.i // BLOCK, a.j // BLOCK]
        return F.scaled_dot_product_attention(a.q, a.k, a.v, visible, enable_gqa=a.NH != a.NKV)
    settings = {'deepspeed_fixed_block': BLOCK, 'deepspeed_fixed_local': LOCAL, 'deepspeed_fixed_globals': globals_,
                'deepspeed_fixed_per_head': int(per_head)}
    return Check('deepspeed_fixed', f'DeepSpeed, FixedSparsityConfig, {globals_} global, {"by head" if per_head else "one layout"}',
                 run, settings, ((2, 70, 4, 2), (1, 250, 4, 4), (1, 133, 4, 1)), repository='deepspeedai/DeepSpeed',
                 remark='its layout as a mask, under j <= i')


CHECKS = [fixed(1, False), fixed(2, False), fixed(1, True)]
