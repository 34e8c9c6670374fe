#!/usr/bin/env bash
# The classic small run: tinyshakespeare as bytes, last tenth as validation, three minutes on two cores.
#   scripts/shakespeare.sh PATH/TO/tinyshakespeare.txt [VARIANT] [more options of the training program]
# The text (1.1 MB) is the one that nanoGPT and char-rnn use; any other text works as well.
set -euo pipefail
input=${1:?usage: scripts/shakespeare.sh TEXT [VARIANT] [OPTIONS]}
input=$(realpath "$input")
cd "$(dirname "$0")/.."
variant=${2:-causal}
shift $(($# < 2 ? $# : 2))

make --no-print-directory "train_$variant" tokenize
./tokenize --tokenizer bytes --out out/shakespeare-data --name shakespeare --val-fraction 0.1 "$input"
exec ./train_"$variant" --model qwen-1m --out "out/shakespeare-$variant" \
    --train-data 'out/shakespeare-data/shakespeare_train_*.bin' --val-data 'out/shakespeare-data/shakespeare_val_*.bin' \
    --seq-len 128 --batch-size 32 --steps 1000 --lr 4e-3 --warmup-steps 50 --weight-decay 0.1 \
    --val-every 250 --val-batches 1000 --sample-every 500 --sample-tokens 300 --prompt "ROMEO:" --checkpoint-every 1000 "$@"
