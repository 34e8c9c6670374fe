#!/usr/bin/env bash
# Measures training speed, peak memory and tinyshakespeare of dev/README.md, on a quiet machine:  dev/figures.sh [PATH/TO/tinyshakespeare.txt]
set -euo pipefail
text=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
make --no-print-directory -j"$(nproc)" train_causal train_asga tokenize build/dev/bench_cpu > /dev/null

echo "== training speed, ASGA's backward and step (build/dev/bench_cpu)"
build/dev/bench_cpu 8 512 | sed '/^| operation /,/^$/d'

echo "== peak memory against --dry-run"
for variant in causal asga; do
    ./train_$variant --dry-run | grep 'predicted peak'
    ./train_$variant --steps 3 --val-every 0 --sample-every 0 --checkpoint-every 3 --plot 0 --out "out/figures-$variant" | tail -n 1
done

if [ -n "$text" ]; then
    for variant in causal asga; do
        echo "== tinyshakespeare, $variant (scripts/shakespeare.sh)"
        scripts/shakespeare.sh "$text" $variant --sample-every 0 --plot 0 | grep -E '^validation|^done'
    done
fi
