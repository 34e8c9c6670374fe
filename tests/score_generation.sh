#!/usr/bin/env bash
# scripts/score_generation.py: figures that can be had by hand, a checkpoint's texts, and input that cannot be scored. Prints
# `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3 has no sacrebleu or no rouge_score (PYTHON=FILE: another).
# Needs ./tokenize, ./train_causal and ./generate; takes some seconds.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
python=${PYTHON:-python3}
score="$python scripts/score_generation.py"
items=$work/items.jsonl
cat > "$items" << 'END'
{"prompt": "My fellow", "reference": "the cat sat on the mat"}

{"prompt": "", "reference": "a dog barked at the moon"}
END
lines() { printf '{"text": "%s"}\n' "$@"; }   # lines TEXT...

# ---- what needs no package
expect "no items" 2 "items" $score
expect "neither a checkpoint nor texts" 2 "one of the arguments --checkpoint --texts is required" $score "$items"
expect "both of them" 2 "not allowed with" $score "$items" --checkpoint a --texts b
expect "options for texts that are finished" 2 "there is nothing to generate" $score "$items" --texts b -- --seed 3
expect "a folder for --out that does not exist" 2 "its folder does not exist" $score "$items" --texts b --out "$work/none/out.jsonl"
mkdir "$work/without"
echo 'raise ImportError(name="sacrebleu")' > "$work/without/sacrebleu.py"
PYTHONPATH=$work/without expect "without the packages" 2 "pip install sacrebleu rouge-score" $score "$items" --texts b
if ! $python -c 'import sacrebleu, rouge_score' 2> /dev/null; then
    skip "BLEU and ROUGE" "$python has no sacrebleu or no rouge_score"
    exit 0
fi

# ---- figures
says() { check "$1" "grep -qF -- '$2' '$work/stdout'"; }   # says NAME LINE
lines "the cat sat on the mat" " a dog barked at the moon\\n" > "$work/same.jsonl"
expect "texts that are their references" 0 "" $score "$items" --texts "$work/same.jsonl"
says "are all of BLEU" "BLEU 100.00  ("
says "with its signature" "|tok:13a|"
says "and all of ROUGE" "ROUGE-L F1 100.00 +- 0.00"

# Words: 5 of 6 in order and 4 of 5 pairs; the other text shares no word. BLEU over both: precisions 5/12, 4/10, 3/8, 2/6, no penalty
# for length: their geometric mean is 0.3799.
lines "the cat sat on the hat" "my horses ran to some sun" > "$work/half.jsonl"
expect "texts that are half right" 0 "" $score "$items" --texts "$work/half.jsonl" --out "$work/scored.jsonl"
says "have the BLEU of the formula" "BLEU 37.99  ("
says "the mean of 5/6 and 0" "ROUGE-1 F1 41.67 +- 41.67"
says "the mean of 4/5 and 0" "ROUGE-2 F1 40.00 +- 40.00"
says "and of the longest common sequence" "ROUGE-L F1 41.67 +- 41.67"
check "--out has every item with its scores" '[ "$(grep -c "\"reference\": .*\"text\": .*\"rougeL\": " "$work/scored.jsonl")" -eq 2 ]'
cp "$work/stdout" "$work/said"
expect "the file of --out" 0 "" $score "$items" --texts "$work/scored.jsonl"
check "can be scored again" 'diff "$work/said" "$work/stdout"'
lines "the cat sat on the mat and more" "a dog barked at the moon and more" > "$work/long.jsonl"
expect "--stop" 0 "" $score "$items" --texts "$work/long.jsonl" --stop " and"
says "cuts the texts" "BLEU 100.00  ("

# ---- a checkpoint
head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
./train_causal --device cpu --model qwen-tiny --seq-len 128 --batch-size 4 --threads 1 --train-data "$work/data/small_train_*.bin" \
    --val-every 0 --sample-every 0 --steps 1 --plot 0 --out "$work/run" > /dev/null 2>&1
expect "a checkpoint's texts" 0 "2 prompts" $score "$items" --checkpoint "$work/run/step_00000001" --tokens 20 --out "$work/own.jsonl"
says "are scored" "2 items"
./generate --checkpoint "$work/run/step_00000001" --prompt "My fellow" --tokens 20 --temperature 0 > "$work/text" 2> /dev/null
check "and are what ./generate writes" '$python - "$work" << "END"
import json, sys
first = json.loads(open(sys.argv[1] + "/own.jsonl").readline())
whole = open(sys.argv[1] + "/text", errors="replace").read().removesuffix("\n")
sys.exit(first["prompt"] + first["text"] != whole or not first["text"])
END'
expect "a checkpoint that is not there" 7 "none" $score "$items" --checkpoint "$work/none"
expect "an option that ./generate has not" 2 "--heat" $score "$items" --checkpoint "$work/run/step_00000001" -- --heat 1

# ---- input that cannot be scored
expect "texts and items of different numbers" 3 "has 1 texts, and" $score "$items" --texts <(lines a)
expect "a file that is not there" 3 "none.jsonl" $score "$work/none.jsonl" --texts "$work/same.jsonl"
echo '{"prompt": "a"}' > "$work/bad.jsonl"
expect "an item without a reference" 3 'bad.jsonl:1: has no string under "reference"' $score "$work/bad.jsonl" --texts "$work/same.jsonl"
echo 'no' > "$work/bad.jsonl"
expect "a line that is not JSON" 3 "bad.jsonl:1: is not JSON" $score "$work/bad.jsonl" --texts "$work/same.jsonl"
: > "$work/bad.jsonl"
expect "no items in the file" 3 "holds no items" $score "$work/bad.jsonl" --texts "$work/same.jsonl"
