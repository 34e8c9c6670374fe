#!/usr/bin/env bash
# Two builds of a training program against each other, by turns, so that a machine whose speed drifts favours neither: the median
# time of a step of each, and OTHER's divided by PROGRAM's. The machine should have nothing else to do.
#   dev/turns.sh ROUNDS PROGRAM OTHER [OPTION...]     options are for both; default --model qwen-7m --seq-len 512 --batch-size 8
# A round is nine steps of each program, three of them to warm up. Exits 1 when a program fails, 2 for wrong arguments.
set -euo pipefail
if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: dev/turns.sh ROUNDS PROGRAM OTHER [OPTION...]" >&2
    exit 2
fi
rounds=$1 programs=("$2" "$3")
shift 3
[ $# -gt 0 ] || set -- --model qwen-7m --seq-len 512 --batch-size 8
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }

for round in $(seq "$rounds"); do
    for n in 0 1; do
        "${programs[n]}" "$@" --steps 9 --val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0 --out "$work/out" > "$work/said" 2>&1 ||
            { cat "$work/said" >&2; exit 1; }
        grep -o '"ms":[0-9.e+-]*' "$work/out/log.jsonl" | cut -d: -f2 | tail -n +4 > "$work/round"
        cat "$work/round" >> "$work/$n"
        echo "round $round: ${programs[n]} $(median < "$work/round") ms"
        rm -rf "$work/out"
    done
done
first=$(median < "$work/0") second=$(median < "$work/1")
echo "${programs[0]} $first ms, ${programs[1]} $second ms: $(awk -v a="$second" -v b="$first" 'BEGIN { printf "%.3f", a / b }')"
