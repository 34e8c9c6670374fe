#!/usr/bin/env bash
# tests/reference_qwen.c, the model in plain C, against the engine: the same weights, rows and options, and so the same losses and
# gradient norms in 20 steps. Prints lines `ok NAME` or `FAIL NAME: why`.
# Needs: make train_causal train_asga build/reference_qwen
. "$(dirname "$0")/checks.bash"
export OMP_NUM_THREADS=1
shard=data/bundled/sotu_train_000001.bin reference=build/reference_qwen
small=(--device cpu --train-data $shard --shuffle 0 --seq-len 64 --val-every 0 --val-batches 0 --sample-every 0 --threads 1 --plot 0)

within() { # within "NUMBERS" "BOUNDS"
    awk -v is="$1" -v most="$2" 'BEGIN { n = split(most, b); if (split(is, a) != n) exit 1
                                         for (k = 1; k <= n; k++) if (!(a[k] + 0 <= b[k] + 0)) exit 1 }'
}

# No two widths of this model are equal. It starts from weights that have learned for a while: while those of the gate are fresh,
# hardly anything depends on its gradient.
mkdir "$work/shape"
cat > "$work/shape/config.json" << END
{"model_type": "qwen3", "vocab_size": 512, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 20000,
 "tie_word_embeddings": true, "engine_tokenizer": "bytes"}
END
for variant in causal asga; do
    [ $variant = causal ] || hidden="--asga-hidden 6"
    # shellcheck disable=SC2086  # words
    train $variant $variant --model "$work/shape" --steps 300 --batch-size 8 --lr 4e-3 --shuffle 1 --checkpoint-every 300 ${hidden:-}
    # AdamW divides a gradient by its size, and hides one that is too large by a factor. With so large an eps it does not: this is
    # gradient descent with momentum, and every weight shows what its gradient was. Its norms rounding has moved by 1.4e-4.
    while IFS='|' read -r -u 3 name most options; do
        # shellcheck disable=SC2086  # words
        OUT=$work/compare timeout 240 python3 dev/labs/compare.py $variant --model "$work/$variant/step_00000300" --batch-size 5 \
            $options > "$work/compared" 2>&1
        difference=$(sed -nE 's/^greatest differences of 20 steps and (2[4-9]|[3-9][0-9]) tensors: //p' "$work/compared")
        if within "$difference" "$most"; then ok "$variant: $name (losses, gradient norms and weights differ by $difference)"
        else bad "$variant: $name" "differ by $difference, more than $most; $(tail -n 1 "$work/compared")"; fi
    done 3<< 'END'
20 steps of AdamW|1e-5 1e-4 1e-4|--lr 1e-3
20 steps of gradient descent|1e-5 3e-4 2e-6|--lr 0.15 --adam-eps 1 --grad-clip 0.8 --weight-decay 0.1
END
    expect "$variant: difference quotients in plain C" 0 "" $reference --model "$work/$variant/step_00000300" --train-data $shard \
        --batch-size 2 --seq-len 24 --check-gradients 1
done
expect "a model from nothing" 0 "" $reference --variant asga --steps 8 --lr 3e-3 --seq-len 32
check "its loss falls" 'within "$(awk "/^step/ { print \$5 }" "$work/stdout" | tail -n 1)" 5'

# ---- refusals
head -c 5000 $shard > "$work/short.bin"
cp -r "$work/asga/step_00000300" "$work/cut" && truncate -s -4 "$work/cut/model.safetensors"
cp -r "$work/asga/step_00000300" "$work/other" && cp "$work/causal/step_00000300/model.safetensors" "$work/other/"
cp -r "$work/causal/step_00000300" "$work/scaled" && sed -i 's/"rope_type": "default"/"rope_type": "linear"/' "$work/scaled/config.json"
expect_each $reference << END
a shard that is cut off | 3 | short.bin: has 5000 bytes | --train-data "$work/short.bin"
a file that is no shard | 3 | Makefile: is no shard | --train-data Makefile
weights that are cut off | 7 | model.safetensors: "model.norm.weight" is missing, cut off | --model "$work/cut"
scaled RoPE | 7 | config.json: has "rope_scaling" | --model "$work/scaled"
weights of the other variant | 7 | asga.w1_q" is missing | --model "$work/other"
END
