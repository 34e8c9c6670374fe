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
"${make[@]}" -j"$processors" "$@" 2>&1 | {   # some awks wait for 4096 bytes before they print a line
    done=0
    while IFS= read -r line; do
        if [[ $line =~ ^(compile|nvcc|link)\  ]]; then line="[$((++done))/$all] $line"; fi
        printf '%s\n' "$line"
    done
}
exit "${PIPESTATUS[0]}"
