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
$python -W ignore tests/check_modeling.py 2> "$work/stderr"
status=$?
check "modeling: every checkpoint was compared ($(tail -n 1 "$work/stderr"))" '[ $status -eq 0 ]'

if ! $python -c 'import lm_eval, accelerate' 2> /dev/null; then
    skip "modeling: lm-evaluation-harness" "$python lacks lm_eval[hf]"
    exit 0
fi
# The harness on our folder against --evaluate, on items whose answers have several tokens.
$python - > "$work/items.jsonl" << 'END'
import json
words = 'the people of this nation have made their choice and the union is strong in every state'.split()
for n in range(24):
    turn = words[n % 7:] + words[:n % 7]
    choices = [' '.join(turn[k:k + 2 + k % 3]) for k in (5, 8, 11)]
    print(json.dumps({'query': ' '.join(turn[:4 + n % 5]), 'choices': choices, 'gold': n % 3}))
END
export HF_MODULES_CACHE=$work/modules HF_HUB_OFFLINE=1 HF_HOME=$work/home
for variant in sinks asga moba; do
    ./train_$variant $small --steps 30 --checkpoint-every 30 --lr 1e-2 --out "$work/scored_$variant" > "$work/log" 2>&1
    folder=$work/scored_$variant/step_00000030
    ./train_$variant --device cpu --threads 1 --evaluate --checkpoint "$folder" --val-batches 0 --eval-data "$work/items.jsonl" \
        --eval-out "$work/ours_$variant.jsonl" --batch-size 4 --seq-len 128 > "$work/log" 2>&1
    LIMIT=900 PYTHON=$python expect "modeling: lm-evaluation-harness scores $variant" 0 "" \
        scripts/lm_eval.sh "$folder" "$work/items.jsonl" -- --batch_size 1 --device cpu --log_samples --output_path "$work/theirs_$variant"
    $python - "$work/ours_$variant.jsonl" "$work/theirs_$variant" > "$work/difference" 2> "$work/stderr" << 'END'
import json, sys
from pathlib import Path
ours = [json.loads(line)['log_likelihoods'] for line in open(sys.argv[1])]
samples, = Path(sys.argv[2]).rglob('samples_*.jsonl')
theirs = {row['doc_id']: [float(answer[0]) for answer in row['filtered_resps']] for row in map(json.loads, open(samples))}
worst = max(abs(a - b) / max(1, abs(b)) for n, item in enumerate(ours) for a, b in zip(item, theirs[n], strict=True))
spread = max(max(item) - min(item) for item in ours)
assert len(ours) == len(theirs) == 24 and worst < 1e-4 and spread > 0.5, f'{len(ours)} items, worst {worst}, spread {spread}'
print(f'{worst:.1e}')
END
    status=$?
    check "modeling: $variant, every answer as --evaluate has it, log-likelihoods to $(cat "$work/difference")$(tail -n 1 "$work/stderr")" \
        '[ $status -eq 0 ]'
done
