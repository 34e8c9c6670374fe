#!/usr/bin/env python3
"""Prints what transformers' configuration classes have for keys that a config.json lacks, one table for each model type.

    python3 scripts/config_defaults.py > scripts/config_defaults.json      # which tests/test_config.cpp compares the engine with
    python3 scripts/config_defaults.py --check                             # 1 if that file is stale; 0, too, where transformers is missing or of another generation

`defaults` are those of an instance without arguments, `small` what follows from other sizes, `sliding` from use_sliding_window.
"""
import json
import pathlib
import sys

STORED = pathlib.Path(__file__).with_suffix('.json')


def table(transformers, name):
    make = getattr(transformers, name)

    def keys_of(**given):
        made = make(**given).to_dict()
        made.pop('transformers_version')
        return made

    defaults = keys_of()
    defaults.pop('layer_types', None)     # follows from the keys of windows
    small = keys_of(hidden_size=512, num_attention_heads=8)
    sliding = keys_of(use_sliding_window=True)
    return {
        'defaults': defaults,
        'small': {key: small.get(key) for key in ('hidden_size', 'num_attention_heads', 'num_key_value_heads', 'head_dim')},
        'sliding': {key: sliding.get(key) for key in ('sliding_window', 'max_window_layers', 'layer_types')},
    }


def main():
    try:
        import transformers
    except ImportError:
        sys.exit('skip: transformers is missing' if '--check' not in sys.argv else 0)
    tables = {make[:-6].lower(): table(transformers, make) for make in ('Qwen3Config', 'Qwen2Config', 'LlamaConfig')}
    text = json.dumps({'transformers': transformers.__version__, **tables}, indent=1, default=str)
    if '--check' not in sys.argv:
        print(text)
        return
    stored = json.loads(STORED.read_text())
    if stored['transformers'].split('.')[0] != transformers.__version__.split('.')[0]:
        sys.exit(0)     # another generation's classes
    fresh = json.loads(text)
    stale = [name for name in tables if stored.get(name) != fresh[name]]
    sys.exit(f'{STORED}: differs from transformers {transformers.__version__} in {", ".join(stale)}; run this script again' if stale else 0)


if __name__ == '__main__':
    main()
