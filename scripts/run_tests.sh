#!/usr/bin/env bash
# `make test`: installs what is missing (Python packages in build/python), builds every program and the tests, runs tests/*.cpp and,
# on the emulator, tests/gpu/*.cpp (Catch2), then tests/*.sh (each prints lines `ok NAME` or `FAIL NAME: why`). The last line is
# `N passed, N failed`; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export OMP_WAIT_POLICY=passive   # the tests have many tiny parallel regions, which spinning threads slow down on a busy machine
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

# The first number before the word in Catch2's summary line; 0 when it has none.
cases() { grep -E '^test cases: ' "$log" | tail -n 1 | grep -oE "[0-9]+ $1( \\||$)" | grep -oE '[0-9]+' | head -n 1 || echo 0; }

# Counts the test cases of a Catch2 program that ended with a status and left its output in $log.
count_cases() {
    local program=$1 status=$2 bad
    bad=$(cases failed)
    if grep -qE '^All tests passed' "$log"; then
        passed=$((passed + $(grep -E '^All tests passed' "$log" | grep -oE '[0-9]+ test case' | grep -oE '[0-9]+')))
    else
        passed=$((passed + $(cases passed)))
    fi
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        echo "FAIL $program: ended with status $status"
        bad=1
    fi
    failed=$((failed + bad))
}

run_unit_tests() {
    "$1" 2>&1 | tee "$log"
    count_cases "$1" "${PIPESTATUS[0]}"
}

# Two halves of a long program side by side, by the letters that the tests' names begin with.
run_unit_tests_in_halves() {
    local first='a*,b*,c*,d*,f*,l*' rest='e*,g*,h*,i*,j*,k*,m*,n*,o*,p*,q*,r*,s*,t*,u*,v*,w*,x*,y*,z*' other half all
    tests() { "$1" --list-test-names-only "${@:2}" | grep -c .; }
    all=$(tests "$1")
    if [ $(($(tests "$1" "$first") + $(tests "$1" "$rest"))) -ne "$all" ]; then
        echo "FAIL $1: a test's name begins with no letter; scripts/run_tests.sh does not run it"
        failed=$((failed + 1))
    fi
    other=$(mktemp)
    "$1" "$rest" > "$other" 2>&1 &
    half=$!
    "$1" "$first" 2>&1 | tee "$log"
    count_cases "$1" "${PIPESTATUS[0]}"
    wait "$half"
    local status=$?
    tee "$log" < "$other"
    rm -f "$other"
    count_cases "$1" "$status"
}

run_script() {
    bash "$1" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]} bad
    bad=$(grep -c '^FAIL ' "$log")
    passed=$((passed + $(grep -c '^ok ' "$log")))
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        echo "FAIL $1: ended with status $status"
        bad=1
    fi
    failed=$((failed + bad))
}

# The packages that some scripts stand on, in an environment of their own in build/, unless python3 has them or PYTHON says which one
# to take. Where they cannot be had, the tests of those scripts say so and are skipped.
install_python_packages() {
    local packages="pyarrow rouge-score sacrebleu tokenizers" folder=build/python
    has_all() { "$1" -c 'import pyarrow, rouge_score, sacrebleu, tokenizers' 2> /dev/null; }
    if [ -n "${PYTHON:-}" ] || has_all python3; then return; fi
    if has_all $folder/bin/python3 || { python3 -m venv --clear --system-site-packages $folder &&
        $folder/bin/pip install --retries 1 --timeout 20 $packages; } > "$log" 2>&1; then
        export PYTHON=$folder/bin/python3
    else
        echo "without the Python packages $packages: $(tail -n 1 "$log")"
    fi
}

if ! { scripts/install.sh test && make --no-print-directory -j"$(nproc)" all build/tests/run_tests \
    build/emulated/{run_tests,collectives_program,train_causal,train_asga} build/dev/token_ids; }; then
    echo "FAIL build"
    failed=1
    finish
fi
install_python_packages
run_unit_tests build/tests/run_tests
run_unit_tests_in_halves build/emulated/run_tests
for script in tests/*.sh; do
    [ -e "$script" ] && run_script "$script"
done
finish
