#!/usr/bin/env bash
# scripts/evaluation_items.py on a few rows of each benchmark's form, and ./train_causal --evaluate on what it made. Prints
# `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3 has no pyarrow or no lm_eval (PYTHON=FILE: another).
# Needs ./tokenize and ./train_causal; takes half a minute at most.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
python=${PYTHON:-python3}
tasks="hellaswag arc_easy arc_challenge piqa winogrande"
out=$work/out
items="$python scripts/evaluation_items.py --out $out"
unwritten() { [ -z "$(ls -A "$out" 2> /dev/null)" ]; }
file_of() { case $1 in arc_*) echo "$out/$1_test.jsonl" ;; *) echo "$out/$1_val.jsonl" ;; esac; }

# ---- rows with the hub's columns (others are passed over), and the items that they are
mkdir "$work/rows" "$work/expected"
cat > "$work/rows/hellaswag.jsonl" << 'END'
{"ind": 1, "activity_label": "Baking bread", "ctx_a": "A woman kneads dough.", "ctx_b": "the Woman", "endings": ["bakes it.", "flies off.", "is \"Käthe\".", "sings."], "label": "2"}
{"ind": 2, "activity_label": "Garden", "ctx_a": "[header] How to water a fern [title] Use a can. [step] Fill it.", "ctx_b": "", "endings": ["[substeps] Pour slowly.", "It  rains [step] outside.", "No.", "Stop [title] Look up."], "label": "0"}
{"ind": 3, "activity_label": "Pots", "ctx_a": "Take a pot. [step]", "ctx_b": "", "endings": ["Fill it.", "Break it.", " Sell it. ", "Open [it."], "label": "3"}
END
cat > "$work/expected/hellaswag.jsonl" << 'END'
{"query": "Baking bread: A woman kneads dough. The woman", "choices": ["bakes it.", "flies off.", "is \"Käthe\".", "sings."], "gold": 2}
{"query": "Garden: How to water a fern. Use a can. Fill it.", "choices": [" Pour slowly.", "It rains outside.", "No.", "Stop. Look up."], "gold": 0}
{"query": "Pots: Take a pot.  ", "choices": ["Fill it.", "Break it.", "Sell it.", "Open [it."], "gold": 3}
END
cat > "$work/rows/arc_easy.jsonl" << 'END'
{"id": "a", "question": "Which of these floats?", "choices": {"text": ["lead", "cork", "gold"], "label": ["A", "B", "C"]}, "answerKey": "B"}

{"id": "b", "question": "What is\nwarm?", "choices": {"text": ["ice", "snow", "the sun", "space"], "label": ["1", "2", "3", "4"]}, "answerKey": "3"}
END
cat > "$work/expected/arc_easy.jsonl" << 'END'
{"query": "Question: Which of these floats?\nAnswer:", "choices": ["lead", "cork", "gold"], "gold": 1}
{"query": "Question: What is\nwarm?\nAnswer:", "choices": ["ice", "snow", "the sun", "space"], "gold": 2}
END
cp "$work/rows/arc_easy.jsonl" "$work/rows/arc_challenge.jsonl"
cp "$work/expected/arc_easy.jsonl" "$work/expected/arc_challenge.jsonl"
cat > "$work/rows/piqa.jsonl" << 'END'
{"goal": "Dry a shoe.", "sol1": "Stuff it with paper.", "sol2": "Fill it with  water", "label": 0}
{"goal": "how do I cut a pear?\n", "sol1": "with 'a' spoon", "sol2": "with \"a\" knife ", "label": 1}
END
cat > "$work/expected/piqa.jsonl" << 'END'
{"query": "Question: Dry a shoe.\nAnswer:", "choices": ["Stuff it with paper.", "Fill it with  water"], "gold": 0}
{"query": "Question: how do I cut a pear?\n\nAnswer:", "choices": ["with 'a' spoon", "with \"a\" knife "], "gold": 1}
END
cat > "$work/rows/winogrande.jsonl" << 'END'
{"sentence": "The cup is not in the bag because _ is too small.", "option1": "the cup", "option2": "the bag", "answer": "2"}
{"sentence": "Ann met Eve, and _ 's cat_dog  ran. ", "option1": "Ann", "option2": "Eve ", "answer": "1"}
END
cat > "$work/expected/winogrande.jsonl" << 'END'
{"context_options": ["The cup is not in the bag because the cup", "The cup is not in the bag because the bag"], "continuation": "is too small.", "gold": 1}
{"context_options": ["Ann met Eve, and Ann", "Ann met Eve, and Eve  "], "continuation": "'s cat_dog  ran.", "gold": 0}
END
for task in $tasks; do
    expect "$task from JSON Lines" 0 "" $items "$task" --from "$work/rows/$task.jsonl"
    check "gives its items" 'diff "$work/expected/$task.jsonl" "$(file_of $task)"'
done
check "and nothing else" '[ "$(ls "$out" | wc -l)" -eq 5 ]'
check "and says of how many" 'grep -qx "$out/winogrande_val.jsonl: 2 items of 1267" "$work/stdout"'
expect "two files of rows" 0 "" $items piqa --from "$work/rows/piqa.jsonl" "$work/rows/piqa.jsonl"
check "become one of items" 'diff <(cat "$work"/expected/piqa.jsonl{,}) "$out/piqa_val.jsonl"'

# ---- the engine reads them
head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
small="--device cpu --model qwen-tiny --seq-len 128 --batch-size 4 --threads 1"
./train_causal $small --train-data "$work/data/small_train_*.bin" --val-every 0 --sample-every 0 --steps 1 --plot 0 \
    --out "$work/run" > /dev/null 2>&1
expect "the engine scores all of them" 0 "" ./train_causal $small --evaluate --checkpoint "$work/run/step_00000001" \
    --val-batches 0 --eval-data "$out/*.jsonl" --eval-out "$work/scores.jsonl"
for said in "arc_easy_test: 2" "arc_challenge_test: 2" "hellaswag_val: 3" "piqa_val: 4" "winogrande_val: 2"; do
    check "$said items" 'grep -q "^$said items, accuracy by sum" "$work/stdout"'
done
check "each with the right answer that its row names" \
    'diff <(grep -ho "\"gold\": [0-9]*" $(ls "$out"/*.jsonl) | tr -d " ") <(grep -o "\"gold\":[0-9]*" "$work/scores.jsonl")'

# ---- rows that cannot become items
rm -r "$out"
refused() { # refused NAME TASK WORD LINE...
    printf '%s\n' "${@:4}" > "$work/bad.jsonl"
    expect "$1" 3 "$3" $items "$2" --from "$work/bad.jsonl"
}
right=$(head -n 1 "$work/rows/piqa.jsonl")
refused "a row without a field" piqa 'bad.jsonl:2: "sol2" is missing; the row has "goal"' \
    "$right" '{"goal": "a", "sol1": "b", "label": 0}'
refused "a field of another kind" piqa 'bad.jsonl:1: "sol2" is no string' '{"goal": "a", "sol1": "b", "sol2": 1, "label": 0}'
refused "an answer that does not exist" piqa 'bad.jsonl:1: "label" is "2", expected one of 0, 1' \
    '{"goal": "a", "sol1": "b", "sol2": "c", "label": 2}'
refused "an answer that is kept secret" winogrande 'kept secret' \
    '{"sentence": "a _ b", "option1": "c", "option2": "d", "answer": ""}'
refused "a sentence without a blank" winogrande 'bad.jsonl:1: "sentence" has no _' \
    '{"sentence": "a b", "option1": "c", "option2": "d", "answer": "1"}'
refused "a blank with nothing behind it" winogrande "bad.jsonl:1: makes no item" \
    '{"sentence": "a _", "option1": "c", "option2": "d", "answer": "1"}'
refused "an answer of marks alone" hellaswag "bad.jsonl:1: makes no item" \
    '{"activity_label": "a", "ctx_a": "b", "ctx_b": "", "endings": ["[step]", "c"], "label": "1"}'
refused "endings that are not strings" hellaswag '"endings" is no list of strings' \
    '{"activity_label": "a", "ctx_a": "b", "ctx_b": "", "endings": ["c", 1], "label": "0"}'
refused "names without their answers" arc_easy "bad.jsonl:1: makes no item" \
    '{"question": "a", "choices": {"text": ["b", "c"], "label": ["A", "B", "C"]}, "answerKey": "C"}'
refused "choices in another form" arc_easy 'bad.jsonl:1: "choices" is no object' \
    '{"question": "a", "choices": ["b", "c"], "answerKey": "A"}'
refused "choices without their texts" arc_easy '"choices.text" is missing' \
    '{"question": "a", "choices": {"label": ["A", "B"]}, "answerKey": "A"}'
refused "half of a surrogate pair" piqa "bad.jsonl:1: has half" '{"goal": "a\ud800", "sol1": "b", "sol2": "c", "label": 0}'
refused "a line that is no object" piqa "bad.jsonl:2: is no JSON object" "$right" '[1]'
refused "bytes that are no UTF-8" piqa "bad.jsonl:2: is not JSON" "$right" $'{"goal": "\xff"}'
refused "no rows" piqa "bad.jsonl: no rows" ''
head -c -20 "$work/rows/piqa.jsonl" > "$work/short.jsonl"
expect "a file that ends early" 3 "short.jsonl:2: is not JSON" $items piqa --from "$work/short.jsonl"
expect "a file that is not there" 3 "none.jsonl: cannot be read: No such file" $items piqa --from "$work/none.jsonl"
check "leave no file" unwritten
cp "$work/expected/piqa.jsonl" "$out/piqa_val.jsonl"
refused "a bad row" piqa "bad.jsonl:1" '{}'
check "leaves the items of before" 'cmp "$work/expected/piqa.jsonl" "$out/piqa_val.jsonl" && [ "$(ls "$out")" = piqa_val.jsonl ]'
rm -r "$out" && mkdir -p "$out/piqa_val.jsonl"
expect "a folder under the file's name" 3 "piqa_val.jsonl: cannot be written" $items piqa --from "$work/rows/piqa.jsonl"
check "and nothing beside it" '[ "$(ls "$out")" = piqa_val.jsonl ]'
rm -r "$out" && touch "$out"
expect "a file under the folder's name" 3 "$out: cannot be made a folder" $items piqa --from "$work/rows/piqa.jsonl"
rm "$out"

# ---- usage
expect "an unknown task" 2 "choose from" $items mmlu
expect "no task" 2 "TASK" $items
expect "an unknown option" 2 "unrecognized arguments: --limit" $items piqa --limit 3
expect "one file for two tasks" 2 "--from has the rows of one task, not of piqa and winogrande" \
    $items piqa winogrande --from "$work/rows/piqa.jsonl"
expect "rows in another kind of file" 2 "rows.csv: rows are in .parquet or .jsonl files" $items piqa --from rows.csv
check "make no folder" '[ ! -e "$out" ]'
mkdir "$work/without"
echo 'raise ImportError' | tee "$work/without/pyarrow.py" > "$work/without/huggingface_hub.py"
PYTHONPATH=$work/without expect "without huggingface_hub" 3 "pip install huggingface_hub" $items piqa
PYTHONPATH=$work/without expect "parquet without pyarrow" 3 "pip install pyarrow" $items piqa --from x.parquet

# ---- against the harness itself
if ! $python -c 'import lm_eval' 2> /dev/null; then
    skip "the harness's items" "$python has no lm_eval"
else
    for task in $tasks; do
        $items "$task" --from "$work/rows/$task.jsonl" > /dev/null
        expect "$task: lm-evaluation-harness makes the same of the rows" 0 "" \
            $python tests/check_items.py "$task" "$work/rows/$task.jsonl" "$(file_of "$task")"
    done
fi

# ---- parquet, as the hub has it
if ! $python -c 'import pyarrow.parquet' 2> /dev/null; then
    skip "items from parquet" "$python has no pyarrow"
    exit 0
fi
$python - "$work" << 'END'
import json, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
work = Path(sys.argv[1])
for path in (work / 'rows').glob('*.jsonl'):
    rows = [json.loads(line) for line in open(path) if line.strip()]
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix('.parquet'), row_group_size=2)
rows = [json.loads(line) for line in open(work / 'rows/piqa.jsonl')]
pq.write_table(pa.Table.from_pylist([*rows, {**rows[0], 'goal': None}]), work / 'null.parquet', row_group_size=2)
pq.write_table(pa.Table.from_pylist([{'goal': 'a', 'sol1': 'b', 'label': 0}]), work / 'other.parquet')
whole = (work / 'rows/piqa.parquet').read_bytes()
(work / 'short.parquet').write_bytes(whole[:-20])
hub = work / 'hub'
(hub / 'ARC-Challenge').mkdir(parents=True)
questions = [json.loads(line) for line in open(work / 'rows/arc_challenge.jsonl') if line.strip()]
pq.write_table(pa.Table.from_pylist(questions * 586), hub / 'ARC-Challenge/test-00000-of-00001.parquet')
pq.write_table(pa.Table.from_pylist(questions[:1]), hub / 'ARC-Challenge/train-00000-of-00001.parquet')
pq.write_table(pa.Table.from_pylist(rows), hub / 'piqa_validation.parquet')
END
for task in $tasks; do
    expect "$task from parquet" 0 "" $items "$task" --from "$work/rows/$task.parquet"
    check "gives the same items" 'diff "$work/expected/$task.jsonl" "$(file_of $task)"'
done
rm -r "$out"
expect "a column that is missing" 3 'other.parquet: has no column "sol2"; its columns are: goal (string), sol1 (string), label' \
    $items piqa --from "$work/other.parquet"
expect "a row without a value" 3 'null.parquet: row 0 of group 1: "goal" is no string' $items piqa --from "$work/null.parquet"
expect "parquet that ends early" 3 "short.parquet: is no parquet file" $items piqa --from "$work/short.parquet"
check "leave no file either" unwritten

# ---- the hub, as far as a stand-in for its package can show
export PYTHONPATH=$PWD/tests/stand_ins HUB=$work/hub
expect "a task by its name" 0 "" $items arc_challenge
check "is brought from the hub" 'grep -q "listed allenai/ai2_arc dataset" "$work/stdout"'
check "and has all items of its split" \
    'grep -q "test.jsonl: 1172 items$" "$work/stdout" && [ "$(wc -l < "$out/arc_challenge_test.jsonl")" -eq 1172 ]'
SHA256=0123 expect "a damaged download" 3 "SHA-256" $items arc_challenge
expect "files that have changed" 3 "piqa_validation.parquet have 2 rows, expected 1838" $items piqa
expect "files that are not there" 3 "Rowan/hellaswag: holds no such files" $items arc_challenge hellaswag
check "cost no other task its items" '[ "$(ls "$out")" = arc_challenge_test.jsonl ]'
