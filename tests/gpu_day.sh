#!/usr/bin/env bash
# dev/pack.sh and dev/gpu_day.sh without a GPU: the package is made of the programs that emulate theirs, and run in another folder. Needs
# build/emulated/{run_tests,train_causal,train_asga}. Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
pack=$work/pack results=$work/results
if ! EMULATED=1 BUILT=1 VARIANTS="causal asga" dev/pack.sh "$pack" > "$work/log" 2>&1; then
    bad "gpu day: packs" "$(tail -n 1 "$work/log")"
    exit
fi
ok "gpu day: packs"
gpu_day() { (cd / && "$pack/gpu_day.sh" "$results") > "$work/said" 2>&1; }
status_of() { sed -n "s/.*\"step\":\"$1\",\"status\":\([0-9]*\),.*/\1/p" "$results/steps.jsonl"; }

ONLY=train_ gpu_day
check "gpu day: trains four times" '[ "$(grep -c "\"status\":0" "$results/steps.jsonl")" -eq 4 ]'
ONLY=conformance SECONDS_ALLOWED=60 gpu_day
check "gpu day: runs the conformance test" '[ "$(status_of tests_conformance)" = 0 ]'
ONLY=ladder gpu_day
check "gpu day: what fails stops nothing" '[ "$(status_of ladder)" = 127 ] && [ -s "$results/gpu_day.md" ]'
lines=$(wc -l < "$results/steps.jsonl")
ONLY=train_ gpu_day
check "gpu day: a second call repeats nothing" '[ "$(wc -l < "$results/steps.jsonl")" -eq "$lines" ]'
SECONDS_ALLOWED=0 gpu_day
check "gpu day: says what was not reached" 'grep -q "^not reached: machine tests_operations" "$work/said"'
summary() { # summary EXPRESSION: of gpu_day.json, as d
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$results/gpu_day.json" "$1"
}
check "gpu day: the summary compares with the CPU" 'summary "0 < d[\"curves\"][\"causal_fp32: farthest from the CPU, relative\"] < 1e-4"'
check "gpu day: and tells whether bits repeat" 'summary "d[\"curves\"][\"causal: the same command twice gives the same weights\"] is True"'
check "gpu day: and names no speed that was not measured" 'summary "d[\"tables\"] == {} and d[\"paired\"] == {}"'
expect "gpu day: a folder that is no package" 2 "dev/pack.sh makes such a folder" env PACK="$work" dev/gpu_day.sh "$work/none"
