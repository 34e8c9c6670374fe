#!/usr/bin/env bash
# From a fresh clone to a small ASGA model that has read the State of the Union addresses, byte by byte: `make quickstart`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=out/quickstart
heading() { printf '\n== %s\n' "$*"; }

heading "1/4  packages"
scripts/install.sh run

heading "2/4  build"
make --no-print-directory -j"$(nproc)" train_asga tokenize generate

heading "3/4  train: 700 steps, about two minutes on two cores; log and checkpoints in $out"
rm -rf "$out"
./train_asga --model qwen-2m --batch-size 8 --seq-len 256 --steps 700 --lr 3e-3 --val-every 175 --val-batches 16 --sample-every 350 \
    --sample-tokens 200 --checkpoint-every 350 --prompt "My fellow Americans, " --out "$out"

heading "4/4  sample from the checkpoint"
checkpoint=$(sed -n 's/.*"event": *"checkpoint".*"path": *"\([^"]*\)".*/\1/p' "$out/log.jsonl" | tail -n 1)
./generate --checkpoint "$checkpoint" --prompt "My fellow citizens, " --tokens 400 --temperature 0.7

printf '\n\n'
[ -f "$out/loss.png" ] && echo "The loss curve is in $out/loss.png."
echo "More of the same model:  ./generate --checkpoint $checkpoint --prompt \"The Congress\" --tokens 400"
echo "All options:             ./train_asga --help"
