#!/usr/bin/env bash
# Models of Gemma 3's form as a user meets them: training, going on to the bit, text from ids, a tokenizer that is not read here, what is
# refused, and what transformers makes of a checkpoint (tests/check_transformers.py) where python3 has it (PYTHON=FILE: another python3).
# Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`. Takes some seconds.
# Needs: make train_sliding_window train_causal generate tokenize build/dev/logits
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}
fixture=tests/fixtures/gemma3

# ---- a model from scratch that reads bytes: the fixture's shape with another vocabulary
head -c 40000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
mkdir "$work/shape"
sed 's/"vocab_size": 96/"vocab_size": 512/; s/"eos_token_id": 95/"eos_token_id": 256/' $fixture/config.json > "$work/shape/config.json"
train="./train_sliding_window --device cpu --threads 1 --model $work/shape --seq-len 48 --batch-size 4 --steps 12 --lr 1e-2
    --val-every 0 --sample-every 0 --plot 0"
data=(--train-data "$work/data/small_train_*.bin" --val-data "$work/data/small_val_*.bin")
hash_of() { sed -n 's/.*"weights_hash":"\([^"]*\)".*/\1/p' "$work/$1/log.jsonl" | tail -n 1; }
expect "Gemma: a run" 0 "" $train "${data[@]}" --checkpoint-every 5 --out "$work/whole"
cp -r "$work/whole" "$work/resumed" && rm -r "$work/resumed/step_00000010" "$work/resumed/step_00000012"
expect "Gemma: goes on from a checkpoint" 0 "" $train "${data[@]}" --checkpoint-every 5 --out "$work/resumed" --resume
check "Gemma: to the same bits" '[ -n "$(hash_of whole)" ] && [ "$(hash_of whole)" = "$(hash_of resumed)" ]'
expect "Gemma: recomputing" 0 "" $train "${data[@]}" --recompute 2 --out "$work/recomputed"
check "Gemma: changes no bit" '[ "$(hash_of whole)" = "$(hash_of recomputed)" ]'
last=$work/whole/step_00000012
check "Gemma: the checkpoint is one of Gemma" 'grep -q "\"Gemma3ForCausalLM\"" "$last/config.json" && [ ! -e "$last/qwen.py" ] &&
    grep -qF "| form | Gemma 3, QK-norm, logits q.k / sqrt(12), RoPE'"'"'s base 100 in layers that slide and 100000 and positions / 2 in the others; 7 layers" \
    "$last/README.md"'
text="./generate --checkpoint $last --tokens 20 --temperature 0 --ignore-eos --prompt"
expect "Gemma: ids behind a text" 0 "" $text "the union" --print-ids
read -ra written <<< "$(tr "\n" " " < "$work/stdout")"
printf 'the union' > "$work/expected"
for id in "${written[@]}"; do printf "\\x$(printf %x "$id")"; done >> "$work/expected"
expect "Gemma: text" 0 "" $text "the union"
check "Gemma: the bytes of those ids" '[ "${#written[@]}" -eq 20 ] && cmp "$work/expected" <(head -c 29 "$work/stdout")'

# ---- the folder that transformers wrote
ids="./generate --checkpoint $fixture --prompt-ids 5,6,7 --tokens 30 --temperature 0 --print-ids --ignore-eos --threads 1"
expect "Gemma: ids from transformers' folder" 0 "" $ids
cp "$work/stdout" "$work/thirty"
check "Gemma: thirty of them" '[ "$(wc -w < "$work/thirty")" -eq 30 ]'
cp -r $fixture "$work/tokenizer"
echo '{"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"}, "pre_tokenizer": null, "added_tokens": [],
    "model": {"type": "BPE", "byte_fallback": true, "vocab": {"a": 0}, "merges": []}}' > "$work/tokenizer/tokenizer.json"
expect "Gemma: text by its own tokenizer" 2 'tokenizer/tokenizer.json: normalizer.type is "Replace"' \
    ./generate --checkpoint "$work/tokenizer" --prompt "the union" --tokens 3
expect "Gemma: says what else there is" 2 "use --print-ids, and --prompt-ids" ./generate --checkpoint "$work/tokenizer" --prompt-ids 5 --tokens 3
expect "Gemma: ids beside it" 0 "" ${ids/$fixture/$work/tokenizer}
check "Gemma: the same ids" 'cmp "$work/thirty" "$work/stdout"'

# ---- other folders: several tokens end a text; no layer slides
third=$(awk '{ print $3; exit }' "$work/thirty")
cp -r $fixture "$work/several" && sed -i "s/\"eos_token_id\": 95/\"eos_token_id\": [95, $third]/" "$work/several/config.json"
several=${ids/$fixture/$work/several}
expect "Gemma: several tokens that end a text" 0 "" ${several/ --ignore-eos/}
check "Gemma: the second of them does" '[ "$(awk "{ print \$NF }" "$work/stdout")" = "$third" ] && [ "$(wc -w < "$work/stdout")" -le 3 ]'
mkdir "$work/full"
sed 's/^\( *\)"sliding_attention"\(,*\)$/\1"full_attention"\2/' "$work/shape/config.json" > "$work/full/config.json"
expect "Gemma: no layer slides, and the other trainer" 7 "use ./train_causal" ${train/$work\/shape/$work/full} "${data[@]}" --out "$work/x"
expect "Gemma: no layer slides" 0 "" ./train_causal --device cpu --model "$work/full" "${data[@]}" --seq-len 48 --batch-size 4 --dry-run --out "$work/x"

# ---- what is refused
expect "Gemma: other attention" 7 "use ./train_sliding_window" ./train_causal --device cpu --model $fixture "${data[@]}" --out "$work/x"
expect "Gemma: reparametrised" 2 "no sigma_reparam" $train "${data[@]}" --sigma-reparam 1 --out "$work/x"
expect "Gemma: two windows" 2 "one sliding window" $train "${data[@]}" --allow-new-tensors \
    --layers sliding_window,sliding_window:window=5 --out "$work/x"
expect "Gemma: without QK-norm" 2 "leave --qk-norm out" $train "${data[@]}" --qk-norm 0 --out "$work/x"

if ! $python -c 'import torch, transformers' 2> /dev/null; then
    skip "Gemma: a checkpoint in transformers" "$python lacks torch or transformers"
    exit 0
fi
expect "Gemma: a checkpoint in transformers" 0 "" $python -W ignore tests/check_transformers.py "$last"
exit 0
