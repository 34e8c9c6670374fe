#!/usr/bin/env bash
# Tests of the tests: plants the errors of dev/mutations.txt one after the other in copies of the tree, rebuilds the one program that
# has to notice, and prints `caught N of M`. Exits 1 when one slipped through, does not compile or no longer fits the source.
#   dev/mutations.sh [WORD]     only those whose file or test contains WORD
#   dev/mutations.sh --fits     plants nothing: whether each still fits the source and names a test that there is
# WORKERS: how many copies at once, by default one per processor. A sample of all kinds: EVERY=48 TAKE=4 FROM=20 plants four of every
# 48 errors, which mostly share a program, from the 20th on.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export OMP_WAIT_POLICY=passive
. dev/planting.bash
word=${1:-} workers=${WORKERS:-$(nproc)}
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null; rm -rf "$folder"' EXIT

if [ "$word" == --fits ]; then
    while IFS=$'\037' read -r file test variants old new; do unfit "$file" "$test" "$variants" "$old"; done \
        < <(errors dev/mutations.txt; errors dev/labs/labs.txt) > "$folder/unfit"
    cat "$folder/unfit"
    [ ! -s "$folder/unfit" ] && echo "every error of dev/mutations.txt fits"
    exit
fi

# note WHAT TEST VARIANTS: where something about their program is noted.
note() { echo "$folder/$1-${2//\//-}-${3// /-}"; }

# build TEST VARIANTS: `program`, with this test alone and a table of these variants. Little optimisation, since most of the time goes
# into the compiler; what the program is not linked with is left as it is, and the flags that objects in build/ have been made with do
# not matter. The program goes first, so that it is linked in any case. Of a script, the programs in its line `# Needs: make ...`.
build() {
    local needs
    program=build/tests/run_tests
    [[ $1 == emulated/* ]] && program=build/emulated/run_tests
    [[ $1 == *_program ]] && program=build/$1
    if [[ $1 == *.sh ]]; then
        needs=$(sed -n 's/^# Needs: make //p' "tests/$1")
        # shellcheck disable=SC2086  # a list of words
        [ -z "$needs" ] || make -o build/flags USE_CUDA=0 CXXFLAGS=-O1 $needs > build.log 2>&1
        return
    fi
    local arguments=(-o build/flags -o build/units CXXFLAGS=-O1 LDFLAGS=-Wl,-t,-t EMULATOR_TESTS=)
    arguments+=("TESTS=build/tests/main.o build/tests/$1.o" "GPU_TESTS=tests/${1#emulated/}.o")
    [ "$2" == all ] || arguments+=("VARIANTS=${2:-causal}")   # the engine has causal in any case, and no rule for it without
    rm -f "$program"
    # shellcheck disable=SC2046  # a list of words
    make "${arguments[@]}" $(sed 's/^/-o /' "$(note unlinked "$1" "$2")" 2> /dev/null) "$program" > build.log 2>&1
}

# note_unlinked TEST VARIANTS: which objects of the engine their program does without, by what the linker has said in build.log.
note_unlinked() { unlinked build.log > "$(note unlinked "$1" "$2")"; }

# Three ranks of the program, on GPUs of their own or on one.
ranks() { WATCHDOG=5 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun --oversubscribe -np 3 "$program" all; }

# passes TEST: the program that was built, or a script. GPU code runs in several orders of threads and streams: a race shows in some
# of them.
passes() {
    local seed
    if [[ $1 == *.sh ]]; then timeout 300 bash "tests/$1" > run.log 2>&1 && ! grep -q '^FAIL ' run.log; return; fi
    for seed in 0 1 2 3; do
        export EMULATOR_SEED=$seed
        if [[ $1 == *_program ]]; then EMULATED_GPU_COUNT=3 ranks && EMULATED_GPU_COUNT=1 ranks || return
        else timeout 300 "$program" --abort || return; fi
        [[ $1 == emulated/* ]] || return 0
    done > run.log 2>&1
}

# plant FILE TEST VARIANTS OLD NEW
plant() {
    local file=$1 test=$2 old=$4 new=$5 source verdict
    verdict=$(unfit "$file" "$test" "$3" "$old")
    [ ! -e "$(note failing "$test" "$3")" ] || verdict="FAIL $file: $test $3 fails without '$new' too"
    [ -z "$verdict" ] || { echo "$verdict"; return; }
    source=$(< "$file")
    plant_in "$file" "$old" "$new"
    if ! build "$test" "$3"; then verdict="FAIL does not compile: $(grep -m 1 error build.log)"
    elif passes "$test"; then verdict="FAIL slipped through $test $3"
    else verdict="caught"
    fi
    printf '%s\n' "$source" > "$file"
    echo "$verdict: $file: $old => $new"
}

# share_of WORKER FILE: its lines of the file.
share_of() { awk -v w="$1" -v n="$workers" 'NR % n == w' "$2"; }

# Without an error planted a program must pass, or its failure means nothing. `check WORKER`: this worker's share of the programs. Their
# objects are built anew, as they will be with the errors.
check() {
    local test variants
    while IFS=$'\037' read -r test variants; do
        rm -f "build/tests/$test.o" "build/${test/emulated\//emulated/tests/}.o"
        # shellcheck disable=SC2086  # a list of words
        [ -z "$variants" ] || rm -f $(printf 'build/attention/%s.o build/emulated/attention/%s.o ' $(printf '%s %s ' $variants $variants))
    done < <(share_of "$1" "$folder/programs")
    while IFS=$'\037' read -r test variants; do
        if build "$test" "$variants" && passes "$test"; then
            [[ $test == *.sh ]] || note_unlinked "$test" "$variants"
        else
            touch "$(note failing "$test" "$variants")"
        fi
    done < <(share_of "$1" "$folder/programs")
}

# plant_all WORKER: this worker's share of the errors.
plant_all() {
    local file test variants old new
    while IFS=$'\037' read -r file test variants old new; do
        plant "$file" "$test" "$variants" "$old" "$new"
    done < <(share_of "$1" "$folder/list")
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

errors dev/mutations.txt "$word" > "$folder/list"   # which may be edited from here on
cut -d $'\037' -f 2,3 "$folder/list" | sort -u > "$folder/programs"
for ((worker = 0; worker < workers; worker++)); do
    mkdir "$folder/$worker"
    tar cf - --exclude=./out --exclude=./build/python --exclude=./build/fuzz --exclude=.git . | tar xf - -C "$folder/$worker"
done
in_parallel check
in_parallel plant_all | tee "$folder/verdicts"
caught=$(grep -c '^caught: ' "$folder/verdicts") total=$(wc -l < "$folder/verdicts")
echo "caught $caught of $total"
[ "$caught" -eq "$total" ] && [ "$total" -gt 0 ]
