#!/usr/bin/env bash
# Part of a lab's copy: the engine beside plain C (tests/reference_qwen.c), 20 steps from the same weights on the same rows. Prints
# losses and gradient norms of both, and the tensors that differ most after the last step.
#   bash compare.sh causal|asga [OPTION...]     of both programs, for instance --adam-eps 1: AdamW divides a gradient by its size,
#                                               and with so large an eps it does not
set -euo pipefail
cd "$(dirname "$0")"
variant=${1:-causal} out=out/compare
shift || true
options=(--model "$out/start/step_00000040" --train-data data/bundled/sotu_train_000001.bin --seq-len 64 --batch-size 4 --steps 20
    --warmup-steps 4 --lr 1e-3 "$@")
mkdir -p $out
cat > $out/config.json << END
{"model_type": "qwen3", "vocab_size": 512, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 20000,
 "tie_word_embeddings": true, "engine_tokenizer": "bytes"}
END
quiet=(--device cpu --threads 1 --val-every 0 --sample-every 0 --plot 0)
rm -rf $out/start $out/run
./train_"$variant" "${quiet[@]}" --model $out --seq-len 64 --batch-size 8 --steps 40 --lr 4e-3 --checkpoint-every 40 \
    --out $out/start > $out/log.txt
./train_"$variant" "${quiet[@]}" "${options[@]}" --shuffle 0 --checkpoint-every 20 --out $out/run > $out/log.txt
build/reference_qwen "${options[@]}" --compare $out/run/step_00000020 > $out/reference.txt
echo "step  loss: engine    plain C    gradient norm: engine    plain C"
paste -d' ' <(sed -nE 's/^\{"step":([0-9]+),.*"loss":([^,]+),"grad_norm":([^,]+),.*/\1 \2 \3/p' $out/run/log.jsonl) \
    <(sed -nE 's/^step +([0-9]+)\/.* loss ([^ ]+) \| norm ([^ ]+) .*/\2 \3/p' $out/reference.txt) |
    awk '{ printf "%4d       %9.5f  %9.5f              %9.5f  %9.5f\n", $1, $2, $4, $3, $5; d = $3 / $5 - 1; l = $2 / $4 - 1
           if (d * d > 1e-6 || l * l > 1e-8 || d != d) bad++ }
         END { print (bad ? "they differ in " bad + 0 " of " NR " steps" : "they agree") }'
grep ' differs by ' $out/reference.txt | sort -k4,4gr | head -n 6
