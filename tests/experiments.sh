#!/usr/bin/env bash
# scripts/experiments: statistics, ledger, plans, tasks and writing (tests/check_experiments.py, check_phases.py, check_tasks.py,
# check_cache.py, check_report.py), bad input, experiments really run at scale smoke, killed and resumed, and their report; compare.py, turns.py and
# scripts/variant_table.py.
# Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3 lacks a package (PYTHON=FILE: another).
# Takes a minute.
# Needs: make train_causal train_dsa train_sliding_window tokenize generate
# Options of plans are tried with the trainers that are there: all of them in `make test`.
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
    "${run[@]}" e12_tasks --arms dsa --seeds 1 --out "$work/a" --ledger "$work/a.jsonl"
expect "experiments: a second phase before the first" 2 "2 runs whose weights later ones start from are not finished" \
    "${run[@]}" e8_streaming --scale smoke --arms window_after --out "$work/a" --stage phase2 --run 0
expect "experiments: a text that is not there" 3 "give the folder with --data FOLDER" \
    "${run[@]}" e2_dsa --scale medium --arms dsa --out "$work/a" --ledger "$work/a.jsonl"
expect "experiments: all of them, none of which has its text" 3 "e5_isoflop: not run. e5_isoflop at scale medium reads the text" \
    "${run[@]}" all --scale medium --seeds 0 --out "$work/a" --ledger "$work/a.jsonl"
expect "experiments: a trainer that is not there" 2 "make train_causal builds it" \
    "${run[@]}" e2_dsa --scale smoke --programs "$work" --out "$work/a"
expect "experiments: a ledger that cannot be written" 3 "give another --ledger" \
    "${run[@]}" e2_dsa --scale smoke --arms dsa --out "$work/a" --ledger /dev/null/x
mkdir "$work/other" && printf '#!/bin/sh\necho "train_causal: error: unknown option --window" >&2\nexit 2\n' > "$work/other/train_causal"
chmod +x "$work/other/train_causal"
expect "experiments: a trainer that does not take the plan's options" 2 \
    "e2_dsa, arm causal at scale smoke: train_causal cannot be run as planned: train_causal: error: unknown option --window" \
    "${run[@]}" e2_dsa --scale smoke --programs "$work/other" --out "$work/a"
for scale in reduced medium paper; do
    expect "experiments: every plan at scale $scale has its hours, and options that the trainers take" 0 "" \
        "${run[@]}" all --scale $scale --dry-run --out "$work/a"
done
check "experiments: and says where they come from" \
    'grep -q "0 runs measured, .* estimated (" "$work/stdout" && grep -q "^together: [0-9]* runs" "$work/stdout"'
stage=("${run[@]}" e2_dsa --scale smoke --stage sweep --dry-run --out "$work/a")
expect "experiments: a stage alone, planned" 0 "" "${stage[@]}"
check "experiments: is the only one that counts" \
    '[ "$(grep -cE "^   [a-z0-9]+: [0-9]+ runs, " "$work/stdout")" -eq 1 ] && grep -q "^   sweep: 18 runs" "$work/stdout" &&
        grep -q "^together: 18 runs" "$work/stdout"'
expect "experiments: a run that the stage does not have, planned" 2 "--run 1000: stage sweep has runs 0 to 17" "${stage[@]}" --run 1000
check "experiments: planning leaves no ledger" \
    '[ ! -e $here/results/"$(uname -n)".jsonl ] || git ls-files --error-unmatch $here/results/"$(uname -n)".jsonl > /dev/null'
expect "experiments: a plan on a full disk" 3 "standard output: No space left" bash -c '"$@" > /dev/full' - "${stage[@]}"
expect "experiments: a plan of which one line is read" 0 "" bash -c '{ "$@" || [ $? -eq 1 ]; } | head -1' - "${stage[@]}"
check "experiments: says nothing else" '[ ! -s "$work/stderr" ]'
expect "experiments: scripts for Slurm" 0 "" "${run[@]}" e2_dsa --scale paper --slurm --out "$work/a"
check "experiments: an array element for every run" \
    'grep -q "^#SBATCH --array=0-29$" "$work/a/slurm/e2_dsa_paper_seeds.sbatch" &&
        bash -n "$work/a/slurm/e2_dsa_paper_seeds.sbatch"'
expect "experiments: of one stage" 0 "" "${run[@]}" e2_dsa --scale paper --slurm --stage sweep --out "$work/one"
check "alone" '[ "$(ls "$work/one/slurm")" = e2_dsa_paper_sweep.sbatch ]'
expect "experiments: a stage before the one that it stands on" 2 "6 runs that are not finished" \
    "${run[@]}" e2_dsa --scale smoke --arms dsa --out "$work/a" --stage seeds --run 0

if ! $python -c 'import numpy, scipy, matplotlib, jinja2' 2> /dev/null; then
    skip "experiments: statistics, tasks and report" "$python lacks numpy, scipy, matplotlib or jinja2"
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
    $python - "$1/ledger-smoke.jsonl" << 'END'
import json, sys
def records():
    for line in open(sys.argv[1]):
        try: yield json.loads(line)
        except ValueError: pass   # the line that was cut in half
for line in sorted(json.dumps([r[k] for k in ("key", "experiment", "arm", "setting", "stage", "seed", "factor")] +
                              [r["result"]["val_loss"], r["result"]["weights_hash"], r["result"]["steps"]])
                   for r in records() if r["event"] == "done"): print(line)
END
}
smoke=(--scale smoke --arms dsa)
expect "experiments: a smoke run" 0 "" "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/whole"
check "experiments: rates, then seeds" 'grep -q "causal: best at" "$work/stdout" && [ "$(results "$work/whole" | wc -l)" -eq 10 ]'
expect "experiments: a second experiment on the same ledger" 0 "" \
    "${run[@]}" e5_isoflop --scale smoke --arms sliding_window --out "$work/whole"
cp "$work/whole/ledger-smoke.jsonl" "$work/before.jsonl"
expect "experiments: once more" 0 "" "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/whole"
check "experiments: repeats nothing" 'cmp -s "$work/before.jsonl" "$work/whole/ledger-smoke.jsonl"'
sed -i '$ s/.\{20\}$//' "$work/whole/ledger-smoke.jsonl"
expect "experiments: with a line that was cut in half" 0 "is cut short or no record; passed over, and its run is repeated" \
    "${run[@]}" e5_isoflop --scale smoke --arms sliding_window --out "$work/whole"
expect "experiments: the run of that line is repeated" 0 "" "${run[@]}" e2_dsa "${smoke[@]}" --out "$work/whole"
results_e2() { results "$1" 2> /dev/null | grep e2_dsa; }

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
    '[ "$(results_e2 "$work/killed")" = "$(results_e2 "$work/whole")" ] && [ "$(results_e2 "$work/killed" | wc -l)" -eq 10 ]'

# Runs that start from the weights of others: a causal model read through a window.
stream=(e8_streaming --scale smoke --arms window_after)
expect "experiments: a second phase" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
$python - "$work/phases/ledger-smoke.jsonl" > "$work/phases.txt" << 'END'
import json, sys
runs = {(r["arm"], r["setting"], r["seed"]): r for r in map(json.loads, open(sys.argv[1])) if r["event"] == "done"}
loss = {name: run["result"]["val_loss"] for name, run in runs.items()}
for seed in (1, 2):
    print(abs(loss["causal", "after", seed] - loss["causal", "trained", seed]) < 2e-6,
          loss["window_after", "after", seed] != loss["causal", "after", seed],
          runs["window_after", "after", seed]["origin"] == runs["causal", "trained", seed]["key"])
END
check "experiments: reads the weights of the first, densely with the loss that training found, through a window with another" \
    '[ "$(sort -u "$work/phases.txt")" = "True True True" ] && [ "$(wc -l < "$work/phases.txt")" -eq 2 ]'
results "$work/phases" > "$work/phases.whole"
cp "$work/phases/ledger-smoke.jsonl" "$work/phases.jsonl"
expect "experiments: both phases once more" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
check "experiments: repeat nothing" 'cmp -s "$work/phases.jsonl" "$work/phases/ledger-smoke.jsonl"'
rm -r "$work"/phases/runs/*/step_*
grep -v '"stage":"phase2"' "$work/phases.jsonl" > "$work/phases/ledger-smoke.jsonl"
expect "experiments: without the weights of the first phase" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
check "experiments: they are made again, the same, and the results too" \
    '[ "$(results "$work/phases")" = "$(cat "$work/phases.whole")" ] && ! grep -q "other weights" "$work/stdout" &&
        [ "$(grep -c "\"event\":\"again\"" "$work/phases/ledger-smoke.jsonl")" -eq 2 ]'
grep -v '"stage":"phase2"' "$work/phases.jsonl" | sed 's/"event":"done"\(.*"arm":"causal".*"seed":2\)/"event":"diverged"\1/' \
    > "$work/phases/ledger-smoke.jsonl"
expect "experiments: after a first run that diverged" 0 "" "${run[@]}" "${stream[@]}" --out "$work/phases"
check "experiments: the second counts as diverged, and says why" \
    '[ "$(grep -c "\"event\":\"diverged\".*the run that it starts from diverged" "$work/phases/ledger-smoke.jsonl")" -eq 4 ]'
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
check "experiments: what is timed waits for company to leave" '! grep -qs "\"event\":\"start\"" "$work/turns/ledger-smoke.jsonl"'
wait $company
wait $first; status=$?
timed='"event":"done".*"peak_bytes":[1-9].*"ratio":[0-9]'
check "experiments: then every round of every arm has its ratio and peak memory" \
    '[ $status -eq 0 ] && [ "$(grep -c "$timed" "$work/turns/ledger-smoke.jsonl")" -eq 8 ]'
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
    --ledger "$work/killed/ledger-smoke.jsonl"
check "experiments: has their cost, their text and their runs" \
    'grep -qE "^.\./train_dsa --window 96 --dense-until 192., [0-9,]+ parameters .* [0-9.]+% of the pairs" "$work/stdout" &&
        grep -q "^Dynamic Sparse Attention (aardXiv 2510.00061" "$work/stdout" && grep -q "^- no run so far" "$work/stdout" &&
        grep -qE "^- e2_dsa, scale smoke.*: [+-][0-9.]+ .* nats against causal, [0-9] pairs" "$work/stdout"'
expect "experiments: the gallery of a variant that does not exist" 2 "there is no attention/flash.cuh" \
    $python $here/gallery.py --print --variants flash

# Labelled examples.
expect "experiments: labelled examples" 0 "" "${run[@]}" e12_tasks --scale smoke --arms dsa --out "$work/classes"
check "experiments: have accuracy and F1" \
    '[ "$(grep -c "\"accuracy\":{\"items\":[01].*\"macro_f1\":{\"items\"" "$work/classes/ledger-smoke.jsonl")" -eq 4 ]'

# Ctrl-C in a run that is long enough to be met: this trainer takes more steps than it is asked for.
mkdir "$work/programs"
printf '#!/bin/bash\nexec %q "$@" --steps 1500 --warmup-steps 1 --val-every 1500 --checkpoint-every 1500 --threads 1\n' \
    "$PWD/train_causal" > "$work/programs/train_causal"
cp "$work/programs/train_causal" "$work/programs/train_dsa" && chmod +x "$work"/programs/*
long=("${run[@]}" e2_dsa "${smoke[@]}" --programs "$work/programs" --stage sweep --run 0)
"${long[@]}" --out "$work/stopped" > "$work/stdout" 2>&1 & first=$!
for _ in $(seq 200); do grep -qs '"step":20,' "$work"/stopped/runs/*/log.jsonl && break; sleep 0.05; done
kill -INT $first
wait $first; status=$?
check "experiments: Ctrl-C ends with 75" '[ $status -eq 75 ]'
check "experiments: a checkpoint was saved, and the ledger has its step" \
    'grep -q "\"event\":\"stopped\".*\"step\":[1-9]" "$work/stopped/ledger-smoke.jsonl" &&
        ls -d "$work"/stopped/runs/*/step_* > /dev/null'
expect "experiments: the same command goes on" 0 "" "${long[@]}" --out "$work/stopped"
check "experiments: from the checkpoint" 'grep -q "\"event\":\"config\",\"step\":[1-9]" "$work"/stopped/runs/*/log.jsonl'
expect "experiments: the same without Ctrl-C" 0 "" "${long[@]}" --out "$work/unstopped"
check "experiments: to the same bits" \
    '[ -n "$(results "$work/stopped")" ] && [ "$(results "$work/stopped")" = "$(results "$work/unstopped")" ]'

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
if $python -c 'import numpy, scipy, matplotlib, jinja2' 2> /dev/null; then
    expect "experiments: tasks with masks of their answers" 0 "" \
        "${run[@]}" e7_recall --scale smoke --arms sliding_window --out "$work/tasks"
    check "experiments: and items that count them" \
        '[ "$(grep -c "\"setting\":\"mqar_tiny\".*\"accuracy\":{\"items\":0*[01]" "$work/tasks/ledger-smoke.jsonl")" -eq 4 ]'
    check "experiments: a ledger names no folder of the machine" \
        'grep -q "OUT/runs/" "$work/killed/ledger-smoke.jsonl" && ! grep -qF -e "$work" -e "$PWD" "$work/killed/ledger-smoke.jsonl"'
    expect "experiments: what a smaller cache costs" 0 "" \
        "${run[@]}" e9_cache --scale smoke --seeds 1 --arms dsa psa_50 adaspa --out "$work/cache"
    wrote='"event":"done".*"kind":"writes".*"cache_bytes":[1-9].*"device":"cpu","weights":"fp32"'
    check "experiments: every arm has its bytes, and what it reads its accuracy" \
        '[ "$(grep -c "$wrote" "$work/cache/ledger-smoke.jsonl")" -eq 4 ] &&
            [ "$(grep -c "\"setting\":\"read\".*\"accuracy\":{\"items\":[01]" "$work/cache/ledger-smoke.jsonl")" -eq 4 ]'
    expect "experiments: their report" 0 "" $python $here/report.py --ledger "$work/cache/ledger-smoke.jsonl" --out "$work/cache"
    check "experiments: a row for each, psa with more than causal keeps, and a picture" \
        '[ "$(grep -cE "^\| [a-z0-9_]+ \| cpu, fp32 \| 1 \| [0-9.]+ \| [0-9.]+ \| .* \| [0-9.]+ \| [01][0-9.]+ \|$" \
            "$work/cache/report.md")" -eq 4 ] && grep -qE "^\| psa_50 \| cpu, fp32 \| 1 \| [0-9.]+ \| 1\.[0-9]+ \|" "$work/cache/report.md" &&
            grep -q "bytes of the cache, of causal" "$work/cache/report.html"'
    expect "experiments: a report" 0 "" $python $here/report.py --ledger "$work/killed/ledger-smoke.jsonl" --out "$work/report"
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
        grep -q "^| 000, table 1 | asga / causal | 1.087, ratio of step time | - |.* not measured |" "$work/report/report.md" &&
        [ "$(wc -l < "$work/report/results.csv")" -eq 11 ] && grep -q "begin{tabular}" "$work/report/tables.tex"'
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
