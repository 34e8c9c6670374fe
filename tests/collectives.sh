#!/usr/bin/env bash
# Sums and gathers over ranks, each a process with emulated GPUs: through NCCL's stand-in and through host memory, with ranks that
# meet by MPI, by TCP and by a file; ranks that never come, die, hang or have their own troubles. Prints `ok NAME` or `FAIL NAME:
# why` per check. Needs build/emulated/collectives_program (PROGRAM=FILE: another). Takes a minute and a half.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
program=${PROGRAM:-build/emulated/collectives_program}
. tests/checks.bash
export OMP_NUM_THREADS=1 EMULATED_GPU_COUNT=4
[ -x "$program" ] || { echo "FAIL collectives: there is no $program"; exit 1; }

# verdict NAME CODE WORD: the job's exit code was CODE (several, with | between) and its output contains the word.
verdict() {
    if [[ ! $status =~ ^($2)$ ]]; then bad "$1" "exit code $status instead of $2: $(tail -n 3 "$work/output")"
    elif [ -n "$3" ] && ! grep -qF -- "$3" "$work/output"; then bad "$1" "nobody says '$3': $(tail -n 3 "$work/output")"
    else ok "$1"; fi
}

# mpi RANKS WHAT...: leaves the exit code in `status` and what was printed in $work/output.
mpi() {
    # shellcheck disable=SC2086  # two words
    timeout 60 $launch -np "$1" "$program" "${@:2}" > "$work/output" 2>&1
    status=$?
}

# alone FIRST LAST RANKS WHAT...: processes for ranks FIRST to LAST of a job of RANKS, without a launcher. Leaves the exit codes, in
# the order of the ranks, in `status`.
alone() {
    local first=$1 last=$2 ranks=$3 rank processes=()
    shift 3
    : > "$work/output"
    for rank in $(seq "$first" "$last"); do
        RANK=$rank WORLD_SIZE=$ranks timeout 60 "$program" "$@" >> "$work/output" 2>&1 &
        processes+=($!)
    done
    status=""
    for rank in "${processes[@]}"; do
        wait "$rank" 2> /dev/null
        status="${status:+$status }$?"
    done
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

# ---- MPI
if ! has_mpi "$program"; then
    skip "collectives under mpirun" "no MPI on this machine"
else
    for ranks in 1 2 3; do
        for seed in 0 1 2 3; do
            EMULATOR_SEED=$seed mpi $ranks all
            verdict "collectives: $ranks ranks, order of the streams $seed" 0 "all sums and gathers are right"
        done
    done
    for gpus in 1 8; do
        EMULATED_GPU_COUNT=$gpus mpi 8 shards
        verdict "collectives: parts of 8 ranks ($gpus GPUs)" 0 "all parts are right"
    done
    mpi 2 name
    verdict "collectives: ranks with GPUs of their own use NCCL" 0 "rank 1 of 2, 1 of 2 here: NCCL"
    for seed in 0 1 2 3; do
        EMULATED_GPU_COUNT=1 EMULATOR_SEED=$seed mpi 3 all
        verdict "collectives: 3 ranks on one GPU, order of the streams $seed" 0 "all sums and gathers are right"
    done
    EMULATED_GPU_COUNT=1 mpi 3 name
    verdict "collectives: they say so" 0 "MPI through host memory: 3 ranks share 1 GPU"
    EMULATED_GPU_COUNT=2 mpi 3 name
    verdict "collectives: one GPU shared by two is enough" 0 "MPI through host memory: 3 ranks share 2 GPUs"
    for gpus in 1 3; do
        EMULATED_GPU_COUNT=$gpus mpi 3 nan
        verdict "collectives: a NaN of one rank is one of all ($gpus GPUs)" 5 "sees it"
        for who in 0 2; do
            EMULATED_GPU_COUNT=$gpus mpi 3 die $who
            verdict "collectives: rank $who dies ($gpus GPUs)" '6|137' ""
            EMULATED_GPU_COUNT=$gpus WATCHDOG=2 mpi 3 hang $who
            verdict "collectives: rank $who hangs ($gpus GPUs)" 6 "it was in step 3, "
            EMULATED_GPU_COUNT=$gpus mpi 3 fail $who
            verdict "collectives: rank $who has a reason of its own ($gpus GPUs)" 3 "a rank's own reason"
        done
    done
    mpi 2 unequal
    verdict "collectives: ranks that make different calls are told" 1 "ncclAllReduce of 50 elements, rank 0"
fi

# ---- TCP and file
export RANKS_FROM MASTER_ADDR=127.0.0.1 MASTER_PORT
for way in tcp file; do
    RANKS_FROM=auto MASTER_PORT=$(free_port)   # what torchrun sets is enough
    [ $way = file ] && RANKS_FROM=file:$work/meeting
    for gpus in 1 3; do
        EMULATED_GPU_COUNT=$gpus EMULATOR_SEED=1 alone 0 2 3 all
        verdict "without MPI, by $way: 3 ranks ($gpus GPUs)" "0 0 0" "all sums and gathers are right"
    done
    EMULATED_GPU_COUNT=1 alone 0 2 3 name
    verdict "without MPI, by $way: name" "0 0 0" "rank 2 of 3, 2 of 3 here: TCP through host memory: 3 ranks share 1 GPU"
    alone 0 2 3 nan
    verdict "without MPI, by $way: a NaN of one rank" "5 5 5" "sees it"
    alone 0 2 3 die 1
    verdict "without MPI, by $way: a rank dies" "6 137 6" "it was in step 3, "
    WATCHDOG=2 alone 0 2 3 hang 0
    verdict "without MPI, by $way: a rank hangs" "6 6 6" "made no progress for 2 s"
    alone 0 2 3 fail 1
    verdict "without MPI, by $way: a rank with a reason of its own" "6 3 6" "a rank's own reason"
    WATCHDOG=1 alone 0 1 4 name
    verdict "without MPI, by $way: two of four never come" "6 6" "[rank 1]: ranks 2, 3 of 4 did not reach"
    WATCHDOG=1 alone 1 2 3 name
    verdict "without MPI, by $way: rank 0 never comes" "6 6" "rank 2 of 3 found no rank 0 at"
done
name="without MPI: the file of the meeting is gone"
if [ -e "$work/meeting" ]; then bad "$name" "it is still there"; else ok "$name"; fi

echo "another 1 2 127.0.0.1" > "$work/meeting"   # left by a job that was killed
alone 0 1 2 name
verdict "without MPI: a file left by another job does no harm" "0 0" "NCCL"
RANKS_FROM=file:$work/no/such/folder/meeting alone 0 0 2 name
verdict "without MPI: a file that cannot be written" 2 "cannot write its address"
RANKS_FROM=tcp:127.0.0.1:$(free_port) alone 0 1 2 name
verdict "without MPI: a given address" "0 0" "NCCL"
RANKS_FROM=tcp:nonsense alone 0 0 2 name
verdict "without MPI: no place to meet" 2 "takes auto, mpi, tcp, tcp:HOST:PORT or file:PATH"
RANKS_FROM=tcp:127.0.0.1:$MASTER_PORT
WATCHDOG=2 alone 1 1 3 name &
WATCHDOG=2 RANK=0 WORLD_SIZE=2 timeout 60 "$program" name > "$work/first" 2>&1
status=$?
wait
cp "$work/first" "$work/output"
verdict "without MPI: jobs of different sizes" 6 "rank 1 of 3 on $(hostname) joined a job of 2 ranks"
