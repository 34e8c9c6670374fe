#!/usr/bin/env bash
# A trainer from one translation unit is the trainer that is linked from the engine and a variant, and no trainer has two variants.
# Needs `make train_causal`. Prints lines `ok NAME`, `FAIL NAME: why` or `skip NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

hash_of() { # hash_of PROGRAM: of the weights after a few steps on the CPU
    timeout 120 "$1" --device cpu --model qwen-tiny --train-data "$PWD/data/bundled/sotu_train_*.bin" --val-data "" --seq-len 100 \
        --batch-size 4 --steps 12 --threads 1 --plot 0 --sample-every 0 --checkpoint-every 0 --out "$work/out" > "$work/said" 2>&1
    grep -o 'weights hash [0-9a-f]*' "$work/said" || tail -n 1 "$work/said"
}
same_as_split() { # same_as_split NAME PROGRAM
    local split one
    if ! make --no-print-directory "$2" > "$work/log" 2>&1; then bad "$1" "does not build: $(grep -m 1 error "$work/log")"; return; fi
    split=$(hash_of ./train_causal) one=$(hash_of "$2")
    if [[ $split == "weights hash "* ]] && [ "$split" = "$one" ]; then ok "$1"; else bad "$1" "$one, and ./train_causal: $split"; fi
}
same_as_split "causal with its model in one unit gives the weights of the linked program" build/one_unit/train_causal
same_as_split "-DATTENTION=causal train_gpt.cu with the engine's library gives them, too" build/one_unit/linked_causal
if grep -q '^HAVE_CUDA := 1' build/config.mk; then
    same_as_split "and so does nvcc's, with the engine's libraries" build/one_unit/cuda_causal
else
    skip "nvcc -DATTENTION=causal train_gpt.cu" "no nvcc on this machine"
fi

# Two variants: whoever links them is told which symbol there is twice.
if make --no-print-directory build/train_gpt.o build/attention/{selected_,}{causal,asga}.o build/engine.a > "$work/log" 2>&1 &&
    ! ${CXX:-g++} build/train_gpt.o build/attention/{selected_,}{causal,asga}.o build/engine.a -o "$work/two" > "$work/log" 2>&1 &&
    grep -q 'multiple definition of .the_attention' "$work/log"; then
    ok "two variants in one trainer do not link"
else
    bad "two variants in one trainer do not link" "$(grep -m 1 -E 'error|definition' "$work/log")"
fi
expect "an unknown variant is named, with those there are" 2 "there is no attention/nosuch.cuh; the variants are: " make train_nosuch
