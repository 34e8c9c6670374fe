#!/usr/bin/env bash
# Sums and gathers over ranks, each a process with emulated GPUs: through NCCL's stand-in and through host memory; ranks that die, hang
# or end with an error. Prints `ok NAME` or `FAIL NAME: why` per check. Needs build/emulated/collectives_program.
program=build/emulated/collectives_program
. "$(dirname "$0")/checks.bash"
export OMP_NUM_THREADS=1
has_mpi $program || { skip "collectives under mpirun" "no MPI on this machine, or no $program"; exit; }

# Lines `NAME | GPUS RANKS WHAT... | CODE (several, with a comma between) | WORDS of its output`.
while IFS='|' read -r -u 3 name job codes words; do
    read -r gpus ranks job <<< "$job"
    seeds=0 what=${job%% *} words=${words# }
    [ "$what" != all ] || seeds="0 1 2 3"
    for seed in $seeds; do
        # shellcheck disable=SC2086  # words
        EMULATED_GPU_COUNT=$gpus EMULATOR_SEED=$seed WATCHDOG=$([ "$what" = hang ] && echo 2 || echo 60) timeout 60 $launch -np "$ranks" $program $job > "$work/output" 2>&1 < /dev/null
        status=$?
        check "collectives: ${name% }, order of the streams $seed (status $status)" \
            '[[ ",${codes// }," == *,$status,* ]] && grep -qF -- "$words" "$work/output" || { tail -n 3 "$work/output"; false; }'
    done
done 3<< 'END'
one rank | 4 1 all | 0 | all sums and gathers are right
2 ranks | 4 2 all | 0 | all sums and gathers are right
3 ranks | 4 3 all | 0 | all sums and gathers are right
3 ranks on one GPU | 1 3 all | 0 | all sums and gathers are right
parts of 8 ranks on one GPU | 1 8 shards | 0 | all parts are right
parts of 8 ranks | 8 8 shards | 0 | all parts are right
a note says that ranks share a GPU | 1 3 shards | 0 | note: 3 ranks share 1 GPU: sums
one GPU shared by two is enough | 2 3 shards | 0 | note: 3 ranks share 2 GPUs: sums
a NaN of one rank is one of all, on one GPU | 1 3 nan | 5 | sees it
a NaN of one rank is one of all | 3 3 nan | 5 | sees it
rank 0 dies, on one GPU | 1 3 die 0 | 6,137 |
rank 2 dies | 3 3 die 2 | 6,137 |
rank 2 hangs, on one GPU | 1 3 hang 2 | 6 | it was in step 3, 
rank 0 hangs | 3 3 hang 0 | 6 | it was in step 3, 
rank 0 ends with an error, on one GPU | 1 3 fail 0 | 3 | a rank's own reason
rank 2 ends with an error | 3 3 fail 2 | 3 | a rank's own reason
different calls | 4 2 unequal | 1 | ncclAllReduce of 50 elements, rank 0
END
