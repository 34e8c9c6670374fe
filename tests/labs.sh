#!/usr/bin/env bash
# The labs of dev/labs (tests/check_labs.py). Builds nothing in build/; what it needs and is not there, it builds in a folder of out/.
# Needs: make tokenize build/dev/token_ids build/tests/test_data.o build/tests/main.o build/engine.a
. "$(dirname "$0")/checks.bash"
mkdir -p out
labs=$(mktemp -d out/tested_labs.XXXX) || exit
trap 'rm -rf "$labs"; cleanup' EXIT
"$python" tests/check_labs.py "$labs" 2> "$work/stderr" || bad "tests/check_labs.py" "$(tail -n 1 "$work/stderr")"
