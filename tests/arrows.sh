#!/usr/bin/env bash
# The folders are the architecture: a file includes files of its own line of this list, or of lines above it, never below. And make looks at
# the flags in every build.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

layers='model/base/
data/
model/(batch|config|config_keys|generation_config|layer_types|settings|tensors)[.]
model/device/
model/operations/
attention/mechanism[.]h
attention/kernel/
attention/scores/
attention/(masks|gates|branches)/
attention/(blocks|indexer|nsa)/
attention/[a-z_]+[.]cuh
attention/decoding/
attention/inference/
attention/
model/(attention_report|gpt|gpt_memory|monitor|qwen)[.]
model/(checkpoint|ranks)/
model/(run|generate)/
(train_gpt[.]|dev/|tests/)'

# "FILE includes FILE" for each include that points down the list.
grep -roE '^#include "(model|data|attention|train_gpt|dev|tests)[^"]*"' --include=*.{h,cpp,cuh,cu} model data attention | awk -F'[:"]' -v layers="$layers" '
    function layer(path, i) { for (i = 1; i <= count; i++) if (path ~ "^" of[i]) return i; return 0 }
    BEGIN { count = split(layers, of, "\n") }
    { n++ } !layer($1) || !layer($3) || layer($3) > layer($1) { print $1 " includes " $3 } END { if (n < 100) print "few includes: " n }' > "$work/upward"
check "no file includes one of a later layer: $(head -n 3 "$work/upward" | tr '\n' ';')" '[ ! -s "$work/upward" ]'

# Files of flags are made in every build; their dependents only where the content has changed.
make -q USE_CUDA=0 build/flags > /dev/null 2>&1
check "make looks at the flags in every build" "[ $? -eq 1 ]"
