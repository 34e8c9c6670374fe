#!/usr/bin/env bash
# dev/mutations.sh takes an hour or more; that each error of its list still fits the source is seen at once.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

dev/mutations.sh --fits > "$work/fits"
check "planted errors: each fits the source and names a test" '[ "$(tail -n 1 "$work/fits")" = "every error of dev/mutations.txt fits" ]'
grep '^FAIL ' "$work/fits"
exit 0
