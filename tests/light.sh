#!/usr/bin/env bash
# A trainer without the libraries of text and without a BLAS: what stands in for them is linked instead, and it trains on shards. In a
# copy of the tree, from the objects of `make build/tests/run_tests`. Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
tree=$work/tree
if [ ! -e build/engine.a ]; then
    bad "light trainer" "objects are missing: make build/tests/run_tests comes first"
    exit 1
fi
mkdir -p "$tree"
cp -a Makefile attention data dev model scripts tests train_gpt.cu "$tree"
tar cf - build/flags build/config.mk build/model build/data build/attention | tar xf - -C "$tree"
light=(WITHOUT="pretokenizer nfc archive_stream gzip_stream" TEXT_LIBS= BLAS_SOURCE=model/device/blas/loops.cpp BLAS_LIBS= USE_CUDA=0)
if make -C "$tree" --no-print-directory -o build/flags "${light[@]}" train_causal > "$work/log" 2>&1; then ok "light trainer: links"
else bad "light trainer: links" "$(grep -m 1 -E 'error|undefined' "$work/log" || tail -n 1 "$work/log")"; fi
check "light trainer: asks for none of the libraries" '! readelf -d "$tree/train_causal" | grep -E "NEEDED.*(pcre2|utf8proc|archive|libz\.|blas)"'
train=("$tree/train_causal" --device cpu --model qwen-tiny --seq-len 48 --batch-size 2 --steps 2 --val-every 0 --checkpoint-every 0
    --plot 0 --threads 1 --out "$work/run")
expect "light trainer: trains on shards and samples bytes" 0 "" "${train[@]}" --sample-every 2 --sample-tokens 8 --prompt "My fellow"
printf '{"text": "one two"}\n' | gzip > "$work/text.jsonl.gz"
expect "light tokenizer: says that it was built without zlib" 2 "zlib" "$tree/tokenize" --tokenizer bytes --out "$work/shards" "$work/text.jsonl.gz"
