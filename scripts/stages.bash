# Sourced by scripts/run_tests.sh: stages with their times, test cases on all processors, the final count.
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: > "$work/stages"
: > "$work/durations"

# Sets cpu to the seconds of processor time that the processes started so far have taken; `times` knows them in this shell only.
measure_cpu() {
    times > "$work/times"
    cpu=$(awk 'NR == 2 { for (n = 1; n <= 2; n++) { split($n, t, /[ms]/); total += 60 * t[1] + t[2] } print total }' "$work/times")
}

# stage NAME COMMAND...: runs it and notes what it took. A command that fails without having counted a failed test is one.
stage() {
    local name=$1 failed_before=$failed begin=$EPOCHREALTIME cpu cpu_before status
    shift
    measure_cpu
    cpu_before=$cpu
    printf '\n== %s\n' "$name"
    "$@"
    status=$?
    measure_cpu
    awk -v name="$name" -v wall="$begin $EPOCHREALTIME" -v cpu="$cpu_before $cpu" \
        'BEGIN { split(wall, w); split(cpu, c); printf "%8.1f s %8.1f CPU-s  %s\n", w[2] - w[1], c[2] - c[1], name }' >> "$work/stages"
    tail -n 1 "$work/stages"
    if [ $status -ne 0 ] && [ "$failed" -eq "$failed_before" ]; then
        echo "FAIL $name: ended with status $status"
        failed=$((failed + 1))
    fi
    return $status
}

# The first number before the word in Catch2's summary line of a log; 0 when it has none.
cases() { grep -E '^test cases: ' "$2" | tail -n 1 | grep -oE "[0-9]+ $1( \\||$)" | grep -oE '[0-9]+' | head -n 1 || echo 0; }

# Counts the test cases of a Catch2 program that ended with a status and left its output in a log.
count_cases() {
    local program=$1 status=$2 log=$3 bad
    bad=$(cases failed "$log")
    if grep -qE '^All tests passed' "$log"; then
        passed=$((passed + $(grep -E '^All tests passed' "$log" | grep -oE '[0-9]+ test case' | grep -oE '[0-9]+')))
    else
        passed=$((passed + $(cases passed "$log")))
    fi
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        echo "FAIL $program: ended with status $status"
        tail -n 20 "$log"
        bad=1
    fi
    failed=$((failed + bad))
}

# The names of a program's test cases, with Catch2 2 and 3.
names_of() {
    local names
    names=$("$@" --list-test-names-only 2> /dev/null)
    [ -n "$names" ] || names=$("$@" --list-tests --verbosity quiet)
    grep . <<< "$names"
}

# run_cases PROGRAM [TESTS]: the test cases of a Catch2 program, dealt out to as many processes as there are processors; TESTS as
# Catch2 takes them. What failed is printed, what took how long is kept.
run_cases() {
    local program=$1 processors share log bad_before=$failed passed_before=$passed processes=()
    processors=$(nproc)
    if ! names_of "$@" > "$work/names"; then
        echo "FAIL $program: there are no such test cases"
        failed=$((failed + 1))
        return 1
    fi
    for ((share = 0; share < processors; share++)); do
        awk -v n="$processors" -v s="$share" 'NR % n == s' "$work/names" | sed 's/[,\[]/\\&/g' > "$work/names-$share"   # Catch2's own characters
        [ -s "$work/names-$share" ] || continue
        "$program" --input-file "$work/names-$share" --durations yes > "$work/log-$share" 2>&1 &
        processes[share]=$!
    done
    for share in "${!processes[@]}"; do
        log=$work/log-$share
        wait "${processes[share]}"
        count_cases "$program" $? "$log"
        grep -E '^[0-9.]+ s: ' "$log" >> "$work/durations"
        grep -vE '^([0-9.]+ s: |Filters: )' "$log"
    done
    if [ "$failed" -eq "$bad_before" ] && [ $((passed - passed_before)) -ne "$(wc -l < "$work/names")" ]; then
        echo "FAIL $program: $(wc -l < "$work/names") test cases are listed and $((passed - passed_before)) have run"
        failed=$((failed + 1))
    fi
    rm -f "$work"/log-* "$work"/names*
    [ "$failed" -eq "$bad_before" ]
}

# lane NAME SCRIPT...: scripts of checks one after the other, with a folder and counts of their own, which lanes() adds up.
lane() {
    local script
    work=$work/$1 passed=0 failed=0
    mkdir "$work"
    shift
    for script; do stage "$script" run_script "$script"; done
    echo "$passed $failed" > "$work/counts"
}

# lanes SCRIPTS SCRIPTS: two lists of scripts beside each other. What the second prints comes in one piece, afterwards.
# shellcheck disable=SC2086  # lists of words
lanes() {
    local name counts
    lane first $1 &
    lane second $2 > "$work/printed" 2>&1 &
    wait
    cat "$work/printed"
    for name in first second; do
        cat "$work/$name/stages" >> "$work/stages"
        read -ra counts < "$work/$name/counts" || counts=(0 1)
        passed=$((passed + counts[0])) failed=$((failed + counts[1]))
    done
}

# Scripts of checks, one after the other.
run_scripts() {
    local script
    for script; do stage "$script" run_script "$script"; done
}
run_script() {
    local status bad
    bash "$1" 2>&1 | tee "$work/log"
    status=${PIPESTATUS[0]}
    bad=$(grep -c '^FAIL ' "$work/log")
    passed=$((passed + $(grep -c '^ok ' "$work/log")))
    failed=$((failed + bad))
    [ "$status" -eq 0 ] && [ "$bad" -eq 0 ]
}

# Ends the program: where the time went, and the count.
finish() {
    printf '\n== stages\n'
    cat "$work/stages"
    if [ -s "$work/durations" ]; then
        printf '\n== slowest test cases\n'
        sort -rn "$work/durations" | head -n 10
    fi
    echo
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}
