#!/usr/bin/env bash
# scripts/train_tokenizer.py, and a model that reads what it made. Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`
# where python3 has no tokenizers (PYTHON=FILE: another). Needs ./tokenize, ./train_causal and build/dev/token_ids; takes half a
# minute.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
python=${PYTHON:-python3}
text=data/bundled/sotu.jsonl
trainer="$python scripts/train_tokenizer.py --vocab-size 600 --out $work/out/tokenizer.json"
unwritten() { [ -z "$(ls -A "$work/out" 2> /dev/null)" ]; }

# reads TOKENIZER VOCABULARY: text -> shards -> a step of training -> a checkpoint
reads() {
    local tokenizer=$1 ids=$2 data=$work/data$2 run=$work/run$2
    expect "./tokenize reads a tokenizer of $ids tokens" 0 "" ./tokenize --tokenizer "$tokenizer" --out "$data" --name x $text
    check "and says so" 'grep -q "\"vocabulary\": $ids," "$data/x_manifest.json"'
    expect "qwen-7m-8k trains on it" 0 "" ./train_causal --device cpu --model qwen-7m-8k --train-data "$data/x_train_*.bin" \
        --val-every 0 --seq-len 16 --batch-size 1 --steps 1 --sample-every 1 --sample-tokens 1 --plot 0 --out "$run"
    check "and the checkpoint has it" 'cmp "$tokenizer" "$run/step_00000001/tokenizer.json"'
}

# ---- what needs no package
reads tests/fixtures/tokenizers/qwen_tokenizer.json 2006
expect "an option that does not exist" 2 "unrecognized arguments: --size" $trainer $text --size 600
expect "no text" 2 "INPUT" $trainer
expect "a kind of file that is not read" 2 "are .txt or .jsonl" $trainer book.pdf
expect "fewer tokens than bytes" 2 "expected 257" $trainer $text --vocab-size 256
expect "an output that is no .json" 2 "out/tokenizer.json" $trainer $text --out "$work/out"
expect "an unknown way of cutting words" 2 "choose from" $trainer $text --like llama
mkdir "$work/without"
echo 'raise ImportError' > "$work/without/tokenizers.py"
PYTHONPATH=$work/without expect "without the package" 2 "pip install tokenizers" $trainer $text
check "nothing was written" unwritten
if ! $python -c 'import tokenizers' 2> /dev/null; then
    skip "train_tokenizer.py" "$python has no tokenizers"
    exit 0
fi

# ---- texts that cannot be read
expect "a file that is not there" 3 "none.txt: cannot be read: No such file" $trainer "$work/none.txt"
{ head -n 2 $text; echo '{"text": "abc'; } > "$work/broken.jsonl"
expect "a broken line" 3 "broken.jsonl:3: is not JSON" $trainer "$work/broken.jsonl"
echo '{"content": "abc"}' > "$work/other.jsonl"
expect "a line without a text" 3 'other.jsonl:1: has no string under "text"; --text-field' $trainer "$work/other.jsonl"
echo '{"text": "a\ud800"}' > "$work/half.jsonl"
expect "half of a surrogate pair" 3 "half.jsonl:1" $trainer "$work/half.jsonl"
gzip -c $text | head -c 100000 > "$work/short.jsonl.gz"
expect "a compressed file that ends early" 3 "short.jsonl.gz: cannot be read" $trainer "$work/short.jsonl.gz"
echo "a short text" > "$work/short.txt"
expect "a text too short for so many tokens" 3 "give more text, or --vocab-size 257" $trainer "$work/short.txt"
check "leave no file" unwritten
mkdir -p "$work/taken/tokenizer.json"
expect "a folder under the file's name" 3 "taken/tokenizer.json: cannot be written" \
    $trainer $text --out "$work/taken/tokenizer.json"
check "and nothing beside it" '[ "$(ls "$work/taken")" = tokenizer.json ]'
touch "$work/file"
expect "a folder that cannot be made" 3 "$work/file" $trainer $text --out "$work/file/tokenizer.json"

# ---- what is made
expect "600 tokens" 0 "" $trainer $text
check "under their name alone" '[ "$(ls "$work/out")" = tokenizer.json ]'
cp $text "$work/a.jsonl" && gzip -k "$work/a.jsonl" && python3 -c 'import lzma, sys; lzma.open(sys.argv[1] + ".xz", "wb").write(open(sys.argv[1], "rb").read())' "$work/a.jsonl"
for again in "$work/a.jsonl.gz" "$work/a.jsonl.xz"; do
    RAYON_NUM_THREADS=1 expect "once more, on one thread, from .${again##*.}" 0 "" \
        $trainer "$again" --out "$work/again/tokenizer.json"
    check "is the same file" 'cmp "$work/out/tokenizer.json" "$work/again/tokenizer.json"'
done
expect "GPT-2's way" 0 "" $trainer $text --out "$work/gpt2/tokenizer.json" --like gpt2
for made in out gpt2; do
    expect "the engine's ids of $made are the library's" 0 "" \
        $python tests/check_tokenizer.py "$work/$made/tokenizer.json" $text --random 2000
    check "for every text" '[ "$(grep -c "texts equal" "$work/stdout")" -eq 2 ] && grep -q "118 texts equal" "$work/stdout"'
done
printf 'na\xc3\xafve caf\xc3\xa9 \xff\n' > "$work/damaged.txt"
expect "a text that is not all UTF-8" 0 "" $trainer "$work/damaged.txt" --vocab-size 257 --out "$work/bytes/tokenizer.json"

# ---- and a model reads it
reads "$work/out/tokenizer.json" 600
