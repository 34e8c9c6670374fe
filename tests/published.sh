#!/usr/bin/env bash
# scripts/check_published.py with what is installed, where python3 has PyTorch (PYTHON=FILE: another python3), and what
# dev/attention_layer refuses. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make build/dev/attention_layer
. "$(dirname "$0")/checks.bash"
expect "published: a layer's inputs are missing" 3 "has no tensor qkv" \
    build/dev/attention_layer forgetting tests/fixtures/forgetting/model.safetensors "$work/x"
$python -c 'import torch, safetensors' 2> /dev/null || { skip "published: other people's code" "$python lacks torch or safetensors"; exit 0; }
expect "published: a variant that nothing is compared with" 2 "nothing is compared for asga" $python scripts/check_published.py asga
$python -W ignore scripts/check_published.py > "$work/stdout" 2> "$work/stderr"
status=$?
check "published: all that is installed agrees" '[ $status -eq 0 ] && grep -q "^ok causal, PyTorch" "$work/stdout" && ! grep -q "^DIFFERS" "$work/stdout"'
