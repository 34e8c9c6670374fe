#!/usr/bin/env bash
# attention/GALLERY.md and the table of variants in attention/README.md are what programs, sources, ledgers and dev/gpu say now;
# pictures are not drawn again, step times not measured. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3
# lacks a package (PYTHON=FILE: another). Needs: make all
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
check=("${PYTHON:-python3}" scripts/experiments/gallery.py --check)

if ! "${check[0]}" -c 'import numpy, scipy' 2> /dev/null; then
    skip "gallery: its text and the table of variants" "${check[0]} lacks numpy or scipy"
    exit
fi
expect "gallery: attention/GALLERY.md and the table of variants are what is so now" 0 "" "${check[@]}"
: > "$work/empty.jsonl"
expect "gallery: without the runs it would be another" 1 "is not what ledgers, sources and programs say; gallery.py writes it" \
    "${check[@]}" --variants causal --ledger "$work/empty.jsonl"
