#!/usr/bin/env bash
# Tests of the tests: plants the errors of dev/mutations.txt one after the other in a copy of the tree, one copy per processor, rebuilds
# the one test that has to notice, and prints `caught N of M`. Exits 1 when one slipped through, does not compile or no longer fits the
# source.
#   dev/mutations.sh [WORD]     only those whose file or test contains WORD
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export OMP_WAIT_POLICY=passive
only=${1:-}
workers=$(nproc)
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null; rm -rf "$folder"' EXIT
list=$folder/list
cp dev/mutations.txt "$list"   # which may be edited while this runs

# build TEST: `program`, with this test alone. Little optimisation, since most of the time goes into the compiler; the other objects
# are taken as they are in build/, whatever their flags. The program goes first: make takes objects for intermediate files, and would
# not miss one while a newer program is there.
build() {
    program=build/tests/run_tests
    [[ $1 == emulated/* ]] && program=build/emulated/run_tests
    [[ $1 == *_program ]] && program=build/$1
    rm -f "$program"
    make -o build/flags CXXFLAGS=-O1 TESTS="build/tests/main.o build/tests/$1.o" GPU_TESTS="tests/${1#emulated/}.o" \
        EMULATOR_TESTS= "$program" > build.log 2>&1
}

# Three ranks of the program, on GPUs of their own or on one.
ranks() {
    local rank process status=0
    for rank in 0 1 2; do
        RANK=$rank WORLD_SIZE=3 RANKS_FROM=file:$copy/meeting WATCHDOG=5 timeout 60 "$program" all &
    done
    for process in $(jobs -p); do wait "$process" || status=1; done
    return $status
}

# passes TEST: the program that was built. GPU code runs in several orders of threads and streams: a race shows in some of them.
passes() {
    local seed
    for seed in 0 1 2 3; do
        export EMULATOR_SEED=$seed
        if [[ $1 == *_program ]]; then EMULATED_GPU_COUNT=3 ranks && EMULATED_GPU_COUNT=1 ranks || return
        else timeout 300 "$program" --abort || return; fi
        [[ $1 == emulated/* ]] || return 0
    done > run.log 2>&1
}

# plant FILE TEST OLD NEW
plant() {
    local file=$1 test=$2 old=$3 new=$4 source mutated verdict
    source=$(< "$file")
    if [[ $source != *"$old"* ]]; then
        echo "FAIL $file: there is no '$old' any more"
        return
    fi
    mutated=${source/"$old"/"$new"}
    printf '%s\n' "$mutated" > "$file"
    if ! build "$test"; then verdict="FAIL does not compile: $(grep -m 1 error build.log)"
    elif passes "$test"; then verdict="FAIL slipped through $test"
    else verdict="caught"
    fi
    printf '%s\n' "$source" > "$file"
    echo "$verdict: $file: $old => $new"
}

# The unchanged tree must pass every test that the list names, or a failure means nothing. `check WORKER`: this worker's share of them.
check() {
    local test
    while read -r test; do
        rm -f "build/tests/$test.o"   # built anew, as it will be with the errors
        build "$test" && passes "$test" && continue
        echo "FAIL $test: does not build or pass without any mutation"
        return 1
    done < <(awk -v w="$1" -v n="$workers" 'NR % n == w' "$folder/tests")
}

# plant_all WORKER: this worker's share of the errors.
plant_all() {
    local file test old line n=0
    while IFS= read -r line; do
        case $line in
            '' | '#'*) ;;
            '- '*) old=${line#- } ;;
            '+ '*)
                [[ "$file $test" == *"$only"* ]] || continue
                [ $((n++ % workers)) -ne "$1" ] || plant "$file" "$test" "$old" "${line#+ }"
                ;;
            *) read -r file test <<< "$line" ;;
        esac
    done < "$list"
}

# in_parallel COMMAND: `COMMAND WORKER` for every worker, in its copy of the tree.
in_parallel() {
    local worker process processes=() status=0
    for ((worker = 0; worker < workers; worker++)); do
        (copy=$folder/$worker && cd "$copy" && "$1" "$worker") &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process" || status=1; done
    return $status
}

awk -v only="$only" '/^[^-+#]/ && index($1 " " $2, only) { print $2 }' "$list" | sort -u > "$folder/tests"
for ((worker = 0; worker < workers; worker++)); do
    mkdir "$folder/$worker"
    tar cf - --exclude=./out --exclude=./build/python --exclude=./build/fuzz --exclude=.git . | tar xf - -C "$folder/$worker"
done
in_parallel check || exit 1
in_parallel plant_all | tee "$folder/verdicts"
caught=$(grep -c '^caught: ' "$folder/verdicts") total=$(wc -l < "$folder/verdicts")
echo "caught $caught of $total"
[ "$caught" -eq "$total" ] && [ "$total" -gt 0 ]
