#!/usr/bin/env bash
# ./tokenize as a user runs it: killed with SIGKILL at random moments and started again, stopped by signals, on a full disk, with
# compressed input. What is refused is in tests/test_tokenize*.cpp and tests/test_documents.cpp. Prints `ok NAME` or `FAIL NAME: why`
# per check and `skip NAME: why`.
# Needs: make tokenize
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
for _ in $(seq 3); do cat data/bundled/sotu.jsonl; done > "$work/a.jsonl"
cp data/bundled/sotu.jsonl "$work/b.txt"
inputs=("$work/a.jsonl" "$work/b.txt")
tokenize=(./tokenize --name x --shard-tokens 250000)
hashes() { (cd "$1" && cat ./*_manifest.json && cksum ./*); }
same_files() { [ "$(hashes "$1")" = "$(hashes "$2")" ]; }

# ---- kill -9, as soon as there is a shard to go on from, and twice more (at each call on files: tests/faults.sh)
while read -ra words; do
    "${tokenize[@]}" "${words[@]}" --out "$work/whole" < "$work/a.jsonl" > /dev/null 2>&1
    continued=0
    for until in progress 0.05 0.1 end; do
        "${tokenize[@]}" "${words[@]}" --out "$work/killed" < "$work/a.jsonl" > /dev/null 2> "$work/stderr" &
        case $until in
            progress) until [ -e "$work/killed/x_progress.json" ] || ! kill -0 $! 2> /dev/null; do :; done ;;
            0*) sleep $until ;;
        esac
        [ $until = end ] || kill -9 $! 2> /dev/null
        wait $! 2> /dev/null
        grep -q "resuming where" "$work/stderr" && continued=$((continued + 1))
    done
    check "${words[*]:0:4}: killed, and continued $continued times, it ends at the same bytes" 'same_files "$work/killed" "$work/whole" && [ $continued -gt 0 ]'
    rm -r "$work/killed" "$work/whole"
done << END
--val-fraction 0.1 --threads 2 ${inputs[*]}
--val-tokens 1000 --threads 1 --format jsonl -
END
"${tokenize[@]}" --val-tokens 1000 --out "$work/file" "$work/a.jsonl" > /dev/null 2>&1
"${tokenize[@]}" --val-tokens 1000 --out "$work/input" --format jsonl - < "$work/a.jsonl" > /dev/null 2>&1
check "a file and standard input give the same bytes" 'same_files "$work/file" "$work/input"'

# ---- signals
from_pipe=("${tokenize[@]}" --val-fraction 0 --out "$work/stopped" --format jsonl -)
set -m   # else a job in the background ignores Ctrl-C
"${from_pipe[@]}" > /dev/null 2> "$work/stderr" < <(cat "$work/a.jsonl"; exec sleep 20 2> /dev/null) &
job=$!
set +m
for _ in $(seq 100); do [ -e "$work/stopped/x_train_000010.bin.tmp" ] && break; sleep 0.1; done
expect "a second run in the same folder" 3 "another run is writing there" ./tokenize --name z --out "$work/stopped" data/bundled/sotu.jsonl
kill -INT $job
wait $job
status=$?
check "Ctrl-C ends a run that waits for standard input with 75 (was $status), and no shard has its final name" \
    '[ $status -eq 75 ] && ! ls "$work/stopped" | finds "bin$"'
expect_each << END
another standard input is not taken for the same | 3 | differ from the stopped run's | ${from_pipe[@]@Q} < <(tac "$work/a.jsonl")
nor a shorter one | 3 | differ from the stopped run's | ${from_pipe[@]@Q} < <(head -n 9 "$work/a.jsonl")
the same one goes on | 0 | resuming where a stopped run ended | ${from_pipe[@]@Q} < "$work/a.jsonl"
END

# ---- a full disk
if mount_small "$work/disk" 8m; then
    expect "a full disk ends the run with 3" 3 "No space left" "${tokenize[@]}" --out "$work/disk" "${inputs[@]}"
    check "and leaves finished shards only" '[ "$(ls "$work/disk" | grep -c "tmp$")" -eq "$(grep -c "\"file\"" "$work/disk/x_progress.json")" ] && ! ls "$work/disk" | finds "bin$"'
    mount -o remount,size=300m "$work/disk"
    expect "with room it goes on" 0 "resuming where" "${tokenize[@]}" --out "$work/disk" "${inputs[@]}"
    "${tokenize[@]}" --out "$work/whole2" "${inputs[@]}" > /dev/null 2>&1
    check "and ends at the same bytes" 'same_files "$work/disk" "$work/whole2"'
    unmount
else
    skip "full disk" "cannot mount a small file system here"
fi

# ---- inputs
run=(./tokenize --name y --out "$work/y")
for suffix in gz xz zst; do
    case $suffix in gz) tool=gzip ;; xz) tool="xz -T1" ;; zst) tool=zstd ;; esac
    if ! command -v ${tool% *} > /dev/null; then skip "$suffix" "there is no ${tool% *} here"; continue; fi
    head -c 1000000 "$work/b.txt" | $tool -c > "$work/c.txt.$suffix"
    expect "a .$suffix file" 0 "" "${run[@]}" "$work/c.txt.$suffix"
    check "gives its text" '[ "$(sed -n "s/.*\"tokens\": \([0-9]*\),$/\1/p" "$work/y/y_manifest.json" | head -n 1)" -eq 1000002 ]'
    { head -c 100000 "$work/c.txt.$suffix"; printf 'XYZ'; tail -c +100004 "$work/c.txt.$suffix"; } > "$work/damaged.txt.$suffix"
    expect "one that is damaged" 3 "damaged.txt.$suffix: is damaged" "${run[@]}" "$work/damaged.txt.$suffix"
done
expect_each "${run[@]}" << END
a text that is given twice | 2 | is given twice | "$work/b.txt" "$work/../${work##*/}/b.txt"
a text of which nothing is for validation | 0 | | --val-tokens 0 "$work/b.txt"
bytes that are not UTF-8 | 0 | is not UTF-8 in 2 places | --val-fraction 0 - < <(printf 'd\351j\340 vu')
text of another encoding | 0 | | --val-fraction 0 --encoding latin1 - < <(printf 'd\351j\340 vu')
text of an unknown encoding | 2 | iconv -l | --encoding klingon -
a broken line of standard input | 3 | standard input:1: parse error | --format jsonl - <<< "nonsense"
masked prompts from a text | 2 | give --format jsonl | --mask-prompts -
fewer documents than announced | 3 | holds 2 documents, but --documents is 3 | --documents 3 --format jsonl - < <(head -n 2 "$work/a.jsonl")
as many documents as announced | 0 | | --documents 2 --format jsonl - < <(head -n 2 "$work/a.jsonl")
END
