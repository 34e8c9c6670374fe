#!/usr/bin/env bash
# ./generate --device cuda, on the emulated GPU, writes what it writes on the CPU: a checkpoint of every variant, prompts of different lengths
# side by side, greedily in float32. The models have large weights and untied heads and learn next to nothing, so that texts
# depend on every key that is seen; a control shows that they do. Logits are compared in tests/gpu/variant/test_gpu_decoder.cpp. Prints
# `ok NAME` or `FAIL NAME: why` per check.
# Needs: make all build/emulated/generate
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive

# By which two hundred tokens have something to leave out, where a window is not the variant's.
declare -A settings=(
    [adaptive_sparse]="--adaptive-sparse-top-k 1 --adaptive-sparse-mask 1" [bigbird]="--bigbird-block 8"
    [deepseek_sparse]="--deepseek-sparse-top-k 20 --deepseek-sparse-dim 32" [deepspeed_fixed]="--deepspeed-fixed-block 5"
    [fixed_factorized]="--fixed-factorized-chunk 16 --fixed-factorized-summary 3" [longformer]="--global-tokens 5"
    [longnet]="--longnet-segment 16" [moba]="--moba-block 64 --moba-top-k 2" [mosa]="--mosa-rho 2"
    [nsa]="--nsa-block 8 --nsa-stride 4 --nsa-selected 4" [routing]="--routing-clusters 3" [seer]="--seer-top-k 1 --seer-distil 0"
    [shaw]="--shaw-clip 7" [sinks]="--sinks 3" [sinks_cache]="--sinks 3" [strided]="--stride 7")

mkdir "$work/shape"
cat > "$work/shape/config.json" << 'END'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
 "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64, "rope_theta": 10000, "tie_word_embeddings": false,
 "max_position_embeddings": 512, "initializer_range": 0.3}
END

# Past tiles of 64 keys; windows of 20 and the first 30 rows of dsa end in all but the first.
for length in 1 62 126 190; do
    printf '{"prompt_ids": [%s]}\n' "$(seq -s, 40 $((39 + length)))"
done > "$work/prompts.jsonl"

writes() { # writes PROGRAM DEVICE NAME OPTION...: $work/NAME.jsonl
    expect "$variant: text with --device $2${4:+ ${*:4}}" 0 "" "$1" --checkpoint "$work/$variant/step_00000010" --device "$2" --weights fp32 --threads 1 \
        --temperature 0 --ignore-eos --prompts "$work/prompts.jsonl" --batch 3 --tokens 12 --print-ids --out "$work/$3.jsonl" --log "$work/$3.json" "${@:4}"
}
for file in attention/*.cuh; do
    variant=$(basename "$file" .cuh)
    # shellcheck disable=SC2086  # a list of words
    ./train_"$variant" --device cpu --threads 1 --model "$work/shape" --window 20 --dense-until 30 ${settings[$variant]:-} --seq-len 256 --batch-size 1 \
        --steps 10 --lr 3e-3 --checkpoint-every 10 --val-every 0 --sample-every 0 --plot 0 --out "$work/$variant" > "$work/log" 2>&1
    writes ./generate cpu cpu
    writes build/emulated/generate cuda cuda
    check "$variant: the same four texts, and the GPU wrote them row by row" \
        'cmp "$work/cpu.jsonl" "$work/cuda.jsonl" && [ "$(wc -l < "$work/cuda.jsonl")" -eq 4 ] &&
         grep -q "\"device\":\"cuda\"" "$work/cuda.json" && ! grep -q "\"cache_bytes\":0[,}]" "$work/cuda.json"'
    if [ "$variant" == sliding_window ]; then   # texts do tell one key more or less
        for window in 19 21; do
            writes build/emulated/generate cuda other --set attention_window=$window
            check "$variant: a window of $window writes something else" '! cmp -s "$work/cpu.jsonl" "$work/other.jsonl"'
        done
    fi
    rm -rf "${work:?}/$variant" "$work"/*.json "$work"/{cpu,cuda,other}.jsonl
done
