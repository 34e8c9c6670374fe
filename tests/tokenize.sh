#!/usr/bin/env bash
# ./tokenize as a user runs it: stopped by signals, with compressed input. Kills and a full disk are in tests/faults.sh, what is refused
# in tests/test_tokenize*.cpp and tests/test_documents.cpp. Prints `ok NAME` or `FAIL NAME: why` per check and `skip NAME: why`.
# Needs: make tokenize
. "$(dirname "$0")/checks.bash"
for _ in $(seq 3); do cat data/bundled/sotu.jsonl; done > "$work/a.jsonl"
cp data/bundled/sotu.jsonl "$work/b.txt"
tokenize=(./tokenize --name x --shard-tokens 250000)
hashes() { (cd "$1" && cat ./*_manifest.json && cksum ./*); }
same_files() { [ "$(hashes "$1")" = "$(hashes "$2")" ]; }

"${tokenize[@]}" --val-tokens 1000 --out "$work/file" "$work/a.jsonl" > /dev/null 2>&1
"${tokenize[@]}" --val-tokens 1000 --out "$work/input" --format jsonl - < "$work/a.jsonl" > /dev/null 2>&1
check "a file and standard input give the same bytes" 'same_files "$work/file" "$work/input"'

# ---- signals
from_pipe=("${tokenize[@]}" --val-fraction 0 --out "$work/stopped" --format jsonl -)
set -m   # else a job in the background ignores Ctrl-C
"${from_pipe[@]}" > /dev/null 2> "$work/stderr" < <(cat "$work/a.jsonl"; exec sleep 20 2> /dev/null) &
job=$!
set +m
for _ in $(seq 100); do [ -e "$work/stopped/x_unfinished/x_train_000010.bin" ] && break; sleep 0.1; done
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
a broken line of standard input | 3 | standard input:1: is not JSON | --val-fraction 0 --format jsonl - <<< "nonsense"
nothing left to train on | 2 | from 0 to 0.999999 | --val-fraction 1 "$work/b.txt"
too many tokens a shard | 2 | from 1 to 2147483647 | --shard-tokens 2147483648 "$work/b.txt"
masked prompts from a text | 2 | give --format jsonl | --mask-prompts -
fewer documents than announced | 3 | holds 2 documents, but --documents is 3 | --documents 3 --format jsonl - < <(head -n 2 "$work/a.jsonl")
as many documents as announced | 0 | | --documents 2 --format jsonl - < <(head -n 2 "$work/a.jsonl")
END
