#!/usr/bin/env bash
# A sample of dev/faults.py: calls that fail and kills in every scenario, a save that is longer than the watchdog's time, kills at
# random moments. Prints `ok NAME` or `FAIL NAME: why`; takes about a minute. Needs ./train_causal, ./tokenize,
# build/generate_causal and build/tests/faults.so.
. "$(dirname "$0")/checks.bash"
parts=("--quick")
if has_mpi ./train_causal; then parts+=("--slow-save 11" "--kills 3"); else skip "faults: two ranks" "no MPI"; fi
for part in "${parts[@]}"; do
    # shellcheck disable=SC2086  # words are what is wanted
    "$python" dev/faults.py $part > "$work/out" 2>&1
    status=$?
    grep -E '^(ok|FAIL|skip) ' "$work/out"
    if [ $status -ne 0 ] && ! grep -q '^FAIL ' "$work/out"; then bad "dev/faults.py $part" "$(tail -n 1 "$work/out")"; fi
done
