#!/usr/bin/env bash
# Jobs whose ranks do not have in common what they must: options, data, checkpoints, bits in memory, or life. Which options count is in
# tests/test_train_options.cpp. Prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why` per check.
# Needs: make train_causal tokenize
. "$(dirname "$0")/checks.bash"
has_mpi ./train_causal || { skip "ranks that differ" "there is no mpirun, or train_causal was built without MPI"; exit 0; }
export OMP_NUM_THREADS=1

head -c 40000 data/bundled/sotu.jsonl > "$work/a.txt"
sed 's/the/THE/g' "$work/a.txt" > "$work/b.txt"
for name in a b; do ./tokenize --tokenizer bytes --out "$work/data" --name $name "$work/$name.txt" > /dev/null 2>&1; done
base=(./train_causal --device cpu --model qwen-tiny --seq-len 16 --batch-size 2 --steps 4 --sample-every 0 --val-every 0 --plot 0 --threads 1
      --checkpoint-every 2 --keep-checkpoints 0 --train-data "$work/data/a_train_*.bin" --out "$work/out")

# expect_two: for each line `NAME | CODE | WORDS | OPTIONS | OPTIONS` expect() of a job of two ranks, each with its own options. A job that
# is refused prints one error.
expect_two() {
    local name code word first second
    while IFS='|' read -r -u 3 name code word first second; do
        name=${name% } code=${code// } word=${word# } word=${word% }
        # shellcheck disable=SC2086  # words
        set -f -- $launch -np 1 "${base[@]}" $first : -np 1 "${base[@]}" $second
        expect "$name" "$code" "$word" "$@" < /dev/null   # mpirun would read on
        set +f
        [ "$code" = 0 ] || check "$name: once" '[ "$(grep -c "error:" "$work/stderr")" -eq 1 ]'
    done 3<&0
}
expect_two << END
another seed | 2 | all ranks of a job must have the same | | --seed 2
--resume | 2 | all ranks of a job must have the same | | --resume
--help | 2 | --help is given on rank 1 | | --help
other training data | 2 | the fingerprint of the training data | | --train-data $work/data/b_train_*.bin
other validation data | 2 | the fingerprint of the validation data | --evaluate --val-data $work/data/a_val_*.bin | --evaluate --val-data $work/data/b_val_*.bin
other threads, folders and limits | 0 | | | --threads 2 --out $work/other --watchdog-seconds 77
other threads with Muon, whose products each rank takes for itself | 2 | give --zero-stage 1 | --optimizer muon --out $work/m | --optimizer muon --threads 2
other threads with ZeRO-1 | 0 | note: rank 1 computes with | --zero-stage 1 --model qwen-1m --out $work/zero | --zero-stage 1 --model qwen-1m --threads 2
END
check "one note names what is not compared" '[ "$(grep -c "are not compared" "$work/stderr")" -eq 1 ] && [ ! -e "$work/other" ]'

# ---- one rank chooses the checkpoint
last=$work/out/step_00000004
cp -r "$work/out" "$work/mixed" && rm -r "$work/mixed/step_00000004"
cp -r "$last" "$work/start" && cp -r "$work/out/step_00000002" "$work/earlier"
cp -r "$work/start" "$work/bare" && rm "$work/bare/manifest.json" && cp -r "$work/bare" "$work/changed"
printf '\x3f' | dd of="$work/changed/model.safetensors" bs=1 seek=20003 conv=notrunc 2> /dev/null
expect_two << END
checkpoints of different steps: rank 0's is taken | 0 | | --resume --steps 6 | --resume --steps 6 --out $work/mixed
the folder that they start from | 7 | starting folder's manifest.json | --model $work/start --out $work/x | --model $work/earlier --out $work/x
--checkpoint | 2 | --checkpoint is given on rank 1 | --out $work/x --steps 6 | --out $work/x --steps 6 --checkpoint $last
another checkpoint | 7 | --checkpoint's manifest.json | --out $work/x --steps 6 --checkpoint $work/start | --out $work/x --steps 6 --checkpoint $work/earlier
the checkpoint in two places | 0 | | --out $work/x --steps 6 --checkpoint $last | --out $work/x --steps 6 --checkpoint $work/start
one weight, though --check-ranks-every is 0 | 7 | differs from rank 0 in the weights of | --model $work/bare --out $work/y --check-ranks-every 0 | --model $work/changed --out $work/y --check-ranks-every 0
one weight of an evaluation | 7 | differs from rank 0 in the weights of | --evaluate --val-data $work/data/a_val_*.bin --model $work/bare | --evaluate --val-data $work/data/a_val_*.bin --model $work/changed
END
check "both folders are named" 'grep -q "$work/changed, that of rank 0 is $work/bare" "$work/stderr"'
check "both ranks went on from step 4" 'grep -q "\"step\":5," "$work/out/log.jsonl" && grep -q "\"event\":\"done\",\"step\":6" "$work/out/log.jsonl"'

mkdir "$work/n0" "$work/n1"   # machines that do not share their folders
split=("$PWD/train_causal" "${base[@]:1}" --zero-stage 1 --out r)
expect "two ranks with ZeRO-1" 0 "" $launch -np 2 -wdir "$work/n0" "${split[@]}"
cp -r "$work/n0/r" "$work/n1" && damaged=$work/n1/r/step_00000004/optimizer.state
printf '\x3f' | dd of="$damaged" bs=1 seek=$(($(stat -c %s "$damaged") - 2001)) conv=notrunc 2> /dev/null
expect "moments that are damaged where another rank reads them" 7 "optimizer.state: tensor" \
    $launch -np 1 -wdir "$work/n0" "${split[@]}" --resume --steps 6 : -np 1 -wdir "$work/n1" "${split[@]}" --resume --steps 6

# ---- memory and life
# rank_of N OUT: the process of rank N of the job with that output folder.
rank_of() {
    local process
    for process in $(pgrep -f "^./train_causal .*$2"); do
        grep -qz "OMPI_COMM_WORLD_RANK=$1" "/proc/$process/environ" && echo "$process"
    done
}
announced() { grep -c '^checkpoint' "$out.txt"; }
tensor=model.layers.1.mlp.up_proj.weight
for zero in 0 1; do
    out=$work/flipped_$zero
    timeout 90 $launch -np 2 "${base[@]}" --seq-len 64 --batch-size 8 --steps 100000 --lr 0 --checkpoint-every 100 --keep-checkpoints 2 \
        --zero-stage $zero --out "$out" > "$out.txt" 2>&1 &
    job=$!
    await '^checkpoint' "$out.txt"
    for byte in 0 8 16; do   # with ZeRO-1 a bit that flips during an update, a few per cent of a step, goes unnoticed
        before=$(announced)
        python3 tests/flip_bit.py "$(rank_of 1 "$out")" "$out" $tensor $byte
        while [ "$(announced)" -lt $((before + 2)) ] && kill -0 $job 2> /dev/null; do sleep 0.05; done
        [ $zero = 1 ] && kill -0 $job 2> /dev/null || break
    done
    wait $job
    status=$?
    check "a flipped bit of rank 1 is found before the next checkpoint, --zero-stage $zero (status $status)" \
        '[ $status -eq 6 ] && grep -q "error: .*rank 1.*$tensor" "$out.txt" && [ "$(announced)" -le $((before + 1)) ]'
done
signalled 'predicted peak' USR1 $launch -np 2 "${base[@]}" --total-batch-tokens 64000000 --watchdog-seconds 40 --out "$work/long"
check "a signal ends a long step on all ranks (status $status)" '[ $status -eq 75 ] && grep -q "after step 0; nothing was saved" "$work/signalled.txt"'
for signal in KILL STOP; do
    out=$work/dead_$signal
    timeout 90 $launch -np 2 "${base[@]}" --steps 1000000 --checkpoint-every 0 --watchdog-seconds 2 --out "$out" > "$out.txt" 2>&1 &
    job=$!
    await 'step  *[0-9]*/' "$out.txt"
    rank=$(rank_of 1 "$out")
    kill -$signal "$rank"
    wait $job
    status=$?
    kill -KILL "$rank" 2> /dev/null
    [ $signal = STOP ] && reason="rank 1 is stuck: its process is stopped" || reason="signal 9"
    check "a rank that gets SIG$signal ends the job with a message (status $status)" '[ $status -ne 0 ] && [ $status -ne 124 ] && grep -q "$reason" "$out.txt"'
done
