#!/usr/bin/env bash
# A run and its surroundings: another run's folder, other data, full disks, readers that have gone, signals, threads that OpenMP does not
# give. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make train_causal tokenize
. "$(dirname "$0")/checks.bash"
small_shards
causal=(./train_causal --device cpu --model qwen-tiny --train-data "$work/data/small_train_*.bin" --val-data "$work/data/small_val_*.bin"
        --seq-len 32 --batch-size 8 --steps 12 --val-every 6 --val-batches 4 --sample-every 0 --checkpoint-every 4 --keep-checkpoints 0
        --threads 1 --plot 0 --lr 3e-3)
short=("${causal[@]}" --checkpoint-every 0 --val-every 0 --steps 2)
steps() { (cd "$1" && echo step_*); }
expect "a run" 0 "" "${causal[@]}" --out "$work/run"
last="$work/run/step_00000012"

# ---- the folder of another run
cp -r "$work/run" "$work/reused"
expect "a run that begins there, and saves nothing" 0 "" "${short[@]}" --out "$work/reused" --seed 2
check "sets the checkpoints aside, with their log" 'grep -q "moved 3 checkpoints" "$work/stdout" &&
    [ "$(steps "$work/reused/superseded")" = "step_00000004 step_00000008 step_00000012" ] && cmp -s "$work/run/log.jsonl" "$work/reused/superseded/log.jsonl"'
expect "and is not resumed from them" 0 "starting at step 0" "${causal[@]}" --out "$work/reused" --seed 2 --steps 4 --resume
expect "the next run there" 0 "" "${short[@]}" --out "$work/reused" --seed 3
check "keeps those of the last one only" '[ "$(steps "$work/reused/superseded")" = step_00000004 ]'
cp -r "$work/run" "$work/earlier"
expect "a run that goes on from step_00000004/" 0 "" "${short[@]}" --out "$work/earlier" --checkpoint "$work/earlier/step_00000004/" --steps 5
check "leaves that one, and its own log" '[ "$(steps "$work/earlier")" = step_00000004 ] &&
    [ "$(steps "$work/earlier/superseded")" = "step_00000008 step_00000012" ] && [ "$(steps_of "$work/earlier")" -eq 5 ]'
truncate -s 1000 "$work/earlier/step_00000004/model.safetensors"
expect "resuming where another run still writes" 7 "another run is writing there" flock "$work/earlier/lock" "${causal[@]}" --out "$work/earlier" --resume
check "looks at none of its checkpoints" '! grep -q warning "$work/stderr"'
expect_each "${causal[@]}" --out "$work/run" --resume --steps 20 << END
resuming with other data | 2 | differs from the training data of | --train-data "$work/data/small_val_*.bin"
or in another order | 2 | in order | --shuffle 0
or with rows of another length | 2 | 6144 tokens | --seq-len 64
or with another batch | 2 | rows of data | --batch-size 4
END

# ---- full disks and readers that have gone
expect_each << END
a limit on the size of files | 7 | File too large | prlimit --fsize=20000 ${causal[@]@Q} --out "$work/x"
the same for shards | 3 | File too large | prlimit --fsize=20000 ./tokenize --out "$work/x" --name limited "$work/text.txt"
a dry run for a full disk | 3 | standard output cannot be written | bash -c '"\$@" > /dev/full' - ${causal[@]@Q} --dry-run
an evaluation for a full disk | 3 | standard output cannot be written | bash -c '"\$@" > /dev/full' - ${causal[@]@Q} --evaluate --checkpoint "$last"
END
"${causal[@]}" --out "$work/piped" 2> "$work/stderr" | head -n 3 > /dev/null
check "a reader that stops early costs nothing" 'same_weights "$work/piped" "$work/run" && [ ! -s "$work/stderr" ]'

# ---- signals
# ignoring SIGNALS COMMAND...: as nohup and a shell's background jobs start programs.
ignoring=(python3 -c 'import os, signal, sys
for name in sys.argv[1].split(): signal.signal(signal.Signals["SIG" + name], signal.SIG_IGN)
os.execvp(sys.argv[2], sys.argv[2:])')
endless=("${causal[@]}" --steps 1000000 --val-every 0 --checkpoint-every 1000000)
long=(--val-batches 100000000 --batch-size 1 --val-data "data/bundled/sotu_train_*.bin")
saved() { ls "$work/$1" | finds "^step_"; }
# ends NAME CODE CONDITION PATTERN SIGNALS COMMAND...: signalled() ends with the code, and the condition holds.
ends() {
    signalled "${@:4}"
    check "$1 (status $status)" "[ $status -eq $2 ] && $3"
}
ends "SIGHUP saves" 75 "saved hup" 'step  *3/' HUP "${endless[@]}" --out "$work/hup"
ends "under nohup SIGHUP does not end a run, SIGTERM does" 75 '[ "$(steps_of "$work/nohup")" -gt 20 ] && saved nohup' \
    'step  *3/' "HUP TERM" "${ignoring[@]}" HUP "${endless[@]}" --out "$work/nohup"
ends "SIGINT and SIGTERM that were ignored stay ignored" 75 '[ "$(steps_of "$work/ignored")" -gt 20 ]' \
    'step  *3/' "INT TERM USR1" "${ignoring[@]}" "INT TERM" "${endless[@]}" --out "$work/ignored"
ends "SIGTERM ends a sample" 75 '[ "$(steps_of "$work/sampling")" -eq 1 ]' \
    'step  *1/' TERM "${endless[@]}" --sample-every 1 --sample-tokens 10000000 --out "$work/sampling"
ends "and a long validation, and saves" 75 "saved validated" 'predicted peak' TERM "${endless[@]}" --val-every 1 "${long[@]}" --out "$work/validated"
ends "and an evaluation" 75 true 'predicted peak' TERM "${causal[@]}" --evaluate --checkpoint "$last" "${long[@]}"
ends "and a long step, and saves the one before" 75 '[ "$(steps "$work/long_step")" = step_00000001 ] && [ "$(steps_of "$work/long_step")" -eq 1 ]' \
    'step  *1/' TERM "${endless[@]}" --total-batch-tokens 512000 --watchdog-seconds 40 --out "$work/long_step"
ends "and the first one" 75 'grep -q "after step 0; nothing was saved" "$work/signalled.txt"' \
    'predicted peak' TERM "${endless[@]}" --total-batch-tokens 512000000 --out "$work/long_step"
mkfifo "$work/unread"
exec 3<> "$work/unread"
head -c 40960 /dev/zero >&3   # of the 65536 that the pipe takes: the tables fit, and some steps
timeout -s KILL 30 "${endless[@]}" --out "$work/blocked" > "$work/unread" &
job=$!
await '"step":3,' "$work/blocked/log.jsonl"
until [ "$(steps_of "$work/blocked")" = "${before:-}" ]; do before=$(steps_of "$work/blocked") && sleep 0.5; done
expect "a second run in the same folder" 7 "another run" "${causal[@]}" --out "$work/blocked"
kill -TERM $job
wait $job
status=$?
exec 3>&-
check "SIGTERM ends a run whose output is not read, and saves (status $status)" '[ $status -eq 75 ] && saved blocked'

# Matrix products that never end, from the n-th on.
if ldd ./train_causal | finds openblas; then
    echo 'extern "C" int atoi(const char*); extern "C" char* getenv(const char*); extern "C" long write(int, const void*, unsigned long);
          static int calls; extern "C" void cblas_sgemm() {
              if (++calls <= atoi(getenv("PRODUCTS"))) return;
              write(2, "it spins\n", 9); for (volatile int forever = 1; forever;) {} }' | c++ -x c++ - -shared -fPIC -o "$work/spin.so"
    spins=(env LD_PRELOAD="$work/spin.so" PRODUCTS=200)
    ends "SIGTERM ends a step that never ends after --watchdog-seconds" 143 'grep -q "no progress for 1 s" "$work/signalled.txt"' \
        "it spins" TERM "${spins[@]}" "${endless[@]}" --watchdog-seconds 1 --out "$work/spins"
    ends "a second SIGTERM does at once" 143 '! grep -q "no progress" "$work/signalled.txt"' \
        "it spins" "TERM TERM" "${spins[@]}" "${endless[@]}" --out "$work/spins"
else
    skip "products that never end" "this program has no OpenBLAS"
fi

# ---- threads: OpenMP may give fewer than were requested, for which OpenBLAS would wait forever
export LIMIT=60
short+=(--threads 2 --out "$work/limited")
for threads in 1 2; do expect "$threads threads" 0 "" "${short[@]}" --threads $threads --out "$work/threads_$threads"; done
while read -r settings as note; do
    # shellcheck disable=SC2086  # words
    expect "two threads with ${settings//;/ }" 0 "${note//_/ }" env ${settings//;/ } "${short[@]}"
    check "compute as $as" 'same_weights "$work/limited" "$work/threads_$as"'
done << 'END'
OMP_THREAD_LIMIT=1 1 gives_1_of_2_threads
OMP_MAX_ACTIVE_LEVELS=0 1 gives_1_of_2_threads
OMP_NESTED=true;OMP_NUM_THREADS=2,3 2
OMP_PROC_BIND=true 2
OPENBLAS_NUM_THREADS=1 2
OMP_STACKSIZE=16k 1 gives_1_of_2_threads
OMP_STACKSIZE=100G 1 gives_1_of_2_threads
END
expect_each << END
three threads of five | 0 | gives 3 of 5 threads | env OMP_THREAD_LIMIT=3 ${short[@]@Q} --threads 5
an evaluation with a thread limit | 0 | gives 1 of 2 threads (OMP_THREAD_LIMIT | env OMP_THREAD_LIMIT=1 ${short[@]@Q} --evaluate --checkpoint "$last"
END
check "pinned to one processor, one thread is the default" 'GOMP_CPU_AFFINITY=0 "${short[@]}" --threads 0 --dry-run | finds ", 1 thread,"'
if ldd ./train_causal | finds openblas && ! ldd ./train_causal | finds cublas; then   # which needs more to start
    within() { echo "bash -c 'ulimit -v $1; exec \"\$@\"' - ${short[*]@Q}"; }
    expect_each << END
too little address space for the libraries | 4 | ulimit -v | $(within 100000)
enough for a small model | 0 | | $(within 3000000)
too little for a larger one | 4 | (ulimit -v) leaves | $(within 600000) --model qwen-7m --seq-len 512
END
else
    skip "a limit on address space" "this program has no OpenBLAS, or CUDA's libraries"
fi
few=(setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --nproc=4)
chmod 755 "$work" && mkdir -m 777 "$work/few"
if "${few[@]}" test -x ./train_causal -a -r "$work/data/small_manifest.json" 2> /dev/null; then
    expect "a limit on processes" 0 "of 16 threads (OMP_THREAD_LIMIT" "${few[@]}" "${short[@]}" --threads 16 --out "$work/few/run"
    expect "one thread to tokenize" 0 "" "${few[@]}" prlimit --nproc=1 ./tokenize --threads 16 --out "$work/few/data" data/bundled/sotu.jsonl
else
    skip "a limit on processes" "only root may run programs as another user here"
fi

# ---- Slurm, in so far as stand-ins show it
mkdir "$work/slurm"
printf '#!/bin/bash\nshift 2\nexec "$@"\n' > "$work/slurm/srun" && printf '#!/bin/bash\necho "$*" > "$0.log"\n' > "$work/slurm/scontrol"
chmod +x "$work"/slurm/*
expect "a job ends as its run does" 75 "" env PATH="$work/slurm:$PATH" SLURM_JOB_ID=7 bash scripts/slurm/train.sbatch bash -c "exit 75"
check "and is queued again" 'grep -qx "requeue 7" "$work/slurm/scontrol.log"'
