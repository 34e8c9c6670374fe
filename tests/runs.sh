#!/usr/bin/env bash
# What a run does with its folder, its options and its output where something is in the way: another run's checkpoints, other data, a
# full disk, numbers out of range, a reader that has gone, signals, threads that OpenMP does not give. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`. Takes some
# seconds.
# Needs: make train_causal tokenize
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
causal=(./train_causal --device cpu --model qwen-tiny --train-data "$work/data/small_train_*.bin" --val-data "$work/data/small_val_*.bin"
        --seq-len 32 --batch-size 8 --steps 12 --val-every 6 --val-batches 4 --sample-every 0 --checkpoint-every 4 --keep-checkpoints 0
        --threads 1 --plot 0 --lr 3e-3)
expect "a text that is named twice" 2 "is given twice" ./tokenize --out "$work/twice" "$work/text.txt" "$work/../${work##*/}/text.txt"
expect "a text of which nothing is for validation" 0 "" ./tokenize --out "$work/none" --name small --val-tokens 0 "$work/text.txt"
check "has shards for training alone" '[ -e "$work/none/small_train_000001.bin" ] && ! ls "$work/none" | grep -q _val_'
losses() { grep -c '"loss":[0-9.]*,"grad_norm"' "$1/log.jsonl"; }
steps() { (cd "$1" && echo step_*); }
expect "a run" 0 "" "${causal[@]}" --out "$work/run"
last="$work/run/step_00000012"

expect "an evaluation of a run without validations" 0 "" "${causal[@]}" --evaluate --checkpoint "$last" --val-every 0
check "validates" 'grep -q "^validation" "$work/stdout"'
expect "one file for scores and log" 2 "is the file of --eval-log" "${causal[@]}" --evaluate --checkpoint "$last" --eval-out "$work/x" --eval-log "$work/./x"

# ---- the folder of another run
cp -r "$work/run" "$work/reused"
expect "a run that begins there, and saves nothing" 0 "" "${causal[@]}" --out "$work/reused" --seed 2 --steps 1 --checkpoint-every 0
check "sets the checkpoints aside, with their log" 'grep -q "moved 3 checkpoints" "$work/stdout" && [ "$(steps "$work/reused/superseded")" = "step_00000004 step_00000008 step_00000012" ] &&
    cmp -s "$work/run/log.jsonl" "$work/reused/superseded/log.jsonl"'
expect "and is not gone on with from them" 0 "starting at step 0" "${causal[@]}" --out "$work/reused" --seed 2 --steps 4 --resume
expect "the next run there" 0 "" "${causal[@]}" --out "$work/reused" --seed 3 --steps 2 --checkpoint-every 0
check "keeps those of the last one only" '[ "$(steps "$work/reused/superseded")" = step_00000004 ]'
expect "what was set aside is not gone on with in its folder" 2 "has been set aside" "${causal[@]}" --out "$work/reused" --checkpoint "$work/reused/superseded/step_00000004"
for slash in "" /; do
    rm -rf "$work/earlier" && cp -r "$work/run" "$work/earlier"
    expect "a run that goes on from step_00000004$slash" 0 "" "${causal[@]}" --out "$work/earlier" --checkpoint "$work/earlier/step_00000004$slash" --steps 5 --checkpoint-every 0
    check "leaves that one, and its own log" '[ "$(steps "$work/earlier")" = step_00000004 ] && [ "$(steps "$work/earlier/superseded")" = "step_00000008 step_00000012" ] && [ "$(losses "$work/earlier")" -eq 5 ]'
done
rm -rf "$work/earlier" && cp -r "$work/run" "$work/earlier"
mkdir "$work/earlier/superseded.tmp" && mv "$work/earlier"/step_* "$work/earlier/superseded.tmp"   # a kill while they were set aside
mkdir "$work/earlier/superseded.old.tmp" && cp -r "$last" "$work/earlier/superseded.old.tmp"       # what was aside before
expect "a run where setting aside was interrupted" 0 "" "${causal[@]}" --out "$work/earlier" --seed 2 --steps 1 --checkpoint-every 0
check "sets all of them aside" 'grep -q "moved 3 checkpoints" "$work/stdout" && [ "$(steps "$work/earlier/superseded")" = "step_00000004 step_00000008 step_00000012" ] && ! ls "$work/earlier" | grep -q tmp'
rm -rf "$work/earlier" && cp -r "$work/run" "$work/earlier"
mkdir "$work/elsewhere" && mv "$work/earlier/step_00000012" "$work/elsewhere" && ln -s "$work/elsewhere/step_00000012" "$work/earlier"
expect "a checkpoint that is a link to another disk" 0 "" "${causal[@]}" --out "$work/earlier" --resume --steps 13 --checkpoint-every 0
check "is of its run" '[ "$(losses "$work/earlier")" -eq 13 ] && [ ! -e "$work/earlier/superseded" ]'
rm -r "$work/elsewhere"
expect "which is not mounted" 7 "is a link to $work/elsewhere/step_00000012, which is not there" "${causal[@]}" --out "$work/earlier" --resume
rm -rf "$work/earlier" && cp -r "$work/run" "$work/earlier" && truncate -s 1000 "$work/earlier/step_00000012/model.safetensors"
expect "resuming where another run still writes looks at none of its checkpoints" 7 "another run is writing there" \
    flock "$work/earlier/lock" "${causal[@]}" --out "$work/earlier" --resume
check "not even at a damaged one" '! grep -q warning "$work/stderr"'
expect "a run from the weights in its own folder" 2 "is inside --out" "${causal[@]}" --out "$work/run" --model "$last"
expect "resuming with other data" 2 "differs from the training data of" "${causal[@]}" --out "$work/run" --resume --steps 20 --train-data "$work/data/small_val_*.bin"
expect "or with rows of another length" 2 "6144 tokens" "${causal[@]}" --out "$work/run" --resume --steps 20 --seq-len 64
expect "or in another order" 2 "in order" "${causal[@]}" --out "$work/run" --resume --steps 20 --shuffle 0
shard() { python3 -c 'import struct, sys; n = 150000; t = [32] * n; t[n // 2] += int(sys.argv[1])
header = struct.pack("<256i", 20240520, 1, n, *[0] * 253)
open(sys.argv[2], "wb").write(header + struct.pack(f"<{n}H", *t))' "$1" "$work/middle.bin"; }
shard 0
expect "a run on a shard without a manifest" 0 "" "${causal[@]}" --out "$work/middle" --train-data "$work/middle.bin" --steps 2 \
    --checkpoint-every 2
expect "is resumed" 0 "" "${causal[@]}" --out "$work/middle" --train-data "$work/middle.bin" --steps 3 --resume
shard 1
expect "but not when one token in the middle has changed" 2 "differs from the training data of" \
    "${causal[@]}" --out "$work/middle" --train-data "$work/middle.bin" --steps 4 --resume
cp -r "$work/run" "$work/old" && rm -r "$work/old/step_00000004" "$work/old/step_00000008"
sed -i '/"train_data"/d' "$work/old/step_00000012/trainer_state.json" && rm "$work/old/step_00000012/manifest.json"
check "the data is in the checkpoint" '! cmp -s "$work/old/step_00000012/trainer_state.json" "$last/trainer_state.json"'
if mkdir "$work/full" && mount -t tmpfs -o size=8k none "$work/full" 2> /dev/null; then
    mounted="$work/full"
    head -c 8192 /dev/zero > "$work/full/filler" 2> /dev/null
    expect "options that cannot be written" 7 "options.toml: cannot be written" "${causal[@]}" --out "$work/full" --checkpoint-every 0
    umount "$mounted" && mounted=""
else
    skip "options that cannot be written" "only root may mount a full disk"
fi

expect "a limit on the size of files" 7 "File too large" prlimit --fsize=20000 "${causal[@]}" --out "$work/x"
expect "the same for shards" 3 "File too large" prlimit --fsize=20000 ./tokenize --tokenizer bytes --out "$work/x" --name limited "$work/text.txt"

# ---- weights
cp -r "$last" "$work/changed" && printf 'X' | dd of="$work/changed/model.safetensors" bs=1 seek=20000 conv=notrunc 2> /dev/null
expect "weights with a byte changed are no start" 7 "remove the folder's manifest.json" "${causal[@]}" --out "$work/x" --model "$work/changed"
rm "$work/changed/manifest.json"
expect "but where nobody promised them" 0 "" "${causal[@]}" --out "$work/x" --model "$work/changed" --steps 1
cp -r "$last" "$work/lost" && rm "$work/lost/model.safetensors"
expect "weights that are lost" 7 "model.safetensors: cannot be opened" "${causal[@]}" --out "$work/x" --model "$work/lost"
mkdir "$work/shape" && cp "$last/config.json" "$work/shape/"
expect "a shape alone is a start from scratch" 0 "" "${causal[@]}" --out "$work/x" --model "$work/shape" --steps 1
cp "$last/model.safetensors" "$work/shape/weights.safetensors"
expect "weights under another name are not passed over" 7 "has no model.safetensors, but weights.safetensors" "${causal[@]}" --out "$work/x" --model "$work/shape"

# ---- numbers and texts
for option in checkpoint model out train-data eval-data show-mask; do
    expect "an empty --$option" 2 "--$option \"\": the value is empty" "${causal[@]}" --"$option" ""
done
expect "nor behind an equals sign" 2 "--checkpoint" "${causal[@]}" --checkpoint=
expect "but no validation data" 0 "" "${causal[@]}" --dry-run --val-data "" --config "$work/run/options.toml"
expect "a zero in front makes no number octal" 0 "" "${causal[@]}" --out "$work/decimal" --steps 010
check "ten steps" '[ "$(losses "$work/decimal")" -eq 10 ]'
expect "a seed that does not fit" 2 "not a whole number from 0 to 18446744073709551615" "${causal[@]}" --out "$work/x" --seed 18446744073709551616
expect "steps that are no whole number" 2 "1.5 is not a whole number" "${causal[@]}" --out "$work/x" --steps 1.5
expect "a bound that is nearly 1" 2 "from 0 to 0.9999999" "${causal[@]}" --out "$work/x" --beta2 1
expect "more micro-steps than can be counted" 2 "--total-batch-tokens 1099511627776" "${causal[@]}" --out "$work/x" --total-batch-tokens 1099511627776
expect "loss by position without evaluation" 2 "--position-bins requires --evaluate" "${causal[@]}" --out "$work/x" --position-bins 4
for prompt in '# We "the people"' "it's {}" ' a  #b, [c]' "o'brien # and"; do
    expect "a prompt: $prompt" 0 "" "${causal[@]}" --prompt "$prompt" --steps 1 --checkpoint-every 0 --out "$work/prompted"
    expect "with --config" 0 "" ./train_causal --config "$work/prompted/options.toml" --out "$work/prompted2"
    check "comes back" 'grep -q "^prompt=." "$work/prompted/options.toml" && [ "$(grep "^prompt=" "$work/prompted/options.toml")" = "$(grep "^prompt=" "$work/prompted2/options.toml")" ]'
done
printf "out=%s/o'brien # my folder\nsteps = 2 # few\n" "$work" > "$work/own.toml"
expect "comments behind values" 0 "" "${causal[@]/--steps/--warmup-steps}" --config "$work/own.toml"
check "are none of them" '[ "$(losses "$work/o'"'"'brien")" -eq 2 ]'
for prompt in "it's \"so\"" '"a","b"' '{}'; do
    expect "a prompt that a file for --config cannot hold: $prompt" 2 "cannot be written to options.toml" "${causal[@]}" --out "$work/x" --prompt "$prompt"
done
echo '{"context_options": ["We ", "I "], "continuation": "", "gold": 0}' > "$work/nothing.jsonl"
expect "an answer that is nothing" 3 "nothing.jsonl:1: an answer is empty" "${causal[@]}" --evaluate --checkpoint "$last" --eval-data "$work/nothing.jsonl"

# ---- output and signals
into_full() { "$@" > /dev/full; }
for what in "--dry-run" "--evaluate --checkpoint $last"; do
    # shellcheck disable=SC2086  # words
    into_full "${causal[@]}" $what 2> "$work/stderr"
    status=$?
    check "$what for a full disk ends with 3 (was $status)" '[ $status -eq 3 ] && grep -q "standard output cannot be written" "$work/stderr"'
done
"${causal[@]}" --dry-run 2> "$work/stderr" | true
statuses=${PIPESTATUS[*]}
check "a table for a reader that stops early" '[ "$statuses" = "0 0" ] && [ ! -s "$work/stderr" ]'
timeout -s KILL 30 "${causal[@]}" --sample-every 1 --sample-tokens 10000000 --out "$work/sampling" > "$work/sampling.txt" 2>&1 &
job=$!
for _ in $(seq 200); do grep -q 'step  *1/' "$work/sampling.txt" && break; sleep 0.05; done
sleep 0.3   # into the sample
kill -TERM $job   # timeout passes it on
wait $job
status=$?
check "SIGTERM ends a sample, too (status $status)" '[ $status -eq 75 ] && [ "$(losses "$work/sampling")" -eq 1 ]'
# ignoring SIGNALS COMMAND...: as nohup and a shell's background jobs start programs.
ignoring=(python3 -c 'import os, signal, sys
for name in sys.argv[1].split(): signal.signal(signal.Signals["SIG" + name], signal.SIG_IGN)
os.execvp(sys.argv[2], sys.argv[2:])')
# signalled PATTERN SIGNALS COMMAND...: starts the command, waits until PATTERN is in its output, and sends the signals, half a
# second apart. Leaves its exit code in `status`.
signalled() {
    local pattern=$1 signals=$2 signal
    shift 2
    timeout --foreground -s KILL 60 "$@" > "$work/signalled.txt" 2>&1 &
    job=$!
    for _ in $(seq 400); do grep -q "$pattern" "$work/signalled.txt" && break; sleep 0.05; done
    sleep 0.2
    for signal in $signals; do pkill "-$signal" -P $job; sleep 0.5; done
    wait $job
    status=$?
}
endless=("${causal[@]}" --steps 1000000 --val-every 0 --checkpoint-every 1000000)
signalled 'step  *3/' HUP "${endless[@]}" --out "$work/hup"
check "SIGHUP saves (status $status)" '[ $status -eq 75 ] && ls "$work/hup" | grep -q "^step_"'
signalled 'step  *3/' "HUP TERM" "${ignoring[@]}" HUP "${endless[@]}" --out "$work/nohup"
check "under nohup SIGHUP does not end a run, SIGTERM does (status $status)" \
    '[ $status -eq 75 ] && [ "$(losses "$work/nohup")" -gt 20 ] && ls "$work/nohup" | grep -q "^step_"'
signalled 'step  *3/' "INT TERM USR1" "${ignoring[@]}" "INT TERM" "${endless[@]}" --out "$work/ignored"
check "SIGINT and SIGTERM that were ignored stay ignored (status $status)" '[ $status -eq 75 ] && [ "$(losses "$work/ignored")" -gt 20 ]'
signalled 'predicted peak' TERM "${endless[@]}" --val-every 1 --val-batches 100000000 --batch-size 1 --out "$work/validated" \
    --val-data "data/bundled/sotu_train_*.bin"
check "SIGTERM ends a long validation, and saves (status $status)" '[ $status -eq 75 ] && ls "$work/validated" | grep -q "^step_00000001$"'
signalled 'step  *1/' TERM "${endless[@]}" --total-batch-tokens 512000 --watchdog-seconds 40 --out "$work/long_step"
check "SIGTERM ends a long step, and saves the one before (status $status)" \
    '[ $status -eq 75 ] && [ "$(losses "$work/long_step")" -eq 1 ] && [ "$(steps "$work/long_step")" = step_00000001 ]'
signalled 'predicted peak' TERM "${endless[@]}" --total-batch-tokens 512000000 --out "$work/long_step"
check "and the first one (status $status)" '[ $status -eq 75 ] && grep -q "after step 0; nothing was saved" "$work/signalled.txt"'
mkfifo "$work/unread"
exec 3<> "$work/unread"
head -c 57344 /dev/zero >&3   # of the 65536 that the pipe takes: the tables fit, and some steps
timeout -s KILL 30 "${endless[@]}" --out "$work/blocked" > "$work/unread" &
job=$!
before=none
for _ in $(seq 40); do
    now=$(losses "$work/blocked" 2> /dev/null)
    [ "${now:-0}" -gt 2 ] && [ "$now" = "$before" ] && break
    before=$now
    sleep 0.5
done
kill -TERM $job
wait $job
status=$?
exec 3>&-
check "SIGTERM ends a run whose output nobody reads, and saves (status $status)" '[ $status -eq 75 ] && ls "$work/blocked" | grep -q "^step_"'
signalled 'predicted peak' TERM "${causal[@]}" --evaluate --checkpoint "$last" --val-batches 100000000 --batch-size 1 \
    --val-data "data/bundled/sotu_train_*.bin"
check "and an evaluation (status $status)" '[ $status -eq 75 ]'

# Matrix products that never end, from the n-th on.
if ldd ./train_causal | grep -q openblas; then
    echo 'extern "C" int atoi(const char*); extern "C" char* getenv(const char*); extern "C" long write(int, const void*, unsigned long);
          static int calls; extern "C" void cblas_sgemm() {
              if (++calls <= atoi(getenv("PRODUCTS"))) return;
              write(2, "it spins\n", 9); for (volatile int forever = 1; forever;) {} }' | c++ -x c++ - -shared -fPIC -o "$work/spin.so"
    spins=(env LD_PRELOAD="$work/spin.so")
    signalled "it spins" TERM "${spins[@]}" PRODUCTS=200 "${endless[@]}" --watchdog-seconds 1 --out "$work/spins"
    check "SIGTERM ends a step that never ends after --watchdog-seconds (status $status)" \
        '[ $status -eq 143 ] && grep -q "no progress for 1 s" "$work/signalled.txt"'
    signalled "it spins" "TERM TERM" "${spins[@]}" PRODUCTS=200 "${endless[@]}" --out "$work/spins"
    check "a second SIGTERM does at once (status $status)" '[ $status -eq 143 ] && ! grep -q "no progress" "$work/signalled.txt"'
    signalled "it spins" TERM "${spins[@]}" PRODUCTS=5 "${causal[@]}" --evaluate --checkpoint "$last"
    check "an evaluation ends within seconds (status $status)" '[ $status -eq 143 ] && grep -q "no progress for 5 s" "$work/signalled.txt"'
else
    skip "products that never end" "this program has no OpenBLAS"
fi

# ---- threads: OpenMP may give fewer than were requested, for which OpenBLAS would wait forever
for threads in 1 2; do LIMIT=60 expect "$threads threads" 0 "" "${causal[@]}" --threads $threads --checkpoint-every 0 --out "$work/threads_$threads"; done
weights() { sed -n 's/.*"weights_hash":"\([0-9a-f]*\)".*/\1/p' "$work/$1/log.jsonl"; }
while read -r settings as note; do
    # shellcheck disable=SC2086  # words
    LIMIT=60 expect "two threads with ${settings//;/ }" 0 "${note//_/ }" env ${settings//;/ } "${causal[@]}" --threads 2 --checkpoint-every 0 --out "$work/limited"
    check "compute as $as" '[ -n "$(weights limited)" ] && [ "$(weights limited)" = "$(weights "threads_$as")" ]'
done << 'END'
OMP_THREAD_LIMIT=1 1 gives_1_of_2_threads
OMP_MAX_ACTIVE_LEVELS=0 1 gives_1_of_2_threads
OMP_DYNAMIC=true 2
OMP_NESTED=true;OMP_NUM_THREADS=2,3 2
OMP_PROC_BIND=true 2
GOMP_CPU_AFFINITY=0 2
OPENBLAS_NUM_THREADS=1 2
OMP_STACKSIZE=16k 1 gives_1_of_2_threads
OMP_STACKSIZE=100G 1 gives_1_of_2_threads
OMP_STACKSIZE=8192 2
END
if ldd ./train_causal | grep -q openblas; then
    within() { (ulimit -v "$1" && exec "${@:2}"); }
    export -f within
    for limit in 100000 500000 3000000; do
        LIMIT=20 expect "a limit of $limit KiB on address space" $((limit < 400000 ? 4 : 0)) "$([ $limit -gt 500000 ] || echo 'ulimit -v')" \
            bash -c 'within "$@"' - $limit "${causal[@]}" --threads 2 --val-every 0 --checkpoint-every 0 --out "$work/limited"
    done
    LIMIT=20 expect "and one that a larger model does not fit into" 4 "(ulimit -v) leaves" bash -c 'within "$@"' - 600000 "${causal[@]}" \
        --model qwen-7m --seq-len 512 --val-every 0 --out "$work/limited"
else
    skip "a limit on address space" "this program has no OpenBLAS"
fi
LIMIT=60 expect "an evaluation with a thread limit" 0 "gives 1 of 2 threads (OMP_THREAD_LIMIT=1)" env OMP_THREAD_LIMIT=1 "${causal[@]}" --threads 2 --evaluate --checkpoint "$last"
LIMIT=60 expect "a mask with a thread limit" 0 "" env OMP_THREAD_LIMIT=1 "${causal[@]}" --threads 2 --show-mask "$work/mask.png"
LIMIT=60 expect "a thread limit of three" 0 "gives 3 of 5 threads" env OMP_THREAD_LIMIT=3 "${causal[@]}" --threads 5 --checkpoint-every 0 --out "$work/limited"
check "pinned to one processor, one thread is the default" \
    '"${causal[@]}" --threads 0 --dry-run > "$work/stdout" 2>&1; GOMP_CPU_AFFINITY=0 "${causal[@]}" --threads 0 --dry-run | grep -q ", 1 thread,"'
few=(setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --nproc=4)
chmod 755 "$work" && mkdir -m 777 "$work/few"
if "${few[@]}" test -x ./train_causal -a -r "$work/data/small_manifest.json" 2> /dev/null; then
    LIMIT=60 expect "a limit on processes" 0 "of 16 threads (limit on processes)" "${few[@]}" "${causal[@]}" --threads 16 --checkpoint-every 0 --out "$work/few/run"
    LIMIT=60 expect "fewer threads to tokenize" 0 "of 16 threads" "${few[@]}" ./tokenize --threads 16 --out "$work/few/data" "$work/text.txt"
    LIMIT=60 expect "too few" 4 "cannot be started" "${few[@]}" prlimit --nproc=1 ./tokenize --out "$work/few/data" "$work/text.txt"
else
    skip "a limit on processes" "only root may run programs as another user here"
fi
