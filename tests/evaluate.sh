#!/usr/bin/env bash
# ./train_causal --evaluate: validation loss, also by position, multiple choice, and the mechanisms for inference (--attention psa,
# adaspa). tests/check_evaluate.py reads the logs. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make train_causal tokenize
. "$(dirname "$0")/checks.bash"

# ---- a small text, with a loss mask too, items, and a checkpoint
small_shards
mask_shard "$work/data/small_val_000000.bin" "$work/data/masked_val_000000.bin" "i % 32 > 12 and i * i % 7 == 1"   # not in two bins of five
cat > "$work/items.jsonl" << 'END'
{"query": "We thank the", "choices": ["people", "q"], "gold": 0}
{"context_options": ["The Congress of", "The man of"], "continuation": "the United", "gold": 0}
{"query": "x", "choices": ["xxxxxxxxxxxxxxxxxxxx", "the"], "gold": 1}
END
for n in $(seq 20); do echo '{"prompt": "What is the capital?", "completion": " It is Rome"}'; done > "$work/examples.jsonl"
expect "./tokenize --mask-prompts" 0 "" ./tokenize --mask-prompts --val-fraction 0 --out "$work/examples" "$work/examples.jsonl"
causal=(./train_causal --device cpu --model qwen-tiny --train-data "$work/data/small_train_*.bin" --val-data "$work/data/small_val_*.bin"
        --threads 1 --seq-len 32 --batch-size 8)
"${causal[@]}" --steps 12 --lr 3e-3 --val-every 12 --sample-every 0 --checkpoint-every 12 --plot 0 --eval-every 6 \
    --eval-data "$work/item?.jsonl" --out "$work/causal" > /dev/null 2>&1
last="$work/causal/step_00000012"
check "--eval-every logs accuracies" '[ "$(grep -c "event.:.evaluation" "$work/causal/log.jsonl")" -eq 2 ]'

# Lines NAME OPTIONS...: the log is NAME.jsonl, what was printed NAME.txt; @ before it starts two ranks.
items="--eval-data $work/items.jsonl" psa="--attention psa --psa-eps 0.5 --psa-block 2"
while read -ra words; do
    name=${words[0]#@} start=()
    # shellcheck disable=SC2206  # words
    [ "$name" = "${words[0]}" ] || { has_mpi ./train_causal && start=($launch -np 2); } || { skip "$name" "no MPI on this machine"; continue; }
    timeout 120 "${start[@]}" "${causal[@]}" --evaluate --checkpoint "$last" --position-bins 5 --eval-log "$work/$name.jsonl" \
        --eval-out "$work/$name-items.jsonl" "${words[@]:1}" > "$work/$name.txt" 2>&1 < /dev/null   # mpirun would read on
done << END
plain $items
as_run --val-batches 20
narrow $items --batch-size 1
masked --val-data $work/data/masked_val_*.bin
each --position-bins 1000
completions --val-data $work/examples/examples_train_*.bin --position-bins 32
psa_all $items --attention psa --psa-eps 1
psa $items $psa
adaspa --seq-len 256 --batch-size 2 $items --attention adaspa --adaspa-sparsity 0.6
@ranks $items --batch-size 4
@psa_ranks $items --batch-size 4 $psa
END
python3 tests/check_evaluate.py "$work" 2> "$work/stderr" || bad "tests/check_evaluate.py" "$(tail -n 1 "$work/stderr")"

# ---- refusals
cp "$work/causal/log.jsonl" "$work/other.jsonl"
cp -r "$last" "$work/huge"   # its last number, a weight of the final norm, is the greatest that float32 has
rm "$work/huge/manifest.json"   # which would notice
printf '\377\377\177\177' | dd of="$work/huge/model.safetensors" bs=1 seek=$(($(stat -c %s "$work/huge/model.safetensors") - 4)) conv=notrunc 2> /dev/null
expect_each "${causal[@]}" --evaluate --out "$work/x" << END
the log of a run stays | 2 | $work/other.jsonl | --checkpoint "$last" --eval-log "$work/other.jsonl"
that of this run, too | 2 | belongs to | --checkpoint "$last" --eval-log "$work/causal/log.jsonl"
and a checkpoint's files | 2 | belongs to | --checkpoint "$last" $items --eval-out "$last/config.json"
nothing to evaluate | 2 | --evaluate needs weights |
scores that are not finite | 5 | item 0 scores | --model "$work/huge" --val-batches 0 $items --eval-out "$work/broken.jsonl"
a validation loss that is not finite | 5 | validation loss | --model "$work/huge"
END
expect "a picture without tokens" 2 "needs tokens" ./train_causal --device cpu --model qwen-tiny --seq-len 32 --evaluate $items --show-mask "$work/mask.png"
check "leave no file of scores, and no run" '! ls "$work" | finds -E "^(broken.*|x)$"'
