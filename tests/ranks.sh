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

expect_two "and with ZeRO-1" 0 "note: rank 1 computes with" "--zero-stage 1 --model qwen-1m --out $work/zero" "--zero-stage 1 --model qwen-1m --threads 2"
check "a note says once what is not compared" '[ "$(grep -c "does not compare them" "$work/stderr")" -eq 1 ]'
expect_two "ZeRO-1 with ranks that are alike" 0 "" "--zero-stage 1 --out $work/zero" "--zero-stage 1"
check "has nothing to say" '! grep -q note: "$work/stderr"'

# ---- one rank chooses the checkpoint
last="$work/out/step_00000004"
cp -r "$work/out" "$work/mixed" && rm -r "$work/mixed/step_00000004"
expect_two "ranks that would find checkpoints of different steps take rank 0's" 0 "" "--resume --steps 6" "--resume --steps 6 --out $work/mixed"
check "and both go on from it" 'grep -q "\"step\":5," "$work/out/log.jsonl" && grep -q "\"event\":\"done\",\"step\":6" "$work/out/log.jsonl"'
cp -r "$last" "$work/start" && cp -r "$work/out/step_00000002" "$work/earlier"
refused "the folder that they start from" 7 "starting folder's manifest.json" "--model $work/start --out $work/x" "--model $work/earlier --out $work/x"
refused "--checkpoint" 2 "--checkpoint is given on rank 1" "--out $work/x --steps 6" "--out $work/x --steps 6 --checkpoint $last"
for what in "--out $work/x --steps 6" "--evaluate --val-data $work/data/a_val_*.bin"; do
    refused "the checkpoint (${what%% *})" 7 "--checkpoint's manifest.json" "$what --checkpoint $work/start" "$what --checkpoint $work/earlier"
done
expect_two "ranks that have the checkpoint in two places" 0 "" "--out $work/x --steps 6 --checkpoint $last" "--out $work/x --steps 6 --checkpoint $work/start"
rm "$work/start/manifest.json" && cp -r "$work/start" "$work/changed"
printf '\x3f' | dd of="$work/changed/model.safetensors" bs=1 seek=20003 conv=notrunc 2> /dev/null
refused "one weight of a folder without a manifest" 7 "differs from rank 0 in the weights of" "--model $work/start --out $work/x" "--model $work/changed --out $work/x"
check "and are told both folders" 'grep -q "in the weights of [a-z0-9_.]*: its folder is $work/changed, that of rank 0 is $work/start, and" "$work/stderr"'
refused "that weight, which is compared once though --check-ranks-every is 0" 7 "differs from rank 0 in the weights of" \
    "--model $work/start --out $work/x --check-ranks-every 0" "--model $work/changed --out $work/x --check-ranks-every 0"
refused "that weight, in an evaluation" 7 "differs from rank 0 in the weights of" "--evaluate --val-data $work/data/a_val_*.bin --model $work/start" \
    "--evaluate --val-data $work/data/a_val_*.bin --model $work/changed"

mkdir "$work/n0" "$work/n1"   # machines that do not share their folders
split=("$PWD/train_causal" "${base[@]:1}" --zero-stage 1 --out r)
expect "two ranks with ZeRO-1" 0 "" $launch -np 2 -wdir "$work/n0" "${split[@]}"
cp -r "$work/n0/r" "$work/n1" && damaged=$work/n1/r/step_00000004/optimizer.safetensors
printf '\x3f' | dd of="$damaged" bs=1 seek=$(($(stat -c %s "$damaged") - 2001)) conv=notrunc 2> /dev/null
expect "moments that are damaged where another rank reads them" 7 "optimizer.safetensors: tensor" \
    $launch -np 1 -wdir "$work/n0" "${split[@]}" --resume --steps 6 : -np 1 -wdir "$work/n1" "${split[@]}" --resume --steps 6

# ---- memory and life
for zero in 0 1; do LAUNCH=$launch python3 tests/check_flipped_bit.py ./train_causal "$work/flipped_$zero" 1 $zero; done
timeout -s KILL 60 $launch -np 2 "${base[@]}" --total-batch-tokens 64000000 --watchdog-seconds 40 --out "$work/long" > "$work/long.txt" 2>&1 &
job=$!
for _ in $(seq 200); do grep -q 'predicted peak' "$work/long.txt" && break; sleep 0.05; done
sleep 1
pkill -USR1 -P $job
wait $job
status=$?
check "a signal ends a long step on all ranks (status $status)" '[ $status -eq 75 ] && grep -q "after step 0; nothing was saved" "$work/long.txt"'
$launch -np 2 "${base[@]}" --steps 1000000 --checkpoint-every 0 --watchdog-seconds 2 --out "$work/stopped" > "$work/stopped.txt" 2>&1 &
job=$!
for _ in $(seq 200); do grep -q 'step  *[0-9]*/' "$work/stopped.txt" && break; sleep 0.05; done
for process in $(pgrep -f "$work/stopped"); do grep -qz 'OMPI_COMM_WORLD_RANK=1' "/proc/$process/environ" 2> /dev/null && kill -STOP "$process"; done
wait $job
status=$?
check "a rank that is stopped is named by the others (status $status)" '[ $status -eq 6 ] && grep -q "rank 1 is stuck: its process is stopped" "$work/stopped.txt"'
pkill -KILL -f "$work/stopped"
true
