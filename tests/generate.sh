#!/usr/bin/env bash
# ./generate as a user runs it: ids, the mechanisms for inference (--attention psa, adaspa), many prompts, Ctrl-C. Prints `ok NAME` or
# `FAIL NAME: why` per check, `skip NAME: why`. Takes some seconds.
# Needs: make train_causal train_asga tokenize generate
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

# ---- a small text, and a checkpoint of it for each of two variants
head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
for variant in causal asga; do
    timeout 120 ./train_$variant --device cpu --model qwen-tiny --train-data "$work/data/small_train_*.bin" --val-data "$work/data/small_val_*.bin" \
        --threads 1 --seq-len 32 --batch-size 8 --steps 12 --lr 3e-3 --val-every 0 --sample-every 0 --checkpoint-every 12 --plot 0 \
        --out "$work/$variant" > /dev/null 2>&1
done
last="$work/causal/step_00000012"

# ---- one text, read as trained and sparsely
expect "generate prints ids and nothing else" 0 "" ./generate --threads 1 --checkpoint "$last" --prompt-ids 65,66 --tokens 7 --temperature 0 --print-ids
check "seven of them" '[ "$(wc -w < "$work/stdout")" -eq 7 ] && [ "$(wc -l < "$work/stdout")" -eq 1 ]'
cp "$work/stdout" "$work/dense"
greedy="./generate --threads 1 --checkpoint $last --prompt-ids 65,66 --tokens 7 --temperature 0 --print-ids"
check "what writing takes is told before" '$greedy --dry-run | grep -q "kept of the text"'
expect "generate with psa says how much it read" 0 "psa: read 100.0%" $greedy --attention psa --psa-eps 1 --psa-block 2
check "and with eps 1 writes the same" 'cmp -s "$work/stdout" "$work/dense"'
expect "and certifies with an upper bound" 0 "certified" $greedy --attention psa --psa-eps 0.5 --psa-block 2 --psa-bound upper
expect "generate with adaspa" 0 "adaspa: read 100.0%" $greedy --attention adaspa --adaspa-sparsity 0
check "and without sparsity writes the same" 'cmp -s "$work/stdout" "$work/dense"'
expect "psa on another variant" 2 "asga" ./generate --checkpoint "$work/asga/step_00000012" --prompt-ids 65,66 --attention psa
expect "psa past the model's positions" 2 "max_position_embeddings" $greedy --tokens 40000 --attention psa
expect "a share that is none" 2 "from 0 to 1" $greedy --attention psa --psa-eps 1.5
expect "a sparsity that leaves nothing" 2 "from 0 to 0.999" $greedy --attention adaspa --adaspa-sparsity 1
expect "blocks that are no tiles" 2 "multiple of 64" $greedy --attention adaspa --adaspa-block 96
expect "no keys per block" 2 "1 to 65536" $greedy --attention psa --psa-block 0
command -v nvidia-smi > /dev/null || expect "--device cuda without a GPU" 2 "--device cuda" $greedy --device cuda
expect "an unknown mechanism" 2 "adaspa" $greedy --attention pas
expect "a seed below 0" 2 "--seed" $greedy --seed -1
expect "help on a full disk" 3 "cannot be written" bash -c './generate --help > /dev/full'
expect "an option of psa without psa" 2 "--attention psa" $greedy --psa-eps 0.5

# ---- matrices, keys and values in bf16
# of_plan WORD [OPTION...]: that line of the plan, in KiB.
of_plan() { $greedy --tokens 60 --dry-run "${@:2}" | awk -v what="| $1 " 'index($0, what) { print $(NF - 2) * ($(NF - 1) == "MiB" ? 1024 : 1) }'; }
expect "a text from rounded matrices" 0 "" $greedy --weights bf16
check "has as many tokens" '[ "$(wc -w < "$work/stdout")" -eq 7 ]'
for what in weights "kept of the text"; do
    check "and the plan half the memory: $what" 'awk "BEGIN { r = $(of_plan "$what" --weights bf16) / $(of_plan "$what"); exit !(r > 0.49 && r < 0.6) }"'
done
expect "a way to keep them that is none" 2 "bf16" $greedy --weights fp16

# ---- what was measured, for programs
# logged WORD: whether the line of --log has it.
logged() { grep -q "$1" "$work/measured.jsonl"; }
expect "a log of writing" 0 "" $greedy --log "$work/measured.jsonl"
check "is one line with times and tokens" '[ "$(wc -l < "$work/measured.jsonl")" -eq 1 ] && logged "\"texts\":1,\"prompt_tokens\":2,\"reading_seconds\":[0-9.e-]*,\"later_tokens\":6,\"writing_seconds\":[0-9]"'
check "with device and weights" 'logged "\"variant\":\"causal\",\"device\":\"c[a-z]*\",\"machine\":\"[^\"].*\"weights\":\"[a-z0-9]*\""'
kept() { grep -o '"cache_bytes":[0-9]*' "$work/measured.jsonl" | cut -d: -f2; }
check "and the bytes of the plan" '[ "$(kept)" -gt 0 ] && awk "BEGIN { r = $(kept) / 1024 / $(of_plan "kept of the text" --tokens 7); exit !(r > 0.99 && r < 1.01) }"'
expect "of psa" 0 "" $greedy --device cpu --weights bf16 --attention psa --psa-eps 0.5 --psa-block 2 --log "$work/measured.jsonl"
check "with what it read" 'logged "\"device\":\"cpu\".*\"weights\":\"bf16\",\"pairs_read\":0.[0-9]*,\"mass_kept\":0."'
echo '{"prompt": "We"}' > "$work/one.jsonl"
./generate --threads 1 --checkpoint "$last" --tokens 3 --prompts "$work/one.jsonl" --out "$work/closed.jsonl" 2>&-
check "where standard error is closed, texts are in their file alone" '[ "$(wc -l < "$work/closed.jsonl")" -eq 1 ] && grep -q "^{.*}$" "$work/closed.jsonl"'
rm "$work/measured.jsonl"
expect "a plan on a full disk" 3 "cannot be written" bash -c "$greedy --dry-run > /dev/full"
expect "a plan" 0 "" $greedy --dry-run --log "$work/measured.jsonl"
check "measures nothing" '[ ! -e "$work/measured.jsonl" ]'
expect "a log that cannot be written, told before writing" 7 "cannot be written" $greedy --log "$work/nowhere/measured.jsonl"
check "no token was" '[ ! -s "$work/stdout" ]'

# ---- many prompts
printf '%s\n' '{"prompt": "We the people", "id": 7}' '{"prompt_ids": [65, 66, 67], "seed": 3}' '' '{"prompt": "The state of the union"}' '{"prompt": ""}' > "$work/prompts.jsonl"
many="./generate --threads 1 --checkpoint $last --tokens 9 --temperature 0.7 --ignore-eos"
expect "texts of many prompts" 0 "4 prompts" $many --prompts "$work/prompts.jsonl" --out "$work/texts.jsonl"
check "a line for each, in their order" '[ "$(grep -c "\"tokens\":9}" "$work/texts.jsonl")" -eq 4 ] && head -1 "$work/texts.jsonl" | grep -q "\"id\":7.*We the people"'
expect "the same two at a time, on standard output" 0 "4 prompts" $many --prompts "$work/prompts.jsonl" --batch 2
check "as before" 'cmp -s "$work/stdout" "$work/texts.jsonl"'
expect "and each alone" 0 "" $many --prompt-ids 65,66,67 --seed 3 --print-ids
cp "$work/stdout" "$work/alone"
expect "as ids" 0 "" $many --prompts "$work/prompts.jsonl" --print-ids
check "are the same" '[ "$(sed -n 2p "$work/stdout" | grep -o "\"ids\":\[[^]]*" | cut -d"[" -f2 | tr "," " ")" = "$(cat "$work/alone")" ]'
echo '{"prompt": "We' >> "$work/prompts.jsonl"
expect "a line that is cut off" 3 "prompts.jsonl:6: is not JSON" $many --prompts "$work/prompts.jsonl"
expect "prompts of two kinds" 2 "excludes" $many --prompts "$work/prompts.jsonl" --prompt a
expect "a file of texts without prompts" 2 "requires --prompts" $many --out "$work/texts.jsonl"
sed -i '$d' "$work/prompts.jsonl"
expect "texts over their prompts" 2 "is the file of --prompts" $many --prompts "$work/prompts.jsonl" --out "$work/../${work##*/}/prompts.jsonl"
expect "a log over the texts" 2 "--log $work/new.jsonl is the file of --out" $many --prompts "$work/prompts.jsonl" --out "$work/new.jsonl" --log "$work/new.jsonl"
expect "a log over the prompts" 2 "is the file of --prompts" $many --prompts "$work/prompts.jsonl" --log "$work/prompts.jsonl"
expect "a file of texts without a name" 2 "--out: is empty" $many --prompts "$work/prompts.jsonl" --out ""
expect "a file of prompts without a name" 2 "--prompts: is empty" $many --prompts ""
for ids in "" "1,,2" "1,2," "1 2" "a"; do
    expect "ids that are none: '$ids'" 2 "--prompt-ids $ids: is not a list of ids" $many --prompt-ids "$ids" --print-ids
done
cp "$last/config.json" "$work/config.before"
expect "texts over a checkpoint" 2 "belongs to" $many --prompts "$work/prompts.jsonl" --out "$last/config.json"
expect "a log over its run's" 2 "belongs to" $many --prompt-ids 65 --log "$last/../log.jsonl"
check "which stay" 'cmp -s "$last/config.json" "$work/config.before" && grep -q "\"event\":\"done\"" "$last/../log.jsonl"'
cp -r "$last" "$work/cut" && truncate -s 5000 "$work/cut/model.safetensors"
cp -r "$last" "$work/changed" && printf 'X' | dd of="$work/changed/model.safetensors" bs=1 seek=20000 conv=notrunc 2> /dev/null
expect "a checkpoint with a byte changed" 7 'tensor "model.' ./generate --threads 1 --checkpoint "$work/changed" --prompt-ids 65 --print-ids
cp -r "$last" "$work/other"
sed 's/"engine_tokenizer": *"bytes"/"engine_tokenizer": "tokenizer.json"/' "$last/config.json" > "$work/other/config.json"
expect "a checkpoint whose config.json was changed" 7 "if it was changed on purpose, remove the folder's manifest.json" ./generate --threads 1 --checkpoint "$work/other" --prompt-ids 65
rm "$work/other/tokenizer.json" "$work/other/manifest.json"
expect "a run's folder" 7 "such as the newest, $work/causal/step_00000012" ./generate --threads 1 --checkpoint "$work/causal" --prompt-ids 65
expect "a folder without a tokenizer" 2 "$work/other: has no tokenizer.json" ./generate --threads 1 --checkpoint "$work/other" --prompt-ids 65
cp "$work/texts.jsonl" "$work/before"
expect "a checkpoint that is cut off" 7 "model.safetensors" ./generate --threads 1 --checkpoint "$work/cut" --prompts "$work/prompts.jsonl" --out "$work/texts.jsonl"
check "leaves the texts of an earlier run" 'cmp -s "$work/texts.jsonl" "$work/before"'
mkdir "$work/small"
if mount -t tmpfs -o size=4k none "$work/small" 2> /dev/null; then
    mounted="$work/small"
    for _ in $(seq 300); do echo '{"prompt": "The people"}'; done > "$work/many.jsonl"
    expect "a disk that becomes full" 3 "small/texts.jsonl: cannot be written: No space left" $many --prompts "$work/many.jsonl" --out "$work/small/texts.jsonl"
    check "keeps whole lines" '[ -s "$work/small/texts.jsonl" ] && [ -z "$(tail -c 1 "$work/small/texts.jsonl" | tr -d "\n")" ]'
    umount "$mounted" && mounted=""
else
    skip "a disk that becomes full" "only root may mount one"
fi
cp -r "$last" "$work/short" && rm "$work/short/manifest.json" && sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4/' "$work/short/config.json"
expect "a prompt that is longer than the model's positions" 2 "has 5 tokens, but the model reads 4" ./generate --threads 1 --checkpoint "$work/short" --prompt-ids 65,66,67,68,69
expect "a text that becomes longer" 0 "" ./generate --threads 1 --checkpoint "$work/short" --prompt-ids 65,66,67 --tokens 5 --print-ids

# ---- how long quickstart's model takes for 400 bytes
timeout 120 ./train_asga --device cpu --model qwen-2m --train-data "$work/data/small_train_*.bin" --seq-len 32 --batch-size 1 --steps 1 \
    --val-every 0 --sample-every 0 --checkpoint-every 1 --plot 0 --out "$work/quick" > /dev/null 2>&1
before=${EPOCHREALTIME/[.,]/}
expect "400 bytes of asga, as quickstart has it" 0 "399 more" ./generate --device cpu --checkpoint "$work/quick/step_00000001" --prompt "We" --tokens 400 --ignore-eos
took=$(((${EPOCHREALTIME/[.,]/} - before) / 1000))
check "take less than 3 s ($took ms)" '[ $took -lt 3000 ]'

# ---- texts that end by themselves, side by side
for id in 65 66 67 68; do echo "{\"prompt_ids\": [$id]}"; done > "$work/ending.jsonl"
ending="./generate --threads 1 --device cpu --checkpoint $last --temperature 3 --tokens 2000 --prompts $work/ending.jsonl"
expect "texts that may end" 0 "4 prompts" $ending --batch 1 --out "$work/ended_1.jsonl"
expect "three side by side" 0 "4 prompts" $ending --batch 3 --out "$work/ended_3.jsonl"
check "end at the same tokens, before the last" 'cmp -s "$work/ended_1.jsonl" "$work/ended_3.jsonl" && [ "$(grep -c "\"ended\":true" "$work/ended_1.jsonl")" -ge 2 ] &&
    ! grep "\"ended\":true" "$work/ended_1.jsonl" | grep -q "\"tokens\":2000"'

# ---- eight prompts of different lengths, and each alone
for n in 1 2 3 5 8 13 21 34; do printf '{"prompt": "%s", "seed": %d}\n' "$(head -c $n "$work/text.txt")" $n; done > "$work/eight.jsonl"
expect "eight prompts" 0 "8 prompts" $many --prompts "$work/eight.jsonl" --batch 8 --out "$work/eight_out.jsonl"
while read -r line; do
    echo "$line" > "$work/one.jsonl" && $many --prompts "$work/one.jsonl" 2> /dev/null
done < "$work/eight.jsonl" > "$work/each_alone.jsonl"
check "give what each gives alone" '[ "$(wc -l < "$work/each_alone.jsonl")" -eq 8 ] && cmp -s "$work/eight_out.jsonl" "$work/each_alone.jsonl"'

# ---- a text that is longer than memory: told before any is taken
cp -r "$last" "$work/endless" && rm "$work/endless/manifest.json"
sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 1000000000/' "$work/endless/config.json"
cp "$work/texts.jsonl" "$work/before"
echo '{"prompt_ids": [65]}' > "$work/endless.jsonl"
expect "no memory for what is kept of a text" 4 "lower --tokens" bash -c 'ulimit -v 8000000; exec "$@"' - \
    ./generate --threads 1 --device cpu --checkpoint "$work/endless" --tokens 900000000 --prompts "$work/endless.jsonl" --out "$work/texts.jsonl"
check "and the texts of before stay" 'cmp -s "$work/texts.jsonl" "$work/before"'

# ---- Ctrl-C
for n in $(seq 4000); do echo "{\"prompt\": \"The people\", \"id\": $n}"; done > "$work/prompts.jsonl"
rm -f "$work/texts.jsonl"   # the signal is for a program that writes
set -m   # else a job in the background ignores Ctrl-C
./generate --threads 1 --checkpoint "$last" --tokens 300 --ignore-eos --prompts "$work/prompts.jsonl" --out "$work/texts.jsonl" \
    --log "$work/measured.jsonl" 2> "$work/stderr" &
job=$!
set +m
for _ in $(seq 600); do [ -s "$work/texts.jsonl" ] && break; sleep 0.1; done
kill -INT $job
wait $job
status=$?
check "Ctrl-C ends with 75 (was $status) and says how far it came" '[ $status -eq 75 ] && grep -Eq "stopped by a signal after [0-9]+ of 4000 texts" "$work/stderr"'
cat > "$work/whole.py" << 'end'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert 0 < len(lines) < 4000
assert [line['id'] for line in lines] == list(range(1, len(lines) + 1))
assert all(line['tokens'] == 300 or line['stopped'] and line['tokens'] > 0 for line in lines)
assert any('stopped' in line for line in lines)
end
check "and its lines are those of the first prompts, whole texts and those that were being written" 'python3 "$work/whole.py" "$work/texts.jsonl"'
check "and the log has what was written until then" 'logged "\"texts\":[1-9][0-9]*,.*\"later_tokens\":[1-9]"'

for signal in TERM HUP; do
    timeout -s $signal -k 20 1 ./generate --threads 1 --checkpoint "$last" --tokens 300 --ignore-eos --prompts "$work/prompts.jsonl" --out "$work/texts.jsonl" 2> "$work/stderr"
    check "SIG$signal does so, too" 'grep -Eq "stopped by a signal after [0-9]+ of 4000 texts" "$work/stderr"'
done
LIMIT=60 expect "fewer threads than requested are noted" 0 "OpenMP gives 1 of 2 threads (OMP_THREAD_LIMIT=1)" \
    env OMP_THREAD_LIMIT=1 ./generate --threads 2 --checkpoint "$last" --prompt-ids 65,66 --tokens 7 --print-ids

# ---- a terminal
at_terminal() { timeout 90 python3 tests/check_terminal.py "$@" > "$work/terminal" 2>&1; }
at_terminal '.{400}' ./generate --threads 1 --device cpu --checkpoint "$last" --prompt "The people" --tokens 30000 --ignore-eos
check "a text appears at a terminal as it is written, and Ctrl-C ends it with its figures" \
    'grep -aq "^exit 75, " "$work/terminal" && grep -aq "^The people" "$work/terminal" && grep -aq "tokens/s" "$work/terminal"'
at_terminal '[1-9][0-9]* tokens .*left' ./generate --threads 1 --device cpu --checkpoint "$last" --tokens 300 --ignore-eos --prompts "$work/prompts.jsonl" --out "$work/texts.jsonl"
check "many texts show their progress there, and Ctrl-C clears it and says how far they came" \
    'grep -aq "^exit 75" "$work/terminal" && grep -aqE "[0-9.]+ tok/s \| at most .* left" "$work/terminal" && grep -aqE "stopped by a signal after [0-9]+ of 4000 texts" "$work/terminal"'
