#!/usr/bin/env bash
# Variants against each other at equal tokens, with several seeds: every run on the same text, in the same order for one seed, and a
# table of where they ended.
#   scripts/compare.sh [VARIANTS [SEEDS [options of the training programs]]]
#   scripts/compare.sh "causal asga dsa" "1 2 3" --dense-until 128 --window 64 --steps 2000 --train-data 'mine/x_train_*.bin'
# (By default dsa is dense in the first 512 rows, and so everywhere at this --seq-len.) With intervals and verdicts: make experiments.
# Without options: the 7M model, the bundled text as bytes, 0.8 million tokens a run. Runs that are finished are not repeated, and one
# that was stopped goes on; other options need another folder (OUT=folder in the environment, else out/compare).
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -*) sed -n '2,8p' scripts/compare.sh; exit 2 ;; esac
variants=${1:-causal asga} seeds=${2:-1 2 3}
shift $(($# < 2 ? $# : 2))
out=${OUT:-out/compare}
options=$(printf '%s\n' "$@")
logs=()

for variant in $variants; do make --no-print-directory "train_$variant"; done
for seed in $seeds; do
    for variant in $variants; do
        run=$out/$variant-$seed
        mkdir -p "$run"
        if [ -e "$run/compare.options" ] && [ "$(cat "$run/compare.options")" != "$options" ]; then
            echo "$run: has a run with other options; set OUT to another folder, or remove it" >&2
            exit 2
        fi
        echo "$options" > "$run/compare.options"
        logs+=("$run/log.jsonl")
        grep -qs '"event":"done"' "$run/log.jsonl" && continue
        echo "== $variant, seed $seed"
        ./train_"$variant" --out "$run" --seed "$seed" --resume --model qwen-7m --seq-len 512 --batch-size 8 --steps 200 --lr 2e-3 \
            --val-every 200 --val-batches 1000 --sample-every 0 --checkpoint-every 200 --keep-checkpoints 1 --plot 0 "$@"
    done
done
python3 scripts/compare_runs.py "${logs[@]}"
