#!/usr/bin/env bash
# Tests of the tests: plants the errors of dev/mutations.txt one after the other in a copy of the tree, rebuilds the one test that
# has to notice, and prints `caught N of M`. Exits 1 when one slipped through, does not compile or no longer fits the source.
#   dev/mutations.sh [WORD]     only those whose file or test contains WORD
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export OMP_WAIT_POLICY=passive
list=$PWD/dev/mutations.txt
only=${1:-}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar cf - --exclude=./out --exclude=.git . | tar xf - -C "$copy"
cd "$copy" || exit

total=0 caught=0

# build TEST: `program`, with this test alone. Little optimisation, since most of the time goes into the compiler; the other objects
# are taken as they are in build/, whatever their flags. The program goes first: make takes objects for intermediate files, and would
# not miss one while a newer program is there.
build() {
    program=build/tests/run_tests
    [[ $1 == emulated/* ]] && program=build/emulated/run_tests
    [[ $1 == *_program ]] && program=build/$1
    rm -f "$program"
    make -j"$(nproc)" -o build/flags CXXFLAGS=-O1 TESTS="build/tests/main.o build/tests/$1.o" GPU_TESTS="tests/${1#emulated/}.o" \
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
    [[ "$file $test" == *"$only"* ]] || return
    total=$((total + 1))
    source=$(< "$file")
    if [[ $source != *"$old"* ]]; then
        echo "FAIL $file: there is no '$old' any more"
        return
    fi
    mutated=${source/"$old"/"$new"}
    printf '%s\n' "$mutated" > "$file"
    if ! build "$test"; then verdict="FAIL does not compile: $(grep -m 1 error build.log)"
    elif passes "$test"; then verdict="FAIL slipped through $test"
    else
        verdict="caught"
        caught=$((caught + 1))
    fi
    printf '%s\n' "$source" > "$file"
    echo "$verdict: $file: $old => $new"
}

# The unchanged tree must pass every test that the list names, or a failure means nothing.
check_unchanged() {
    local file test
    while read -r file test; do
        [[ $file == [-+#]* || -z $file || "$file $test" != *"$only"* ]] || echo "$test"
    done < "$list" | sort -u > tests.txt
    while read -r test; do
        rm -f "build/tests/$test.o"   # built anew, as it will be with the errors
        build "$test" && passes "$test" && continue
        echo "FAIL $test: does not build or pass without any mutation"
        exit 1
    done < tests.txt
}

check_unchanged
file="" test="" old=""
while IFS= read -r line; do
    case $line in
        '' | '#'*) ;;
        '- '*) old=${line#- } ;;
        '+ '*) plant "$file" "$test" "$old" "${line#+ }" ;;
        *) read -r file test <<< "$line" ;;
    esac
done < "$list"
echo "caught $caught of $total"
[ "$caught" -eq "$total" ] && [ "$total" -gt 0 ]
