#!/usr/bin/env bash
# Packs what dev/gpu_day.sh runs for a machine that has a GPU and none of our libraries: programs, tests, the shared libraries that they
# need, token shards, and what the CPU computed for comparison. Needs nvcc; no GPU.
#     dev/pack.sh [FOLDER]       default .gpu, which git ignores; there: bash FOLDER/gpu_day.sh
# CUDA_ARCH="-gencode arch=compute_80,code=sm_80" for another GPU than an H100 or H200; ARCH=-march=... for another processor than one
# with AVX2; VARIANTS="causal asga" for other trainers; DATA="FOLDER/*.bin" for shards to train on besides the bundled text;
# EMULATED=1 packs programs that emulate their GPU, to try all this without one; BUILT=1 takes this tree's programs as they are.
# The other machine needs glibc and libstdc++ at least as new as here, CUDA's and NCCL's libraries as here, and Open MPI.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.gpu} variants=${VARIANTS:-causal asga dsa sliding_window}
tests=build/gpu/run_tests trainers=. tools="build/dev/bench_gpu build/dev/bench_patterns_gpu build/dev/ladder/ladder"
size="--model qwen-2m --batch-size 2 --seq-len 160"   # of the runs that the GPU repeats
if [ -n "${EMULATED:-}" ]; then
    tests=build/emulated/run_tests trainers=build/emulated tools="" size="--model qwen-tiny --batch-size 1 --seq-len 70"
fi
mkdir -p "$folder"
rm -rf "${folder:?}"/*
folder=$(cd "$folder" && pwd)

programs=("$tests")
for variant in $variants; do programs+=("$trainers/train_$variant"); done
# shellcheck disable=SC2206  # words
programs+=($tools)
tree=$PWD
if [ -z "${BUILT:-}" ]; then   # in a copy, whose flags are not those of this machine
    tree=$PWD/build/pack/tree
    mkdir -p "$tree"
    git ls-files -z | xargs -0 tar cf - | tar xf - -C "$tree"
    export ARCH=${ARCH:--march=x86-64-v3} CUDA_ARCH=${CUDA_ARCH:--gencode arch=compute_90,code=sm_90}
    make --no-print-directory -C "$tree" -j"$(nproc)" "VARIANTS=$variants" "${programs[@]#./}" tokenize
fi

# Libraries that a machine with CUDA, NCCL and MPI has are left out.
there='lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s|cublas|cublasLt|cudart|nccl|mpi|open-rte|open-pal|hwloc|udev|event[a-z_-]*|ld-linux[a-z0-9-]*)'
mkdir -p "$folder"/{bin,lib,data/bundled,cpu}
cd "$tree"
for program in "${programs[@]}"; do strip -o "$folder/bin/$(basename "$program")" "$program"; done
for program in "${programs[@]}"; do ldd "$program" | awk '$3 ~ /^\// { print $3 }'; done | sort -u |
    grep -vE "/$there[-.0-9]*\.so" | xargs -r cp -L -t "$folder/lib"
cp data/bundled/*.bin data/bundled/*manifest.json "$folder/data/bundled"
[ -z "${DATA:-}" ] || { mkdir "$folder/data/more" && cp $DATA "$folder/data/more"; }
cp dev/gpu_day.sh dev/gpu_day.py "$folder"
mkdir "$folder/model_25m"   # 25.9 million parameters, for bytes
cat > "$folder/model_25m/config.json" << 'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 264, "hidden_size": 512, "num_hidden_layers": 8,
 "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 1408, "hidden_act": "silu",
 "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 10000.0, "attention_bias": false,
 "tie_word_embeddings": true, "initializer_range": 0.02}
END
git rev-parse --short HEAD > "$folder/COMMIT"

# Twenty steps on the CPU, which those on the GPU have to follow.
for variant in $variants; do
    # shellcheck disable=SC2086
    "$trainers/train_$variant" --device cpu $size --steps 20 --val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0 \
        --train-data "$folder/data/bundled/sotu_train_*.bin" --val-data "" --out "$folder/cpu/$variant" > /dev/null
done
echo "$size" > "$folder/size"
du -sh "$folder"
