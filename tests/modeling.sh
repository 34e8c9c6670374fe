#!/usr/bin/env bash
# Checkpoints of every variant in Hugging Face transformers, by the Python files that they carry (tests/check_modeling.py), and their
# scores by lm-evaluation-harness, where python3 has torch and transformers, and lm_eval (PYTHON=FILE: another python3). Prints `ok NAME`
# or `FAIL NAME: why` per check, `skip NAME: why`. What a checkpoint carries is in tests/test_checkpoint_save.cpp.
# Needs: make all build/dev/logits
. "$(dirname "$0")/checks.bash"

$python -c 'import torch, transformers' 2> /dev/null || { skip "modeling: checkpoints in transformers" "$python lacks torch or transformers"; exit 0; }
expect "modeling: the defaults of config.json are those of transformers" 0 "" $python scripts/config_defaults.py --check
$python -W ignore tests/check_modeling.py 2> "$work/stderr" || bad "modeling: tests/check_modeling.py" "$(tail -n 1 "$work/stderr")"

$python -c 'import lm_eval, accelerate' 2> /dev/null || { skip "modeling: lm-evaluation-harness" "$python lacks lm_eval[hf]"; exit 0; }
$python -W ignore tests/check_harness.py 2> "$work/stderr" || bad "modeling: tests/check_harness.py" "$(tail -n 1 "$work/stderr")"
