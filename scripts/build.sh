#!/usr/bin/env bash
# make with every processor, which says how much of the work is done.
#   scripts/build.sh [VARIABLE=VALUE...] TARGET...
set -uo pipefail
cd "$(dirname "$0")/.." || exit
make=(make --no-print-directory)
variables=()
for word; do [[ $word == *=* ]] && variables+=("$word"); done
"${make[@]}" -s "${variables[@]}" build/config.mk build/flags build/gpu/flags || exit

# What is made anew only to see whether it has changed would count with all that depends on it.
unchanged=(-o build/flags -o build/gpu/flags)
while read -r table; do unchanged+=(-o "$table"); done < <(find build -name 'all_variants.cpp' -o -name 'only_*.cpp')
all=$("${make[@]}" -n "${unchanged[@]}" "$@" 2> /dev/null | grep -cE 'echo "(compile|nvcc   |link   ) ')
"${make[@]}" -j"$(nproc)" "$@" 2>&1 | awk -v all="$all" '
    /^(compile|nvcc|link) / { printf "[%d/%d] %s\n", ++done, all, $0; fflush(); next }
    { print; fflush() }'
exit "${PIPESTATUS[0]}"
