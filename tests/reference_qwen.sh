#!/usr/bin/env bash
# tests/reference_qwen.c, the model in plain C, against the engine: the same weights, rows and options, and so the same losses and
# gradient norms in 20 steps. Prints lines `ok NAME` or `FAIL NAME: why`.
# Needs: make train_causal train_asga build/reference_qwen
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_NUM_THREADS=1
shard=data/bundled/sotu_train_000001.bin
reference=build/reference_qwen

# train VARIANT OUT OPTIONS...: the engine, on the rows in their order.
train() {
    timeout 120 ./train_"$1" --device cpu --train-data $shard --shuffle 0 --seq-len 64 --val-every 0 --val-batches 0 \
        --sample-every 0 --threads 1 --plot 0 --out "$work/$2" "${@:3}" > "$work/$2.txt" 2>&1 ||
        bad "train_$1" "$(tail -n 1 "$work/$2.txt")"
}
# Lines `step loss norm` of the engine's log, and of what the reference printed.
engine_curve() { sed -nE 's/^\{"step":([0-9]+),.*"loss":([^,]+),"grad_norm":([^,]+),.*/\1 \2 \3/p' "$work/$1/log.jsonl"; }
reference_curve() { sed -nE 's/^step +([0-9]+)\/.* loss ([^ ]+) \| norm ([^ ]+) .*/\1 \2 \3/p' "$work/$1"; }
# The greatest relative differences of losses and norms over 20 steps, and of any tensor after them; 1 where there are fewer.
differences() {
    paste -d' ' <(engine_curve "$1") <(reference_curve "$2") | awk '
        function greater(a, x, y) { x = (x - y) / y; if (x < 0) x = -x; return x > a ? x : a }
        $1 == $4 { loss = greater(loss, $2, $5); norm = greater(norm, $3, $6); n++ }
        END { print (n == 20 ? loss + 0 " " norm + 0 : "1 1") }'
    awk '/ differs by / { n++; if (!($4 <= most)) most = $4 } END { print (n >= 24 ? most + 0 : 1) }' "$work/$2"
}
within() { # within "NUMBERS" "BOUNDS"
    awk -v is="$1" -v most="$2" 'BEGIN { n = split(most, b); if (split(is, a) != n) exit 1
                                         for (k = 1; k <= n; k++) if (!(a[k] + 0 <= b[k] + 0)) exit 1 }'
}

# compare VARIANT NAME MOST OPTIONS...: 20 steps of both from $work/VARIANT; losses, norms and weights differ by at most MOST.
compare() {
    local variant=$1 name=$2 most=$3 difference
    shift 3
    set -- --model "$work/$variant/step_00000300" --steps 20 --batch-size 5 --warmup-steps 4 "$@"
    train "$variant" run --checkpoint-every 20 "$@"
    timeout 120 $reference --train-data $shard --seq-len 64 --compare "$work/run/step_00000020" "$@" > "$work/reference.txt" 2>&1
    difference=$(differences run reference.txt | paste -sd' ')
    if within "$difference" "$most"; then ok "$variant: $name (losses, gradient norms and weights differ by $difference)"
    else bad "$variant: $name" "differ by $difference, more than $most; $(tail -n 1 "$work/reference.txt")"; fi
}

# No two widths of this model are equal. It starts from weights that have learned for a while: while those of the gate are fresh,
# hardly anything depends on its gradient.
mkdir "$work/shape"
cat > "$work/shape/config.json" << EOF
{"model_type": "qwen3", "vocab_size": 512, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 20000,
 "tie_word_embeddings": true, "engine_tokenizer": "bytes"}
EOF
for variant in causal asga; do
    start=(--model "$work/shape" --steps 300 --batch-size 8 --lr 4e-3 --shuffle 1 --checkpoint-every 300)
    [ $variant = asga ] && start+=(--asga-hidden 6)
    train $variant $variant "${start[@]}"
    compare $variant "20 steps of AdamW" "1e-5 1e-4 1e-4" --lr 1e-3
    # AdamW divides a gradient by its size, and hides one that is too large by a factor. With so large an eps it does not: this is
    # gradient descent with momentum, and every weight tells what its gradient was. Its norms rounding has moved by 1.4e-4.
    compare $variant "20 steps of gradient descent" "1e-5 3e-4 2e-6" --lr 0.15 --adam-eps 1 --grad-clip 0.8 --weight-decay 0.1
    expect "$variant: difference quotients in plain C" 0 "" $reference --model "$work/$variant/step_00000300" --train-data $shard \
        --batch-size 2 --seq-len 24 --check-gradients 1
done
expect "a model from nothing" 0 "" $reference --variant asga --steps 8 --lr 3e-3 --seq-len 32
check "its loss falls" 'within "$(awk "/^step/ { print \$5 }" "$work/stdout" | tail -n 1)" 5'

# ---- what is damaged gets one sentence
refused() { # refused NAME CODE WORD OPTIONS...
    expect "$1" "$2" "$3" $reference "${@:4}"
    check "$1: in one line" '[ "$(wc -l < "$work/stderr")" -eq 1 ]'
}
head -c 5000 $shard > "$work/short.bin"
refused "a shard that is cut off" 3 "short.bin: has 5000 bytes" --train-data "$work/short.bin"
head -c 5000 Makefile > "$work/foreign.bin"
refused "a file that is no shard" 3 "foreign.bin: is no shard" --train-data "$work/foreign.bin"
cp $shard "$work/foreign_ids.bin"
printf '\377\377' | dd of="$work/foreign_ids.bin" bs=1 seek=3024 conv=notrunc 2> /dev/null
refused "a token outside the vocabulary" 3 "foreign_ids.bin: token 1000 is 65535" --train-data "$work/foreign_ids.bin"
cp -r "$work/asga/step_00000300" "$work/cut"
truncate -s -4 "$work/cut/model.safetensors"
refused "weights that are cut off" 7 'model.safetensors: "model.norm.weight"' --model "$work/cut" --train-data $shard
cp "$work/causal/step_00000300/model.safetensors" "$work/cut/"
refused "weights of the other variant" 7 'asga.w1_q" is missing' --model "$work/cut" --train-data $shard
cp "$work/asga/step_00000300/model.safetensors" "$work/causal/step_00000300/config.json" "$work/cut/"
refused "weights that the model has not" 7 "holds 36 tensors, this model has 24" --model "$work/cut" --train-data $shard
sed 's/"asga"/"dsa"/' "$work/asga/step_00000300/config.json" > "$work/cut/config.json"
refused "a variant that it does not know" 7 "attention_variant" --model "$work/cut" --train-data $shard
