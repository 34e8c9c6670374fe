#!/usr/bin/env bash
# From a fresh clone to a small ASGA model that has read the State of the Union addresses, byte by byte: `make quickstart`. Builds the
# programs that it runs and no others, and trains for about a minute on any machine: its speed decides which model.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8   # numbers with a point
out=out/quickstart
heading() { printf '\n== %s\n' "$*"; }

heading "1/4  packages"
scripts/install.sh run

heading "2/4  build"
cuda=()   # nvcc takes longer than everything else: only where there is a GPU to train on
nvidia-smi -L > /dev/null 2>&1 || cuda=(USE_CUDA=0)
make --no-print-directory "${cuda[@]}" train_asga build/generate_asga

heading "3/4  train; log and checkpoints in $out"
rm -rf "$out" && mkdir -p out
train=(./train_asga --lr 3e-3 --out "$out")
quiet=(--val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0)
"${train[@]}" --model qwen-2m --batch-size 4 --seq-len 128 --steps 8 "${quiet[@]}" > "$out.measured" 2>&1 || { cat "$out.measured" >&2; exit 1; }
ms=$(grep -o '"ms":[0-9.]*' "$out/log.jsonl" | cut -d: -f2 | tail -n 5 | sort -n | sed -n 3p) || true
[ -n "$ms" ] || { echo "$out/log.jsonl: has no times of steps to measure this machine by" >&2; exit 1; }
rm -rf "$out" "$out.measured"
# What a step of each model costs, in steps of the one measured (on two cores). The largest of which 400 steps take at most 55 seconds
# is trained for that long, or for 1,500 steps if these take less.
read -r model batch length steps step_ms <<< "$(awk -v ms="$ms" '{
    steps = int(55000 / (ms * $1)); if (steps > 1500) steps = 1500; if (steps < 20) steps = 20
    if (steps >= 400 || NR == 5) { print $2, $3, $4, steps, ms * $1; exit } }' << 'END'
18  qwen-7m 8 256
4.3 qwen-2m 8 256
1   qwen-2m 4 128
0.7 qwen-1m 4 128
0.2 qwen-1m 1 128
END
)"
printf 'This machine takes %.0f ms for a step of 4 x 128 tokens of qwen-2m. So: %s, %s x %s tokens a step, %s steps, about %.0f seconds.\n\n' \
    "$ms" "$model" "$batch" "$length" "$steps" "$(awk -v n="$steps" -v ms="$step_ms" 'BEGIN { print n * ms / 1000 }')"
"${train[@]}" --model "$model" --batch-size "$batch" --seq-len "$length" --steps "$steps" --val-every $(((steps + 3) / 4)) --val-batches 16 \
    --sample-every $(((steps + 1) / 2)) --sample-tokens 100 --checkpoint-every $(((steps + 1) / 2)) --prompt "My fellow Americans, "

heading "4/4  sample from the checkpoint"
checkpoint=$(sed -n 's/.*"event": *"checkpoint".*"path": *"\([^"]*\)".*/\1/p' "$out/log.jsonl" | tail -n 1)
build/generate_asga --checkpoint "$checkpoint" --prompt "My fellow citizens, " --tokens 120 --temperature 0.7

printf '\n\n'
[ -f "$out/loss.png" ] && echo "The loss curve is in $out/loss.png."
echo "More of the same model:  build/generate_asga --checkpoint $checkpoint --prompt \"The Congress\" --tokens 300"
echo "All options:             ./train_asga --help"
