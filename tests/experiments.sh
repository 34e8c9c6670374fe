#!/usr/bin/env bash
# scripts/experiments (tests/check_experiments.py): statistics, ledgers, plans, tasks, refusals, real runs at scale smoke, some killed and
# resumed, their report; compare.py, turns.py, scripts/variant_table.py, gallery.py; and the plots of scripts/.
# Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3 lacks a package (PYTHON=FILE: another).
# Takes about a minute.
# Needs: make all build/dev/attention_layer
. "$(dirname "$0")/checks.bash"
here=scripts/experiments
plan=("$python" $here/run.py --no-build --cpu e2_dsa --scale smoke --stage sweep --dry-run --out "$work/planned")

# ---- programs without packages, on full disks, in pipes
mkdir "$work/without"
for package in numpy scipy statsmodels pandas matplotlib jinja2; do echo 'raise ImportError' > "$work/without/$package.py"; done
PYTHONPATH=$work/without expect "experiments: a report without packages" 2 "pip install numpy scipy statsmodels pandas matplotlib jinja2" \
    "$python" $here/report.py --ledger "$work/none.jsonl" --out "$work/report"
PYTHONPATH=$work/without expect "experiments: a plan needs no packages" 0 "" "${plan[@]}"
expect "experiments: an unknown experiment ends with the code of its refusal" 2 "unknown experiment e99" "$python" $here/run.py e99
expect "experiments: a plan on a full disk" 3 "standard output: No space left" bash -c '"$@" > /dev/full' - "${plan[@]}"
expect "experiments: a plan of which one line is read" 0 "" bash -c '{ "$@" || [ $? -eq 1 ]; } | head -1' - "${plan[@]}"
check "experiments: says nothing else" '[ ! -s "$work/stderr" ]'
check "experiments: make has the names of the contract" 'make -n experiments SCALE=smoke ONLY=e2_dsa 2>&1 | tr -s "\\\\\n " " " |
    grep -q "run.py e2_dsa --scale smoke --out out/experiments .*report.py --ledger out/experiments/ledger.jsonl --out out/experiments --scale smoke e2_dsa"'

# ---- all others
if "$python" -c 'import numpy, scipy, statsmodels, pandas, matplotlib, jinja2, xxhash' 2> /dev/null; then
    mkdir "$work/checks"
    "$python" tests/check_experiments.py "$work/checks" 2> "$work/stderr" || bad "experiments: check_experiments.py" "$(tail -n 1 "$work/stderr")"
    browser=$(command -v chromium chromium-browser google-chrome | head -n 1)
    if [ -z "$browser" ]; then skip "experiments: the report in a browser" "no chromium"
    else
        timeout 60 "$browser" --headless --no-sandbox --disable-gpu --enable-logging=stderr --dump-dom \
            "file://$work/checks/check_runs/report/report.html" > "$work/dom" 2> "$work/console"
        check "experiments: a browser shows the report and complains of nothing" \
            'grep -q "id=\"verdicts\"" "$work/dom" && ! grep -q CONSOLE "$work/console"'
    fi
else skip "experiments: statistics, runs and report" "$python lacks numpy, scipy, statsmodels, pandas, matplotlib, jinja2 or xxhash"
fi

# ---- plots
if "$python" -c 'import matplotlib' 2> /dev/null; then
    printf '{"event":"attention","step":%s,"entropy":[[1.5,0.5]]}\n' 10 20 > "$work/looks.jsonl"
    picture=("$python" scripts/plot_attention.py "$work/looks.jsonl")
    expect "experiments: a picture of attention" 0 "" "${picture[@]}" --out "$work/looks.png"
    expect "experiments: in a format that does not exist" 2 "looks.xyz: no format .xyz; there are: " "${picture[@]}" --out "$work/looks.xyz"
    printf '{"step":1,"loss":2.5}\n' > "$work/steps.jsonl"
    expect "experiments: of a log without one" 1 "no look at attention to plot" "$python" scripts/plot_attention.py "$work/steps.jsonl"
    expect "experiments: a loss curve in a format that does not exist" 2 "loss.xyz: no format .xyz" \
        "$python" scripts/plot_loss.py "$work/steps.jsonl" --out "$work/loss.xyz"
    expect "experiments: a loss curve against seconds that a log does not have" 1 "its log has no seconds; --axis steps draws it" \
        "$python" scripts/plot_loss.py "$work/steps.jsonl" --axis seconds --out "$work/loss.png"
else skip "experiments: plots" "$python lacks matplotlib"
fi
