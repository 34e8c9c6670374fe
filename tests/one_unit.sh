#!/usr/bin/env bash
# A trainer from one translation unit is the trainer that is linked from the engine and a variant, and no trainer has two variants.
# Needs `make train_causal`. Prints lines `ok NAME`, `FAIL NAME: why` or `skip NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
small=(--device cpu --model qwen-tiny --train-data "$PWD/data/bundled/sotu_train_*.bin" --val-data "" --seq-len 100 --batch-size 4 --steps 12
       --threads 1 --plot 0 --sample-every 0 --checkpoint-every 0)
train causal split
while read -r folder program name; do
    if [ $program = cuda_causal ] && ! grep -q '^HAVE_CUDA := 1' build/config.mk; then skip "$name" "no nvcc on this machine"; continue; fi
    make --no-print-directory $folder/$program > "$work/log" 2>&1
    mkdir -p "$work/$program" && ln -sf "$PWD/$folder/$program" "$work/$program/train_causal"
    programs=$work/$program train causal $program
    check "$name gives the weights of the linked program" 'same_weights "$work/$program" "$work/split" || { grep -m 1 error "$work/log"; false; }'
done << 'END'
build/one_unit train_causal causal with its model in one unit
build/one_unit linked_causal -DATTENTION=causal train_gpt.cu with the engine's library
build/one_unit cuda_causal nvcc's, with the engine's libraries,
END
objects=(build/train_gpt.o build/attention/{selected_,}{causal,asga}.o build/engine.a)
check "two variants in one trainer do not link" 'make --no-print-directory "${objects[@]}" > "$work/log" 2>&1 &&
    ! ${CXX:-g++} "${objects[@]}" -o "$work/two" > "$work/log" 2>&1 && grep -q "multiple definition of .the_attention" "$work/log"'
expect "an unknown variant is named, with those there are" 2 "there is no attention/nosuch.cuh; the variants are: " make train_nosuch
