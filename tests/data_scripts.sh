#!/usr/bin/env bash
# Python scripts around data: scripts/evaluation_items.py, export_gguf.py, export_log.py, fineweb.py and train_tokenizer.py, and the engine on what
# they make; scripts/first_hour.ipynb. Prints `ok NAME`, `FAIL NAME: why`, or `skip NAME: why` for packages that python3 lacks (PYTHON=FILE: another).
# Needs: make tokenize train_causal train_asga build/dev/token_ids
. "$(dirname "$0")/checks.bash"
small_shards
of_all=(--device cpu --model qwen-tiny --seq-len 128 --batch-size 4 --threads 1)
small=("${of_all[@]}" --train-data "$work/data/small_train_*.bin" --val-every 0 --sample-every 0 --steps 1 --plot 0)
train causal run && train asga asga
small=(./train_causal "${of_all[@]}")
"$python" tests/check_data_scripts.py "$work" 2> "$work/stderr" || bad "tests/check_data_scripts.py" "$(tail -n 1 "$work/stderr")"

if [ -e "$work/items/winogrande.jsonl" ]; then
    expect "the engine scores all items" 0 "" "${small[@]}" --evaluate --checkpoint "$work/run/step_00000001" --val-batches 0 \
        --eval-data "$work/items/*.jsonl" --eval-out "$work/scores.jsonl"
    check "each with the right answer that its row names" \
        'diff <(grep -ho "\"gold\": [0-9]*" "$work"/items/*.jsonl | tr -d " ") <(grep -o "\"gold\":[0-9]*" "$work/scores.jsonl")'
else
    skip "the engine scores all items" "there are none without lm_eval"
fi
[ ! -e "$work/tokenizer/tokenizer.json" ] ||
    expect "./tokenize reads the tokenizer that was trained" 0 "" ./tokenize --tokenizer "$work/tokenizer/tokenizer.json" --out "$work/own" --name x "$work/text.txt"
