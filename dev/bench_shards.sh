#!/usr/bin/env bash
# Start-up on many large shards, before and after their tokens are known to be in range, and reading them:
#   dev/bench_shards.sh [SHARDS [MILLION TOKENS EACH]]      100 of 100 million unless told
# The shards are holes behind a header: all tokens are 0 and take no room on a disk, but are mapped, checked and copied like any
# others. In /var/tmp, or $TMPDIR: a file system in memory would keep each page of a hole that was read.
set -euo pipefail
cd "$(dirname "$0")/.."
shards=${1:-100} tokens=$((${2:-100} * 1000000))
make build/dev/bench_data > /dev/null
work=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache   # nothing is known at first

little_endian() { # little_endian NUMBER: its 4 bytes
    printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24)))"
}
for ((n = 0; n < shards; n++)); do
    shard=$work/$(printf 'x_train_%06d.bin' "$n")
    { little_endian 20240520; little_endian 1; little_endian "$tokens"; } > "$shard"
    truncate -s $((1024 + 2 * tokens)) "$shard"
done
for start in first second; do
    echo "$start start:"
    build/dev/bench_data "$work/x_train_*.bin"
done
