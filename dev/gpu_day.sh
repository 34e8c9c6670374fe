#!/usr/bin/env bash
# What a GPU that is there for ten minutes should be asked, the most telling first: do the kernels compute what they should, the same
# each time, and how fast. Runs in the folder that dev/pack.sh made, or anywhere with PACK=FOLDER; needs no compiler.
#     bash gpu_day.sh [RESULTS]      default $OUT or ./gpu_day. Ends within 9.5 minutes (SECONDS_ALLOWED=570), whatever hangs
# Each step has a limit, and what fails stops nothing. Called again with the same RESULTS it goes on with what was not reached:
# longer tests, every part of PyTorch's comparison, several ranks on the GPU, paired training runs. gpu_day.py makes gpu_day.json and
# gpu_day.md of it. ONLY=WORD runs the steps whose names contain it.
set -uo pipefail
pack=${PACK:-$(cd "$(dirname "$0")" && pwd)}
results=${1:-${OUT:-$PWD/gpu_day}}
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 2
cd "$pack" || exit 2
[ -x bin/run_tests ] || { echo "gpu_day: $pack has no bin/run_tests; dev/pack.sh makes such a folder" >&2; exit 2; }
end=$((SECONDS + ${SECONDS_ALLOWED:-570}))
steps=$results/steps.jsonl
touch "$steps"

# Programs must not start themselves again under a profiler; CUDA of a Python package counts as installed.
export KEEP_OPENBLAS_CORETYPE=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LC_ALL=C.UTF-8
PATH=$PATH:/usr/local/cuda/bin
packages=$(python3 -c 'import glob, sysconfig; print(":".join(glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/*/lib")))' 2> /dev/null)
export LD_LIBRARY_PATH=$PWD/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64:$packages

# step NAME LIMIT COMMAND...: runs it unless it was run before, for LIMIT seconds at most, and notes how it ended.
step() {
    local name=$1 limit=$2 left=$((end - SECONDS)) begin=$SECONDS status
    shift 2
    [[ $name == *${ONLY:-}* ]] && ! grep -q "\"step\":\"$name\"" "$steps" || return 0
    [ $left -ge 5 ] || { not_reached+=" $name"; return; }
    timeout -k 5 $((limit < left ? limit : left)) "$@" > "$results/$name.txt" 2>&1
    status=$?
    printf '{"step":"%s","status":%d,"seconds":%d,"limit":%d}\n' "$name" $status $((SECONDS - begin)) "$limit" >> "$steps"
    printf '%4d s  %-28s status %3d after %3d s: %s\n' "$SECONDS" "$name" $status $((SECONDS - begin)) \
        "$(tail -n 1 "$results/$name.txt" | cut -c 1-140)"
}
not_reached=""
tests() { step "$1" "$2" bin/run_tests "$3" --durations yes; }
quiet=(--val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0)
bundled=(--train-data 'data/bundled/sotu_train_*.bin' --val-data "")
read -ra size < size
small=("${size[@]}" --steps 20 "${bundled[@]}" "${quiet[@]}")
train() { step "train_$1" 40 "bin/train_$2" --device cuda "${small[@]}" "${@:3}" --out "$results/runs/$1"; }

step machine 20 bash -c 'nvidia-smi; cat COMMIT; ldd bin/* | grep "not found"; nproc; free -g'
tests tests_conformance 40 "[conformance]"
tests tests_operations 60 "[ops],[linear],[optimizer],[feed]"
tests tests_attention 75 "[attention]~[conformance]~[variant]"
tests tests_models 60 "causal model:*,asga model:*,sliding_window model:*"
train causal causal
train causal_again causal
train causal_fp32 causal --precision fp32
train asga asga
step bench_attention 60 bin/bench_gpu --parts attention --repeats 10
step bench_steps 90 bin/bench_gpu --parts kernels steps --repeats 10
step ladder 30 bin/ladder
for tool in memcheck racecheck; do
    step $tool 60 compute-sanitizer --tool $tool --error-exitcode 9 bin/train_causal --device cuda --model qwen-tiny --batch-size 1 \
        --seq-len 96 --steps 1 "${bundled[@]}" "${quiet[@]}" --out "$results/runs/$tool"
done
step profile 60 ncu --set full --launch-count 2 --kernel-name 'regex:attention_(forward|backward)_kernel' bin/bench_gpu --parts attention \
    --quick
tests tests_all 300 "~[ops]~[linear]~[optimizer]~[feed]~[attention]"
step patterns 60 bin/bench_patterns_gpu
for ranks in 2 8; do   # on one GPU: their sums go through the host's memory
    step ranks_$ranks 60 mpirun --oversubscribe -np $ranks bin/train_causal --device cuda "${small[@]}" --batch-size 1 \
        --out "$results/runs/ranks_$ranks"
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

[ -z "$not_reached" ] || echo "not reached:$not_reached"
python3 gpu_day.py "$results" "$PWD"
