#!/usr/bin/env bash
# Tries labs as a student would: plants the error, looks for the symptom (and that the tree without it has none), asks for a
# verdict, puts the line back, asks again. Prints a row of README.md's table for each, or what is wrong with it, and then exits
# with 1.
#   dev/labs/try_all.sh [NUMBER...]     these, by default all; folders are made in LABS (out/labs_tried)
# Seconds: the processor time of `make lab-check` before a student has found it (it compiles what the error is in) and after.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/labs/labs.bash
export LABS=${LABS:-out/labs_tried} LC_ALL=C.UTF-8 OMP_WAIT_POLICY=passive
mkdir -p "$LABS"
field() { field_of "$number" "$1"; }
wrong() { echo "lab $number: $1"; status=1; }
# shown FOLDER: what the lab's commands print there, in one line.
shown() { (cd "$1" && mkdir -p out && MAKEFLAGS='' timeout 600 bash -c "$show" 2>&1) | tr '\n\r' '  '; }
has_symptom() { grep -qP -- "$(field sees)" <<< "$1"; }

# verdict: of the lab's copy, into check.log; prints the seconds of processor time that it took.
verdict() {
    local TIMEFORMAT='%U %S'
    { time dev/labs/lab.sh check "$number" > "$LABS/check.log" 2>&1; } 2>&1 | awk '{ printf "%.0f", $1 + $2 }'
}

try() {
    local folder=$LABS/try_$number show file before after output
    show=$(field show)
    rm -rf "$folder" "$LABS/check/$number"
    export LAB=$folder
    dev/labs/lab.sh start "$number" > "$LABS/start.log" 2>&1 || { wrong "$(tail -n 1 "$LABS/start.log")"; return; }
    output=$(shown "$folder")
    has_symptom "$output" || wrong "the symptom does not show: $(tail -c 600 <<< "$output")"
    cp dev/labs/{compare.sh,round_trip.sh,small.toml} "$LABS/base/"
    output=$(shown "$LABS/base")
    ! has_symptom "$output" || wrong "the symptom shows without the error: $(tail -c 600 <<< "$output")"
    before=$(verdict)
    grep -q "^lab $number: not yet" "$LABS/check.log" || wrong "no 'not yet': $(tail -n 3 "$LABS/check.log")"
    file=$(file_of "$number")
    cp "$file" "$folder/$file"
    after=$(verdict)
    grep -q "^lab $number: solved" "$LABS/check.log" || wrong "not solved: $(tail -n 3 "$LABS/check.log")"
    awk -v n="$number" -v s="$before, $after" '$1 == "lab:" && $2 == n {
        level = $3; sub(/^lab: [0-9]+ [a-z]+ /, ""); printf "| %d | %s | %s | %s |\n", n, level, $0, s }' dev/labs/labs.txt
    rm -rf "$folder"
}

status=0
[ $# -gt 0 ] || set -- $(seq "$(grep -c ^lab: dev/labs/labs.txt)")
for number; do try; done
exit $status
