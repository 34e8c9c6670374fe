#!/usr/bin/env bash
# Training as a user runs it: what repeats to the bit, ranks, resuming, tokenizers, hybrids, reports. What is refused
# before the first step is in tests/test_train_options.cpp. Prints `ok NAME` or `FAIL NAME: why` per check and `skip NAME: why`.
# Needs: make all
. "$(dirname "$0")/checks.bash"
small_shards
small=(--device cpu --model qwen-tiny --train-data "$work/data/small_train_*.bin" --val-data "$work/data/small_val_*.bin" --seq-len 32
       --batch-size 8 --steps 12 --val-every 6 --val-batches 4 --sample-every 0 --checkpoint-every 4 --threads 1 --plot 0 --lr 3e-3)
causal=(./train_causal "${small[@]}")
last=$work/causal/step_00000012

# ---- the same run in other ways, and a loss mask: one that hides nothing, and one
for split in train_000001 val_000000; do
    mask_shard "$work/data/small_$split.bin" "$work/data/whole_$split.bin" True
    mask_shard "$work/data/small_$split.bin" "$work/data/masked_$split.bin" "i * i % 7 == 1"
done
masks() { echo "--train-data $work/data/$1_train_*.bin --val-data $work/data/$1_val_*.bin"; }
train causal causal
train asga asga
train_each << END
causal: the same command twice gives the same weights | causal again | = causal
asga: the same command twice gives the same weights | asga asga-again | = asga
four micro-steps follow one batch | causal micro --batch-size 2 --total-batch-tokens 256 | 1e-5 1e-5 causal
a loss mask that hides nothing changes no bit | causal whole $(masks whole) | = causal
one that hides targets changes weights | causal masked $(masks masked) | != causal
and micro-steps share it | causal masked4 $(masks masked) --batch-size 2 --total-batch-tokens 256 | 1e-5 1e-5 masked
END
train causal trunk --schedule constant --warmup-steps 2 --keep-checkpoints 0
train causal cooled --schedule wsd --warmup-steps 2 --cooldown-frac 0.5 --steps 8
train_each << END
a cool-down from a trunk's checkpoint ends at the weights of a whole run | causal cool --checkpoint $work/trunk/step_00000004 --schedule wsd --warmup-steps 2 --cooldown-frac 0.5 --steps 8 | = cooled
END
check "what it changes is printed, and in the log" 'grep -qF "from step 5 on with --steps 8 (12), --schedule" "$work/cool.txt" &&
    grep -qF "\"changed\":\"--steps 8 (12), --schedule" "$work/cool/log.jsonl"'
mixture=(--train-data "3 $work/data/small_train_*.bin 1 $work/data/small_val_*.bin" --val-data "1 $work/data/small_val_*.bin 3 $work/data/small_train_*.bin")
train causal mixture "${mixture[@]}"
check "a mixture's log has the rows of each source, and the loss of each" 'grep -A 1 "\"event\":\"source\"" "$work/mixture/log.jsonl" |
    grep -oE "\"rows\":[0-9]+" | tr "\n" " " | finds -x "\"rows\":72 \"rows\":24 " && grep -c "\"source_loss\"" "$work/mixture/log.jsonl" | finds -x 4'
expect "and cannot be resumed with other weights" 2 "differs from the training data" "${causal[@]}" --out "$work/mixture" --resume --steps 16 \
    --train-data "2 $work/data/small_train_*.bin 1 $work/data/small_val_*.bin"
train causal muon --optimizer muon
check "Muon gives other weights, and the log names it" 'run_is muon != causal && grep -qF "\"optimizer\":\"muon\"" "$work/muon/log.jsonl"'
cp -r "$work/muon" "$work/stopped" && rm -r "$work/stopped/step_00000012"
train_each << 'END'
on two threads it follows itself | causal muon2 --optimizer muon --threads 2 | 1e-5 1e-5 muon
Muon resumes to the same weights | causal stopped --optimizer muon --resume | = muon
END
rm -r "$work/stopped/step_00000012"
expect "but not with AdamW" 7 "has the moments of --optimizer muon" "${causal[@]}" --out "$work/stopped" --resume
expect "--config takes the file that a run wrote" 0 "" ./train_causal --config "$work/causal/options.toml" --out "$work/configured"
check "and repeats the run" 'same_weights "$work/configured" "$work/causal"'
check "and writes it again" 'diff <(grep -v "^out=" "$work/causal/options.toml") <(grep -v "^out=" "$work/configured/options.toml")'

if ! has_mpi ./train_asga; then
    skip "ranks" "no MPI on this machine"
else
    train asga ranks3 @3 --batch-size 2
    train_each << 'END'
1 rank follows one process | asga ranks1 @1 | 1e-5 1e-5 asga
2 ranks follow it | asga ranks2 @2 --batch-size 4 | 1e-5 1e-5 asga
4 ranks follow it | asga ranks4 @4 --batch-size 2 | 1e-5 1e-5 asga
looking at attention changes no weight on 2 ranks | asga watched @2 --batch-size 4 --monitor-every 5 | = ranks2
ZeRO-1 on 3 ranks follows 3 ranks without | asga zero3 @3 --batch-size 2 --zero-stage 1 | 1e-5 1e-5 ranks3
ZeRO-1 on 2 ranks gives the weights of 2 ranks without | asga zero @2 --batch-size 4 --zero-stage 1 | = ranks2
Muon on 2 ranks follows one process | causal muon-ranks2 @2 --batch-size 4 --optimizer muon --check-ranks-every 3 | 1e-4 1e-4 muon
and ZeRO-1 gives their weights | causal muon-zero @2 --batch-size 4 --optimizer muon --zero-stage 1 --check-ranks-every 3 | = muon-ranks2
END
    cp -r "$work/zero" "$work/zero4"
    train asga ranks2 @2 --batch-size 4 --steps 16 --resume
    train_each << 'END'
ZeRO-1 resumes to the same weights | asga zero @2 --batch-size 4 --zero-stage 1 --steps 16 --resume | = ranks2
and on 4 ranks to the same curve | asga zero4 @4 --batch-size 2 --zero-stage 1 --steps 16 --resume | 1e-5 1e-5 zero
END
    check "ranks write plain lines, and the log of one has three looks at attention" \
        '! grep -qP "[\r\x1b]" "$work/ranks2.txt" && [ "$(grep -c "event.:.attention" "$work/watched/log.jsonl")" -eq 3 ]'
fi

# ---- a run's log
field() { grep -m 1 '"event":"config"' "$work/$1/log.jsonl" | grep -oE "\"$2\":(\"[^\"]*\"|[0-9.e+]+)" | cut -d: -f2-; }
check "the log names commit, machine, BLAS and program" 'field causal commit | finds -E "^\"([0-9a-f]{12}|unknown)\"$" &&
    field causal dirty | finds -x "[01]" && field causal machine | finds "cpu: .* thread" && field causal blas | finds BLAS &&
    field causal flops_per_token | finds -E "^[1-9]" && field causal binary_hash | finds -E "^\"[0-9a-f]{16}\"$" &&
    [ "$(field causal binary_hash)" != "$(field asga binary_hash)" ]'
check "and the same data by the same hash" 'field causal data_hash | finds -E "^\"[0-9a-f]{16}\"$" &&
    [ "$(field causal data_hash)" = "$(field asga data_hash)" ] && [ "$(field causal data_hash)" != "$(field masked data_hash)" ]'

# ---- weights of another variant
cp -r "$last" "$work/plain" && rm "$work/plain/manifest.json"
grep -v attention_variant "$last/config.json" > "$work/plain/config.json"
train asga adapted --model "$last" --allow-new-tensors
check "what is new in a start from another variant is reported" \
    'grep -q "lacks 12 tensors, initialised from the seed: model.layers.0.self_attn.asga.w1_q" "$work/adapted.txt"'
train_each <<< "a start from a folder that names no variant has the same weights | asga from-plain --model $work/plain | = adapted"
expect_each << END
tensors are not dropped | 7 | self_attn.asga. | ${causal[@]@Q} --out "$work/x" --model "$work/asga/step_00000012" --allow-new-tensors
a form that looks ahead is not trained | 2 | to train, give --seer-query from 0 to 1 | ./train_seer ${small[@]@Q} --out "$work/x" --seer-query 2
more memory than there is | 4 | --batch-size | ./train_asga ${small[@]@Q} --out "$work/x" --model qwen2.5-1.5b --val-every 0 --batch-size 1000 --seq-len 4096
a loss that is not finite | 5 | not finite | ${causal[@]@Q} --out "$work/x" --lr 1000 --grad-clip 0 --adam-eps 1e-30 --steps 300 --warmup-steps 0 --checkpoint-every 0
--device cuda without a GPU | 2 | cuda | ./train_asga --out "$work/x" --device cuda
an unknown option of generate | 2 | --temperature | ./generate --checkpoint x --temprature 1
an unknown option of tokenize | 2 | --tokenizer | ./tokenize --tokeniser bytes
END

# ---- a tokenizer of Hugging Face's, from the text to the text of a moved checkpoint
tokenizer=(./tokenize --tokenizer tests/fixtures/tokenizers/qwen_tokenizer.json --out "$work/bpe")
expect "a tokenizer.json makes shards" 0 "" "${tokenizer[@]}" --name bpe "$work/text.txt"
check "and lies beside them" '[ -s "$work/bpe/bpe_tokenizer.json" ] && grep -q "\"tokenizer\": \"bpe_tokenizer.json\"" "$work/bpe/bpe_manifest.json"'
echo "{}" > "$work/bpe/other_tokenizer.json"
expect "another tokenizer.json there stays" 3 "other_tokenizer.json" "${tokenizer[@]}" --name other "$work/text.txt"
bpe=(--train-data "$work/bpe/bpe_train_*.bin" --val-data "$work/bpe/bpe_val_*.bin")
mkdir "$work/shape"
sed 's/"vocab_size": *[0-9]*/"vocab_size": 4096/; /engine_tokenizer/d' "$last/config.json" > "$work/shape/config.json"
expect "training with it" 0 "" "${causal[@]}" "${bpe[@]}" --model "$work/shape" --out "$work/bpe-run"
check "reports bits per byte" 'grep -q "val_bpb.:[0-9]" "$work/bpe-run/log.jsonl"'
mv "$work/bpe-run/step_00000012" "$work/moved" && rm -rf "$work/bpe"
expect "its checkpoint writes text wherever it lies" 0 "" ./generate --checkpoint "$work/moved" --prompt "We the people" --tokens 5
check "behind the prompt" 'grep -q "^We the people." "$work/stdout"'
expect "text of another tokenizer than the model's" 3 "the model's is" "${causal[@]}" --model "$work/moved" --out "$work/x"

# ---- models with layers of their own, and text from them
train causal no-norm --qk-norm 0
train asga dense --dense-layers 0
check "config.json and log name the layers" 'tr -d " \n" < "$work/dense/step_00000012/config.json" | finds "\"layer_types\":\[\"causal\",\"asga\"\]" &&
    grep -q "\"layers\":\"causal,asga\"" "$work/dense/log.jsonl" && grep -q LlamaForCausalLM "$work/no-norm/step_00000012/config.json"'
cp -r "$last" "$work/mixed" && rm "$work/mixed/manifest.json"   # its config.json will be another
sed '/attention_variant/d; s/"use_sliding_window": false/"use_sliding_window": true/; s/"sliding_window": null/"sliding_window": 9/; s/"max_window_layers": 2/"max_window_layers": 1/' \
    "$last/config.json" > "$work/mixed/config.json"
train seer gate --seq-len 128 --batch-size 2 --steps 2 --seer-query 2 --seer-distil 2
train mosa mosa --seq-len 64 --batch-size 2 --steps 2 --mosa-choice 1
gate="--checkpoint $work/gate/step_00000002 --temperature 0 --prompt"
expect_each ./generate --tokens 20 --print-ids << END
a Qwen folder with mixed windows writes text | 0 | | --checkpoint "$work/mixed" --prompt-ids 65,66
psa on a hybrid | 2 | other attention in some layers | --checkpoint "$work/dense/step_00000012" --prompt-ids 65 --attention psa
a gate query that looks ahead chooses blocks of a prompt | 0 | tokens of the text read later ones | $gate "$(head -c 150 "$work/text.txt")" --set seer_distil=0 --set seer_top_k=1
a setting that the variant does not have | 2 | seer_top_k | $gate We --set seer_topk=1
a setting that is out of range | 2 | from 0 to | $gate We --set seer_top_k=-1
a setting that changes tensors | 7 | --set requires tensors | --checkpoint "$work/asga/step_00000012" --prompt-ids 65 --set asga_hidden=8
a form that looks ahead writes no text | 2 | reads later tokens | --checkpoint "$work/mosa/step_00000002" --prompt-ids 65,66
its causal form does | 0 | KV cache | --checkpoint "$work/mosa/step_00000002" --prompt-ids 65,66 --set mosa_choice=0
END
expect "mixed windows are not trained without them" 7 "use ./train_sliding_window" "${causal[@]}" --out "$work/x" --model "$work/mixed"

# ---- documents of packed rows
awk 'BEGIN { srand(7); for (n = 0; n < 300; n++) { line = ""; for (k = 20 + int(rand() * 40); k > 0; k--) line = line sprintf("%c", 97 + int(rand() * 26))
     printf "{\"text\": \"%s\"}\n", line } }' > "$work/many.jsonl"
./tokenize --out "$work/data" --name many "$work/many.jsonl" > /dev/null 2>&1
many=(--train-data "$work/data/many_train_*.bin" --val-data "$work/data/many_val_*.bin" --seq-len 128 --batch-size 2 --steps 4 --val-every 4)
train causal packed "${many[@]}"
train_each << END
keeping documents apart changes what is learnt | causal apart ${many[*]} --document-mask 1 | != packed
positions that count anew change the last bits only | causal anew ${many[*]} --document-mask 1 --document-positions 1 | 1e-4 1e-2 apart
END
check "and bits" '! same_weights "$work/anew" "$work/apart"'

# ---- reports
train nsa watched3 --monitor-every 12
look() { grep "event.:.attention" "$work/$1/log.jsonl"; }
check "the picture of a mask of nsa has tiles of three softmaxes" './train_nsa "${small[@]}" --out "$work/x" --show-mask "$work/nsa.pgm" |
    finds "layer 1 of nsa.* 300.0% of causal tiles in all softmaxes"'
check "of nsa each softmax and its gate" 'look watched3 | finds "entropy.cmp.:..[0-9].*gate.win.:..0[.]"'
check "and the plot has each table" 'PYTHONPATH=scripts python3 -c "import json, sys, plot_attention
tables = [key for key, value in json.loads(sys.stdin.readline()).items() if isinstance(value, list) and not key.startswith(\"collapsed\")]
sys.exit(len(tables) < 20 or not {key.partition(\".\")[0] for key in tables} <= set(plot_attention.MAPS))" < <(look watched3)'
check "--dry-run lists what each kind of layer costs, and trains nothing" './train_asga_fixed "${small[@]}" --layers asga_fixed:window=4,causal --dry-run --out "$work/dry" |
    grep -qE "asga_fixed +. 28.4% of causal pairs, .* layers 0 " && [ ! -e "$work/dry" ]'
check "a count of pairs that is a bound is called that" './train_seer "${small[@]}" --out "$work/x" --seer-threshold 0.1 --dry-run | finds "at most 2112 (100.0% of causal)"'
expect_each ./train_asga_fixed "${small[@]}" --out "$work/x" --dense-layers 0 << END
a picture of a kind that is not written | 2 | .png or .pgm | --show-mask "$work/mask.jpg"
a picture that cannot be written | 3 | /proc/x.png | --show-mask /proc/x.png
a layer that the model lacks | 2 | layers are 0 to 1 | --dense-layers 2
the mask of a variant as a picture | 0 | | --show-mask "$work/mask.pgm" --window 7
END
check "of its last layer" 'grep -q "layer 1 of asga_fixed.*43.2% of causal pairs, 100.0% of causal tiles" "$work/stdout" && [ "$(head -c 2 "$work/mask.pgm")" = P5 ]'
predicted=$(./train_asga --device cpu --dry-run | awk '/predicted peak/ { print int($7 * ($8 == "GiB" ? 1073741824 : 1048576)) }')
./train_asga --device cpu --steps 2 --sample-every 0 --checkpoint-every 0 --val-every 0 --plot 0 --out "$work/peak" > /dev/null
peak=$(tail -n 1 "$work/peak/log.jsonl" | grep -o '"peak_bytes":[0-9]*' | cut -d: -f2)
check "peak memory $peak is within 10% of the predicted $predicted" '[ "$predicted" -le $((peak * 110 / 100)) ] && [ $((peak * 90 / 100)) -le "$predicted" ]'
