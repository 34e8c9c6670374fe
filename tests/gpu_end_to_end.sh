#!/usr/bin/env bash
# Training on the GPU as a user runs it: against the CPU, repeated, resumed, recomputed, over ranks, out of memory, without a GPU.
# Runs the programs that emulate their GPU (build/emulated), or with GPU_PROGRAMS=. those for a real one. Prints lines
# `ok NAME`, `FAIL NAME: why`, `skip NAME: why`.
# Needs: make build/emulated/train_causal build/emulated/train_asga build/emulated/generate_causal tokenize
. "$(dirname "$0")/checks.bash"
programs=${GPU_PROGRAMS:-build/emulated}
emulated() { [ "$programs" = build/emulated ] || [ -e emulated ]; }   # a file in a package of emulated programs

data=$PWD/data/small   # which dev/pack.sh puts there, without ./tokenize
[ -d "$data" ] || { small_shards && data=$work/data; }
steps=6
small=(--model qwen-tiny --train-data "$data/small_train_*.bin" --val-data "$data/small_val_*.bin" --seq-len 32 --batch-size 4 --device cuda
       --steps $steps --val-every 3 --val-batches 2 --sample-every 0 --checkpoint-every 3 --threads 1 --plot 0 --lr 3e-3)
causal=("$programs/train_causal" "${small[@]}") asga=("$programs/train_asga" "${small[@]}")

# ---- the same run in other ways
train causal causal-cpu --device cpu
train asga asga-cpu --device cpu
train causal causal
train_each << 'END'
causal: float32 on the GPU follows the CPU | causal causal-fp32 --precision fp32 | 1e-4 1e-3 causal-cpu
causal: bf16 follows float32 | causal causal-bf16 | 2e-2 0.2 causal-fp32
causal: the same command twice gives the same weights | causal causal-again | = causal
asga: float32 on the GPU follows the CPU | asga asga-fp32 --precision fp32 | 1e-4 1e-3 asga-cpu
asga: bf16 follows float32 | asga asga | 2e-2 0.2 asga-fp32
asga: the same command twice gives the same weights | asga asga-again | = asga
stochastic rounding follows it | asga stochastic --rounding stochastic | 2e-2 0.2 asga
and repeats | asga stochastic-again --rounding stochastic | = stochastic
END
check "it is another rounding" '! same_weights "$work/asga" "$work/stochastic"'
cp -r "$work/asga" "$work/resumed" && rm -r "$work/resumed/step_00000006"
train_each <<< "a resumed run ends with the weights of one that was not stopped | asga resumed --resume | = asga"
big=asga   # on a real GPU the libraries' code, loaded when it is first used, would be most of a small model's memory
emulated || { big="asga-big"; train asga $big --model qwen-7m --batch-size 64 --seq-len 256 --steps 2 --val-every 0 --checkpoint-every 0; }
predicted=$(awk -F'|' '{ split($3, of, " "); mib = of[1] * (of[2] == "GiB" ? 1024 : 1) } /CUDA context/ { context = mib }
    /predicted peak/ { print int((mib - context) * 1048576) }' "$work/$big.txt")
peak=$(tail -n 1 "$work/$big/log.jsonl" | sed -n 's/.*"peak_bytes":\([0-9]*\).*/\1/p')
check "the peak of allocations on the GPU, $peak bytes, is within 1% of the $predicted predicted without CUDA's context" \
    'awk -v a="$peak" -v b="$predicted" "BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 0.01 * b) }"'

# ---- evaluation
last=$work/causal-cpu/step_0000000$steps
printf '%s\n' '{"query": "We thank the", "choices": ["people of it", "q"], "gold": 0}' '{"query": "x", "choices": ["a b", "the"], "gold": 1}' > "$work/items.jsonl"
for device in cpu cuda; do
    "${causal[@]}" --device $device --precision fp32 --evaluate --checkpoint "$last" --eval-data "$work/items.jsonl" --position-bins 4 \
        --eval-out "$work/$device.jsonl" --eval-log "$work/$device-log.jsonl" > "$work/evaluated-$device.txt" 2>&1
done
found() { grep -ohE '"loss":[0-9.]+|log_likelihoods.*' "$work/$1-log.jsonl" "$work/$1.jsonl" | grep -oE -- '-?[0-9]+\.[0-9]+'; }
check "--evaluate: losses by position and log-likelihoods on the GPU are the CPU's" \
    'paste <(found cpu) <(found cuda) | awk "{ d = \$1 / \$2 - 1; if (!(d * d <= 1e-8)) bad = 1; n++ } END { exit bad || n != 8 }"'
expect "psa is refused on the GPU" 2 "--device cpu" "${causal[@]}" --evaluate --checkpoint "$last" --attention psa

# ---- text from a checkpoint, where the program that writes it is there
writes=("$programs/generate_causal" --checkpoint "$last" --seed 3 --tokens 12 --threads 1 --print-ids --ignore-eos)
kept() { "${writes[@]}" --device cuda --dry-run --prompt-ids 87,101 --tokens 500 "$@" | sed -nE 's/.*KV cache *\| *([0-9.]+) KiB.*/\1/p'; }
if [ -x "$programs/generate_causal" ]; then
    printf '%s\n' '{"prompt_ids": [87, 101, 32, 116]}' '{"prompt_ids": [84]}' '{"prompt_ids": [65, 32, 110, 101, 119]}' > "$work/prompts.jsonl"
    for device in cpu cuda; do
        expect "texts of three prompts, two side by side, with --device $device" 0 "KV cache: " \
            "${writes[@]}" --device $device --weights fp32 --prompts "$work/prompts.jsonl" --batch 2 --out "$work/texts-$device.jsonl"
    done
    check "are the same" 'cmp "$work/texts-cpu.jsonl" "$work/texts-cuda.jsonl" && [ "$(wc -l < "$work/texts-cpu.jsonl")" = 3 ]'
    check "a text in bf16 has the requested number of tokens" '[ "$("${writes[@]}" --device cuda --prompt-ids 87,101 2> /dev/null | wc -w)" = 12 ]'
    check "the plan counts what is kept: of bf16 half of float32, of psa a float32 sum of keys beside every four keys and values" \
        'awk -v a="$(kept --weights fp32)" -v b="$(kept)" -v psa="$(kept --attention psa --psa-block 4)" \
            "BEGIN { exit !(b > 0 && a + 0 > 1.98 * b && a + 0 < 2.02 * b && psa > 1.24 * b && psa < 1.28 * b) }"'
    long=$(seq -s, 40 239)   # a prompt of four blocks of adaspa's
    for device in cpu cuda; do
        "${writes[@]}" --device $device --weights fp32 --temperature 0 --prompt-ids "$long" --log "$work/$device.json" --attention adaspa \
            --adaspa-sparsity 0.6 > "$work/ids-$device" 2> "$work/stderr"
        grep ": read" "$work/stderr" > "$work/read-$device"
    done
    check "adaspa on the GPU writes the same and reads the same: $(cat "$work/read-cuda")" \
        'cmp "$work/ids-cpu" "$work/ids-cuda" && [ -s "$work/read-cpu" ] && cmp "$work/read-cpu" "$work/read-cuda" &&
            ! grep -q "read 100" "$work/read-cuda" && grep -q "\"device\":\"cuda\".*\"pairs_read\":0" "$work/cuda.json"'
else
    skip "text on a GPU" "there is no $programs/generate_causal"
fi

# ---- ranks; emulated ones also with GPUs of their own: a rank whose NCCL fails, a rank whose GPU is another
sent() { grep -o 'rank 0 sent [0-9]*' "$work/$1.txt" | cut -d' ' -f4; }
if ! has_mpi "$programs/train_asga"; then
    skip "ranks on the GPU" "no MPI on this machine"
else
    train_each << 'END'
1 rank follows one process | asga ranks1 @1 | 5e-3 0.2 asga
2 ranks on one GPU follow it | asga ranks2 @2 --batch-size 2 | 5e-3 0.2 asga
ZeRO-1 gives the weights that two ranks without it have | asga zero @2 --batch-size 2 --zero-stage 1 | = ranks2
END
    expect "a loss that is not finite on two ranks" 5 "weights were not changed" timeout 100 $launch -np 2 "${asga[@]}" --out "$work/nan2" \
        --lr 1000 --grad-clip 0 --adam-eps 1e-30 --warmup-steps 0 --steps 100 --val-every 0 --checkpoint-every 0
fi
if emulated && has_mpi "$programs/train_asga"; then
    short="EMULATED_NCCL_TRAFFIC=1 @2 --batch-size 2 --steps 2 --val-every 0 --checkpoint-every 0"
    train asga nccl EMULATED_GPU_COUNT=2 $short
    train_each <<< "ZeRO-1 over NCCL gives the weights that 2 ranks without it have | asga nccl-zero EMULATED_GPU_COUNT=2 $short --zero-stage 1 | = nccl"
    check "and sends three quarters as much: sums of float32 to one rank, weights of bf16 to all" \
        'awk -v with="$(sent nccl-zero)" -v without="$(sent nccl)" "BEGIN { exit !(without > 0 && with > 0.74 * without && with < 0.76 * without) }"'
    train asga muon EMULATED_GPU_COUNT=2 $short --optimizer muon
    train_each <<< "Muon too | asga muon-zero EMULATED_GPU_COUNT=2 $short --optimizer muon --zero-stage 1 | = muon"
    one=(env EMULATED_GPU_COUNT=2 $launch -np 1 "${asga[@]}" --batch-size 2) other=(-np 1 env EMULATED_GPU_COUNT=2)
    expect "a rank whose NCCL fails in a step" 6 "NCCL reports: unhandled cuda error" "${one[@]}" --checkpoint-every 1 --out "$work/broken" : \
        "${other[@]}" EMULATED_NCCL_FAILS_AT=9 "${asga[@]}" --batch-size 2 --checkpoint-every 1 --out "$work/broken"
    train_each <<< "and the run goes on from the checkpoint before | asga broken @2 --batch-size 2 --resume | = ranks2"
    expect "ranks with different GPUs" 2 "compute capability 8.0 on rank 1 and emulated GPU, compute capability 9.0 on rank 0" "${one[@]}" --out "$work/unlike" : \
        "${other[@]}" EMULATED_GPU_CAPABILITY=80 "${asga[@]}" --batch-size 2 --out "$work/unlike"
    check "are named, with the way out" 'grep -q "CUDA_VISIBLE_DEVICES" "$work/stderr" && [ ! -e "$work/unlike" ]'
fi

# ---- a GPU that breaks, is too small, too old or not there
emulated || exit 0
while IFS='|' read -r -u 3 name word out settings; do
    # shellcheck disable=SC2086  # words
    expect "$name" 6 "$word" env $settings "${causal[@]}" --checkpoint-every 1 --out "$work/$out"
    check "the message has the lost step and the way to resume" 'grep -q "; step [2-6] is lost; --resume continues from the last checkpoint in $work/$out" "$work/stderr"'
    train_each <<< "and ends with the weights of a run that was left alone | causal $out --checkpoint-every 1 --resume | = causal"
done 3<< 'END'
a kernel that traps in a step|unspecified launch failure|trap|EMULATOR_SEED=1 EMULATED_GPU_BREAKS_AT=350
a GPU that disappears in a step|unknown error|gone|EMULATED_GPU_BREAKS_AT=400 EMULATED_GPU_BREAKS_WITH=999
END
mkdir "$work/wide" && sed '/attention_variant/d; s/"head_dim": *[0-9]*/"head_dim": 128/' "$last/config.json" > "$work/wide/config.json"
wide="--model $work/wide --seq-len 70 --batch-size 2 --val-every 0 --checkpoint-every 0"
# shellcheck disable=SC2086  # words
train causal wide $wide
train_each <<< "heads of 128 train where a block has 99 KB of shared memory | causal wide89 EMULATED_GPU_CAPABILITY=89 $wide | 2e-3 0.2 wide"
full="${causal[*]@Q} --batch-size 256 --seq-len 64 --val-every 0 --out $work/x"
expect_each env << END
but not with all that asga keeps there | 2 | bytes of shared memory per block; this GPU has 101376 | EMULATED_GPU_CAPABILITY=89 ${asga[@]@Q} $wide --out "$work/x"
a kernel that cannot be launched | 6 | the GPU reports | EMULATED_GPU_FAILS_AT=60 ${causal[@]@Q} --out "$work/x"
--device cuda without a GPU | 2 | --device cpu | EMULATED_GPU_COUNT=0 ${causal[@]@Q} --out "$work/x"
--device auto without a GPU falls back to the CPU with a note | 0 | using the CPU | EMULATED_GPU_COUNT=0 ${causal[@]@Q} --device auto --out "$work/auto"
a dry run needs no GPU | 0 | | EMULATED_GPU_COUNT=0 ${causal[@]@Q} --dry-run
a GPU that is too old | 2 | compute capability 7.5 | EMULATED_GPU_CAPABILITY=75 ${causal[@]@Q} --out "$work/x"
a driver that is too old | 2 | update the driver | EMULATED_GPU_DRIVER=12080 ${causal[@]@Q} --out "$work/x"
a GPU that other programs have filled | 4 | too little to start | EMULATED_GPU_BYTES=300000000 EMULATED_GPU_TAKEN=270000000 $full
a GPU that they have filled in part | 4 | or stop other programs on it | EMULATED_GPU_BYTES=300000000 EMULATED_GPU_TAKEN=225000000 $full
out of memory before anything is allocated | 4 | --recompute | EMULATED_GPU_BYTES=80000000 $full --batch-size 512
a loss that is not finite | 5 | weights were not changed | ${causal[@]@Q} --lr 1000 --grad-clip 0 --adam-eps 1e-30 --warmup-steps 0 --steps 100 --val-every 0 --checkpoint-every 0 --out "$work/nan"
END
