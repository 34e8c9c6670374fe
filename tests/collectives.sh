#!/usr/bin/env bash
# Sums and gathers over ranks, each a process with emulated GPUs: through NCCL's stand-in and through host memory; ranks that die, hang
# or have their own troubles. Prints `ok NAME` or `FAIL NAME: why` per check. Needs build/emulated/collectives_program (PROGRAM=FILE:
# another). Takes half a minute.
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

if ! has_mpi "$program"; then
    skip "collectives under mpirun" "no MPI on this machine"
    exit
fi
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
