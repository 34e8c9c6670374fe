#!/usr/bin/env bash
# The folders are the architecture: a file includes files of its own line of this list, or of lines above it, never below. And make looks at
# the flags in every build.
. "$(dirname "$0")/checks.bash"

layers='model/base/
data/(tokenizers/|(evaluation|files|loader|manifest|mixture|permutation|shard|stream)[.])
data/
model/(batch|config|config_keys|generation_config|layer_types|rope|rope_keys|settings|tensors)[.]
model/device/
model/operations/
attention/mechanism[.]h
attention/kernel/
attention/scores/
attention/(masks|gates|branches)/
attention/(blocks|indexer|nsa)/
attention/[a-z0-9_]+[.]cuh
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
mkdir "$work/tree" && cp -r Makefile scripts "$work/tree"   # where config.mk would set ARCH itself, make would start over for ever
check "make ends where ARCH is set" 'ARCH=-march=x86-64 timeout 300 make -s -C "$work/tree" build/flags > /dev/null 2>&1'

# One file per mechanism, measured: the lines of all files that its header includes and causal's does not.
grep -rE '^#include "(model|attention)/' --include=*.{h,cuh} model attention | sed -E 's/:#include "([^"]+)".*/ \1/' > "$work/includes"
closure() {   # FILE: the files that it includes, itself among them
    awk -v file="$1" '{ of[$1] = of[$1] " " $2 }
        function visit(f, i, n, next_of) { if (f in seen) return; seen[f]; print f; n = split(of[f], next_of); for (i = 1; i <= n; i++) visit(next_of[i]) }
        END { visit(file) }' "$work/includes" | sort
}
closure attention/causal.cuh > "$work/causal"
for variant in attention/*.cuh; do
    closure "$variant" | comm -23 - "$work/causal" | xargs -r cat | wc -l | sed "s|^|$(basename "$variant" .cuh) |"
done > "$work/added"
echo "lines added to causal's: $(paste -sd, "$work/added" | sed 's/,/, /g')"
check "every variant is measured" '[ "$(wc -l < "$work/added")" -eq "$(ls attention/*.cuh | wc -l)" ] && grep -q "^causal 0$" "$work/added"'
