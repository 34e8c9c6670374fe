#!/usr/bin/env bash
# Installs what is missing (Python packages in build/python), builds programs and tests, and runs them: tests/*.cpp and, on the
# emulator, tests/gpu/*.cpp (Catch2), then tests/*.sh (each prints lines `ok NAME` or `FAIL NAME: why`).
#   scripts/run_tests.sh all       everything (make test)
#   scripts/run_tests.sh check     what a change should pass before it is committed (make check): all tests that are of no variant,
#                                  and those of causal, asga and the variants whose files differ from the last commit
#   scripts/run_tests.sh NAME      the tests of one variant (make test-NAME)
# Every stage tells its seconds and CPU-seconds; at the end come the ten slowest test cases and the last
# line: `N passed, N failed`. Exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export LC_ALL=C.UTF-8          # numbers with a point
export OMP_WAIT_POLICY=passive   # the tests have many tiny parallel regions, which spinning threads slow down on a busy machine
. scripts/stages.bash
what=${1:?usage: scripts/run_tests.sh all|check|VARIANT}
processors=$(env -u OMP_NUM_THREADS nproc)   # which that variable lowers

# Without a GPU nobody runs the kernels that nvcc makes here: one architecture is enough, and nvcc may leave out what makes them fast
# and itself slow (CUDA 13).
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if ! nvidia-smi -L > /dev/null 2>&1; then
    export CUDA_ARCH=${CUDA_ARCH:--arch=compute_80}
    if [[ $("$nvcc" --help 2> /dev/null) == *--Ofast-compile* ]]; then export CUDAFLAGS=${CUDAFLAGS:--Ofc=max}; fi
fi
build() { make --no-print-directory -j"$processors" "$@"; }

# The packages that some scripts stand on, in an environment of their own in build/, unless python3 has them or PYTHON says which one
# to take. Where they cannot be had, the tests of those scripts say so and are skipped.
install_python_packages() {
    local packages="pyarrow rouge-score sacrebleu tokenizers numpy scipy matplotlib jinja2 xxhash" folder=build/python
    has_all() { "$1" -c 'import pyarrow, rouge_score, sacrebleu, tokenizers, scipy, matplotlib, jinja2, xxhash' 2> /dev/null; }
    if [ -n "${PYTHON:-}" ] || has_all python3; then return; fi
    if has_all $folder/bin/python3 || { python3 -m venv --clear --system-site-packages $folder &&
        $folder/bin/pip install --retries 1 --timeout 20 $packages; } > "$work/pip" 2>&1; then
        export PYTHON=$folder/bin/python3
    else
        echo "without the Python packages $packages: $(tail -n 1 "$work/pip")"
    fi
}

# Variants whose file is not as it was committed, new ones too.
changed_variants() {
    local name
    git status --porcelain -- attention 2> /dev/null | sed -nE 's/.*attention\/([a-z0-9_]+)\.cuh$/\1/p' |
        while read -r name; do if [ -f "attention/$name.cuh" ]; then echo "$name"; fi; done
}

run_all() {
    stage "build the programs" build all build/reference_qwen || return
    stage "build the tests" build build/tests/{run_tests,faults.so} build/generate_causal build/dev/{attention_layer,logits,token_ids} \
        build/dev/bench_{cpu,data,decode,patterns,tokenizer,writing}.o || return
    stage "build the emulated GPU" build build/emulated/{run_tests,collectives_program,train_causal,train_asga,generate_causal} \
        build/emulated/dev/{bench_constants,count_step} || return
    if [ -x "$nvcc" ]; then stage "GPU tests through nvcc" build ptx; fi
    stage "tests on the CPU" run_cases build/tests/run_tests
    stage "tests on the emulated GPU" run_cases build/emulated/run_tests
    install_python_packages
    # Most scripts keep one processor busy, or none. These build nothing in build/, and run beside those that may.
    local building build_nothing=(tests/{collectives,data_scripts,end_to_end,evaluate,experiments,faults,figures,gallery,generate,gpu_day}.sh
        tests/{gpu_end_to_end,kernel_report,labs,modeling,published,ranks,reference_qwen,runs,tokenize}.sh)
    mapfile -t building < <(printf '%s\n' tests/*.sh | grep -vxFf <(printf '%s\n' "${build_nothing[@]}"))
    lanes "${building[*]}" "${build_nothing[*]}"
}

run_check() {
    local variants variant names
    variants=$(printf '%s\n' causal asga $(changed_variants) | sort -u)
    names=$(printf '%s: *,%s model: *,%s decode: *,' $(for variant in $variants; do echo "$variant $variant $variant"; done))
    echo "variants: $(tr '\n' ' ' <<< "$variants")"
    # shellcheck disable=SC2046,SC2086  # lists of words
    stage "build" build tokenize build/tests/run_tests build/emulated/operation_tests $(printf 'build/emulated/test_%s ' $variants) || return
    stage "tests on the CPU" run_cases build/tests/run_tests "~[variant],$names"
    stage "tests on the emulated GPU" run_cases build/emulated/operation_tests
    for variant in $variants; do stage "$variant on the emulated GPU" run_cases "build/emulated/test_$variant"; done
    run_scripts tests/{arrows,build,figures,sizes}.sh
}

run_variant() {
    stage "build" build tokenize "build/tests/test_$1" "build/emulated/test_$1" || return
    stage "$1 on the CPU" run_cases "build/tests/test_$1"
    stage "$1 on the emulated GPU" run_cases "build/emulated/test_$1"
}

if ! stage "install" scripts/install.sh test; then finish; fi
case $what in
    all) run_all ;;
    check) run_check ;;
    *) run_variant "$what" ;;
esac
finish
