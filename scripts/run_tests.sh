#!/usr/bin/env bash
# Installs what is missing, builds, and runs tests: the Catch2 programs, then tests/*.sh (lines `ok NAME`, `FAIL NAME: why`, `skip NAME: why`).
#   scripts/run_tests.sh all       everything (make test)
#   scripts/run_tests.sh check     the tests of no variant, and those of causal, asga and the variants that differ from the last commit
#   scripts/run_tests.sh NAME      the tests of one variant (make test-NAME)
# Each step prints its time. The last line is `N passed, N failed`; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export LC_ALL=C.UTF-8            # numbers with a point
export OMP_WAIT_POLICY=passive   # spinning threads slow down the many tiny parallel regions of the tests on a busy machine
what=${1:?usage: scripts/run_tests.sh all|check|VARIANT}
processors=$(env -u OMP_NUM_THREADS nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: > "$work/passed"   # a line per test that passed
: > "$work/failed"   # a line per failure

finish() {
    echo
    echo "$(wc -l < "$work/passed") passed, $(wc -l < "$work/failed") failed"
    [ ! -s "$work/failed" ] && [ -s "$work/passed" ]
    exit
}

# step NAME COMMAND...: runs it and prints its time. A command that fails ends the run.
step() {
    local TIMEFORMAT="%R s, %U + %S s of processor time: $1"
    time "${@:2}" && return
    echo "FAIL $1" | tee -a "$work/failed"
    finish
}
build() { make --no-print-directory "$@"; }

# run_cases PROGRAM [TESTS]: the cases of a Catch2 program, dealt out to as many processes as there are processors.
run_cases() {
    local TIMEFORMAT="%R s, %U + %S s of processor time: $1"
    time run_shares "$@"
}
run_shares() {
    local share log failures list=--list-test-names-only   # Catch2 2, whose status is then the number of cases
    if grep -q '^CATCH2_LIBS := .*Catch2' build/config.mk; then list="--list-tests --verbosity quiet"; fi   # Catch2 3
    "$@" $list 2> /dev/null | grep . > "$work/names"
    for ((share = 0; share < processors; share++)); do
        awk -v n="$processors" -v s="$share" 'NR % n == s' "$work/names" | sed 's/[,\[]/\\&/g' > "$work/names-$share"
        [ -s "$work/names-$share" ] || continue
        "$1" --input-file "$work/names-$share" > "$work/log-$share" 2>&1 || echo "$1: ended with status $?" >> "$work/log-$share" &
    done
    wait
    [ -s "$work/names" ] || echo "FAIL $1: there are no such test cases" | tee -a "$work/failed"
    for log in "$work"/log-*; do
        [ -e "$log" ] || continue
        grep -vE '^(Filters: |=*$|All tests passed)' "$log"
        sed -nE 's/^All tests passed.* in ([0-9]+) test cases?.*/\1/p; s/^test cases:.*\| +([0-9]+) passed.*/\1/p' "$log" |
            xargs -r -I{} seq {} >> "$work/passed"
        failures=$(sed -nE 's/^test cases:.*\| +([0-9]+) failed.*/\1/p' "$log")
        if grep -q 'ended with status' "$log" || ! grep -q '^All tests passed' "$log"; then seq "${failures:-1}" >> "$work/failed"; fi
        rm "$log"
    done
}

# run_scripts FILE...: as many side by side as there are processors; what each prints comes in one piece. Ctrl-C has its effect again
# where a shell started this in the background.
run_scripts() {
    export work
    printf '%s\n' "$@" | xargs -P "$processors" -I{} bash -c 'TIMEFORMAT="%R s, %U + %S s of processor time: {}"
        log=$work/$(basename {}).log
        { time env --default-signal=INT bash {} 2>&1 || echo "FAIL {}: ended with status $?"; } > "$log" 2>&1
        grep "^ok " "$log" >> "$work/passed"
        grep "^FAIL " "$log" >> "$work/failed"
        flock "$work" cat "$log"'
}

# Python packages of the scripts, and NVIDIA's disassembler where CUDA came without it: in build/python, unless python3 has them or PYTHON
# names another one. Tests without them are skipped.
install_python_packages() {
    local modules="gguf, ipykernel, jinja2, matplotlib, nbconvert, pandas, pyarrow, scipy, statsmodels, tokenizers, xxhash" folder=build/python
    local of_scripts="" of_cuda="" packages
    [ -n "${PYTHON:-}" ] || python3 -c "import $modules" 2> /dev/null || of_scripts=$(tr -d , <<< "$modules")
    [ ! -x "$nvcc" ] || [ -x "$(dirname "$(realpath "$nvcc")")/nvdisasm" ] || of_cuda=nvidia-cuda-nvdisasm
    for packages in "$of_scripts" "$of_cuda"; do   # one must not keep the tests from the other
        [ -n "$packages" ] || continue
        { [ -x $folder/bin/pip ] || python3 -m venv --clear --system-site-packages $folder; } > "$work/pip" 2>&1 &&
            $folder/bin/pip install --retries 1 --timeout 20 $packages > "$work/pip" 2>&1 ||
            echo "without the Python packages $packages: $(tail -n 1 "$work/pip")"
    done
    if [ -n "$of_scripts" ] && $folder/bin/python3 -c "import $modules" 2> /dev/null; then export PYTHON=$folder/bin/python3; fi
}

changed_variants() {
    git status --porcelain -- attention 2> /dev/null | sed -nE 's/.*(attention\/[a-z0-9_]+\.cuh)$/\1/p' | xargs -r ls 2> /dev/null |
        xargs -r basename -a -s .cuh
}

step install scripts/install.sh test
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if ! nvidia-smi -L > /dev/null 2>&1; then   # GPU code is compiled and not run: for the newest cards (make ptx is for Hopper), and
    newest=compute_80   # without slow optimisations (CUDA 13)
    if [[ $("$nvcc" --list-gpu-arch 2> /dev/null) == *compute_120* ]]; then newest=compute_120; fi
    export CUDA_ARCH=${CUDA_ARCH:--arch=$newest}
    if [[ $("$nvcc" --help 2> /dev/null) == *--Ofast-compile* ]]; then export CUDAFLAGS=${CUDAFLAGS:--Ofc=max}; fi
fi
case $what in
    all)
        step "build the programs" build all reference_qwen
        step "build the tests" build build/tests/{run_tests,faults.so} build/generate_causal build/dev/{attention_layer,logits,token_ids} \
            build/dev/bench_patterns.o
        step "build the emulated GPU" build build/emulated/{run_tests,collectives_program,train_causal,train_asga,generate_causal} \
            build/emulated/dev/{bench_constants,bench_gpu}
        step "GPU tests through nvcc" build ptx
        run_cases build/tests/run_tests
        run_cases build/emulated/run_tests
        install_python_packages
        run_scripts tests/*.sh ;;
    check)
        variants=$(printf '%s\n' causal asga $(changed_variants) | sort -u)
        step build build tokenize build/tests/run_tests build/emulated/operation_tests $(printf 'build/emulated/test_%s ' $variants)
        run_cases build/tests/run_tests "~[variant],$(printf '%s*,' $variants)"
        run_cases build/emulated/operation_tests
        for variant in $variants; do run_cases "build/emulated/test_$variant" "$variant*"; done
        run_scripts tests/arrows.sh ;;
    *)
        step build build tokenize "build/tests/test_$what" "build/emulated/test_$what"
        run_cases "build/tests/test_$what" "$what*"
        run_cases "build/emulated/test_$what" "$what*" ;;
esac
finish
