#!/usr/bin/env bash
# A training step of ASGA on the emulated GPU under AddressSanitizer, which sees accesses outside of any allocation and of shared
# memory, and under ThreadSanitizer, which sees every pair of CUDA threads without a barrier between them. Prints `ok NAME`,
# `FAIL NAME: why` or `skip NAME: why`. Takes three to five minutes, most of them for the compiler.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
small="--device cuda --model qwen-tiny --seq-len 70 --batch-size 2 --steps 2 --threads 1 --val-every 0 --sample-every 0 --checkpoint-every 0
       --plot 0"

# under SANITIZER: builds the program with it and trains two steps, the first recorded nowhere, the second of another batch.
under() {
    local name="ASGA's training step on the emulated GPU under the $1 sanitizer"
    echo 'int main() {}' > "$work/empty.cpp"
    if ! "${CXX:-g++}" "-fsanitize=$1" "$work/empty.cpp" -o "$work/empty" 2> /dev/null || ! "$work/empty" 2> /dev/null; then
        skip "$name" "${CXX:-g++} has no such sanitizer here"
        return
    fi
    if ! make --no-print-directory -j2 SANITIZER="$1" "build/$1/train_asga" > "$work/log" 2>&1; then
        bad "$name" "it does not build: $(grep -m 1 -E 'error|Error' "$work/log")"
        return
    fi
    # shellcheck disable=SC2086  # several words
    if OMP_NUM_THREADS=1 EMULATOR_SEED=2 ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
        timeout 300 "build/$1/train_asga" $small --out "$work/out" > "$work/log" 2>&1 && grep -q 'done: step 2' "$work/log"; then
        ok "$name"
    else
        bad "$name" "$(grep -m 1 -E 'ERROR|WARNING|error' "$work/log")"
    fi
}
under address
under thread
