#!/usr/bin/env bash
# `make test-gpu`: packs what this machine has built (dev/pack.sh) and runs all of dev/gpu_day.py on its GPU: the tests of the GPU half,
# training against the CPU, compute-sanitizer over a step, benchmarks. VARIANTS="causal nsa" for other trainers than causal, asga, dsa
# and sliding_window, VARIANTS=all for all, ONLY=WORD for the steps whose names contain it. Results in build/gpu_day; the last line is
# `N passed, N failed`. Exits 1 when something failed, 2 where there is no GPU. A machine with a GPU and without our libraries runs
# what another one packed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
if ! nvidia-smi -L; then
    echo "make test-gpu: there is no GPU on this machine; make test runs the same tests on the emulator" >&2
    exit 2
fi
make --no-print-directory build/config.mk || exit 2
if ! grep -q '^HAVE_CUDA := 1' build/config.mk; then
    echo "make test-gpu: this machine has a GPU and no working nvcc; install the CUDA Toolkit, or see dev/pack.sh" >&2
    exit 2
fi
HERE=1 dev/pack.sh build/gpu_day/package || exit 1
PATH=$PATH:$(dirname "$(sed -n 's/^NVCC := //p' build/config.mk)")   # compute-sanitizer lies beside nvcc
rm -rf build/gpu_day/results
build/gpu_day/package/gpu_day.py build/gpu_day/results --seconds "${SECONDS_ALLOWED:-14400}" --only "${ONLY:-}"
