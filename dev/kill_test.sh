#!/usr/bin/env bash
# Kills a training run with SIGKILL at random moments until it ends, resuming each time, and compares the weights at the end with
# those of a run that was left alone:  dev/kill_test.sh [KILLS] [VARIANT]
# tests/end_to_end.sh does this three times; here are as many as one has patience for.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
kills=${1:-20} variant=${2:-asga}
make --no-print-directory "train_$variant" || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hash_of() { tail -n 1 "$1/log.jsonl" | grep -o '"weights_hash":"[0-9a-f]*"'; }
run() { exec ./train_"$variant" --model qwen-tiny --seq-len 64 --batch-size 4 --steps 300 --checkpoint-every 5 --val-every 50 --sample-every 0 --plot 0 --threads 1 "$@"; }

(run --out "$work/whole") > /dev/null || exit
done_kills=0 lost=0
while [ $done_kills -lt "$kills" ]; do
    rm -rf "$work/killed"
    while true; do
        run --out "$work/killed" --resume > "$work/log" 2>&1 &   # exec: the process killed is the trainer itself
        victim=$!
        sleep "0.$((RANDOM % 90 + 10))"
        if ! kill -9 $victim 2> /dev/null; then
            wait $victim || lost=$((lost + 1))
            break
        fi
        wait $victim 2> /dev/null
        grep -q "warning: .*step_" "$work/log" && lost=$((lost + 1))   # a checkpoint under its final name was damaged
        done_kills=$((done_kills + 1))
    done
    [ "$(hash_of "$work/killed")" = "$(hash_of "$work/whole")" ] || lost=$((lost + 1))
done
echo "$done_kills kills, $lost lost; weights $(hash_of "$work/whole")"
[ $lost -eq 0 ]
