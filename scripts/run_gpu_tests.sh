#!/usr/bin/env bash
# `make test-gpu`: the tests of the GPU half on a real GPU (Catch2, the same source that `make test` runs on the emulator), then one
# training step of every variant under compute-sanitizer (memcheck, racecheck) and training on the GPU against the CPU through the
# programs themselves. The last line is `N passed, N failed`; exits 1 when something failed, 2 where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/stages.bash
ok() { echo "ok $1"; passed=$((passed + 1)); }
bad() { echo "FAIL $1: $2"; failed=$((failed + 1)); }

if ! nvidia-smi -L > "$work/gpus" 2>&1; then
    echo "make test-gpu: there is no GPU on this machine (nvidia-smi: $(head -n 1 "$work/gpus")); make test runs the same tests on the emulator" >&2
    exit 2
fi
cat "$work/gpus"
make --no-print-directory configure || exit 2
if ! grep -q '^HAVE_CUDA := 1' build/config.mk; then
    echo "make test-gpu: this machine has a GPU and no working nvcc; install the CUDA Toolkit" >&2
    exit 2
fi
PATH=$PATH:$(dirname "$(sed -n 's/^NVCC := //p' build/config.mk)")   # compute-sanitizer lies beside nvcc
if ! make --no-print-directory -j"$(nproc)" all build/gpu/run_tests; then
    echo "FAIL build"
    echo "0 passed, 1 failed"
    exit 1
fi

build/gpu/run_tests 2>&1 | tee "$work/cases"   # one process: it has the GPU to itself
count_cases build/gpu/run_tests "${PIPESTATUS[0]}" "$work/cases"
GPU_PROGRAMS=. run_script tests/gpu_end_to_end.sh

# A model with heads of 64, short enough for the sanitizer.
small="--model qwen-2m --batch-size 2 --seq-len 160 --val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0"

# loss_curve LOG: the losses of all steps.
loss_curve() { sed -n 's/^{"step":[0-9]*,"tokens":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1"; }

# same_curve A B RELATIVE: whether twenty losses agree.
same_curve() {
    paste <(loss_curve "$1") <(loss_curve "$2") | awk -v most="$3" '
        { error = $1 > $2 ? ($1 - $2) / $2 : ($2 - $1) / $2; if (!(error <= most)) bad = 1; rows++ }
        END { exit rows < 20 || bad }'
}

# How far bf16 may stray from float32 in twenty steps: where tokens choose, rounding decides some choices (of_curve() in
# tests/gpu/variant/test_model_gpu.cpp, where the emulated GPU is held to the same).
bf16_band() {
    case $1 in
        train_routing) echo 2e-1 ;;
        train_mosa | train_moh | train_adaptive_sparse | train_seer) echo 1e-1 ;;
        *) echo 2e-2 ;;
    esac
}

export KEEP_OPENBLAS_CORETYPE=1   # under a sanitizer a program must not start itself once more
for program in train_*; do
    [ -x "$program" ] || continue
    band=$(bf16_band "$program")
    for tool in memcheck racecheck; do
        # shellcheck disable=SC2086
        if compute-sanitizer --tool "$tool" --error-exitcode 9 "./$program" $small --steps 1 --device cuda --out "$work/s" > "$work/log" 2>&1; then
            ok "$program one step under $tool"
        else
            bad "$program one step under $tool" "$(grep -m 3 -E '=========|train_' "$work/log" | tr '\n' ' ')"
        fi
    done
    # shellcheck disable=SC2086
    if ./"$program" $small --steps 20 --device cpu --out "$work/cpu" > "$work/log" 2>&1 &&
        ./"$program" $small --steps 20 --device cuda --precision fp32 --out "$work/fp32" >> "$work/log" 2>&1 &&
        ./"$program" $small --steps 20 --device cuda --out "$work/bf16" >> "$work/log" 2>&1; then
        if same_curve "$work/fp32/log.jsonl" "$work/cpu/log.jsonl" 1e-4; then ok "$program twenty steps, CUDA float32 against the CPU (1e-4)"
        else bad "$program twenty steps, CUDA float32 against the CPU" "curves differ by more than 1e-4"; fi
        if same_curve "$work/bf16/log.jsonl" "$work/fp32/log.jsonl" "$band"; then ok "$program twenty steps, bf16 against float32 ($band)"
        else bad "$program twenty steps, bf16 against float32" "curves differ by more than $band"; fi
    else
        bad "$program twenty steps" "$(tail -n 1 "$work/log")"
    fi
    rm -rf "$work/cpu" "$work/fp32" "$work/bf16" "$work/s"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
