#!/usr/bin/env bash
# `make test`: installs what is missing, builds every program and the tests, runs tests/*.cpp and, on the emulator, tests/gpu/*.cpp
# (Catch2), then tests/*.sh (each prints lines `ok NAME` or `FAIL NAME: why`). The last line is `N passed, N failed`; exits 1 when
# something failed.
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

# Runs one Catch2 program and counts its test cases.
run_unit_tests() {
    "$1" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]} bad
    bad=$(cases failed)
    if grep -qE '^All tests passed' "$log"; then
        passed=$((passed + $(grep -E '^All tests passed' "$log" | grep -oE '[0-9]+ test case' | grep -oE '[0-9]+')))
    else
        passed=$((passed + $(cases passed)))
    fi
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        echo "FAIL $1: ended with status $status"
        bad=1
    fi
    failed=$((failed + bad))
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

if ! { scripts/install.sh test && make --no-print-directory -j"$(nproc)" all build/tests/run_tests \
    build/emulated/{run_tests,collectives_program,train_causal,train_asga}; }; then
    echo "FAIL build"
    failed=1
    finish
fi
run_unit_tests build/tests/run_tests
run_unit_tests build/emulated/run_tests
for script in tests/*.sh; do
    [ -e "$script" ] && run_script "$script"
done
finish
