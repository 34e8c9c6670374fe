#!/usr/bin/env bash
# make with every processor, which says how much of the work is done.
#   scripts/build.sh [VARIABLE=VALUE...] TARGET...
set -uo pipefail
cd "$(dirname "$0")/.." || exit
make=(make --no-print-directory)
variables=()
for word; do [[ $word == *=* ]] && variables+=("$word"); done
"${make[@]}" -s "${variables[@]}" flags || exit

all=$("${make[@]}" -n COUNTING=1 "$@" 2> /dev/null | grep -cE 'echo "(compile|nvcc   |link   ) ')
processors=$(env -u OMP_NUM_THREADS nproc)   # which that variable lowers
"${make[@]}" -j"$processors" "$@" 2>&1 | awk -v all="$all" '
    /^(compile|nvcc|link) / { printf "[%d/%d] %s\n", ++done, all, $0; fflush(); next }
    { print; fflush() }'
exit "${PIPESTATUS[0]}"
