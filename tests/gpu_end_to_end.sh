#!/usr/bin/env bash
# Training on the GPU as a user runs it: against the CPU, repeated, resumed, recomputed, over ranks, out of memory, without a GPU.
# Runs the programs that emulate their GPU (build/emulated), or with GPU_PROGRAMS=. those for a real one. Prints lines
# `ok NAME`, `FAIL NAME: why`, `skip NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
programs=${GPU_PROGRAMS:-build/emulated}
. tests/checks.bash
emulated() { [ "$programs" = build/emulated ]; }

head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
steps=6
small="--model qwen-tiny --train-data $work/data/small_train_*.bin --val-data $work/data/small_val_*.bin --seq-len 32 --batch-size 4
       --steps $steps --val-every 3 --val-batches 2 --sample-every 0 --checkpoint-every 3 --threads 1 --plot 0 --lr 3e-3"
set -f   # the globs are for the programs
train() { # train VARIANT OUT OPTIONS...
    local variant=$1 out=$2
    shift 2
    timeout 300 "$programs/train_$variant" $small --device cuda --out "$out" "$@" > "$out.txt" 2>&1
}
mpi() { # mpi RANKS OUT OPTIONS...
    local ranks=$1 out=$2
    shift 2
    timeout 300 $launch -np "$ranks" "$programs/train_asga" $small --device cuda --out "$out" --batch-size $((4 / ranks)) "$@" > "$out.txt" 2>&1
}
hash_of() { tail -n 1 "$1/log.jsonl" | grep -o '"weights_hash":"[0-9a-f]*"'; }
same_weights() { [ -n "$(hash_of "$1")" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]; }
number() { tail -n 1 "$1/log.jsonl" | sed -n "s/.*\"$2\":\([0-9.]*\).*/\1/p"; }
losses() { grep -o '"step":[0-9]*,"tokens":[0-9]*,"loss":[0-9.e-]*' "$1/log.jsonl" | sed 's/.*://'; }
# curve_within A B RELATIVE: every loss of two runs.
curve_within() {
    paste -d' ' <(losses "$1") <(losses "$2") | awk -v most="$3" -v rows="$steps" '
        { d = $1 > $2 ? ($1 - $2) / $2 : ($2 - $1) / $2; if (!(d <= most)) bad = 1; n++ } END { exit bad || n != rows }'
}

for variant in causal asga; do
    train $variant "$work/$variant-cpu" --device cpu
    train $variant "$work/$variant-fp32" --precision fp32
    train $variant "$work/$variant"
    train $variant "$work/$variant-again"
    check "$variant: float32 on the GPU follows the CPU within 1e-4" 'curve_within "$work/$variant-fp32" "$work/$variant-cpu" 1e-4'
    check "$variant: bf16 follows float32 within 2e-2" 'curve_within "$work/$variant" "$work/$variant-fp32" 2e-2'
    check "$variant: the same command twice gives the same weights" 'same_weights "$work/$variant" "$work/$variant-again"'
done
printf '%s\n' '{"query": "We thank the", "choices": ["people of it", "q"], "gold": 0}' '{"query": "x", "choices": ["a b", "the"], "gold": 1}' > "$work/items.jsonl"
for device in cpu cuda; do
    "$programs/train_causal" $small --device $device --precision fp32 --evaluate --checkpoint "$work/causal-cpu/step_0000000$steps" \
        --val-batches 2 --eval-data "$work/items.jsonl" --eval-out "$work/$device.jsonl" > "$work/evaluated-$device.txt" 2>&1
done
likelihoods() { grep -o 'log_likelihoods.*' "$1" | grep -oE -- '-[0-9.]+'; }
check "--evaluate: log-likelihoods of the GPU are the CPU's within 1e-4" 'paste <(likelihoods "$work/cpu.jsonl") <(likelihoods "$work/cuda.jsonl") | awk "{ d = \$1 / \$2 - 1; if (!(d * d <= 1e-8)) bad = 1; n++ } END { exit bad || n != 4 }" && grep -q "validation: loss" "$work/evaluated-cuda.txt"'
train asga "$work/cheap" --recompute 1
train asga "$work/layers" --recompute 2
check "recomputation changes no bit" 'same_weights "$work/asga" "$work/cheap" && same_weights "$work/asga" "$work/layers"'
train asga "$work/accumulate" --batch-size 1 --total-batch-tokens 128
check "four micro-steps follow the curve of one batch" 'curve_within "$work/asga" "$work/accumulate" 5e-3'
train asga "$work/stochastic" --rounding stochastic
check "stochastic rounding trains and is another rounding" 'curve_within "$work/asga" "$work/stochastic" 2e-2 && ! same_weights "$work/asga" "$work/stochastic"'
train asga "$work/stochastic-again" --rounding stochastic
check "stochastic rounding repeats" 'same_weights "$work/stochastic" "$work/stochastic-again"'

cp -r "$work/asga" "$work/resumed"
set +f
rm -rf "$work"/resumed/step_*6
set -f
train asga "$work/resumed" --resume
check "a resumed run ends with the weights of one that was not stopped" 'same_weights "$work/asga" "$work/resumed"'
big=""   # on a real GPU the libraries' code, loaded when it is first used, would be most of a small model's memory
emulated || { big="-big"; train asga "$work/asga-big" --model qwen-7m --batch-size 64 --seq-len 256 --steps 2 --val-every 0 --checkpoint-every 0; }
predicted=$(awk '/predicted peak/ { print int($7 * ($8 == "GiB" ? 1073741824 : 1048576)) }' "$work/asga$big.txt")
peak=$(number "$work/asga$big" peak_bytes)
check "the GPU's memory in the end, $peak bytes, is within 5% of the $predicted predicted" 'awk -v a="$peak" -v b="$predicted" "BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 0.05 * b) }"'

if ! command -v mpirun > /dev/null || ! grep -q libmpi <(ldd "$programs/train_asga"); then
    skip "ranks on the GPU" "no MPI on this machine"
else
    for ranks in 1 2; do
        mpi $ranks "$work/ranks$ranks"
        check "$ranks ranks on one GPU follow the curve of one process" 'curve_within "$work/asga" "$work/ranks$ranks" 5e-3'
    done
    mpi 2 "$work/zero" --zero-stage 1
    check "ZeRO-1 gives the weights that two ranks without it have" 'same_weights "$work/ranks2" "$work/zero"'
fi

explodes="--lr 1000 --grad-clip 0 --adam-eps 1e-30 --warmup-steps 0 --steps 100 --val-every 0 --checkpoint-every 0"
expect "a loss that is not finite ends the run" 5 "weights were not changed" "$programs/train_causal" $small --device cuda $explodes --out "$work/nan"
if command -v mpirun > /dev/null && grep -q libmpi <(ldd "$programs/train_asga"); then
    expect "the same on two ranks" 5 "weights were not changed" timeout 100 $launch -np 2 "$programs/train_asga" $small --device cuda $explodes --out "$work/nan2"
fi
if emulated; then
    expect "a kernel that cannot be launched" 6 "the GPU reports" env EMULATED_GPU_FAILS_AT=60 "$programs/train_causal" $small --device cuda --out "$work/fails"
    expect "--device cuda without a GPU" 2 "--device cpu" env EMULATED_GPU_COUNT=0 "$programs/train_causal" $small --device cuda --out "$work/none"
    expect "a GPU that is too old" 2 "compute capability 7.5" env EMULATED_GPU_CAPABILITY=75 "$programs/train_causal" $small --device cuda --out "$work/none"
    wide="--model $work/wide --seq-len 70 --batch-size 2 --steps 6 --val-every 0 --checkpoint-every 0"
    mkdir "$work/wide"
    cat > "$work/wide/config.json" << 'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 264, "hidden_size": 64, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "intermediate_size": 96, "hidden_act": "silu",
 "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 10000.0, "attention_bias": false,
 "tie_word_embeddings": true, "initializer_range": 0.02}
END
    for capability in 89 90; do EMULATED_GPU_CAPABILITY=$capability train causal "$work/wide$capability" $wide; done
    check "heads of 128 train where a block has 99 KB of shared memory" 'curve_within "$work/wide89" "$work/wide90" 2e-3'
    expect "but not with all that asga keeps there" 2 "bytes of shared memory per block; this GPU has 101376" \
        env EMULATED_GPU_CAPABILITY=89 "$programs/train_asga" $small --device cuda $wide --out "$work/wide"
    expect "a driver that is too old" 2 "update the driver" env EMULATED_GPU_DRIVER=12080 "$programs/train_causal" $small --device cuda --out "$work/none"
    expect "auto without a GPU trains on the CPU and says so" 0 "using the CPU" env EMULATED_GPU_COUNT=0 "$programs/train_causal" $small --device auto --out "$work/auto"
    expect "out of memory before anything is allocated" 4 "--recompute" env EMULATED_GPU_BYTES=80000000 "$programs/train_causal" $small --batch-size 512 --seq-len 64 --val-every 0 --device cuda --out "$work/oom"
    expect "a dry run for cuda needs no GPU" 0 "" env EMULATED_GPU_COUNT=0 "$programs/train_causal" $small --device cuda --dry-run
fi
