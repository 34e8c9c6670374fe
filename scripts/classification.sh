#!/usr/bin/env bash
# Classification from scratch and byte by byte (scripts/classification.py), and how many of the held-out tenth come out right.
#   scripts/classification.sh digits PATH/TO/digits.csv.gz [VARIANT] [more options of the training program]
#   scripts/classification.sh polarity PATH/TO/sentence_polarity.zip [VARIANT] [more options of the training program]
# digits: 8x8 images as text, so that the engine reads images. polarity: the sentiment of film reviews. Needs python3.
set -euo pipefail
usage="usage: scripts/classification.sh digits|polarity FILE [VARIANT] [OPTIONS]"
task=${1:?$usage}
input=$(realpath "${2:?$usage}")
case $task in
    digits) seq_len=150 steps=1200 ;;    # room for two images of 75: a row holds at least one whole image and its label
    polarity) seq_len=288 steps=600 ;;   # the longest sentence has 278 tokens with its label
    *) echo "$usage" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
variant=${3:-causal}
shift $(($# < 3 ? $# : 3))
data=out/$task-data

make --no-print-directory "train_$variant" tokenize
python3 scripts/classification.py "$task" "$input" --out "$data"
./tokenize --tokenizer bytes --out "$data" --name "$task" --val-fraction 0 "$data/${task}_train.jsonl"
exec ./train_"$variant" --model qwen-1m --out "out/$task-$variant" --train-data "$data/${task}_train_*.bin" \
    --eval-data "$data/$task.jsonl" --eval-every 200 --val-every 0 --sample-every 0 --checkpoint-every $steps \
    --seq-len $seq_len --batch-size 16 --steps $steps --lr 3e-3 --warmup-steps 50 --weight-decay 0.1 "$@"
