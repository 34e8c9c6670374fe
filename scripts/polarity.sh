#!/usr/bin/env bash
# Sentiment of film reviews, from scratch and byte by byte (scripts/classification.py), and accuracy on the held-out tenth.
#   scripts/polarity.sh PATH/TO/sentence_polarity.zip [VARIANT] [more options of the training program]
# Needs python3. Rows of 288 tokens: the longest sentence has 278 with its label.
set -euo pipefail
input=${1:?usage: scripts/polarity.sh SENTENCE_POLARITY [VARIANT] [OPTIONS]}
input=$(realpath "$input")
cd "$(dirname "$0")/.."
variant=${2:-causal}
shift $(($# < 2 ? $# : 2))
data=out/polarity-data

make --no-print-directory "train_$variant" tokenize
python3 scripts/classification.py polarity "$input" --out "$data"
./tokenize --tokenizer bytes --out "$data" --name polarity --val-fraction 0 "$data/polarity_train.jsonl"
exec ./train_"$variant" --model qwen-1m --out "out/polarity-$variant" --train-data "$data/polarity_train_*.bin" \
    --eval-data "$data/polarity.jsonl" --eval-every 200 --val-every 0 --sample-every 0 --checkpoint-every 600 \
    --seq-len 288 --batch-size 16 --steps 600 --lr 3e-3 --warmup-steps 50 --weight-decay 0.1 "$@"
