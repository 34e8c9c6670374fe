#!/usr/bin/env bash
# Checkpoints of every variant in Hugging Face transformers, by the Python files that they carry (tests/check_modeling.py), and their
# scores by lm-evaluation-harness, where python3 has torch and transformers, and lm_eval (PYTHON=FILE: another python3). Prints `ok NAME`
# or `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make all build/dev/logits
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}

# What needs no Python: the folder of a run, and a checkpoint whose files do not fit each other.
small="--device cpu --model qwen-tiny --steps 2 --seq-len 32 --batch-size 2 --checkpoint-every 2 --val-every 0 --sample-every 0
    --plot 0 --threads 1"
expect "modeling: a run" 0 "" ./train_sinks $small --window 5 --out "$work/sinks"
folder=$work/sinks/step_00000002
files=$(cd scripts/attention_torch && ls -- *.py | grep -vx '__init__.py')
same() { local file; for file in $files; do cmp "scripts/attention_torch/$file" "$1/$file" || return; done; }
check "modeling: its checkpoint carries the files of scripts/attention_torch" 'same "$folder"'
hash=$(sed -n 's/.*"weights_hash":"\([^"]*\)".*/\1/p' "$work/sinks/log.jsonl")
check "modeling: its card has the hash of the log, the parameters, the data and the formula" \
    '[ -n "$hash" ] && grep -qxF "| weights hash | $hash |" "$folder/README.md" && grep -q "^| parameters | [0-9]" "$folder/README.md" &&
     grep -q "^| training data | [0-9]* tokens in 1 shards, .*fingerprint [0-9a-f]" "$folder/README.md" &&
     grep -qF "for j <= i and (j < s or i - j <= left)" "$folder/README.md"'
cp -r "$work/sinks" "$work/edited" && echo "mine" > "$work/edited/step_00000002/README.md"
expect "modeling: a card that was edited is no damage" 0 "" ./train_sinks $small --window 5 --out "$work/edited" --resume --steps 3
echo "# mine" >> "$folder/parts.py"
expect "modeling: a Python file that was is" 7 "parts.py: holds" ./train_sinks $small --window 5 --checkpoint "$folder" --out "$work/x"

if ! $python -c 'import torch, transformers' 2> /dev/null; then
    skip "modeling: checkpoints in transformers" "$python lacks torch or transformers"
    exit 0
fi
expect "modeling: the defaults of config.json are those of transformers" 0 "" $python scripts/config_defaults.py --check
$python -W ignore tests/check_modeling.py 2> "$work/stderr"
status=$?
check "modeling: every checkpoint was compared ($(tail -n 1 "$work/stderr"))" '[ $status -eq 0 ]'

if ! $python -c 'import lm_eval, accelerate' 2> /dev/null; then
    skip "modeling: lm-evaluation-harness" "$python lacks lm_eval[hf]"
    exit 0
fi
# The harness on folders of all variants against --evaluate, then as the script for people calls it.
$python -W ignore tests/check_harness.py 2> "$work/stderr"
status=$?
check "modeling: every variant was scored by lm-evaluation-harness" '[ $status -eq 0 ] || { tail -n 1 "$work/stderr"; false; }'
echo '{"query": "the people of this nation", "choices": ["have made their choice", "is strong"], "gold": 0}' > "$work/items.jsonl"
./train_asga $small --steps 30 --checkpoint-every 30 --lr 1e-2 --out "$work/asga" > "$work/log" 2>&1
HF_MODULES_CACHE=$work/modules HF_HOME=$work/home LIMIT=900 PYTHON=$python expect "modeling: scripts/lm_eval.sh scores a checkpoint" 0 "" \
    scripts/lm_eval.sh "$work/asga/step_00000030" "$work/items.jsonl" -- --batch_size 1 --device cpu
check "and prints its accuracy" 'grep -q "^|own_0_items *|.*|acc  *|" "$work/stdout"'
