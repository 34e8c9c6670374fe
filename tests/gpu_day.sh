#!/usr/bin/env bash
# dev/pack.sh and dev/gpu_day.sh without a GPU: the package is made of the programs that emulate theirs, and run in another folder.
# Needs: make tokenize build/emulated/run_tests build/emulated/train_causal build/emulated/train_asga build/emulated/generate_causal build/emulated/dev/bench_constants
# Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
pack=$work/pack results=$work/results
export OUT=$work/out   # as where only that folder's files are brought back
if ! EMULATED=1 VARIANTS="causal asga" dev/pack.sh "$pack" > "$work/log" 2>&1; then
    bad "gpu day: packs" "$(tail -n 1 "$work/log")"
    exit
fi
ok "gpu day: packs"
gpu_day() { (cd / && "$pack/gpu_day.sh" "$results") > "$work/said" 2>&1; }
status_of() { sed -n "s/.*\"step\":\"$1\",\"status\":\([0-9]*\),.*/\1/p" "$results/steps.jsonl"; }

ONLY=train_ gpu_day
check "gpu day: trains five times" '[ "$(grep -c "\"status\":0" "$results/steps.jsonl")" -eq 5 ]'
ONLY=conformance SECONDS_ALLOWED=60 gpu_day
check "gpu day: runs the conformance test, and says what its last words are" \
    '[ "$(status_of tests_conformance)" = 0 ] && grep -q "tests_conformance .*All tests passed" "$work/said"'
sed -i 's/ model on the GPU:\*/ model on the GPU: bf16*/g' "$pack/gpu_day.sh"   # all of them take half a minute here
ONLY=tests_models gpu_day
check "gpu day: runs tests of the models of causal and asga" \
    '[ "$(status_of tests_models)" = 0 ] && grep -q "in 2 test cases" "$results/tests_models.txt"'
ONLY=ladder gpu_day
check "gpu day: a program that is not there is neither passed nor failed" \
    'grep -q "ladder  *skipped: no bin/ladder" "$work/said" && grep -q "^| ladder | skipped: no bin/ladder |" "$results/gpu_day.md"'
lines=$(wc -l < "$results/steps.jsonl")
ONLY=train_ gpu_day
check "gpu day: a second call repeats nothing" '[ "$(wc -l < "$results/steps.jsonl")" -eq "$lines" ]'
SECONDS_ALLOWED=0 gpu_day
check "gpu day: says what was not reached" 'grep -q "^not reached: machine constants tests_operations" "$work/said"'
filters=$(sed -n 's/^tests [a-z_]* [0-9]* "\(.*\)"$/\1/p' dev/gpu_day.sh)
cases() { "$pack/bin/run_tests" --list-tests "$@" | sed -n 's/^\([0-9]*\) \(matching \)\?test cases\?$/\1/p'; }
fewest() { while read -r filter; do cases "$filter"; done <<< "$filters" | sort -n | head -n 1; }
check "gpu day: every filter of tests fits some, and together they fit all" \
    '[ "$(fewest)" -gt 0 ] && [ "$(cases "$(paste -sd, <<< "$filters")")" -eq "$(cases)" ]'
raced=$(sed -n 's/^ *bin\/run_tests "\$1 \(.*\)"$/\1/p' dev/gpu_day.sh)
check "gpu day: and what races are looked for in is a test" '[ -n "$raced" ] && [ "$(cases "causal $raced")" -gt 0 ]'
summary() { # summary EXPRESSION: of gpu_day.json, as d
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$results/gpu_day.json" "$1"
}
check "gpu day: the summary compares with the CPU" \
    'summary "0 < d[\"curves\"][\"causal: float32 and the CPU, largest relative difference\"][\"is\"] < 1e-4"'
check "gpu day: and tells whether bits repeat" 'summary "d[\"curves\"][\"causal: the same command gives the same weights\"][\"is\"] is True"'
check "gpu day: ends with a count of steps and curves" 'grep -q "^12 passed, 0 failed$" "$work/said"'
cp "$pack/cpu/causal/log.jsonl" "$work/log.jsonl"
sed -i 's/"loss":5/"loss":6/' "$pack/cpu/causal/log.jsonl"
ONLY=none gpu_day
check "gpu day: a curve that is not the CPU's fails" 'grep -q "^10 passed, 2 failed" "$work/said" && grep -q "^- FAILED: causal: bf16" "$results/gpu_day.md"'
cp "$work/log.jsonl" "$pack/cpu/causal/log.jsonl"
check "gpu day: and names no speed that was not measured" 'summary "d[\"tables\"] == {} and d[\"paired\"] == {}"'
ONLY=checkpoint_causal gpu_day
ONLY=write_causal_8 gpu_day
check "gpu day: writes text from a checkpoint" '[ "$(status_of checkpoint_causal)" = 0 ] && [ "$(status_of write_causal_8)" = 0 ] && grep -q "write_causal_8 .*kept of the text" "$work/said"'
ONLY=speed_ gpu_day
check "gpu day: times whole steps of every variant, and what is written" \
    'summary "d[\"whole_steps\"].keys() == {\"asga\", \"causal\"} and d[\"writing\"][\"causal\"][\"8\"] > 0"'
cp "$results/steps.jsonl" "$work/steps.jsonl"
sed -i 's/{"step":"\(speed_asga\|write_causal_8\)","status":0/{"step":"\1","status":124/' "$results/steps.jsonl"
ONLY=none gpu_day
check "gpu day: steps that were cut short give no speed" 'summary "d[\"whole_steps\"].keys() == {\"causal\"} and d[\"writing\"] == {}"'
cp "$work/steps.jsonl" "$results"
of_ranks=0   # what they add to the count
if has_mpi "$pack/bin/train_causal"; then
    of_ranks=2
    ONLY=ranks_2 gpu_day
    check "gpu day: two ranks do the steps of one" \
        '[ "$(status_of ranks_2)" = 0 ] && summary "0 <= d[\"curves\"][\"causal: two ranks and one, bf16, largest relative difference\"][\"is\"] < 1e-2"'
fi
ONLY='(' gpu_day
status=$?
check "gpu day: a pattern that is none" '[ $status -eq 2 ] && grep -q "is no regular expression" "$work/said"'
ONLY='^constants$' gpu_day
check "gpu day: measures what predictions stand on" '[ "$(status_of constants)" = 0 ] && summary "len(d[\"tables\"][\"constants\"]) == 13"'

# What comes back is one archive and the summary, after every step: a program stands in for bench_gpu that looks into the archive.
other() { (cd / && OUT=$work/out-2 "$pack/gpu_day.sh" "$work/${1:-results-2}") > "$work/said" 2>&1; }
check "gpu day: three files come back" '[ "$(ls "$OUT" | tr "\n" " ")" = "gpu_day.json gpu_day.md results.tar.gz " ]'
cat > "$pack/bin/bench_gpu" << 'END'
#!/bin/sh
tar xzOf "$OUT/results.tar.gz" ./steps.jsonl 2> /dev/null | grep -c bench_ | sed 's/^/steps before: /'
END
chmod +x "$pack/bin/bench_gpu"
ONLY=bench_ other
check "gpu day: all that is known so far comes back after every step" \
    'grep -q "bench_attention .* before: 0" "$work/said" && grep -q "bench_steps .* before: 1" "$work/said"'
mv "$work/out-2/results.tar.gz" "$pack/before.tar.gz"
ONLY=bench_ other results-3
check "gpu day: the archive tells a second machine what has been done" '! grep -q "before:" "$work/said" && grep -q "^2 passed, 0 failed$" "$work/said"'
echo another > "$work/results-3/COMMIT"
expect "gpu day: results of another commit are not gone on with" 2 "is of commit another" "$pack/gpu_day.sh" "$work/results-3"
expect "gpu day: results lie outside of what comes back" 2 "name a folder outside" "$pack/gpu_day.sh" "$OUT/results"
rm "$pack/before.tar.gz" "$pack/bin/bench_gpu"

# Steps that run nothing, and one that no SIGTERM ends.
mkdir "$work/tools"
printf '%s\n' '#!/bin/sh' 'echo "==WARNING== No kernels were profiled."' > "$work/tools/ncu"
printf '%s\n' '#!/bin/bash' 'trap "" TERM' 'while :; do sleep 1; done' > "$pack/bin/ladder"
chmod +x "$work/tools/ncu" "$pack/bin/ladder"
touch "$pack/bin/bench_gpu"
sed -i 's/"\[conformance\]"/"[no such tag]"/' "$pack/gpu_day.sh"
ONLY=tests_conformance other
check "gpu day: a filter that fits no test fails" 'grep -q "tests_conformance .*status   [1-9]" "$work/said"'
PATH="$work/tools:$PATH" ONLY=profile_ other
check "gpu day: a profile of nothing fails" 'grep -q "profile_64 .*status   2.*no line of this says" "$work/said" && grep -q "^6 passed, 3 failed" "$work/said"'
SECONDS_ALLOWED=6 ONLY=ladder other
check "gpu day: what the end of the day cuts short has not failed" 'grep -q "^not reached: ladder$" "$work/said" && grep -q "^6 passed, 3 failed" "$work/said"'
rm "$pack/bin/ladder" "$pack/bin/bench_gpu"

# Libraries: MPI's are in the package, and what is missing everywhere is said before anything runs.
if grep -q libmpi <(ldd build/emulated/train_causal); then
    check "gpu day: the package has a launcher, which uses nothing of the machine's MPI" \
        '"$pack/mpi/mpirun" --oversubscribe -np 1 sh -c "cat /proc/\$PPID/maps" > "$work/said" 2>&1 &&
            grep -q "$pack/mpi/plugins/mca_" "$work/said" && ! grep -E "/(mca_|libopen-)" "$work/said" | grep -qv "$pack/"'
fi
echo 'int there() { return 0; }' | c++ -x c++ - -shared -fPIC -o "$work/libnowhere.so"
echo 'int there(); int main() { return there(); }' |
    c++ -x c++ - -o "$pack/bin/needy" -L"$work" -lnowhere -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../lib'
expect "gpu day: a library that is missing is named before anything runs" 2 "libnowhere.so => not found" "$pack/gpu_day.sh" "$work/none"
rm "$pack/bin/needy"

# Speeds, from what bench_gpu prints, go into the tables of RESULTS.md and README.md, and from nowhere else.
check "gpu day: the tree's tables are those of its results" 'dev/gpu/results.py --check'
mkdir -p "$work/tree/dev/gpu" && cp README.md "$work/tree"
cat > "$results/bench_steps.txt" << 'END'
| variant         |       a step | +/-   |  tokens/s | TFLOP/s | matmul |     memory |    products |   attention |        rest |       |
|---|---|---|---|---|---|---|---|---|---|---|
| causal          |   512.000 ms |  0.1% |    123456 |   100.5 |  10.0% |    9.1 GiB |  100.000 ms |   10.000 ms |   10.000 ms | 10.0% |
| asga            |  1024.000 ms |  0.1% |     61728
END
cat > "$results/bench_attention.txt" << 'END'
| attention       |     T |  HS |  B | NH |     forward | +/-   | TFLOP/s | matmul |    backward | +/-   | TFLOP/s | matmul |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
| causal          |  8192 |  64 |  4 | 12 |    1.000 ms |  0.1% |   271.3 |  10.0% |    2.000 ms |  0.1% |   199.9 |  10.0% |
END
mkdir "$results/runs/memory" "$results/runs/paired_causal"
printf '%s\n' '{"step":1,"tok_s":100.5,"loss":2,"grad_norm":1}' '{"step":2,"tok_s":300,"loss":2,"grad_norm":1}' '{"step":2,"val_loss":1.25}' \
    '{"event":"done","step":2,"val_loss":null}' > "$results/runs/paired_causal/log.jsonl"
echo '| predicted peak per rank | 1.00 GiB |' > "$results/memory_predicted.txt"
for peak in 1100000000 1200000000; do   # 2.4 and 11.8% more
    echo "{\"peak_bytes\": $peak}" > "$results/runs/memory/log.jsonl"
    python3 dev/gpu_day.py "$results" "$pack" > "$work/said-$peak"
done
check "gpu day: memory is held against the prediction" \
    'grep -q "^$((18 + of_ranks)) passed, 0 failed" "$work/said-1100000000" && grep -q "^$((17 + of_ranks)) passed, 1 failed" "$work/said-1200000000"'
check "gpu day: a paired run has a loss and a speed" 'grep -q "^| causal | 2 | 1.2500 | 300 |" "$results/gpu_day.md"'
export ROOT=$work/tree
expect "gpu results: a run that found no GPU is not kept" 1 "names no GPU" dev/gpu/results.py "$results"
sed -i 's/"gpu": null/"gpu": "NVIDIA Test"/' "$results/gpu_day.json"
check "gpu results: a run is kept" 'dev/gpu/results.py "$results" | grep -q "/tree/dev/gpu/NVIDIA_Test.json"'
check "gpu results: README.md has its figures, and says what is missing" \
    'grep -q "^| NVIDIA Test | 123,456 | not measured yet | 271, 200 | not measured yet, not measured yet | " "$work/tree/README.md"'
sed -i 's/123,456/234,567/' "$work/tree/README.md"
expect "gpu results: a figure that nobody measured is found" 1 "README.md differs from the files" dev/gpu/results.py --check
unset ROOT
expect "gpu day: a folder that is no package" 2 "dev/pack.sh makes such a folder" env PACK="$work" dev/gpu_day.sh "$work/none"
