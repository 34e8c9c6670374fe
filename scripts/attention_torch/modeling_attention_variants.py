"""A checkpoint of any attention variant in Hugging Face transformers:

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

The mathematics is that of the files beside this one: dense matrices in plain PyTorch, written to be read and compared with, not to be
fast. There is no cache of keys and values: generate() computes the whole text for every token, whatever use_cache says. Parameters in
half precision are computed with in float32. A model in training mode adds the mechanisms' own losses to that of the labels; statistics
(mosa.tau, routing.mu, sigma_u) move in the engine's training alone, and models without weights are made there."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, __version__
from transformers.modeling_outputs import CausalLMOutput

# transformers 4 copies beside this file only those that it names itself, and so the ones behind variants.py are named here, too.
from .blocks import seer as _
from .gates import moh as _
from .indexer import deepseek_sparse as _
from .learned_scores import asga as _
from .nsa import nsa as _
from .parts import Notes as _
from .patterns import sinks_cache as _
from .qwen import forward, tensors
from .tokens import mosa as _
from .variants import TABLE, looks_ahead

OLDEST = 4, 46      # of transformers, that these files have been tried with
if tuple(map(int, __version__.split('.')[:2])) < OLDEST:
    raise ImportError(f'this checkpoint needs transformers {OLDEST[0]}.{OLDEST[1]} or newer, and this is {__version__}: '
                      'pip install --upgrade transformers')

OF_HUGGING_FACE = {'full_attention': 'causal', 'sliding_attention': 'sliding_window'}
FORMS = {'qwen3': (True, False), 'qwen2': (False, True), 'llama': (False, False)}      # QK-norm, biases of q, k and v
ROPE_TYPES = 'default', 'linear', 'yarn', 'llama3'
OTHER_CODE = 'the *.py files beside config.json are those of another version: copy them from a checkpoint that the same build wrote'


def refuse(sentence):
    raise ValueError(f'config.json: {sentence}')


class AttentionVariantsConfig(PretrainedConfig):
    """config.json as the engine writes it; every key is an attribute. Its model_type, which is that of the plain Qwen or Llama around
    the attention, is kept as `form`."""
    model_type = 'attention_variants'
    max_position_embeddings = None      # transformers 5 reads it, for scaled RoPE, before it has set what config.json holds

    @classmethod
    def get_config_dict(cls, *args, **options):
        found, rest = super().get_config_dict(*args, **options)
        if found.get('model_type') != cls.model_type:
            found['form'] = found.pop('model_type', None)
        return found, rest

    def to_dict(self):
        """With the names of the plain model, so that what transformers saves is a folder for other programs, too."""
        keys, form = super().to_dict(), getattr(self, 'form', None)
        if form not in FORMS: return keys
        keys.pop('form')   # no key of config.json: the engine refuses those that it cannot follow
        return keys | {'model_type': form, 'architectures': [f'{form.capitalize()}ForCausalLM']}

    def validate(self):
        """transformers, which asks before it saves, knows no layer types but its own; form_of() judges ours."""


@dataclass
class Form:
    """What qwen.py asks of a model."""
    V: int
    C: int
    L: int
    NH: int
    NKV: int
    HS: int
    F: int
    qk_norm: bool
    qkv_bias: bool
    tied: bool
    norm_eps: float
    rope_theta: float
    rope_scaling: dict
    sigma_reparam: int
    layers: list          # (variant, settings) of each

    def attention(self, layer):
        return self.layers[layer]


def form_of(config):
    """ValueError where these files cannot compute what config.json describes."""
    c = {key: value for key, value in vars(config).items() if value is not None}

    def needed(key):
        return c[key] if key in c else refuse(f'the key "{key}" is missing; copy config.json from the checkpoint')

    if needed('form') not in FORMS:
        refuse(f'"model_type" is "{c["form"]}", expected one of {", ".join(FORMS)}; copy config.json from the checkpoint')
    if c.get('hidden_act', 'silu') != 'silu':
        refuse('only "hidden_act": "silu" is computed; a checkpoint of the engine has no other')
    qk_norm, qkv_bias = FORMS[c['form']]
    NH, NKV = needed('num_attention_heads'), needed('num_key_value_heads')
    if NH % NKV or needed('head_dim') % 2:
        refuse(f'num_attention_heads ({NH}) must be a multiple of num_key_value_heads ({NKV}), and head_dim even')
    rope = c.get('rope_scaling') or c.get('rope_parameters', {})
    if rope.get('rope_type', 'default') not in ROPE_TYPES:
        refuse(f'"rope_type" is "{rope["rope_type"]}", expected one of {", ".join(ROPE_TYPES)}; {OTHER_CODE}')
    theta = rope.get('rope_theta') or needed('rope_theta')
    L = needed('num_hidden_layers')
    return Form(needed('vocab_size'), needed('hidden_size'), L, NH, NKV, c['head_dim'], needed('intermediate_size'), qk_norm, qkv_bias,
                c.get('tie_word_embeddings', False), needed('rms_norm_eps'), theta, rope, c.get('sigma_reparam', 0),
                layers_of(c, L))


def layers_of(c, L):
    """(variant, settings) of every layer. Settings of the model are those of its own variant's layers, unless the layer has its own;
    a layer of another variant has all of its own."""
    own = c.get('attention_variant', 'causal')
    types, settings = c.get('layer_types', [own] * L), c.get('attention_layer_settings', [{}] * L)
    if len(types) != L or len(settings) != L:
        refuse(f'"layer_types" has {len(types)} layers and "attention_layer_settings" {len(settings)}, but num_hidden_layers is {L}; '
               'copy config.json from the checkpoint')
    if own not in OF_HUGGING_FACE.values() and all(OF_HUGGING_FACE.get(name) == 'causal' for name in types):
        types = [own] * L      # transformers writes such a list into every folder
    of_layers = []
    for name, of_layer in zip((OF_HUGGING_FACE.get(name, name) for name in types), settings):
        if name not in TABLE:
            refuse(f'the variant "{name}" is none of variants.py: {", ".join(TABLE)}; {OTHER_CODE}')
        s = c | of_layer if name == own else dict(of_layer)
        if name == 'sliding_window' and c.get('sliding_window'):
            s['attention_window'] = c['sliding_window'] - 1
        require_settings(name, s)
        of_layers.append((name, {key: value for key, value in s.items() if key in TABLE[name][2]}))
    return of_layers


def require_settings(variant, s):
    """Neither may one be missing, nor may the engine know one of which these files do not: they would compute something else."""
    for key in TABLE[variant][2]:
        if not isinstance(s.get(key), (int, float)):
            refuse(f'the setting "{key}" of {variant} is missing or no number; copy config.json from the checkpoint')
    prefix = variant.split('_')[0] if variant.startswith(('asga', 'dsa')) else variant
    for key in s:
        if key.startswith(prefix + '_') and key not in TABLE[variant][2] and isinstance(s[key], (int, float)):
            refuse(f'the setting "{key}" is none that variants.py knows of {variant}; {OTHER_CODE}')


class AttentionVariantsForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = AttentionVariantsConfig
    base_model_prefix = 'model'

    def __init__(self, config):
        super().__init__(config)
        self.form = form_of(config)
        for name, tensor in tensors(self.form).items():
            if min(tensor.shape) < 1:
                refuse(f'{name} would have the shape {tensor.shape}; copy config.json from the checkpoint')
            self._add(name, tensor.shape)
        self.post_init()

    def _add(self, name, shape):
        """A parameter under exactly this name: modules within modules."""
        *path, last = name.split('.')
        module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))

    def _init_weights(self, module):
        """Tensors that the folder lacks are refused by from_pretrained()."""

    @classmethod
    def from_pretrained(cls, folder, *args, output_loading_info=False, **options):
        """transformers fills what is missing with random numbers and leaves out what it does not know; here both are errors."""
        model, info = super().from_pretrained(folder, *args, output_loading_info=True, ignore_mismatched_sizes=True, **options)
        for kind, what in (('missing_keys', 'lacks'), ('unexpected_keys', 'has, and config.json does not ask for,'),
                           ('mismatched_keys', 'has in another shape')):
            if info[kind]:
                names = ', '.join(sorted(map(str, info[kind]))[:3])
                raise ValueError(f'{folder}: model.safetensors {what} {len(info[kind])} tensors ({names}); '
                                 'take config.json, model.safetensors and the *.py files from one checkpoint')
        return (model, info) if output_loading_info else model

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        return {'input_ids': input_ids, 'attention_mask': attention_mask}

    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        """logits (B, T, V) and, with labels, the mean loss of the next token; -100 counts for nothing."""
        self._refuse_padding(attention_mask)
        weights = {name: w.float() if w.dtype in (torch.float16, torch.bfloat16) else w for name, w in self.named_parameters()}
        with torch.device(input_ids.device):      # of the masks that the mechanisms make
            logits, notes = forward(self.form, weights, input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
            loss = loss + notes.auxiliary if self.training else loss
        return CausalLMOutput(loss=loss, logits=logits)

    def _refuse_padding(self, attention_mask):
        """Padding behind a text is seen by no token of it, unless tokens see what comes later; before a text it would move positions."""
        if attention_mask is None or attention_mask.bool().all():
            return
        before = attention_mask.ndim != 2 or (attention_mask[:, 1:] > attention_mask[:, :-1]).any()
        if before or any(looks_ahead(*layer) for layer in self.form.layers):
            raise ValueError('attention_mask hides tokens before others, or in a variant that looks ahead: pad on the right, or pass '
                             'one text at a time (lm-evaluation-harness: --batch_size 1)')
