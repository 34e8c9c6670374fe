#!/usr/bin/env bash
# Jobs whose ranks do not have in common what they must: options, data, checkpoints, bits in memory, or life. Prints `ok NAME`, `FAIL
# NAME: why` or `skip NAME: why` per check. Takes half a minute.
# Needs: make train_causal tokenize
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
has_mpi ./train_causal || { skip "ranks that differ" "there is no mpirun, or train_causal was built without MPI"; exit 0; }
export OMP_NUM_THREADS=1

head -c 40000 data/bundled/sotu.jsonl > "$work/a.txt"
sed 's/the/THE/g' "$work/a.txt" > "$work/b.txt"
for name in a b; do ./tokenize --tokenizer bytes --out "$work/data" --name $name "$work/$name.txt" > /dev/null 2>&1; done
base=(./train_causal --device cpu --model qwen-tiny --seq-len 16 --batch-size 2 --steps 4 --sample-every 0 --val-every 0 --plot 0 --threads 1
      --checkpoint-every 2 --keep-checkpoints 0 --train-data "$work/data/a_train_*.bin" --out "$work/out")

# expect_two NAME CODE WORDS OPTIONS OPTIONS: expect() of a job of two ranks, each with its own options behind the common ones.
expect_two() {
    # shellcheck disable=SC2086  # words
    expect "$1" "$2" "$3" $launch -np 1 "${base[@]}" $4 : -np 1 "${base[@]}" $5
}
# refused WHAT CODE WORDS OPTIONS OPTIONS: the job ends with the code and one sentence.
refused() {
    expect_two "ranks that differ in $1" "$2" "$3" "$4" "$5"
    check "say so once ($1)" '[ "$(grep -c "error:" "$work/stderr")" -eq 1 ]'
}
for option in "--seed 2" "--lr 0.1" "--batch-size 4" "--model qwen-1m" "--steps 5" "--zero-stage 1" "--sigma-reparam 1" "--precision fp32" "--resume" \
              "--evaluate" "--dry-run" "--val-every 1" "--window 3 --layers causal" "--check-ranks-every 1" "--show-mask $work/mask.png"; do
    refused "$option" 2 "all ranks of a job must have the same" "" "$option"
done
refused "--help" 2 "--help is given on rank 1" "" "--help"
refused "the training data" 2 "the fingerprint of the training data" "" "--train-data $work/data/b_train_*.bin"
# shard FILE CHANGED: a shard without a manifest; if CHANGED is 1 one token in its middle is another.
shard() { python3 -c 'import struct, sys; n = 150000; t = [32] * n; t[n // 2] += int(sys.argv[2])
open(sys.argv[1], "wb").write(struct.pack("<256i", 20240520, 1, n, *[0] * 253) + struct.pack(f"<{n}H", *t))' "$@"; }
shard "$work/middle_a.bin" 0 && shard "$work/middle_b.bin" 1
refused "one token far from the ends of the data" 2 "the fingerprint of the training data" "--train-data $work/middle_a.bin" \
    "--train-data $work/middle_b.bin"
refused "that token, in an evaluation" 2 "the fingerprint of the validation data" "--evaluate --val-data $work/middle_a.bin" \
    "--evaluate --val-data $work/middle_b.bin"
./tokenize --tokenizer tests/fixtures/tokenizers/qwen_tokenizer.json --out "$work/ids" --name y "$work/a.txt" > /dev/null 2>&1
cp -r "$work/ids" "$work/swapped" && python3 - "$work/swapped/y_tokenizer.json" << 'END'
import json, sys
with open(sys.argv[1], encoding='utf-8') as file: tokenizer = json.load(file)
ids = tokenizer['model']['vocab']
ids['Ġthe'], ids['a'] = ids['a'], ids['Ġthe']   # of four bytes and of one
with open(sys.argv[1], 'w', encoding='utf-8') as file: json.dump(tokenizer, file)
END
refused "two ids of the tokenizer" 2 "the hash of the tokenizer" "--evaluate --model qwen-7m-8k --val-data $work/ids/y_val_*.bin" \
    "--evaluate --model qwen-7m-8k --val-data $work/swapped/y_val_*.bin"
refused "the validation data" 2 "--val-data is given on rank 1" "" "--val-data $work/data/b_val_*.bin --val-every 0"
expect_two "ranks with other threads, folders and limits" 0 "" "" "--threads 2 --out $work/other --watchdog-seconds 77"
check "leave the other folder alone" '[ ! -e "$work/other" ]'

# ---- one rank chooses the checkpoint
last="$work/out/step_00000004"
cp -r "$work/out" "$work/mixed" && rm -r "$work/mixed/step_00000004"
expect_two "ranks that would find checkpoints of different steps take rank 0's" 0 "" "--resume --steps 6" "--resume --steps 6 --out $work/mixed"
check "and both go on from it" 'grep -q "\"step\":5," "$work/out/log.jsonl" && grep -q "\"event\":\"done\",\"step\":6" "$work/out/log.jsonl"'
cp -r "$last" "$work/start" && cp -r "$work/out/step_00000002" "$work/earlier"
refused "the folder that they start from" 7 "starting folder's manifest.json" "--model $work/start --out $work/x" "--model $work/earlier --out $work/x"
rm "$work/start/manifest.json" && cp -r "$work/start" "$work/changed"
printf '\x3f' | dd of="$work/changed/model.safetensors" bs=1 seek=20003 conv=notrunc 2> /dev/null
refused "one weight of a folder without a manifest" 7 "differs from rank 0 in the weights of" "--model $work/start --out $work/x" "--model $work/changed --out $work/x"
refused "that weight, in an evaluation" 7 "differs from rank 0 in the weights of" "--evaluate --val-data $work/data/a_val_*.bin --model $work/start" \
    "--evaluate --val-data $work/data/a_val_*.bin --model $work/changed"

# ---- memory and life
for zero in 0 1; do LAUNCH=$launch python3 tests/check_flipped_bit.py ./train_causal "$work/flipped_$zero" 1 $zero; done
$launch -np 2 "${base[@]}" --steps 1000000 --checkpoint-every 0 --watchdog-seconds 2 --out "$work/stopped" > "$work/stopped.txt" 2>&1 &
job=$!
for _ in $(seq 200); do grep -q 'step  *[0-9]*/' "$work/stopped.txt" && break; sleep 0.05; done
for process in $(pgrep -f "$work/stopped"); do grep -qz 'OMPI_COMM_WORLD_RANK=1' "/proc/$process/environ" 2> /dev/null && kill -STOP "$process"; done
wait $job
status=$?
check "a rank that is stopped is named by the others (status $status)" '[ $status -eq 6 ] && grep -q "rank 1 is the one that stands still: its process is stopped" "$work/stopped.txt"'
pkill -KILL -f "$work/stopped"
true
