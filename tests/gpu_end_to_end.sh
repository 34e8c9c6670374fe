#!/usr/bin/env bash
# Training on the GPU as a user runs it: against the CPU, repeated, resumed, recomputed, over ranks, out of memory, without a GPU.
# Runs the programs that emulate their GPU (build/emulated), or with GPU_PROGRAMS=. those for a real one. Prints lines
# `ok NAME`, `FAIL NAME: why`, `skip NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
programs=${GPU_PROGRAMS:-build/emulated}
. tests/checks.bash
emulated() { [ "$programs" = build/emulated ] || [ -e emulated ]; }   # a file in a package of emulated programs

data=$PWD/data/small   # which dev/pack.sh puts there, without ./tokenize
if [ ! -d "$data" ]; then
    data=$work/data
    head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
    ./tokenize --tokenizer bytes --out "$data" --name small "$work/text.txt" > /dev/null 2>&1
fi
steps=6
small="--model qwen-tiny --train-data $data/small_train_*.bin --val-data $data/small_val_*.bin --seq-len 32 --batch-size 4
       --steps $steps --val-every 3 --val-batches 2 --sample-every 0 --checkpoint-every 3 --threads 1 --plot 0 --lr 3e-3"
limit="timeout --foreground -k 5 300"   # in the process group of whoever limits this script
set -f   # the globs are for the programs
train() { # train VARIANT OUT OPTIONS...
    local variant=$1 out=$2
    shift 2
    $limit "$programs/train_$variant" $small --device cuda --out "$out" "$@" > "$out.txt" 2>&1
}
mpi() { # mpi RANKS OUT OPTIONS...
    local ranks=$1 out=$2
    shift 2
    $limit $launch -np "$ranks" "$programs/train_asga" $small --device cuda --out "$out" --batch-size $((4 / ranks)) "$@" > "$out.txt" 2>&1
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

# nccl: two and three ranks with emulated GPUs of their own; a rank whose NCCL fails, a rank whose GPU is another.
nccl() {
    local ranks zero short="--steps 2 --val-every 0 --checkpoint-every 0" train_2="$programs/train_asga $small --batch-size 2 --device cuda"
    for ranks in 2 3; do
        for zero in 0 1; do
            EMULATED_GPU_COUNT=$ranks EMULATED_NCCL_TRAFFIC=1 mpi $ranks "$work/nccl$ranks$zero" $short --zero-stage $zero
        done
        check "ZeRO-1 over NCCL gives the weights that $ranks ranks without it have" 'same_weights "$work/nccl${ranks}0" "$work/nccl${ranks}1"'
        check "and sends three quarters as much: sums of float32 to one rank, weights of bf16 to all" \
            'awk -v with="$(sent "$work/nccl${ranks}1")" -v without="$(sent "$work/nccl${ranks}0")" "BEGIN { exit !(without > 0 && with > 0.74 * without && with < 0.76 * without) }"'
    done
    local one="$launch -np 1 $train_2" other="-np 1 env EMULATED_GPU_COUNT=2"
    expect "a rank whose NCCL fails in a step" 6 "NCCL reports: unhandled cuda error" env EMULATED_GPU_COUNT=2 \
        $one --checkpoint-every 1 --out "$work/broken" : $other EMULATED_NCCL_FAILS_AT=9 $train_2 --checkpoint-every 1 --out "$work/broken"
    mpi 2 "$work/broken" --resume
    check "and the run goes on from the checkpoint before" 'same_weights "$work/broken" "$work/ranks2"'
    expect "ranks with different GPUs" 2 "rank 0: emulated GPU, compute capability 9.0" env EMULATED_GPU_COUNT=2 \
        $one --out "$work/unlike" : $other EMULATED_GPU_CAPABILITY=80 $train_2 --out "$work/unlike"
    check "are named, with the way out" 'grep -q "rank 1: emulated GPU, compute capability 8.0.*CUDA_VISIBLE_DEVICES" "$work/stderr" && [ ! -e "$work/unlike" ]'
}
sent() { grep -o 'rank 0 sent [0-9]*' "$1.txt" | cut -d' ' -f4; }

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
        --val-batches 2 --eval-data "$work/items.jsonl" --eval-out "$work/$device.jsonl" --position-bins 4 \
        --eval-log "$work/$device-log.jsonl" > "$work/evaluated-$device.txt" 2>&1
done
positions() { grep -o '"targets":[0-9]*,"loss":[0-9.]*' "$1" | tr -dc '0-9.,\n' | tr ',' ' '; }
check "--evaluate: the loss by position on the GPU is the CPU's within 1e-4, of the same targets" 'paste <(positions "$work/cpu-log.jsonl") <(positions "$work/cuda-log.jsonl") | awk "{ d = \$2 / \$4 - 1; if (!(d * d <= 1e-8) || \$1 != 64 || \$3 != 64) bad = 1; n++ } END { exit bad || n != 4 }"'
check "and its mean the validation loss" 'awk -v loss="$(grep -o "val_loss.:[0-9.]*" "$work/cuda-log.jsonl" | head -n 1 | cut -d: -f2)" "{ sum += \$2 / 4 } END { d = sum / loss - 1; exit !(d * d < 1e-20) }" <(positions "$work/cuda-log.jsonl")'
expect "psa is not on the GPU, and says where" 2 "give --device cpu" "$programs/train_causal" $small --device cuda --evaluate --checkpoint "$work/causal-cpu/step_0000000$steps" --attention psa
likelihoods() { grep -o 'log_likelihoods.*' "$1" | grep -oE -- '-[0-9.]+'; }
check "--evaluate: log-likelihoods of the GPU are the CPU's within 1e-4" 'paste <(likelihoods "$work/cpu.jsonl") <(likelihoods "$work/cuda.jsonl") | awk "{ d = \$1 / \$2 - 1; if (!(d * d <= 1e-8)) bad = 1; n++ } END { exit bad || n != 4 }" && grep -q "validation: loss" "$work/evaluated-cuda.txt"'
# Text from a checkpoint, where the programs that write it are there.
writes="$programs/generate_causal --checkpoint $work/causal-cpu/step_0000000$steps --seed 3 --tokens 12 --threads 1 --print-ids --ignore-eos"
if [ -x "$programs/generate_causal" ]; then
    printf '%s\n' '{"prompt_ids": [87, 101, 32, 116]}' '{"prompt_ids": [84]}' '{"prompt_ids": [65, 32, 110, 101, 119]}' > "$work/prompts.jsonl"
    for device in cpu cuda; do
        expect "texts of three prompts, two side by side, with --device $device" 0 "kept of the text: " \
            $writes --device $device --weights fp32 --prompts "$work/prompts.jsonl" --batch 2 --out "$work/texts-$device.jsonl"
    done
    check "are the same" 'cmp "$work/texts-cpu.jsonl" "$work/texts-cuda.jsonl" && [ "$(wc -l < "$work/texts-cpu.jsonl")" = 3 ]'
    expect "a text in bf16" 0 "kept of the text: " $writes --device cuda --prompt-ids 87,101
    check "has the tokens that were asked for" '[ "$(wc -w < "$work/stdout")" = 12 ]'
    kept() { # kept OPTIONS...: KiB of the plan's line
        $writes --device cuda --dry-run --prompt-ids 87,101 --tokens 500 "$@" | sed -nE 's/.*kept of the text *\| *([0-9.]+) KiB.*/\1/p'
    }
    check "the plan counts what is kept: of bf16 half of float32" 'awk -v a="$(kept --weights fp32)" -v b="$(kept)" "BEGIN { exit !(a + 0 > 1.98 * b && a + 0 < 2.02 * b && b > 0) }"'
    long=$(seq -s, 40 239)   # a prompt of four blocks of adaspa's
    for mechanism in "psa --psa-eps 0.6 --psa-block 8" "psa --psa-eps 0.9 --psa-block 1 --psa-bound upper" "adaspa --adaspa-sparsity 0.6"; do
        for device in cpu cuda; do
            expect "$mechanism with --device $device" 0 "${mechanism%% *}: read " \
                $writes --device $device --weights fp32 --temperature 0 --prompt-ids $long --log "$work/$device.json" --attention $mechanism
            cp "$work/stdout" "$work/ids-$device" && grep ": read" "$work/stderr" > "$work/read-$device"
        done
        check "writes the same and says that it read the same: $(cat "$work/read-cuda")" \
            'cmp "$work/ids-cpu" "$work/ids-cuda" && cmp "$work/read-cpu" "$work/read-cuda" && ! grep -q "read 100" "$work/read-cuda" && grep -q "\"device\":\"cuda\".*\"pairs_read\":0" "$work/cuda.json"'
    done
    check "the plan counts what psa keeps of blocks: a sum of keys in float32 beside every four keys and values in bf16" \
        'awk -v psa="$(kept --attention psa --psa-block 4)" -v dense="$(kept)" "BEGIN { exit !(psa > 1.24 * dense && psa < 1.28 * dense) }"'
else skip "text on a GPU" "there is no $programs/generate_causal"; fi
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

if ! has_mpi "$programs/train_asga"; then
    skip "ranks on the GPU" "no MPI on this machine"
else
    for ranks in 1 2; do
        mpi $ranks "$work/ranks$ranks"
        check "$ranks ranks on one GPU follow the curve of one process" 'curve_within "$work/asga" "$work/ranks$ranks" 5e-3'
    done
    mpi 2 "$work/zero" --zero-stage 1
    check "ZeRO-1 gives the weights that two ranks without it have" 'same_weights "$work/ranks2" "$work/zero"'
    if emulated; then nccl; fi
fi

# breaks NAME WORD OUT COMMAND...: the command, which writes into OUT, ends with 6 in a step and says the word and how to go on; the
# checkpoint before it is whole, and the run ends from there with the weights of one that was left alone.
breaks() {
    local name=$1 word=$2 out=$3
    expect "$name" 6 "$word" "${@:4}"
    check "and says what is lost and how to go on" 'grep -q "; step [2-6] is lost; --resume continues from the last checkpoint in $out" "$work/stderr"'
    train causal "$out" --checkpoint-every 1 --resume
    check "which ends with the weights of a run that was left alone" 'same_weights "$out" "$work/causal"'
}
if emulated; then
    every="$small --device cuda --checkpoint-every 1"
    for seed in 0 1; do
        breaks "a kernel that traps in a step (order of the streams $seed)" "unspecified launch failure" "$work/trap$seed" \
            env EMULATOR_SEED=$seed EMULATED_GPU_BREAKS_AT=350 "$programs/train_causal" $every --out "$work/trap$seed"
    done
    breaks "a GPU that disappears in a step" "unknown error" "$work/gone" \
        env EMULATED_GPU_BREAKS_AT=400 EMULATED_GPU_BREAKS_WITH=999 "$programs/train_causal" $every --out "$work/gone"
fi

explodes="--lr 1000 --grad-clip 0 --adam-eps 1e-30 --warmup-steps 0 --steps 100 --val-every 0 --checkpoint-every 0"
expect "a loss that is not finite ends the run" 5 "weights were not changed" "$programs/train_causal" $small --device cuda $explodes --out "$work/nan"
if has_mpi "$programs/train_asga"; then
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
    full="$programs/train_causal $small --device cuda --batch-size 256 --seq-len 64 --val-every 0 --out $work/full"
    expect "a GPU that other programs have filled" 4 "too little to start" env EMULATED_GPU_BYTES=300000000 EMULATED_GPU_TAKEN=270000000 $full
    expect "a GPU that they have filled in part" 4 "or stop other programs on it" env EMULATED_GPU_BYTES=300000000 EMULATED_GPU_TAKEN=225000000 $full
    expect "out of memory before anything is allocated" 4 "--recompute" env EMULATED_GPU_BYTES=80000000 "$programs/train_causal" $small --batch-size 512 --seq-len 64 --val-every 0 --device cuda --out "$work/oom"
    expect "a dry run for cuda needs no GPU" 0 "" env EMULATED_GPU_COUNT=0 "$programs/train_causal" $small --device cuda --dry-run
fi
