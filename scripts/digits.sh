#!/usr/bin/env bash
# The engine reads images: 8x8 handwritten digits as text (scripts/classification.py), and how many of the held-out tenth it names.
#   scripts/digits.sh PATH/TO/digits.csv.gz [VARIANT] [more options of the training program]
# Needs python3. A row of 150 tokens has room for two images of 75, so that it holds at least one whole image and its label.
set -euo pipefail
input=${1:?usage: scripts/digits.sh DIGITS [VARIANT] [OPTIONS]}
input=$(realpath "$input")
cd "$(dirname "$0")/.."
variant=${2:-causal}
shift $(($# < 2 ? $# : 2))
data=out/digits-data

make --no-print-directory "train_$variant" tokenize
python3 scripts/classification.py digits "$input" --out "$data"
./tokenize --tokenizer bytes --out "$data" --name digits --val-fraction 0 "$data/digits_train.jsonl"
exec ./train_"$variant" --model qwen-1m --out "out/digits-$variant" --train-data "$data/digits_train_*.bin" \
    --eval-data "$data/digits.jsonl" --eval-every 200 --val-every 0 --sample-every 0 --checkpoint-every 1200 \
    --seq-len 150 --batch-size 16 --steps 1200 --lr 3e-3 --warmup-steps 50 --weight-decay 0.1 "$@"
