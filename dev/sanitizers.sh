#!/usr/bin/env bash
# The CPU's code under the compilers' sanitizers, in a copy of the tree (build/sanitized/NAME), which later calls bring up to date:
#   dev/sanitizers.sh address [CASES]   build/tests/run_tests under ASan and UBSan; CASES is a filter of Catch2's, such as '[nsa]'
#   dev/sanitizers.sh step-address      two training steps of ASGA on the emulated GPU under ASan; step-thread: under TSan
#   dev/sanitizers.sh thread            training steps of two threads under TSan: clang, whose libomp reports OpenMP's barriers to it
set -uo pipefail
cd "$(dirname "$0")/.." || exit
what=${1:?usage: dev/sanitizers.sh address [CASES] | step-address | step-thread | thread}
tree=build/sanitized/$what
mkdir -p "$tree" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -pu -t "$tree" && cd "$tree" || exit
build() { make --no-print-directory USE_CUDA=0 "$@" > build.txt 2>&1 || { tail -n 20 build.txt; exit 1; }; }
export OMP_WAIT_POLICY=passive UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
case $what in
    address)
        build CXXFLAGS="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined" tokenize \
            data/bundled/sotu_manifest.json build/tests/run_tests
        ASAN_OPTIONS=detect_leaks=0 build/tests/run_tests "${@:2}" ;;
    step-address | step-thread)
        flags=-fsanitize=${what#step-}
        build EMULATEDFLAGS="-g1 $flags" LDFLAGS="$flags" build/emulated/train_asga
        OMP_NUM_THREADS=1 EMULATOR_SEED=2 ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/emulated/train_asga \
            --device cuda --model qwen-tiny --seq-len 70 --batch-size 2 --steps 2 --threads 1 --val-every 0 --sample-every 0 \
            --checkpoint-every 0 --plot 0 --out out/step ;;
    thread)
        archer=$(find /usr/lib/llvm-* -name libarcher.so 2> /dev/null | tail -n 1)
        [ -n "$archer" ] || { echo "dev/sanitizers.sh: clang's libomp with Archer is needed: apt install clang libomp-dev" >&2; exit 1; }
        build USE_MPI=0 CXX="$(command -v clang++ || command -v clang++-14)" CXXFLAGS="-g1 -fsanitize=thread -Wno-everything" train_causal
        TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1 OMP_TOOL_LIBRARIES=$archer \
            OPENBLAS_NUM_THREADS=1 ./train_causal --device cpu --model qwen-tiny --seq-len 64 --batch-size 4 --steps 4 --checkpoint-every 2 \
            --val-every 2 --val-batches 1 --sample-every 0 --plot 0 --threads 2 --out out/thread ;;
    *) echo "dev/sanitizers.sh: there is no '$what'; it is address, step-address, step-thread or thread" >&2; exit 2 ;;
esac
