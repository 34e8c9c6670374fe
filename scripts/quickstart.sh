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

heading "3/4  train: 500 steps, log and checkpoint in $out"
rm -rf "$out"
./train_asga --model qwen-1m --out "$out" --steps 500

heading "4/4  sample from the checkpoint"
checkpoint=$(sed -n 's/.*"event": *"checkpoint".*"path": *"\([^"]*\)".*/\1/p' "$out/log.jsonl" | tail -n 1)
./generate --checkpoint "$checkpoint" --prompt "My fellow citizens, " --tokens 400 --temperature 0.8

printf '\n\n'
[ -f "$out/loss.png" ] && echo "The loss curve is in $out/loss.png."
echo "More of the same model:  ./generate --checkpoint $checkpoint --prompt \"The Congress\" --tokens 400"
echo "All options:             ./train_asga --help"
