"""MoSA's released code (piotrpiekos/MoSA): its sparse heads, its router included, beside its dense ones."""
import torch

from .check import Check

DENSE, RHO = 1, 4


def heads(a, w, check):
    PureMoSA, Dense = check.module('mosa/MoSA.py').PureMoSA, check.module('mosa/hybrid.py').Dense
    sparse = a.NH - DENSE
    C = a.x.shape[-1]
    rows = lambda x: x.repeat_interleave(a.NH // x.shape[1], 1).transpose(1, 2)      # it has no grouped heads
    each = torch.stack([rows(a.q_pre), rows(a.k_pre), rows(a.v)], 3)                 # (B, T, NH, 3, HS)
    width = 3 * a.HS

    # Its projections read the block's input; here the input has queries, keys and values behind x, and they pick these.
    X = torch.cat((a.x, each.flatten(2)), -1)
    columns = torch.eye(a.NH * width, dtype=X.dtype).view(a.NH, width, a.NH * width).transpose(1, 2)      # (NH, NH * width, width)
    pick = torch.cat((torch.zeros(a.NH, C, width, dtype=X.dtype), columns), 1)
    place = torch.eye(sparse * a.HS, dtype=X.dtype).view(sparse, a.HS, sparse * a.HS)
    router = torch.cat((w['mosa.w_r'], torch.zeros(sparse, a.NH * width, dtype=X.dtype)), 1)

    layer = PureMoSA(sparse, RHO, X.shape[-1], a.HS, include_first=1, rotate_fraction=1, rope_base=a.theta).double()
    layer.pe.inv_freq = a.theta ** (-torch.arange(0, a.HS, 2, dtype=X.dtype) / a.HS)      # it has rounded them to float32
    del layer.r[0].weight, layer.QKV.W, layer.O.W
    layer.r[0].weight, layer.QKV.W, layer.O.W = router, pick[DENSE:], place
    found = layer(X).view(a.B, a.T, sparse, a.HS).transpose(1, 2)

    dense = Dense(C, a.HS, DENSE, rotate_fraction=1, rope_base=a.theta).double()
    dense.pe.inv_freq = layer.pe.inv_freq
    dense_of = lambda x: rows(x).transpose(1, 2)[:, :DENSE]
    return torch.cat((dense.inner_attend(dense_of(a.q_pre), dense_of(a.k_pre), dense_of(a.v)), found), 1)


CHECKS = [
    Check('mosa', 'piotrpiekos/MoSA, PureMoSA and Dense', heads,
          {'mosa_choice': 1, 'mosa_rho': RHO, 'mosa_dense_heads': DENSE, 'mosa_rate': 0.05},
          ((2, 70, 4, 2), (1, 132, 4, 4), (1, 64, 4, 1), (1, 7, 4, 1)), repository='piotrpiekos/MoSA',
          remark='expert choice with include_first, RoPE on whole heads (unless told, it has half of each and any tokens); '
                 'projections that pick given q, k and v'),
]
