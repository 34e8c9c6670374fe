#!/usr/bin/env bash
# Tests of the tests: plants the errors of dev/mutations.txt one after the other in a copy of the tree, rebuilds the one test that
# has to notice, and prints `caught N of M`. Exits 1 when one slipped through, does not compile or no longer fits the source.
#   dev/mutations.sh [WORD]     only those whose file or test contains WORD; all of them take about ten minutes
set -uo pipefail
cd "$(dirname "$0")/.." || exit
list=$PWD/dev/mutations.txt
only=${1:-}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar cf - --exclude=./build --exclude=./out --exclude=.git . | tar xf - -C "$copy"
cd "$copy" || exit

total=0 caught=0

# build TEST: the test program with this test alone. Little optimisation: most of the time goes into the compiler. The program goes
# first: make takes objects for intermediate files, and would not miss one while a newer program is there.
build() {
    rm -f build/tests/run_tests
    make -j"$(nproc)" CXXFLAGS=-O1 build/tests/run_tests TESTS="build/tests/main.o build/tests/$1.o" > build.log 2>&1
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
    elif timeout 300 build/tests/run_tests --abort > run.log 2>&1; then verdict="FAIL slipped through $test"
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
        build "$test" && build/tests/run_tests > run.log 2>&1 && continue
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
