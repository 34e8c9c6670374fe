#!/usr/bin/env bash
# scripts/arbiter.py where python3 has PyTorch (PYTHON=FILE: another python3): it names the errors planted in float32, finds nothing
# wrong with PyTorch's own kernels, and reads its options. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}

if ! $python -c 'import torch' 2> /dev/null; then
    skip "arbiter: kernels of others" "$python lacks torch"
    exit
fi
$python -W ignore scripts/arbiter.py SDPA --device cpu --quick --runs 2 --types float32 --write "$work/table.md" \
    > "$work/stdout" 2> "$work/stderr"
status=$?
check "arbiter: every planted error is named" '[ $status -eq 0 ] && [ "$(grep -c "| float32 .*| yes |$" "$work/table.md")" -eq 13 ]'
check "arbiter: nothing is wrong with PyTorch on the CPU" \
    '[ "$(grep -c "^| SDPA .*| float32 | 4 of 4 |.*| yes | nothing |$" "$work/stdout")" -eq 2 ]'
check "arbiter: what needs a GPU is left out" 'grep -q "left out: SDPA cuDNN: needs cuda" "$work/stdout"'
expect "arbiter: a kernel that does not exist" 2 "no kernel has triton in its name" $python scripts/arbiter.py triton
expect "arbiter: one run cannot differ" 2 "two can differ" $python scripts/arbiter.py --runs 1
