#!/usr/bin/env python3
"""Converts a checkpoint of train_causal to a GGUF file for llama.cpp, tokenizer included.

    pip install gguf
    python3 scripts/export_gguf.py out/causal/step_00001000 causal.gguf            # --type bf16 or f16 for half the size
    llama-cli -m causal.gguf -p "We the people"                                     # llama.cpp

llama.cpp's own converter refuses tokenizers that it has not seen: those of scripts/train_tokenizer.py, and single bytes. This one takes
them, GPT-2's and Qwen's. Other attention mechanisms have no counterpart in llama.cpp (its sliding windows and sinks belong to other
architectures) and are refused. llama.cpp does not bring text into Unicode's NFC, as Qwen's tokenizers do.

Exit codes: 0 done, 2 usage or a missing package, 3 data, 75 stopped.
"""
import argparse
import json
import math
import os
from pathlib import Path

from fineweb import Problem, run
from train_tokenizer import QWEN2_PATTERN


def read_json(path):
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise Problem(f'{path}: {error}') from error


def tensors_of(path):
    """(name, float32 array) of every tensor of a safetensors file, without loading all at once."""
    import numpy as np
    with open(path, 'rb') as file:
        length = int.from_bytes(file.read(8), 'little')
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name == '__metadata__': continue
        if entry['dtype'] != 'F32':
            raise Problem(f'{path}: {name} is {entry["dtype"]}, not F32 as in a checkpoint of this engine; llama.cpp\'s '
                          'convert_hf_to_gguf.py takes others')
        yield name, np.memmap(path, np.float32, 'r', 8 + length + entry['data_offsets'][0], tuple(entry['shape']))


def architecture(config, folder):
    """llama.cpp's name of the model's form."""
    variant = config.get('attention_variant', 'causal')
    windows = config.get('use_sliding_window') or set(config.get('layer_types') or ()) - {'full_attention'}
    if variant == 'causal' and windows: variant = 'other than causal'
    if variant != 'causal':
        raise Problem(f'{folder}: has {variant} attention, which llama.cpp cannot compute; only checkpoints of train_causal convert')
    if config['model_type'] not in ('qwen2', 'qwen3'):
        raise Problem(f'{folder}: is of the form {config["model_type"]}; llama.cpp\'s convert_hf_to_gguf.py takes it')
    return config['model_type']


def add_rope(writer, config, folder):
    """RoPE's base and scaling. llama.cpp multiplies YaRN's default attention factor by attn_factor."""
    writer.add_rope_freq_base(config['rope_theta'])
    scaling = config.get('rope_scaling') or {'rope_type': 'default'}
    kind = scaling['rope_type']
    if kind == 'default': return
    if kind not in ('linear', 'yarn'):
        raise Problem(f'{folder}: has rope_scaling of the type {kind}, which llama.cpp has for Llama\'s form only; run the folder in '
                      'transformers')
    if (scaling.get('beta_fast', 32), scaling.get('beta_slow', 1), scaling.get('truncate', True)) != (32, 1, True):
        raise Problem(f'{folder}: has rope_scaling with other "beta_fast", "beta_slow" or "truncate" than 32, 1 and true, which are '
                      'those of llama.cpp; run the folder in transformers')
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(scaling['factor'])
    if kind == 'linear': return
    writer.add_rope_scaling_orig_ctx_len(scaling['original_max_position_embeddings'])
    if 'attention_factor' in scaling:
        writer.add_rope_scaling_attn_factors(scaling['attention_factor'] / (0.1 * math.log(scaling['factor']) + 1))


def pre_tokenizer_of(tokenizer, path):
    """llama.cpp's name of the way in which text is cut into words."""
    described = json.dumps(tokenizer['pre_tokenizer'])
    if not tokenizer['model']['merges']: return 'gpt-2'   # single bytes: every cut gives the same tokens
    if json.dumps(QWEN2_PATTERN) in described: return 'qwen2'
    if '"Split"' not in described and '"use_regex": false' not in described: return 'gpt-2'
    raise Problem(f'{path}: cuts text by a pattern that is neither GPT-2\'s nor Qwen2\'s')


def add_tokenizer(writer, folder, config):
    path = folder / 'tokenizer.json'
    if not path.exists(): raise Problem(f'{path}: is not there; a model without its tokenizer cannot be converted')
    tokenizer, count = read_json(path), config['vocab_size']
    words, kinds = [f'[PAD{n}]' for n in range(count)], [gguf.TokenType.UNUSED] * count
    for word, number in tokenizer['model']['vocab'].items(): words[number], kinds[number] = word, gguf.TokenType.NORMAL
    for token in tokenizer['added_tokens']:
        number, content = token['id'], token['content']
        unused = content.startswith('<|unused_')
        words[number] = content
        kinds[number] = gguf.TokenType.UNUSED if unused else gguf.TokenType.CONTROL if token['special'] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre(pre_tokenizer_of(tokenizer, path))
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in tokenizer['model']['merges']]
    # The key must be there, and a list with no entry is not written: a merge of two ends of text, whose result is no token, never happens.
    writer.add_token_merges(merges or ['<|endoftext|> <|endoftext|>'])
    ends = config.get('eos_token_id')
    ends = ends if isinstance(ends, list) else [ends]
    if not all(isinstance(end, int) for end in ends):
        raise Problem(f'{folder}: config.json has no eos_token_id, without which llama.cpp does not stop')
    writer.add_eos_token_id(ends[0])
    if len(ends) > 1: writer.add_eot_token_id(ends[1])
    begin = config.get('bos_token_id')
    writer.add_bos_token_id(begin if isinstance(begin, int) else ends[0])
    writer.add_add_bos_token(False)


def add_shape(writer, config, kind):
    writer.add_context_length(config['max_position_embeddings'])
    writer.add_embedding_length(config['hidden_size'])
    writer.add_block_count(config['num_hidden_layers'])
    writer.add_feed_forward_length(config['intermediate_size'])
    writer.add_head_count(config['num_attention_heads'])
    writer.add_head_count_kv(config['num_key_value_heads'])
    head = config.get('head_dim') or config['hidden_size'] // config['num_attention_heads']
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
    writer.add_vocab_size(config['vocab_size'])
    writer.add_file_type(gguf.LlamaFileType['ALL_F32' if kind == 'f32' else f'MOSTLY_{kind.upper()}'])


def add_tensors(writer, folder, config, form, kind):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[form.upper()], config['num_hidden_layers'])
    for name, values in tensors_of(folder / 'model.safetensors'):
        to = names.get_name(name, try_suffixes=('.weight', '.bias'))
        if not to: raise Problem(f'{folder}: llama.cpp has no tensor {name}')
        stored = gguf.GGMLQuantizationType[kind.upper() if values.ndim == 2 else 'F32']
        writer.add_tensor(to, gguf.quants.quantize(values, stored), raw_dtype=stored)


def main():
    global gguf
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint', type=Path, help='folder of a checkpoint, step_*')
    parser.add_argument('out', type=Path, help='GGUF file to write')
    parser.add_argument('--type', choices=('f32', 'bf16', 'f16'), default='f32', help='number type of matrices (default f32)')
    options = parser.parse_args()
    try:
        import gguf
    except ImportError as error:
        parser.error(f'{error.name} is not installed; pip install gguf')
    folder, config = options.checkpoint, read_json(options.checkpoint / 'config.json')
    form, part = architecture(config, folder), options.out.with_name(options.out.name + '.part')
    try:
        writer = gguf.GGUFWriter(part, form)
        writer.add_name(folder.resolve().parent.name)
        add_shape(writer, config, options.type)
        add_rope(writer, config, folder)
        add_tokenizer(writer, folder, config)
        add_tensors(writer, folder, config, form, options.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, options.out)
    except OSError as error:
        raise Problem(error) from error
    finally:
        part.unlink(missing_ok=True)
    print(f'{options.out}: {form}, {options.type}')


if __name__ == '__main__':
    run('export_gguf', main)
