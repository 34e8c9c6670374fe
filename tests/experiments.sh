#!/usr/bin/env bash
# scripts/experiments: statistics, ledger, plans, tasks and writing (tests/check_experiments.py, check_phases.py, check_tasks.py,
# check_cache.py, check_report.py), bad input, all experiments really run at scale smoke, some killed and resumed, and their report; compare.py, turns.py
# and scripts/variant_table.py.
# Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3 lacks a package (PYTHON=FILE: another).
# Takes about two minutes.
# Needs: make all
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}
here=scripts/experiments
run=($python $here/run.py --no-build --cpu)

# ---- without packages
mkdir "$work/without"
for package in numpy scipy matplotlib jinja2; do echo 'raise ImportError' > "$work/without/$package.py"; done
PYTHONPATH=$work/without expect "experiments: without scipy" 2 "pip install numpy scipy matplotlib jinja2" \
    $python $here/report.py --ledger "$work/none.jsonl" --out "$work/report"

# ---- bad input
expect "experiments: an experiment that does not exist" 2 "unknown experiment e99; there are: e1_asga, e2_dsa" "${run[@]}" e99
expect "experiments: a scale that does not exist" 2 "unknown scale huge; there are: smoke, reduced, medium, paper" \
    "${run[@]}" e2_dsa --scale huge
expect "experiments: an arm that does not exist" 2 "unknown arm flash; there are: causal, dsa" "${run[@]}" e2_dsa --arms flash
expect "experiments: labelled examples that are not there" 3 "has no digits.csv.gz; give a folder that has it with --data" \
    "${run[@]}" e12_tasks --arms dsa --seeds 1 --out "$work/a"
expect "experiments: a second phase before the first" 2 "1 runs whose weights later ones start from are not finished" \
    "${run[@]}" e8_streaming --scale smoke --arms window_after --out "$work/a" --stage phase2 --run 0
expect "experiments: a text that is not there" 3 "give the folder with --data FOLDER" \
    "${run[@]}" e2_dsa --scale medium --arms dsa --out "$work/a"
expect "experiments: all of them, none of which has its text" 3 "e5_isoflop: not run. e5_isoflop at scale medium reads the text" \
    "${run[@]}" all --scale medium --seeds 0 --out "$work/a"
expect "experiments: a trainer that is not there" 2 "make train_causal builds it" \
    "${run[@]}" e2_dsa --scale smoke --programs "$work" --out "$work/a"
expect "experiments: a ledger that cannot be written" 3 "give another --ledger" \
    "${run[@]}" e2_dsa --scale smoke --arms dsa --out "$work/a" --ledger /dev/null/x
mkdir "$work/other" && printf '#!/bin/sh\necho "train_causal: error: unknown option --window" >&2\nexit 2\n' > "$work/other/train_causal"
chmod +x "$work/other/train_causal"
expect "experiments: a trainer that does not take the plan's options" 2 \
    "e2_dsa, arm causal at scale reduced: train_causal cannot be run as planned: train_causal: error: unknown option --window" \
    "${run[@]}" e2_dsa --programs "$work/other" --out "$work/a"
for scale in reduced medium paper; do
    expect "experiments: every plan at scale $scale has its hours, and options that the trainers take" 0 "" \
        "${run[@]}" all --scale $scale --dry-run --out "$work/planned"
done
check "experiments: and says where they come from" \
    'grep -q "0 runs measured, .* estimated (" "$work/stdout" && grep -q "^together: [0-9]* runs" "$work/stdout"'
stage=("${run[@]}" e2_dsa --scale smoke --stage sweep --dry-run --out "$work/planned")
expect "experiments: a stage alone, planned" 0 "" "${stage[@]}"
check "experiments: is the only one that counts" \
    '[ "$(grep -cE "^   [a-z0-9]+: [0-9]+ runs, " "$work/stdout")" -eq 1 ] && grep -q "^   sweep: 12 runs" "$work/stdout" &&
        grep -q "^together: 12 runs" "$work/stdout"'
expect "experiments: a run that the stage does not have, planned" 2 "--run 1000: stage sweep has runs 0 to 11" "${stage[@]}" --run 1000
check "experiments: planning leaves no ledger" '[ -d "$work/planned" ] && [ ! -e "$work/planned/ledger.jsonl" ]'
expect "experiments: a plan on a full disk" 3 "standard output: No space left" bash -c '"$@" > /dev/full' - "${stage[@]}"
expect "experiments: a plan of which one line is read" 0 "" bash -c '{ "$@" || [ $? -eq 1 ]; } | head -1' - "${stage[@]}"
check "experiments: says nothing else" '[ ! -s "$work/stderr" ]'
check "experiments: make has the names of the contract" 'make -n experiments SCALE=smoke ONLY=e2_dsa 2>&1 | tr -s "\\\\\n " " " |
    grep -q "run.py e2_dsa --scale smoke --out out/experiments .*report.py --ledger out/experiments/ledger.jsonl --out out/experiments --scale smoke e2_dsa"'
expect "experiments: scripts for Slurm" 0 "" "${run[@]}" e2_dsa --scale paper --slurm --out "$work/a"
check "experiments: an array element for every run" \
    'grep -q "^#SBATCH --array=0-65$" "$work/a/slurm/e2_dsa_paper_seeds.sbatch" &&
        bash -n "$work/a/slurm/e2_dsa_paper_seeds.sbatch"'
expect "experiments: of one stage" 0 "" "${run[@]}" e2_dsa --scale paper --slurm --stage sweep --out "$work/one"
check "alone" '[ "$(ls "$work/one/slurm")" = e2_dsa_paper_sweep.sbatch ]'
expect "experiments: a stage before the one that it stands on" 2 "4 runs that are not finished" \
    "${run[@]}" e2_dsa --scale smoke --arms dsa --out "$work/a" --stage seeds --run 0

if ! $python -c 'import numpy, scipy, matplotlib, jinja2, xxhash' 2> /dev/null; then
    skip "experiments: statistics, tasks and report" "$python lacks numpy, scipy, matplotlib, jinja2 or xxhash"
else
    $python tests/check_experiments.py 2> "$work/stderr" || bad "check_experiments.py" "$(tail -n 1 "$work/stderr")"
    $python tests/check_phases.py 2> "$work/stderr" || bad "check_phases.py" "$(tail -n 1 "$work/stderr")"
    $python tests/check_tasks.py 2> "$work/stderr" || bad "check_tasks.py" "$(tail -n 1 "$work/stderr")"
    $python tests/check_report.py 2> "$work/stderr" || bad "check_report.py" "$(tail -n 1 "$work/stderr")"
    $python tests/check_cache.py 2> "$work/stderr" || bad "check_cache.py" "$(tail -n 1 "$work/stderr")"
fi

# ---- real runs
# results FOLDER: what the ledger there says came out, without times.
results() {
    $python - "$1/ledger.jsonl" << 'END'
import sys
sys.path.insert(0, 'scripts/experiments')
from ledger import Ledger
print('\n'.join(sorted(f'{r["key"]} {r["arm"]} {r["seed"]} {r["val_loss"]} {r["weights_hash"]} {r["steps"]}'
                       for r in Ledger(sys.argv[1]).records if r["event"] == "done")))
END
}
begun=$EPOCHREALTIME
expect "experiments: all of them at scale smoke" 0 "" "${run[@]}" all --scale smoke --out "$work/all"
echo "all experiments at scale smoke: $(((${EPOCHREALTIME/[.,]/} - ${begun/[.,]/}) / 1000000)) s"
cp "$work/stdout" "$work/all.txt"
check "experiments: rates, then seeds" 'grep -q "causal: best at" "$work/all.txt" && ! grep -q "not run" "$work/all.txt"'
check "experiments: every line of a finished run has the contract's fields, flat" '$python - "$work/all/ledger.jsonl" << END
import json, sys
ended = [r for r in map(json.loads, open(sys.argv[1])) if r["event"] in ("done", "diverged", "failed")]
fields = ("experiment arm variant seed scale status steps tokens lr val_loss bits_per_byte seconds flops weights_hash commit dirty "
          "machine data_hash command date").split()
lacking = [(r["key"], f) for r in ended for f in fields if f not in r or (r["kind"] == "train" and r[f] is None and f != "bits_per_byte")]
sys.exit(f"{lacking[:3]}" if lacking or len(ended) < 100 else 0)
END'
smoke=(--scale smoke --arms dsa)
cp "$work/all/ledger.jsonl" "$work/before.jsonl"
expect "experiments: one of them once more" 0 "" "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/all"
check "experiments: repeats nothing" 'cmp -s "$work/before.jsonl" "$work/all/ledger.jsonl"'
sed -i '$ s/.\{20\}$//' "$work/all/ledger.jsonl"
expect "experiments: with a line that was cut in half" 0 "is cut short or no record, and passed over; run.py repeats its run" \
    "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/all"
expect "experiments: the run of that line is repeated" 0 "" "${run[@]}" e13_budget --scale smoke --out "$work/all"
results "$work/all" 2> /dev/null > "$work/whole"
check "experiments: to the same result" \
    '[ "$(grep -c "\"event\":\"done\"" "$work/before.jsonl")" -eq "$(sort -u "$work/whole" | wc -l)" ]'
# same_as_whole FOLDER COUNT: whether so many runs there ended as they did among all.
same_as_whole() { results "$1" > "$work/some" && [ "$(wc -l < "$work/some")" -eq "$2" ] && ! grep -qvxFf "$work/whole" "$work/some"; }

# Killed at random, run.py with its trainers or alone, and started again; then two at once.
for with in trainers trainers nothing nothing; do
    "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/killed" > /dev/null 2>&1 &
    sleep "0.$((RANDOM % 7 + 3))"
    if [ $with = trainers ]; then kill -9 $! $(pgrep -P $!) 2> /dev/null; else kill -9 $!; fi
    wait $! 2> /dev/null
done
"${run[@]}" e2_dsa "${smoke[@]}" --out "$work/killed" > "$work/first" 2>&1 & first=$!
expect "experiments: a second run.py beside the first" 0 "" "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/killed"
wait $first; status=$?
check "experiments: the first ends as well" '[ $status -eq 0 ]'
check "experiments: killed, resumed and done by two, the ledger has the same results" \
    'same_as_whole "$work/killed" 8'

# Runs that start from the weights of others: a causal model read through a window.
stream=(e8_streaming --scale smoke --arms window_after)
expect "experiments: a second phase" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
$python - "$work/phases/ledger.jsonl" > "$work/phases.txt" << 'END'
import json, sys
runs = {(r["arm"], r["setting"]): r for r in map(json.loads, open(sys.argv[1])) if r["event"] == "done"}
loss = {name: run["val_loss"] for name, run in runs.items()}
print(abs(loss["causal", "after"] - loss["causal", "trained"]) < 2e-6, loss["window_after", "after"] != loss["causal", "after"],
      runs["window_after", "after"]["origin"] == runs["causal", "trained"]["key"])
END
check "experiments: reads the weights of the first, densely with the loss that training found, through a window with another" \
    '[ "$(cat "$work/phases.txt")" = "True True True" ]'
results "$work/phases" > "$work/phases.whole"
cp "$work/phases/ledger.jsonl" "$work/phases.jsonl"
expect "experiments: both phases once more" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
check "experiments: repeat nothing" 'cmp -s "$work/phases.jsonl" "$work/phases/ledger.jsonl"'
rm -r "$work"/phases/runs/*/step_*
grep -v '"stage":"phase2"' "$work/phases.jsonl" > "$work/phases/ledger.jsonl"
expect "experiments: without the weights of the first phase" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
check "experiments: they are made again, the same, and the results too" \
    '[ "$(results "$work/phases")" = "$(cat "$work/phases.whole")" ] && ! grep -q "other weights" "$work/stdout" &&
        [ "$(grep -c "\"event\":\"again\"" "$work/phases/ledger.jsonl")" -eq 1 ]'
grep -v '"stage":"phase2"' "$work/phases.jsonl" | sed 's/"done"/"diverged"/g' > "$work/phases/ledger.jsonl"
expect "experiments: after a first run that diverged" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
check "experiments: the second counts as diverged, and says why" \
    '[ "$(grep -c "\"event\":\"diverged\".*the run that it starts from diverged" "$work/phases/ledger.jsonl")" -eq 4 ]'
"${run[@]}" "${stream[@]}" --out "$work/phases_killed" > /dev/null 2>&1 &
sleep "0.$((RANDOM % 7 + 3))"
kill -9 $! $(pgrep -P $!) 2> /dev/null
wait $! 2> /dev/null
expect "experiments: two phases, killed and started again" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases_killed"
check "experiments: end at the same ledger" '[ "$(results "$work/phases_killed")" = "$(cat "$work/phases.whole")" ]'

# Step times by turns, with the machine to themselves.
mkdir -p "$work/turns/locks"
flock -s "$work/turns/locks/machine-here.lock" sleep 2 & company=$!
"${run[@]}" e4_speed --scale smoke --arms dsa --machine here --out "$work/turns" > "$work/first" 2>&1 & first=$!
sleep 1.2
check "experiments: what is timed waits for company to leave" '! grep -qs "\"event\":\"start\"" "$work/turns/ledger.jsonl"'
wait $company
wait $first; status=$?
timed='"event":"done".*"peak_bytes":[1-9].*"ratio":[0-9]'
check "experiments: then every round of every arm has its ratio and peak memory" \
    '[ $status -eq 0 ] && [ "$(grep -c "$timed" "$work/turns/ledger.jsonl")" -eq 8 ]'
expect "experiments: two programs by turns" 0 "" $python $here/turns.py --rounds 1 ./train_causal './train_dsa --window 8' -- \
    --model qwen-tiny --seq-len 64
check "experiments: the second against the first" \
    'grep -qE "^./train_dsa --window 8 [0-9.]+ ms, ./train_causal [0-9.]+ ms: [0-9.]+, from" "$work/stdout"'
expect "experiments: a program that fails in its turn" 1 "./train_causal --model nothing: ended with code" \
    $python $here/turns.py ./train_causal ./train_dsa -- --model nothing
expect "experiments: rows of the table of variants" 0 "" $python scripts/variant_table.py --print --variants causal dsa --time \
    --rounds 1 --model qwen-tiny --seq-len 64
check "experiments: with a step time against causal" \
    'grep -qE "^\| train_causal \|.*\| 1.00 \|$" "$work/stdout" && grep -qE "^\| train_dsa \|.*\| [0-9.]+ \|$" "$work/stdout"'
expect "experiments: the gallery of variants" 0 "" $python $here/gallery.py --print --variants dsa sliding_window \
    --ledger "$work/killed/ledger.jsonl"
check "experiments: has their cost, their text and their runs" \
    'grep -qE "^.\./train_dsa --window 96 --dense-until 192., [0-9,]+ parameters .* [0-9.]+% of the pairs" "$work/stdout" &&
        grep -q "^Dynamic Sparse Attention (aardXiv 2510.00061" "$work/stdout" && grep -q "^- no run so far" "$work/stdout" &&
        grep -qE "^- e2_dsa, scale smoke.*: [+-][0-9.]+ .* nats against causal, [0-9] pairs" "$work/stdout"'
expect "experiments: the gallery of a variant that does not exist" 2 "there is no attention/flash.cuh" \
    $python $here/gallery.py --print --variants flash

check "experiments: labelled examples have accuracy and F1" \
    '[ "$(grep -c "\"e12_tasks\".*\"accuracy\":{\"items\":[01].*\"macro_f1\":{\"items\"" "$work/before.jsonl")" -eq 2 ]'

# with_options NAME OPTION...: programs in $work/NAME that have these options behind those of a plan.
with_options() {
    local folder=$work/$1
    mkdir "$folder"
    printf '#!/bin/bash\nexec %q "$@" %s\n' "$PWD/train_causal" "${*:2}" > "$folder/train_causal"
    cp "$folder/train_causal" "$folder/train_dsa" && chmod +x "$folder"/*
}
one=(e2_dsa "${smoke[@]}" --stage sweep --run 0)

# A kill and Ctrl-C in a run that is long enough to be met: this trainer takes more steps than it is asked for.
with_options long --steps 1500 --warmup-steps 1 --val-every 1500 --checkpoint-every 300
long=("${run[@]}" "${one[@]}" --programs "$work/long")
"${long[@]}" --out "$work/stopped" > "$work/stdout" 2>&1 & first=$!
for _ in $(seq 200); do ls "$work"/stopped/runs/*/step_*00/manifest.json > /dev/null 2>&1 && break; sleep 0.05; done
kill -9 $first $(pgrep -P $first)
wait $first 2> /dev/null
saved=$(basename "$(ls -d "$work"/stopped/runs/*/step_*00 | tail -n 1)" | grep -oE '[1-9][0-9]*$')
goes_on="\"event\":\"config\",\"step\":${saved:-none},"
"${long[@]}" --out "$work/stopped" > "$work/stdout" 2>&1 & first=$!
for _ in $(seq 200); do grep -qs "$goes_on" "$work"/stopped/runs/*/log.jsonl && break; sleep 0.05; done
check "experiments: a run that was killed goes on from its last checkpoint" \
    'grep -q "$goes_on" "$work"/stopped/runs/*/log.jsonl && [ "$saved" -ge 300 ]'
kill -INT $first
wait $first; status=$?
check "experiments: Ctrl-C ends with 75" '[ $status -eq 75 ]'
check "experiments: a checkpoint was saved, and the ledger has its step" \
    'grep -q "\"event\":\"stopped\".*\"step\":[1-9]" "$work/stopped/ledger.jsonl" &&
        ls -d "$work"/stopped/runs/*/step_* > /dev/null'
expect "experiments: the same command goes on" 0 "" "${long[@]}" --out "$work/stopped"
check "experiments: from the checkpoint" \
    '[ "$(grep -c "\"event\":\"config\",\"step\":[1-9]" "$work"/stopped/runs/*/log.jsonl)" -eq 2 ]'
expect "experiments: the same without Ctrl-C" 0 "" "${long[@]}" --out "$work/unstopped"
check "experiments: to the same bits" \
    '[ -n "$(results "$work/stopped")" ] && [ "$(results "$work/stopped")" = "$(results "$work/unstopped")" ]'

# What ends otherwise than a run should, or is larger than the others.
with_options hot --lr 1000 --weight-decay 1000 --grad-clip 0 --qk-norm 0 --warmup-steps 0
expect "experiments: a rate at which nothing is learnt" 0 "" "${run[@]}" "${one[@]}" --programs "$work/hot" --out "$work/hot_runs"
check "experiments: the run counts as diverged, and says why" \
    'grep -qE "\"event\":\"diverged\".*\"status\":\"diverged\".*\"why\":\"(a loss is not finite|ended at)" "$work/hot_runs/ledger.jsonl"'
with_options broken && sed -i '2i echo "no room" >&2; exit 4' "$work"/broken/train_*
expect "experiments: a program that fails" 1 "" "${run[@]}" "${one[@]}" --programs "$work/broken" --out "$work/broken_runs"
check "experiments: the run counts as failed, and says why" \
    'grep -qE "\"event\":\"failed\".*\"status\":\"failed\".*\"why\":\"no room" "$work/broken_runs/ledger.jsonl"'
mkdir "$work/text" && cp data/bundled/sotu_* "$work/text"
with_options short --steps 2 --batch-size 1 --total-batch-tokens 1024 --warmup-steps 0 --val-batches 1
expect "experiments: two steps of the model of scale medium" 0 "" "${run[@]}" e2_dsa --scale medium --arms dsa --stage sweep --run 0 \
    --data "$work/text" --programs "$work/short" --out "$work/medium"
check "experiments: which has 25 million parameters" \
    'grep -qE "\"event\":\"done\".*\"scale\":\"medium\".*\"steps\":2,.*\"parameters\":2[4-6][0-9]{6}," "$work/medium/ledger.jsonl"'
if ! command -v mpirun > /dev/null; then skip "experiments: two ranks" "no mpirun"
else
    export OMPI_MCA_rmaps_base_oversubscribe=1
    expect "experiments: two ranks" 0 "" "${run[@]}" "${one[@]}" --ranks 2 --out "$work/ranks"
    check "experiments: both took part" 'grep -q "\"event\":\"done\".*2 ranks" "$work/ranks/ledger.jsonl" &&
        grep -q "\"ranks\":2," "$work"/ranks/runs/*/log.jsonl'
fi

# ---- a comparison
compare=($python $here/compare.py --cpu --no-build --out "$work/compare" causal)
tiny=(--model qwen-tiny --seq-len 64 --steps 10 --val-batches 4)
printf 'The quick brown fox jumps over the lazy dog. %s\n' $(seq 2000) > "$work/fox.txt"
if $python -c 'import numpy, scipy' 2> /dev/null; then
    expect "experiments: a comparison on a text" 0 "" "${compare[@]}" dsa 'dsa --window 4' --seeds 2 --text "$work/fox.txt" -- \
        "${tiny[@]}" --dense-until 8
    check "experiments: says how sparse each arm is, and has intervals" \
        'grep -qE "^\| causal \| [0-9,]+ \| 100.0% \|.* baseline " "$work/stdout" &&
            grep -qE "^\| dsa --window 4 \| [0-9,]+ \| [1-9][0-9]?\.[0-9]% \|.* \+- [0-9]" "$work/stdout" &&
            grep -qE "^dsa - causal: [+-][0-9.]+ \+- [0-9.]+ nats \(2 paired seeds, 95%\): .*Smallest difference" "$work/stdout"'
    printf 'Another text.\n' > "$work/other.txt"
    expect "experiments: of another text in the same folder" 2 "is of other texts" "${compare[@]}" dsa --text "$work/other.txt"
    sed -i 's/quick/quack/' "$work/fox.txt"
    expect "experiments: of a text that changed, not in size" 2 "or of these before they changed" \
        "${compare[@]}" dsa --text "$work/fox.txt"
    expect "experiments: a comparison with a variant that is not there" 2 "there is no attention/flash.cuh" "${compare[@]}" flash
    # None of these may train anything: the ledger stays as it is.
    cp "$work/compare/ledger.jsonl" "$work/compared.jsonl"
    for name in lr lr-times seed out threads device resume checkpoint train-data val-data config evaluate; do
        expect "experiments: an arm's own --$name" 2 "--$name in the arm \"causal --$name=5\": compare.py decides that itself" \
            "${compare[@]}" "causal --$name=5"
        [ $name = lr ] || expect "experiments: --$name for all arms" 2 "--$name behind --: compare.py decides that itself" \
            "${compare[@]}" dsa -- --$name 5
    done
    for name in val-every val-batches; do
        expect "experiments: --$name 0" 2 "--$name 0 behind --: without validations" "${compare[@]}" dsa -- --$name 0
        expect "experiments: an arm's own --$name 0" 2 "without validations" "${compare[@]}" "dsa --$name 0"
    done
    for rate in nan inf 0 -1; do
        expect "experiments: --rates $rate" 2 "--rates are positive numbers" "${compare[@]}" dsa --rates=$rate
        expect "experiments: --lr $rate for all arms" 2 "--lr $rate: is no number above 0" "${compare[@]}" dsa -- --lr $rate
    done
    expect "experiments: steps that are no number" 2 "--steps many: is no whole number" "${compare[@]}" dsa -- --steps many
    expect "experiments: an arm without a variant" 2 "an arm is empty" "${compare[@]}" ''
    expect "experiments: an arm with a quote that is not closed" 2 "No closing quotation" "${compare[@]}" "dsa --window '4"
    expect "experiments: an arm twice, written in two ways" 2 '"causal  --window=32" is the same as "causal"' \
        "${compare[@]}" 'causal  --window=32'
    expect "experiments: an option of the second arm that its trainer does not have" 2 \
        "compare, arm dsa --wnidow 4 at scale reduced: train_dsa cannot be run as planned" "${compare[@]}" 'dsa --wnidow 4' -- "${tiny[@]}"
    check "experiments: what is refused trains nothing" 'cmp -s "$work/compared.jsonl" "$work/compare/ledger.jsonl"'
fi

# ---- pictures of attention
if $python -c 'import matplotlib' 2> /dev/null; then
    printf '{"event":"attention","step":%s,"entropy":[[1.5,0.5]]}\n' 10 20 > "$work/looks.jsonl"
    picture=($python scripts/plot_attention.py "$work/looks.jsonl")
    expect "experiments: a picture of attention" 0 "" "${picture[@]}" --out "$work/looks.png"
    expect "experiments: in a format that does not exist" 2 "looks.xyz: no format .xyz; there are: " "${picture[@]}" --out "$work/looks.xyz"
    expect "experiments: of a step before the first look" 1 \
        "no look at attention up to step 0; of 2 the first is of step 10, the last of step 20" "${picture[@]}" --step 0 --out "$work/x.png"
    printf '{"step":1,"loss":2.5}\n' > "$work/steps.jsonl"
    expect "experiments: a loss curve in a format that does not exist" 2 "loss.xyz: no format .xyz" \
        $python scripts/plot_loss.py "$work/steps.jsonl" --out "$work/loss.xyz"
fi

# ---- the report
if $python -c 'import numpy, scipy, matplotlib, jinja2, xxhash' 2> /dev/null; then
    check "experiments: tasks with masks of their answers have items that count them" \
        '[ "$(grep -c "\"setting\":\"mqar_tiny\".*\"accuracy\":{\"items\":0*[01]" "$work/before.jsonl")" -eq 3 ]'
    check "experiments: a ledger names no folder of the machine" \
        'grep -q "OUT/runs/" "$work/killed/ledger.jsonl" && ! grep -qF -e "$work" -e "$PWD" "$work/killed/ledger.jsonl"'
    wrote='"event":"done".*"kind":"writes".*"cache_bytes":[1-9].*"device":"cpu","weights":"fp32"'
    check "experiments: every arm has the bytes of its cache, and what it reads its accuracy" \
        '[ "$(grep -c "$wrote" "$work/before.jsonl")" -eq 7 ] &&
            [ "$(grep -c "\"setting\":\"read\".*\"accuracy\":{\"items\":[01]" "$work/before.jsonl")" -eq 7 ]'
    expect "experiments: a report of all" 0 "" $python $here/report.py --ledger "$work/all/ledger.jsonl" --out "$work/report"
    check "experiments: a row for each cache, psa with more than causal keeps, and a picture" \
        '[ "$(grep -cE "^\| [a-z0-9_]+ \| cpu, fp32 \| 1 \| [0-9.]+ \| [0-9.]+ \| .* \| [0-9.]+ \| [01][0-9.]+ \|$" \
            "$work/report/report.md")" -eq 7 ] && grep -qE "^\| psa_50 \| cpu, fp32 \| 1 \| [0-9.]+ \| 1\.[0-9]+ \|" "$work/report/report.md" &&
            grep -q "bytes of the cache, of causal" "$work/report/report.html"'
    check "experiments: a line for each claim that has runs" \
        'grep -q "^002 says dsa -0.023 nats; ours .* (2 paired seeds, each arm at its best rate): .* at scale smoke" "$work/stdout"'
    cat > "$work/page.py" << 'END'
import re, sys, xml.etree.ElementTree as tree
page = open(sys.argv[1], encoding="utf-8").read()
tree.fromstring(re.sub("<!DOCTYPE[^>]*>", "", page))
outside = re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)[^)]*\)|@import[^;]*', page)
sys.exit(f"refers to {outside[0]}" if outside else len(page) > 3e6 or page.count("<svg") < 3 or page.count("<script"))
END
    check "experiments: it is well-formed, has pictures and refers to nothing outside" \
        '$python "$work/page.py" "$work/report/report.html"'
    check "experiments: the same as Markdown, CSV and LaTeX" \
        'grep -q "^| 002, table 1 | dsa - causal | -0.023 | smoke |" "$work/report/report.md" &&
        grep -q "^| 000, table 1 | asga / causal | 1.087, ratio of step time | - |.* " "$work/report/report.md" &&
        [ "$(wc -l < "$work/report/results.csv")" -gt 130 ] && grep -q "begin{tabular}" "$work/report/tables.tex"'
    expect "experiments: a report of nothing" 3 "is not there; run.py writes it" \
        $python $here/report.py --ledger "$work/none.jsonl" --out "$work/report"
    browser=$(command -v chromium chromium-browser google-chrome | head -n 1)
    if [ -z "$browser" ]; then skip "experiments: the report in a browser" "no chromium"
    else
        timeout 60 "$browser" --headless --no-sandbox --disable-gpu \
            --enable-logging=stderr --dump-dom "file://$work/report/report.html" > "$work/dom" 2> "$work/console"
        check "experiments: a browser shows the report and complains of nothing" \
            'grep -q "id=\"verdicts\"" "$work/dom" && ! grep -q CONSOLE "$work/console"'
    fi
fi
