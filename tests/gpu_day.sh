#!/usr/bin/env bash
# dev/pack.sh and dev/gpu_day.py without a GPU: a package of programs that emulate theirs, its shortest steps in another folder, and the
# page that dev/gpu/results.py writes of them. Prints lines `ok NAME` or `FAIL NAME: why`.
# Needs: make tokenize build/emulated/run_tests build/emulated/train_causal build/emulated/generate_causal build/emulated/dev/bench_constants
. "$(dirname "$0")/checks.bash"
export OUT=$work/out   # as where only that folder's files are brought back
pack=$work/pack results=$work/results
if ! EMULATED=1 HERE=1 VARIANTS=causal dev/pack.sh "$pack" > "$work/log" 2>&1; then
    bad "gpu day: packs" "$(tail -n 1 "$work/log")"
    exit
fi
wanted="train_causal train_causal_fp32"
if has_mpi "$pack/bin/train_causal"; then wanted+=" ranks_2"; fi
gpu_day() { (cd / && "$pack/gpu_day.py" "$results" --only "^(${wanted// /|})\$") > "$work/printed" 2>&1; }
gpu_day
check "gpu day: each step ends well, and follows the CPU" '[ "$(grep -c "\"status\":0" "$results/steps.jsonl")" -eq "$(wc -w <<< "$wanted")" ] &&
    grep -qE "^[1-9][0-9]* passed, 0 failed$" "$work/printed"'
check "gpu day: float32 is within 1e-4 of the CPU" 'python3 -c "import json, sys
is_curve = lambda name: name == \"causal: float32 and the CPU, largest relative difference\"
found = [of[\"is\"] for name, of in json.load(open(sys.argv[1]))[\"curves\"].items() if is_curve(name)]
sys.exit(not (found and 0 < found[0] < 1e-4))" "$results/gpu_day.json"'
check "gpu day: three files come back" '[ "$(ls "$OUT" | tr "\n" " ")" = "gpu_day.json gpu_day.md results.tar.gz " ]'
lines=$(wc -l < "$results/steps.jsonl")
gpu_day
check "gpu day: a second call repeats nothing" '[ "$(wc -l < "$results/steps.jsonl")" -eq "$lines" ]'
if ldd "$pack/bin/train_causal" | finds libmpi; then
    check "gpu day: the package has a launcher, which uses nothing of the machine's MPI" \
        '"$pack/mpi/mpirun" --oversubscribe -np 1 sh -c "cat /proc/\$PPID/maps" > "$work/printed" 2>&1 &&
            grep -q "$pack/mpi/plugins/mca_" "$work/printed" && ! grep -E "/(mca_|libopen-)" "$work/printed" | finds -v "$pack/"'
fi
filters=$(cd "$pack" && python3 -c 'import gpu_day, shlex
for name, step in gpu_day.plan("", "").items():
    if name.startswith("tests_"): print(shlex.split(step[1])[-1])')
cases() { "$pack/bin/run_tests" --list-tests "$@" | sed -n 's/^\([0-9]*\) \(matching \)\?test cases\?$/\1/p'; }
check "gpu day: its filters of tests together fit all" '[ "$(cases)" -gt 0 ] && [ "$(cases "$(paste -sd, <<< "$filters")")" -eq "$(cases)" ]'
race=$(cd "$pack" && python3 -c 'import gpu_day, shlex; print(shlex.split(gpu_day.plan("", "")["racecheck_causal"][1])[-1])')
check "gpu day: its filter for races fits a case" '[ "$(cases "$race")" -eq 1 ]'

check "gpu results: the tree's pages are those of its results" 'dev/gpu/results.py --check'
mkdir -p "$work/tree/dev/gpu" && cp README.md "$work/tree"
export ROOT=$work/tree
expect "gpu results: a run that found no GPU is not kept" 1 "names no GPU" dev/gpu/results.py "$results"
sed -i 's/"gpu": null/"gpu": "NVIDIA Test"/' "$results/gpu_day.json"
expect "gpu results: a run is kept" 0 "" dev/gpu/results.py "$results"
check "gpu results: and stands in the table" 'grep -q "^| NVIDIA Test | not measured yet |" "$ROOT/README.md" && grep -q "^## NVIDIA Test$" "$ROOT/dev/gpu/RESULTS.md"'
