#!/usr/bin/env bash
# ./generate as a user runs it: ids, the mechanisms for inference (--attention psa, adaspa), many prompts, Ctrl-C. Prints `ok NAME` or
# `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make train_causal train_asga tokenize generate
. "$(dirname "$0")/checks.bash"

# ---- a small text, and a checkpoint of it for each of two variants
small_shards
small=(--device cpu --model qwen-tiny --train-data "$work/data/small_train_*.bin" --threads 1 --seq-len 32 --batch-size 8 --steps 12
       --lr 3e-3 --val-every 0 --sample-every 0 --checkpoint-every 12 --plot 0)
for variant in causal asga; do train $variant $variant; done
last="$work/causal/step_00000012"
greedy=(./generate --threads 1 --device cpu --checkpoint "$last" --prompt-ids 65,66 --tokens 7 --temperature 0 --print-ids)
greedy() { "${greedy[@]}" "$@" 2> /dev/null; }

# ---- one text, read as trained and sparsely
expect "generate prints ids and nothing else" 0 "" "${greedy[@]}"
check "seven of them" '[ "$(wc -w < "$work/stdout")" -eq 7 ] && [ "$(wc -l < "$work/stdout")" -eq 1 ]'
expect_each "${greedy[@]}" << END
psa reports how much it read | 0 | psa: read 100.0% | --attention psa --psa-eps 1 --psa-block 2
an upper bound certifies | 0 | certified | --attention psa --psa-eps 0.5 --psa-block 2 --psa-bound upper
psa on another variant | 2 | asga | --checkpoint "$work/asga/step_00000012" --attention psa
psa past the model's positions | 2 | max_position_embeddings | --tokens 40000 --attention psa
--device cuda without a GPU | 2 | --device cuda | --device cuda
a log that cannot be written | 7 | cannot be written | --log "$work/nowhere/measured.jsonl"
END
expect_each << END
a plan on a full disk | 3 | cannot be written | bash -c '"\$@" --dry-run > /dev/full' - ${greedy[@]@Q}
fewer threads than requested | 0 | OpenMP gives 1 of 2 threads (OMP_THREAD_LIMIT | env OMP_THREAD_LIMIT=1 ${greedy[@]@Q} --threads 2
END

# ---- the plan, and what was measured
of_plan() { greedy --tokens 60 --dry-run "${@:2}" | awk -v what="| $1 " 'index($0, what) { print $(NF - 2) * ($(NF - 1) == "MiB" ? 1024 : 1) }'; }
for what in weights "KV cache"; do
    check "rounded to bf16, half the memory: $what" 'awk "BEGIN { r = $(of_plan "$what" --weights bf16) / $(of_plan "$what"); exit !(r > 0.49 && r < 0.6) }"'
done
greedy --dry-run --log "$work/measured.jsonl" > /dev/null
check "a plan measures nothing" '[ ! -e "$work/measured.jsonl" ]'
check "a text from rounded matrices, by psa, has as many tokens" '[ "$(greedy --weights bf16 --attention psa --psa-eps 0.5 --psa-block 2 --log "$work/measured.jsonl" | wc -w)" -eq 7 ]'
logged() { grep -q "$1" "$work/measured.jsonl"; }   # logged WORD: whether the line of --log has it
check "a log is one line with times, tokens, device and weights, and what was read" '[ "$(wc -l < "$work/measured.jsonl")" -eq 1 ] &&
    logged "\"texts\":1,\"prompt_tokens\":2,\"reading_seconds\":[0-9.e-]*,\"later_tokens\":6,\"writing_seconds\":[0-9]" &&
    logged "\"variant\":\"causal\",\"device\":\"cpu\",\"machine\":\"[^\"].*\"weights\":\"bf16\",\"pairs_read\":0.[0-9]*,\"mass_kept\":0."'
kept() { grep -o '"cache_bytes":[0-9]*' "$work/measured.jsonl" | cut -d: -f2; }
greedy --log "$work/measured.jsonl" > /dev/null
check "and the bytes of the plan" '[ "$(kept)" -gt 0 ] && awk "BEGIN { r = $(kept) / 1024 / $(of_plan "KV cache" --tokens 7); exit !(r > 0.99 && r < 1.01) }"'

# ---- many prompts
prompts=$work/prompts.jsonl texts=$work/texts.jsonl
printf '%s\n' '{"prompt": "We the people", "id": 7}' '{"prompt_ids": [65, 66, 67], "seed": 3}' '' '{"prompt": "The state of the union"}' '{"prompt": ""}' > "$prompts"
many=(./generate --threads 1 --checkpoint "$last" --tokens 9 --temperature 0.7 --ignore-eos)
expect "texts of many prompts" 0 "4 prompts" "${many[@]}" --prompts "$prompts" --out "$texts"
check "a line for each, in their order" '[ "$(grep -c "\"tokens\":9}" "$texts")" -eq 4 ] && head -n 1 "$texts" | finds "\"id\":7.*We the people"'
check "two side by side, on standard output, are the same" '"${many[@]}" --prompts "$prompts" --batch 2 2> /dev/null | cmp - "$texts"'
check "as ids each is what it is alone" '[ "$("${many[@]}" --prompts "$prompts" --print-ids 2> /dev/null | sed -n 2p | grep -o "\"ids\":\[[^]]*" | cut -d"[" -f2 | tr "," " ")" = \
    "$("${many[@]}" --prompt-ids 65,66,67 --seed 3 --print-ids 2> /dev/null)" ]'
"${many[@]}" --prompts "$prompts" --out "$work/closed.jsonl" 2>&-
check "where standard error is closed, texts are in their file alone" 'cmp "$work/closed.jsonl" "$texts"'
cp "$last/config.json" "$work/config.before"
cp "$texts" "$work/before"
cp -r "$last" "$work/cut" && truncate -s 5000 "$work/cut/model.safetensors"
for positions in 4 1000000000; do
    cp -r "$last" "$work/positions_$positions" && rm "$work/positions_$positions/manifest.json"
    sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": '$positions/ "$work/positions_$positions/config.json"
done
expect_each "${many[@]}" << END
prompts of two kinds | 2 | excludes | --prompts "$prompts" --prompt a
texts over their prompts | 2 | is the file of --prompts | --prompts "$prompts" --out "$work/../${work##*/}/prompts.jsonl"
a log over the texts | 2 | is the file of --out | --prompts "$prompts" --out "$work/new.jsonl" --log "$work/new.jsonl"
texts over a checkpoint | 2 | belongs to | --prompts "$prompts" --out "$last/config.json"
a checkpoint that is cut off | 7 | model.safetensors | --checkpoint "$work/cut" --prompts "$prompts" --out "$texts"
a run's folder | 7 | such as the newest, $last | --checkpoint "$work/causal" --prompt-ids 65
a prompt that is longer than the model's positions | 2 | has 5 tokens, but the model reads 4 | --checkpoint "$work/positions_4" --prompt-ids 65,66,67,68,69
END
expect "no memory for what is kept of a text" 4 "lower --tokens" bash -c 'ulimit -v 8000000; exec "$@"' - "${many[@]}" --device cpu \
    --checkpoint "$work/positions_1000000000" --tokens 900000000 --prompts "$prompts" --out "$texts"
check "all files stay" 'cmp -s "$last/config.json" "$work/config.before" && cmp -s "$texts" "$work/before" && grep -q "\"event\":\"done\"" "$work/causal/log.jsonl"'
for _ in $(seq 300); do echo '{"prompt": "The people"}'; done > "$work/many.jsonl"
expect "a limit on the size of files" 3 "small.jsonl: cannot be written: File too large" \
    prlimit --fsize=4000 "${many[@]}" --prompts "$work/many.jsonl" --out "$work/small.jsonl"
check "keeps whole lines" '[ -s "$work/small.jsonl" ] && [ -z "$(tail -c 1 "$work/small.jsonl" | tr -d "\n")" ]'

# ---- texts that end by themselves, side by side
for id in 65 66 67 68; do echo "{\"prompt_ids\": [$id]}"; done > "$work/ending.jsonl"
for batch in 1 3; do
    ./generate --threads 1 --device cpu --checkpoint "$last" --temperature 3 --tokens 2000 --prompts "$work/ending.jsonl" --batch $batch --out "$work/ended_$batch.jsonl" 2> /dev/null
done
check "texts end at the same tokens one by one and three side by side, before the last" 'cmp -s "$work/ended_1.jsonl" "$work/ended_3.jsonl" &&
    [ "$(grep -c "\"ended\":true" "$work/ended_1.jsonl")" -ge 2 ] && ! grep "\"ended\":true" "$work/ended_1.jsonl" | finds "\"tokens\":2000"'

# ---- signals
for n in $(seq 4000); do echo "{\"prompt\": \"The people\", \"id\": $n}"; done > "$prompts"
endless=("${many[@]}" --tokens 300 --prompts "$prompts" --out "$texts")
stops() { grep -Eq "stopped by a signal after [0-9]+ of 4000 texts" "$1"; }
rm -f "$texts"   # the signal is for a program that writes
set -m   # else a job in the background ignores Ctrl-C
"${endless[@]}" --log "$work/measured.jsonl" 2> "$work/stderr" &
job=$!
set +m
await . "$texts"
kill -INT $job
wait $job
status=$?
check "Ctrl-C ends with 75 (was $status) and reports the progress made" '[ $status -eq 75 ] && stops "$work/stderr"'
check "its lines are those of the first prompts, whole texts and interrupted ones" 'python3 -c "import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
whole = [line[\"tokens\"] == 300 or line[\"stopped\"] and line[\"tokens\"] > 0 for line in lines]
sys.exit(not all(whole) or [line[\"id\"] for line in lines] != list(range(1, len(lines) + 1)) or not any(\"stopped\" in line for line in lines))" "$texts"'
check "and the log has what was written until then" 'logged "\"texts\":[1-9][0-9]*,.*\"later_tokens\":[1-9]"'
for signal in TERM HUP; do
    timeout -s $signal -k 20 1 "${endless[@]}" 2> "$work/stderr"
    check "SIG$signal ends it, too" 'stops "$work/stderr"'
done

# ---- a terminal
at_terminal() { timeout 90 python3 tests/check_terminal.py "$@" > "$work/terminal" 2>&1 < /dev/null; }
at_terminal '.{400}' "${many[@]}" --device cpu --prompt "The people" --tokens 30000
check "a text appears at a terminal as it is written, and Ctrl-C ends it with its figures" \
    'grep -aq "^exit 75$" "$work/terminal" && grep -aq "^The people" "$work/terminal" && grep -aq "tokens/s" "$work/terminal"'
at_terminal '[1-9][0-9]* tokens .*left' "${endless[@]}" --device cpu
check "many texts show their progress there, and Ctrl-C replaces it with what was written" \
    'grep -aq "^exit 75$" "$work/terminal" && grep -aqE "[0-9.]+ tok/s \| at most .* left" "$work/terminal" && grep -aqE "stopped by a signal after [0-9]+ of 4000 texts" "$work/terminal"'
