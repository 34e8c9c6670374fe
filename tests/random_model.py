"""Makes a small Qwen2 or Qwen3 with random weights and has transformers write it as it writes released ones, for
tests/check_evaluation.py where no released weights are at hand.

    python3 tests/random_model.py qwen3 tokenizer.json out/random [--untied] [--dtype bfloat16] [--shard-size 50MB]
"""
import argparse

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

FORMS = {'qwen2': (Qwen2Config, Qwen2ForCausalLM, {}), 'qwen3': (Qwen3Config, Qwen3ForCausalLM, {'head_dim': 48})}


@torch.no_grad()
def random_model(form, tokenizer, tied, dtype):
    """transformers starts biases at 0 and norms at 1, where a wrong sum or product would not be seen: they are random here. So wide
    a distribution makes attention choose and logits differ, as trained weights do."""
    make_config, make_model, sizes = FORMS[form]
    torch.manual_seed(1)
    model = make_model(make_config(
        vocab_size=len(tokenizer) + 7, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=320, rms_norm_eps=1e-6, rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, initializer_range=0.2,
        tie_word_embeddings=tied, eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **sizes))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter += 0.2 * torch.randn_like(parameter)
    return model.to(dtype)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('form', choices=FORMS)
    parser.add_argument('tokenizer', help='tokenizer.json of GPT-2 or Qwen')
    parser.add_argument('folder')
    parser.add_argument('--untied', action='store_true', help='a head of its own instead of the embedding')
    parser.add_argument('--dtype', default='float32', choices=['float32', 'bfloat16', 'float16'])
    parser.add_argument('--shard-size', default='5GB', help='larger models are written in parts')
    options = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=options.tokenizer, eos_token='<|endoftext|>')
    model = random_model(options.form, tokenizer, not options.untied, getattr(torch, options.dtype))
    model.save_pretrained(options.folder, max_shard_size=options.shard_size)
    tokenizer.save_pretrained(options.folder)
    print(f'{options.folder}: {type(model).__name__}, {model.num_parameters():,} parameters in {options.dtype}')
