#!/usr/bin/env bash
# make with every processor, which says how much of the work is done.
#   scripts/build.sh [VARIABLE=VALUE...] TARGET...
set -uo pipefail
cd "$(dirname "$0")/.." || exit
make=(make --no-print-directory)
"${make[@]}" -s build/config.mk || exit
all=$("${make[@]}" -n "$@" 2> /dev/null | grep -cE 'echo "(compile|nvcc   |link   ) ') || true
"${make[@]}" -j"$(nproc)" "$@" 2>&1 | awk -v all="$all" '
    /^(compile|nvcc|link) / { printf "[%d/%d] %s\n", ++done, all, $0; fflush(); next }
    { print; fflush() }'
exit "${PIPESTATUS[0]}"
