#!/usr/bin/env bash
# dev/attention_layer, on numbers that are made here, and where python3 has PyTorch scripts/check_published.py with what is installed
# (PYTHON=FILE: another python3). Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make build/dev/attention_layer
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}
$python tests/check_attention_layer.py "$work" 2> "$work/stderr" || bad "tests/check_attention_layer.py" "$(tail -n 1 "$work/stderr")"
expect_each build/dev/attention_layer << END
published: a setting that is no number | 2 | attention_window=wide: expected SETTING=NUMBER | sliding_window "$work/in" "$work/x" attention_window=wide
published: tensors of the variant are missing | 3 | has no tensor forgetting.w_f | forgetting "$work/in" "$work/x"
END
$python -c 'import torch, safetensors' 2> /dev/null || { skip "published: other people's code" "$python lacks torch or safetensors"; exit 0; }
expect "published: a variant that nothing is compared with" 2 "nothing is compared for asga" $python scripts/check_published.py asga
$python -W ignore scripts/check_published.py > "$work/stdout" 2> "$work/stderr"
status=$?
check "published: all that is installed agrees" '[ $status -eq 0 ] && grep -q "^ok causal, PyTorch" "$work/stdout" && ! grep -q "^DIFFERS" "$work/stdout"'
