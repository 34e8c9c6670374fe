#!/usr/bin/env bash
# Checkpoints of every variant in Hugging Face transformers, by the Python files that they carry (tests/check_modeling.py), and their
# scores by lm-evaluation-harness, where python3 has torch and transformers, and lm_eval (PYTHON=FILE: another python3). Prints `ok NAME`
# or `FAIL NAME: why` per check, `skip NAME: why`. What a checkpoint carries is in tests/test_checkpoint_save.cpp.
# Needs: make all build/dev/logits
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}
small=(--device cpu --model qwen-tiny --seq-len 32 --batch-size 2 --val-every 0 --sample-every 0 --plot 0 --threads 1)

$python -c 'import torch, transformers' 2> /dev/null || { skip "modeling: checkpoints in transformers" "$python lacks torch or transformers"; exit 0; }
expect "modeling: the defaults of config.json are those of transformers" 0 "" $python scripts/config_defaults.py --check
$python -W ignore tests/check_modeling.py 2> "$work/stderr" || bad "modeling: tests/check_modeling.py" "$(tail -n 1 "$work/stderr")"

$python -c 'import lm_eval, accelerate' 2> /dev/null || { skip "modeling: lm-evaluation-harness" "$python lacks lm_eval[hf]"; exit 0; }
$python -W ignore tests/check_harness.py 2> "$work/stderr" || bad "modeling: tests/check_harness.py" "$(tail -n 1 "$work/stderr")"
echo '{"query": "the people of this nation", "choices": ["have made their choice", "is strong"], "gold": 0}' > "$work/items.jsonl"
train asga asga --steps 30 --checkpoint-every 30 --lr 1e-2
HF_MODULES_CACHE=$work/modules HF_HOME=$work/home LIMIT=900 expect "modeling: scripts/harness.py scores a checkpoint" 0 "" \
    $python scripts/harness.py "$work/asga/step_00000030" "$work/items.jsonl" -- --batch_size 1 --device cpu
check "and prints its accuracy" 'grep -q "^|own_0_items *|.*|acc  *|" "$work/stdout"'
