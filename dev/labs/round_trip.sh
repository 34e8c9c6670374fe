#!/usr/bin/env bash
# Part of a lab's copy: whether a tokenizer gives back the text that it was given.
#   bash round_trip.sh TOKENIZER FILE      (make USE_CUDA=0 build/dev/token_ids first)
n=$(stat -c %s "$2")
length=$(printf '\\x%02x' $((n & 255)) $((n >> 8 & 255)) $((n >> 16 & 255)) $((n >> 24)))
# A record: its length in 32 bits, then it.
if { printf '%b' "$length"; cat "$2"; } | build/dev/token_ids "$1" --round-trip > /dev/null; then echo "the text comes back"; fi
