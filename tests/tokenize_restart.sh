#!/usr/bin/env bash
# ./tokenize as a user runs it: killed with SIGKILL at random moments and started again, stopped by signals, on a full disk, with
# inputs that are compressed, damaged or not what they should be. Prints `ok NAME` or `FAIL NAME: why` per check and
# `skip NAME: why` for what this machine cannot show. Needs ./tokenize and data/bundled; takes about half a minute.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
[ -x ./tokenize ] || { echo "FAIL tokenize: there is no ./tokenize"; exit 1; }

for _ in $(seq 12); do cat data/bundled/sotu.jsonl; done > "$work/a.jsonl"
for _ in $(seq 3); do cat data/bundled/sotu.jsonl; done > "$work/b.txt"
inputs="$work/a.jsonl $work/b.txt"
hashes() { (cd "$1" && cat ./*_manifest.json && for file in *; do cksum "$file"; done); }

# ---- kill -9
# killed THREADS MOST COMMAND...: starts the command in $work/killed again and again, killing it first when it has a shard to go on
# from, then after up to MOST hundredths of a second, until it ends by itself. Leaves how often in `kills` and how often it went on with
# something in `continued`.
killed() {
    local threads=$1 most=$2 victim status
    shift 2
    rm -rf "$work/killed"
    kills=0 continued=0
    while true; do
        "$@" --threads "$threads" --out "$work/killed" > "$work/stdout" 2> "$work/stderr" < "${stdin:-/dev/null}" &
        victim=$!
        if [ $kills -eq 0 ]; then until [ -e "$work/killed/x_progress.json" ] || ! kill -0 $victim 2> /dev/null; do :; done
        else sleep "$(printf '0.%02d' $((RANDOM % most + 1)))"; fi
        kill -9 $victim 2> /dev/null && kills=$((kills + 1))
        wait $victim 2> /dev/null
        status=$?
        grep -q "resuming where" "$work/stderr" && continued=$((continued + 1))
        [ $status -eq 0 ] && return 0
        [ $status -eq 137 ] || return 1
        [ $most -lt 90 ] && most=$((most + 1))   # it has to end some time
    done
}
for way in "--val-fraction 0.1" "--val-tokens 3000000"; do
    # shellcheck disable=SC2086  # words are what is wanted
    ./tokenize --name x --shard-tokens 1000000 $way --out "$work/whole" $inputs > /dev/null 2>&1
    for threads in 1 2; do
        # shellcheck disable=SC2086
        killed $threads 40 ./tokenize --name x --shard-tokens 1000000 $way $inputs
        check "$way, $threads threads: killed $kills times, continued $continued times, it ends at the same bytes" \
            '[ "$(hashes "$work/killed")" = "$(hashes "$work/whole")" ] && [ $continued -gt 0 ]'
    done
    rm -rf "$work/whole"
done

# ---- standard input
stdin=$work/a.jsonl
./tokenize --name x --shard-tokens 1000000 --val-tokens 1000 --format jsonl --out "$work/whole" - < "$stdin" > /dev/null 2>&1
killed 2 40 ./tokenize --name x --shard-tokens 1000000 --val-tokens 1000 --format jsonl -
check "standard input: killed $kills times, continued $continued times, it ends at the same bytes" \
    '[ "$(hashes "$work/killed")" = "$(hashes "$work/whole")" ] && [ $continued -gt 0 ]'
./tokenize --name x --shard-tokens 1000000 --val-tokens 1000 --out "$work/same" "$work/a.jsonl" > /dev/null 2>&1
check "a file and standard input give the same bytes" '[ "$(hashes "$work/same")" = "$(hashes "$work/whole")" ]'
stdin=""

# ---- signals
set -m   # else a job in the background ignores Ctrl-C
./tokenize --name x --shard-tokens 1000000 --val-fraction 0 --out "$work/stopped" --format jsonl - > /dev/null 2> "$work/stderr" \
    < <(cat "$work/a.jsonl"; exec sleep 20 2> /dev/null) &
job=$!
set +m
for _ in $(seq 100); do [ -e "$work/stopped/x_train_000050.bin.tmp" ] && break; sleep 0.1; done
expect "a second run in the same folder" 3 "another run is writing there" ./tokenize --name z --out "$work/stopped" data/bundled/sotu.jsonl
kill -INT $job
wait $job
status=$?
check "Ctrl-C ends a run that waits for standard input with 75 (was $status)" '[ $status -eq 75 ]'
check "and says how to go on" 'grep -q "stopped by a signal; the same command resumes" "$work/stderr"'
check "and no shard has its final name" '! ls "$work/stopped" | grep -q "bin$"'
nohup ./tokenize --name x --shard-tokens 1000000 --val-fraction 0 --out "$work/nohup" "$work/a.jsonl" > /dev/null 2>&1 &
job=$!
until [ -e "$work/nohup" ] || ! kill -0 $job 2> /dev/null; do :; done
kill -HUP $job
wait $job
status=$?
check "nohup lets a run outlive SIGHUP (status $status)" '[ $status -eq 0 ] && [ -e "$work/nohup/x_manifest.json" ]'
expect "another standard input is not taken for the same" 3 "are not those that the stopped run had read" \
    ./tokenize --name x --shard-tokens 1000000 --val-fraction 0 --out "$work/stopped" --format jsonl - < <(tac "$work/a.jsonl")
expect "nor a shorter one" 3 "are not those that the stopped run had read" \
    ./tokenize --name x --shard-tokens 1000000 --val-fraction 0 --out "$work/stopped" --format jsonl - < <(head -n 9 "$work/a.jsonl")
expect "the same one goes on" 0 "resuming where a stopped run ended" \
    ./tokenize --name x --shard-tokens 1000000 --val-fraction 0 --out "$work/stopped" --format jsonl - < "$work/a.jsonl"

# ---- a full disk
if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=30m tmpfs "$work/disk" 2> /dev/null; then
    mounted=$work/disk
    # shellcheck disable=SC2086
    expect "a full disk ends the run with 3" 3 "No space left" ./tokenize --name x --shard-tokens 1000000 --out "$work/disk" $inputs
    check "and leaves finished shards only" '[ "$(ls "$work/disk" | grep -c "tmp$")" -eq "$(grep -c "\"file\"" "$work/disk/x_progress.json")" ] && ! ls "$work/disk" | grep -q "bin$"'
    mount -o remount,size=300m "$work/disk"
    # shellcheck disable=SC2086
    expect "with room it goes on" 0 "resuming where" ./tokenize --name x --shard-tokens 1000000 --out "$work/disk" $inputs
    # shellcheck disable=SC2086
    ./tokenize --name x --shard-tokens 1000000 --out "$work/whole2" $inputs > /dev/null 2>&1
    check "and ends at the same bytes" '[ "$(hashes "$work/disk")" = "$(hashes "$work/whole2")" ]'
else
    skip "full disk" "cannot mount a small file system here"
fi

# ---- inputs
run="./tokenize --name y --out $work/y"
for suffix in gz xz zst; do
    case $suffix in gz) tool=gzip ;; xz) tool="xz -T1" ;; zst) tool=zstd ;; esac
    if ! command -v ${tool% *} > /dev/null; then skip "$suffix" "there is no ${tool% *} here"; continue; fi
    head -c 3000000 "$work/b.txt" | $tool -c > "$work/c.txt.$suffix"
    expect "a .$suffix file" 0 "" $run "$work/c.txt.$suffix"
    check "gives its text" '[ "$(sed -n "s/.*\"tokens\": \([0-9]*\),$/\1/p" "$work/y/y_manifest.json" | head -n 1)" -eq 3000002 ]'
    head -c 300000 "$work/c.txt.$suffix" > "$work/short.txt.$suffix"
    expect "a .$suffix file that is cut short" 3 "short.txt.$suffix: is " $run "$work/short.txt.$suffix"
    cp "$work/c.txt.$suffix" "$work/damaged.txt.$suffix"
    printf 'XYZ' | dd of="$work/damaged.txt.$suffix" bs=1 seek=400000 conv=notrunc 2> /dev/null
    expect "a .$suffix file that is damaged" 3 "damaged.txt.$suffix: is damaged" $run "$work/damaged.txt.$suffix"
    cp "$work/b.txt" "$work/text.txt.$suffix"
    expect "text that calls itself .$suffix" 3 "text.txt.$suffix" $run "$work/text.txt.$suffix"
    : > "$work/empty.txt.$suffix"
    expect "an empty file that calls itself .$suffix" 3 "empty.txt.$suffix: is empty" $run "$work/empty.txt.$suffix"
done
: > "$work/empty.txt"
expect "an empty text" 3 "empty.txt: holds no text" $run "$work/empty.txt"
expect "a file that is not there" 3 "none.txt: cannot be opened" $run "$work/none.txt"
expect "a folder" 3 "is a folder" $run "$work"
cp "$work/empty.txt" "$work/a.csv"
expect "a file of another kind" 2 "a.csv: ends in neither .txt nor .jsonl" $run "$work/a.csv"
(head -n 3 data/bundled/sotu.jsonl; echo '{"body": "no text"}') > "$work/field.jsonl"
expect "a line without the field" 3 'field.jsonl:4: the object has no field "text"' $run "$work/field.jsonl"
(head -n 3 data/bundled/sotu.jsonl; echo '{"text": 12}') > "$work/number.jsonl"
expect "a field that is no string" 3 'number.jsonl:4: field "text" must be a string, it is number' $run "$work/number.jsonl"
(head -n 3 data/bundled/sotu.jsonl; echo 'no JSON') | gzip -c > "$work/broken.jsonl.gz"
expect "a line that is not JSON, in a compressed file" 3 "broken.jsonl.gz:4: parse error" $run "$work/broken.jsonl.gz"
expect "a broken line of standard input" 3 "standard input:1: parse error" $run --format jsonl - <<< "nonsense"
expect "--val-fraction and --val-tokens exclude each other" 2 "--val-tokens" $run --val-fraction 0.1 --val-tokens 5 "$work/b.txt"
expect "--val-tokens with too little text" 3 "leaves nothing to train on" $run --val-tokens 2000000000 "$work/b.txt"
expect "fewer documents than announced" 3 "holds 2 documents, but --documents is 3" $run --documents 3 --format jsonl - < <(head -n 2 data/bundled/sotu.jsonl)
expect "more documents than announced" 3 "holds 2 documents, but --documents is 1" $run --documents 1 --format jsonl - < <(head -n 2 data/bundled/sotu.jsonl)
expect "as many documents as announced" 0 "" $run --documents 2 --format jsonl - < <(head -n 2 data/bundled/sotu.jsonl)
expect "an unknown format" 2 "--format" $run --format csv -
