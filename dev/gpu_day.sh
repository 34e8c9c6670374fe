#!/usr/bin/env bash
# What a GPU that is there for ten minutes should be asked, the most telling first: do the kernels compute what they should, the
# same each time, and how fast. Runs in the folder that dev/pack.sh made, or anywhere with PACK=FOLDER; needs no compiler.
#     bash gpu_day.sh [RESULTS]      default /tmp/gpu_day. Ends within 9.5 minutes (SECONDS_ALLOWED=570), whatever hangs
# Each step has a limit, and what fails stops nothing. After each, gpu_day.py judges what was reached (gpu_day.json, gpu_day.md),
# and where the environment names a folder whose files are brought back, OUT, these two and results.tar.gz, with everything, go
# there. Called again with the same RESULTS, or with that archive beside this script as before.tar.gz, it goes on with what was not
# reached: all tests, PyTorch beside it, all packed variants, several ranks on the GPU, paired training runs. The last line is
# `N passed, N failed`; the exit code is 1 when something failed, 2 where nothing can run. ONLY=PATTERN: the steps whose names match
# it, as in ONLY='^paired_(causal|asga|dsa)$'. EXPERIMENT="e13_budget --scale medium --arms dsa --seeds 1": words for
# scripts/experiments/run.py, the last step; its ledger is among the results, its checkpoints are not.
set -uo pipefail
pack=${PACK:-$(cd "$(dirname "$0")" && pwd)}
results=${1:-${TMPDIR:-/tmp}/gpu_day}
refuse() { echo "gpu_day: $1" >&2; exit 2; }
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 2
if [ -n "${OUT:-}" ]; then
    mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
    [[ $results/ != "$OUT"/* ]] || refuse "$results is in $OUT, where its archive goes; name a folder outside"
fi
cd "$pack" || exit 2
if [ -e package.tar.xz ] && [ "$(cksum package.tar.xz)" != "$(cat unpacked 2> /dev/null)" ]; then
    { tar xf package.tar.xz 2> unpacking.txt || python3 -m tarfile -e package.tar.xz .; } && cksum package.tar.xz > unpacked ||
        { cat unpacking.txt >&2; exit 2; }   # tar needs xz, Python none: what tar says matters where both fail
fi
[ -x bin/run_tests ] || refuse "$pack has no bin/run_tests; dev/pack.sh makes such a folder"
if [ -e before.tar.gz ] && [ ! -e "$results/steps.jsonl" ]; then tar xzf before.tar.gz -C "$results" || exit 2; fi
if [ -e "$results/COMMIT" ] && ! cmp -s COMMIT "$results/COMMIT"; then
    refuse "$results is of commit $(cat "$results/COMMIT"), this is $(cat COMMIT); give another folder, remove before.tar.gz"
fi
cp COMMIT "$results"
[[ '' =~ ${ONLY:-.} ]]; [ $? -lt 2 ] || refuse "ONLY='$ONLY' is no regular expression"
end=$((SECONDS + ${SECONDS_ALLOWED:-570}))
steps=$results/steps.jsonl
touch "$steps"

# Programs must not start themselves again under a profiler; CUDA of a Python package counts as installed.
export KEEP_OPENBLAS_CORETYPE=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LC_ALL=C.UTF-8
PATH=$PATH:/usr/local/cuda/bin
[ ! -e mpi ] || PATH=$PWD/mpi:$PATH   # the MPI that the programs were linked with

# The programs look into lib/ before they look where the machine has its libraries. What they miss is put there, from the first of
# these folders that has it; what is missing still is said before anything runs.
[ ! -e emulated ] || export LD_LIBRARY_PATH=$PWD/lib   # those of the tree, which know nothing of it
missing() { ldd bin/* 2>&1 | grep "not found" | sort -u; }
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2> /dev/null)
find_libraries() {
    local name folder more=yes
    while [ $more ]; do
        more=""
        for name in $(missing | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p'); do
            [ ! -e "lib/$name" ] || continue   # of no use there
            for folder in /usr/local/cuda/lib64 "$packages"/nvidia/*/lib; do
                if [ -e "$folder/$name" ]; then ln -s "$folder/$name" lib && more=yes; break; fi
            done
        done
    done
    [ -z "$(missing)" ] || refuse "programs of $pack cannot start here; install what they miss: $(missing | tr -s '\n\t ' ' ')"
}
find_libraries

# note STEP JSON WORDS: what became of a step; and all that is known so far, where it is safe.
note() {
    if [ -n "$2" ]; then printf '{"step":"%s",%s}\n' "$1" "$2" >> "$steps"; fi
    printf '%4d s  %-28s %s\n' "$SECONDS" "$1" "$3"
    summarize
}
summarize() {
    python3 gpu_day.py "$results" "$PWD" > "$results/summary.txt" 2>&1
    judged=$?
    [ -n "${OUT:-}" ] || return
    cp "$results"/gpu_day.{md,json} "$OUT"
    tar czf "$OUT/results.new" -C "$results" . && mv "$OUT/results.new" "$OUT/results.tar.gz"
}

# lacks COMMAND...: which of the programs that a command starts is not there.
lacks() {
    local word
    command -v "$1" > /dev/null || { echo "$1"; return; }
    for word in "$@"; do
        if [[ $word == bin/* || $word == $PWD/bin/* ]] && [ ! -e "$word" ]; then echo "${word#"$PWD/"}"; return; fi
    done
}
wanted() { [[ $1 =~ ${ONLY:-.} ]] && ! grep -q "\"step\":\"$1\"" "$steps"; }
skip() { if wanted "$1"; then note "$1" "\"skipped\":\"$2\"" "skipped: $2"; fi; }

# step NAME LIMIT COMMAND...: runs it unless it was run before, for LIMIT seconds at most, and notes how it ended. With says=PATTERN
# it has failed when its output has no such line.
step() {
    local name=$1 limit=$2 left=$((end - SECONDS)) begin=$SECONDS status seconds absent last
    shift 2
    wanted "$name" || return 0
    absent=$(lacks "$@")
    [ -z "$absent" ] || { skip "$name" "no $absent"; return; }
    [ $left -ge 5 ] || { not_reached+=" $name"; return; }
    timeout -k 5 $((limit < left ? limit : left)) "$@" > "$results/$name.txt" 2>&1
    status=$? seconds=$((SECONDS - begin))
    # Cut short, not too slow; 137 where only SIGKILL helped.
    if [[ $status == 124 || $status == 137 ]] && [ $seconds -ge $left ] && [ "$limit" -gt $left ]; then
        not_reached+=" $name"
        note "$name" "" "cut short after $seconds s"
        return
    fi
    if [ $status -eq 0 ] && [ -n "${says:-}" ] && ! grep -qE "$says" "$results/$name.txt"; then
        status=2
        echo "gpu_day: no line of this says '$says'" >> "$results/$name.txt"
    fi
    last=$(grep -v '^[[:space:]]*$' "$results/$name.txt" | tail -n 1 | cut -c 1-140)
    note "$name" "\"status\":$status,\"seconds\":$seconds,\"limit\":$limit" \
        "$(printf 'status %3d after %3d s: %s' $status $seconds "$last")"
}
not_reached=""
gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader | sed -n '1 { s/^NVIDIA //; s/ .*//; p }' | tr A-Z a-z; }   # h200
# Which of Catch2's versions calls it a success when a filter fits no case differs.
tests() { says='^All tests passed \([0-9]+ assertions? in [1-9]' step "$1" "$2" bin/run_tests "$3" --durations yes; }
quiet=(--val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0)
bundled=(--train-data 'data/bundled/sotu_train_*.bin' --val-data "")
read -ra size < size
read -ra quick < quick
read -ra writer < writer
read -ra whole < whole
small=("${size[@]}" --steps 20 "${bundled[@]}" "${quiet[@]}")
train() { step "train_$1" 60 "bin/train_$2" --device cuda "${small[@]}" "${@:3}" --out "$results/runs/$1"; }
# memcheck VARIANT, racecheck VARIANT: a step under one of compute-sanitizer's tools. Races are looked for in a test: in a whole step
# the tool of CUDA 13.0 ends with an internal error, whichever kernels it is to watch (on an H200; dev/LOG.md).
racecheck() {
    says='^All tests passed' step "racecheck_$1" 120 compute-sanitizer --tool racecheck --error-exitcode 9 \
        bin/run_tests "$1 attention on the GPU: the same bits again"
}
memcheck() {
    says='ERROR SUMMARY' step "memcheck_$1" 120 compute-sanitizer --tool memcheck --error-exitcode 9 \
        "bin/train_$1" --device cuda --model qwen-tiny --batch-size 1 --seq-len 96 --steps 1 "${bundled[@]}" "${quiet[@]}" \
        --out "$results/runs/memcheck_$1"
}
# profile HS LAUNCH: attention forward and backward, as ncu sees them, at head size HS: the measured launch of forward, number LAUNCH
# of these kernels in bench_gpu (three before each are warm-ups), and the one after it, backward's first. Clocks as they are. Then all that
# was measured, what warps wait for among it, and the same for each instruction.
profile() {
    local report=$results/profile_$1
    says=attention_backward_kernel step "profile_$1" 60 ncu --set full --clock-control none --launch-skip "$2" --launch-count 2 \
        --kernel-name 'regex:attention_(forward|backward)_kernel' --page details --force-overwrite --export "$report" \
        bin/bench_gpu --parts attention --repeats 1
    step "profile_$1_raw" 30 ncu --import "$report.ncu-rep" --page raw
    step "profile_$1_instructions" 30 ncu --import "$report.ncu-rep" --page source --csv
}

step machine 20 bash -c 'cat COMMIT; nproc; free -g; ldd bin/*; nvidia-smi'
tests tests_conformance 40 "[conformance]"
step constants 30 bin/bench_constants "${quick[@]}"
tests tests_operations 60 "[ops],[linear],[optimizer],[feed],[roles]"
tests tests_attention 75 "[attention]~[conformance]~[variant],[asga]"
tests tests_models 60 "causal model on the GPU:*,asga model on the GPU:*"
tests tests_collectives 40 "collectives:*"
train causal causal
train causal_again causal
train causal_fp32 causal --precision fp32
train asga asga
step bench_attention 60 bin/bench_gpu --parts attention --repeats 10
step bench_steps 90 bin/bench_gpu --parts kernels steps --repeats 10
# Text from checkpoints that have learnt nothing, so large that they stay out of what is brought back.
for program in bin/generate_*; do
    variant=${program##*generate_}
    step "checkpoint_$variant" 60 "bin/train_$variant" --device cuda "${writer[@]}" --batch-size 1 --seq-len 70 --steps 1 "${bundled[@]}" \
        "${quiet[@]}" --checkpoint-every 1 --out "written/$variant"
    for batch in 1 8 64; do
        says='^[0-9]+ prompts: .* more in ' step "write_${variant}_$batch" 60 "$program" --device cuda \
            --checkpoint "written/$variant/step_00000001" --prompts prompts.jsonl --batch $batch --tokens 64 --ignore-eos --print-ids --out /dev/null
    done
done
step ladder 30 bin/ladder
memcheck causal
racecheck causal
profile 128 3
profile 64 11
tests tests_all 300 "~[conformance]~[ops]~[linear]~[optimizer]~[feed]~[roles]~[asga]~[attention],[attention][variant]"
step end_to_end 300 env GPU_PROGRAMS=bin bash tests/gpu_end_to_end.sh
if python3 -c 'import numpy, torch' 2> /dev/null; then
    step pytorch 300 python3 compare_pytorch.py 124m asga --programs bin --turns 1   # torch.compile takes minutes
else
    skip pytorch "no PyTorch"
fi
for program in bin/train_*; do
    variant=${program##*train_}
    train "$variant" "$variant"
    train "${variant}_fp32" "$variant" --precision fp32
    memcheck "$variant"
    racecheck "$variant"
done
for program in bin/train_*; do   # whole steps of a model of 134M parameters
    variant=${program##*train_}
    step "speed_$variant" 30 "$program" --device cuda "${whole[@]}" --steps 12 "${bundled[@]}" "${quiet[@]}" --out "$results/runs/speed_$variant"
done
step patterns 60 bin/bench_patterns_gpu
for ranks in 2 8; do   # on one GPU: their sums go through the host's memory
    if ! grep -q libmpi <(ldd bin/train_causal); then skip ranks_$ranks "no MPI"; continue; fi
    step ranks_$ranks 60 mpirun --oversubscribe -np $ranks bin/train_causal --device cuda "${small[@]}" --batch-size 1 --check-ranks-every 5 \
        --zero-stage $((ranks == 8)) --out "$results/runs/ranks_$ranks"
done
step memory_predicted 20 bin/train_causal --device cuda --dry-run --model qwen-7m --batch-size 64 --seq-len 256 "${bundled[@]}"
step memory 40 bin/train_causal --device cuda --model qwen-7m --batch-size 64 --seq-len 256 --steps 2 "${bundled[@]}" "${quiet[@]}" \
    --out "$results/runs/memory"
text=(--train-data 'data/bundled/sotu_train_*.bin' --val-data 'data/bundled/sotu_val_*.bin')
[ ! -d data/more ] || text=(--train-data 'data/more/*train_*.bin' --val-data 'data/more/*val_*.bin')
for program in bin/train_*; do
    variant=${program##*train_}
    step "paired_$variant" 120 "$program" --device cuda --model model_25m --batch-size 32 --seq-len 1024 --steps 400 --lr 1e-3 \
        "${text[@]}" --val-every 100 --val-batches 16 --sample-every 0 --checkpoint-every 0 --plot 0 --out "$results/runs/paired_$variant"
done

if [ -n "${EXPERIMENT:-}" ]; then
    # shellcheck disable=SC2086  # words
    step "experiment_$(tr -cs 'a-z0-9\n' _ <<< "$EXPERIMENT")" 600 python3 scripts/experiments/run.py $EXPERIMENT --no-build --programs bin \
        --data data/more --out written/experiments --ledger "$results/ledger.jsonl" --machine "$(gpu_name)"
fi

[ -z "$not_reached" ] || echo "not reached:$not_reached"
summarize
cat "$results/summary.txt"
exit $judged
