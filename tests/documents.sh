#!/usr/bin/env bash
# --document-mask as a user meets it: what it changes, what it draws, and where it is refused. Needs `make all`.
# Needs: make tokenize train_causal train_nsa train_moba train_mosa train_routing train_seer train_adaptive_sparse train_strided train_longnet train_sinks_cache
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

# ---- 300 documents of 20 to 60 bytes, and one
awk 'BEGIN { srand(7); for (n = 0; n < 300; n++) { line = ""; for (k = 20 + int(rand() * 40); k > 0; k--) line = line sprintf("%c", 97 + int(rand() * 26))
     printf "{\"text\": \"%s\"}\n", line } }' > "$work/many.jsonl"
tr -d '\n' < "$work/many.jsonl" > "$work/one.txt"
for name in many.jsonl one.txt; do
    ./tokenize --tokenizer bytes --out "$work/data" --name "${name%.*}" "$work/$name" > /dev/null 2>&1
done

options="--device cpu --model qwen-tiny --seq-len 128 --batch-size 2 --steps 4 --val-every 4 --val-batches 2 --sample-every 0 --checkpoint-every 4 --threads 1 --plot 0"
many="$options --train-data $work/data/many_train_*.bin --val-data $work/data/many_val_*.bin"
set -f   # the globs are for the programs
hash_of() { tail -n 1 "$1/log.jsonl" | grep -o '"weights_hash":"[0-9a-f]*"'; }

for how in "" "--document-mask 1" "--document-mask 1 --document-positions 1"; do
    ./train_causal $many --out "$work/run${how//[^a-z]/}" $how > "$work/out" 2>&1 || cat "$work/out"
done
check "keeping documents apart changes what is learnt" '[ -n "$(hash_of "$work/run")" ] && [ "$(hash_of "$work/run")" != "$(hash_of "$work/rundocumentmask")" ]'
check "positions that count anew change bits" '[ "$(hash_of "$work/rundocumentmask")" != "$(hash_of "$work/rundocumentmaskdocumentpositions")" ]'
check "the last ones only" 'losses() { grep -o "\"step\":4,.*\"loss\":[0-9.]*" "$1/log.jsonl" | grep -o "[0-9.]*$"; }
    awk -v a="$(losses "$work/rundocumentmask")" -v b="$(losses "$work/rundocumentmaskdocumentpositions")" "BEGIN { d = a - b; exit !(a > 0 && d < 1e-4 && d > -1e-4) }"'
check "a run's log says how it reads" 'grep -q "document-mask=1\|document-mask=true" "$work/rundocumentmask/options.toml"'
expect "validation of packed documents" 0 "" ./train_causal $many --evaluate --checkpoint "$work/rundocumentmask/step_00000004" --document-mask 1
expect "a mask in which documents stand apart" 0 "" ./train_causal $many --out "$work/x" --show-mask "$work/mask.pgm" --document-mask 1
check "is far from the causal one" 'awk "{ share = \$0 + 0 } END { exit !(NR == 1 && share > 0 && share < 60) }" <(grep -o "[0-9.]*% of causal pairs" "$work/stdout")'

# ---- mechanisms with blocks, choices, clusters, segments, strides and caches of their own
for variant in nsa moba mosa routing seer adaptive_sparse strided longnet sinks_cache; do
    expect "$variant trains on packed documents" 0 "" ./train_$variant $many --monitor-every 2 --out "$work/$variant" --document-mask 1
    expect "and draws its mask" 0 "" ./train_$variant $many --out "$work/x" --show-mask "$work/mask.pgm" --document-mask 1
    check "$variant: few pairs are left" 'awk "{ share = \$0 + 0 } END { exit !(NR == 1 && share > 0 && share < 60) }" <(grep -o "[0-9.]*% of causal pairs" "$work/stdout")'
done

# ---- bad input
for options_of in "nsa --nsa-choice 1" "nsa --nsa-block 8 --nsa-stride 16"; do
    expect "$options_of has no blocks of documents" 2 "nsa with these settings cannot keep the documents of a row apart" ./train_$options_of $many --out "$work/x" --document-mask 1
done
for options_of in "mosa --mosa-choice 1" "routing --routing-balanced 1"; do
    expect "$options_of chooses from the whole row" 2 "${options_of%% *} with these settings cannot keep the documents of a row apart" ./train_$options_of $many --out "$work/x" --document-mask 1
done
for options_of in "mosa --mosa-choice 1 --mosa-rho 1" "routing --routing-balanced 1 --routing-clusters 1"; do
    expect "$options_of leaves nothing to choose" 0 "" ./train_$options_of $many --out "$work/${options_of%% *}_all" --document-mask 1
done
expect "a seer whose blocks look ahead draws no documents" 2 "seer with these settings cannot keep the documents of a row apart" ./train_seer $many --out "$work/x" --show-mask "$work/mask.pgm" --seer-query 3 --seer-distil 0 --document-mask 1
expect "shards of a single document for validation" 3 "are of one document (none is 256" ./train_causal $options --val-data "$work/data/one_train_*.bin" --val-every 1 --out "$work/x" --document-mask 1
expect "shards of a single document" 3 "are of one document (none is 256" ./train_causal $options --train-data "$work/data/one_train_*.bin" --val-every 0 --out "$work/x" --document-mask 1
expect "positions without a mask" 2 "requires --document-mask 1" ./train_causal $many --out "$work/x" --document-positions 1
expect "a mask and psa" 2 "leave out --document-mask" ./train_causal $many --evaluate --attention psa --checkpoint "$work/run/step_00000004" --document-mask 1
