"""The plain model around the mechanisms: a dictionary of weights by Hugging Face name, and a forward pass that materialises everything.

A form has the sizes V, C, L, NH, NKV, HS, F, the flags qk_norm, qkv_bias, tied and sigma_reparam, norm_eps, rope_theta,
rope_scaling (a dictionary), and attention(layer) -> (variant, settings)."""
import torch
import torch.nn.functional as F

from .parts import Inputs, Notes, Tensor
from .variants import TABLE, tensor_prefix


def own_tensors(form, layer):
    """The tensors of the layer's variant by their names behind 'self_attn.'."""
    variant, settings = form.attention(layer)
    return {tensor_prefix(variant) + name: tensor for name, tensor in TABLE[variant][1](form, settings).items()}


def linear_layers(form, layer):
    """The names of the layer's matrices that are reparametrised by their spectral norms: none without sigma_reparam."""
    if not form.sigma_reparam:
        return []
    return [f'model.layers.{layer}.{part}_proj' for part in ('self_attn.q', 'self_attn.k', 'self_attn.v', 'self_attn.o',
                                                             'mlp.gate', 'mlp.up', 'mlp.down')]


def tensors(form):
    """All tensors by name, with random weights that are large enough that every term (norms, biases, gates) moves the loss."""
    def linear(out_features, in_features):
        return Tensor((out_features, in_features), 0.8 * in_features ** -0.5)

    w = {'model.embed_tokens.weight': Tensor((form.V, form.C), 0.3)}
    for layer in range(form.L):
        block, attn = f'model.layers.{layer}.', f'model.layers.{layer}.self_attn.'
        for name, rows in (('q', form.NH), ('k', form.NKV), ('v', form.NKV)):
            w[f'{attn}{name}_proj.weight'] = linear(rows * form.HS, form.C)
            if form.qkv_bias:
                w[f'{attn}{name}_proj.bias'] = Tensor((rows * form.HS,), 0.3)
            if form.qk_norm and name != 'v':
                w[f'{attn}{name}_norm.weight'] = Tensor((form.HS,), 0.2, mean=1.2)
        w[f'{attn}o_proj.weight'] = linear(form.C, form.NH * form.HS)
        w |= {attn + name: tensor for name, tensor in own_tensors(form, layer).items()}
        w[f'{block}mlp.gate_proj.weight'] = linear(form.F, form.C)
        w[f'{block}mlp.up_proj.weight'] = linear(form.F, form.C)
        w[f'{block}mlp.down_proj.weight'] = linear(form.C, form.F)
        w[f'{block}input_layernorm.weight'] = Tensor((form.C,), 0.2, mean=1.0)
        w[f'{block}post_attention_layernorm.weight'] = Tensor((form.C,), 0.2, mean=1.0)
        for name in linear_layers(form, layer):
            w[f'{name}.sigma_gamma'] = Tensor((1,), 0.2, mean=1.3)
            w[f'{name}.sigma_u'] = Tensor((w[f'{name}.weight'].shape[1],), 1.0)     # of length 1
    w['model.norm.weight'] = Tensor((form.C,), 0.2, mean=1.0)
    if not form.tied:
        w['lm_head.weight'] = Tensor((form.V, form.C), 0.3)
    return w


def reparametrised(form, w, notes):
    """sigmaReparam (arXiv 2303.06296): what the layers read, (gamma / sigma) W in place of W. sigma = v.W u' after one power
    iteration from u; v and u' are constants to autograd, the W between them is not."""
    w = dict(w)
    for name in (name for layer in range(form.L) for name in linear_layers(form, layer)):
        weight, u = w[name + '.weight'], w[name + '.sigma_u']
        with torch.no_grad():
            v = F.normalize(weight @ u, dim=0)
            u = notes.states[name + '.sigma_u'] = F.normalize(weight.T @ v, dim=0)
        w[name + '.weight'] = w[name + '.sigma_gamma'] / (v @ weight @ u) * weight
    return w


def rmsnorm(x, weight, eps):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def attention(form, w, layer, x, notes):
    """x (B, T, C), the normed input of the block -> (B, T, C)."""
    attn = f'model.layers.{layer}.self_attn.'
    B, T, _ = x.shape
    variant, settings = form.attention(layer)

    def project(name, heads):
        y = F.linear(x, w[f'{attn}{name}_proj.weight'], w.get(f'{attn}{name}_proj.bias'))
        y = y.view(B, T, heads, form.HS).transpose(1, 2)                  # (B, heads, T, HS)
        norm = w.get(f'{attn}{name}_norm.weight')
        return y if norm is None else rmsnorm(y, norm, form.norm_eps)

    inputs = Inputs(x, project('q', form.NH), project('k', form.NKV), project('v', form.NKV), form.rope_theta, layer, form.L,
                    form.rope_scaling)
    prefix = attn + tensor_prefix(variant)
    own = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
    of_layer = Notes()
    heads = TABLE[variant][0](inputs, own, settings, of_layer)
    notes.auxiliary = notes.auxiliary + of_layer.auxiliary
    notes.moves |= {prefix + name: g for name, g in of_layer.moves.items()}
    notes.margin = min(notes.margin, of_layer.margin)
    return F.linear(heads.transpose(1, 2).reshape(B, T, -1), w[attn + 'o_proj.weight'])


def forward(form, w, ids):
    """ids (B, T) -> logits (B, T, V), and what the attention layers noted."""
    notes = Notes()
    w = reparametrised(form, w, notes)
    x = w['model.embed_tokens.weight'][ids]
    for layer in range(form.L):
        block = f'model.layers.{layer}.'
        normed = rmsnorm(x, w[block + 'input_layernorm.weight'], form.norm_eps)
        x = x + attention(form, w, layer, normed, notes)
        normed = rmsnorm(x, w[block + 'post_attention_layernorm.weight'], form.norm_eps)
        hidden = F.silu(F.linear(normed, w[block + 'mlp.gate_proj.weight'])) * F.linear(normed, w[block + 'mlp.up_proj.weight'])
        x = x + F.linear(hidden, w[block + 'mlp.down_proj.weight'])
    x = rmsnorm(x, w['model.norm.weight'], form.norm_eps)
    return F.linear(x, w['model.embed_tokens.weight' if form.tied else 'lm_head.weight']), notes
