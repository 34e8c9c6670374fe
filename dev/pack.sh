#!/usr/bin/env bash
# Packs what dev/gpu_day.py runs for a machine that has a GPU and none of our libraries: programs, tests, the shared libraries that they
# need, token shards, and what the CPU computed for comparison. Needs nvcc; no GPU. VARIANTS=all for the trainers of all variants.
#     dev/pack.sh [FOLDER]       default .gpu, which git ignores; there: python3 FOLDER/gpu_day.py (dev/README.md, "Ten minutes on a GPU")
# CUDA_ARCH="-gencode arch=compute_80,code=sm_80" for another GPU than an H100 or H200; ARCH=-march=... for another processor than one
# with AVX2; VARIANTS="causal asga" for other trainers; DATA="FOLDER/*" for the shards of a text that --experiment reads there;
# TESTS= TOOLS= WRITES= leaves tests, benchmarks and text out; OLD=FILE adds another build's train_VARIANT (build/pack/tree of its tree),
# whose whole steps are measured between this one's;
# HERE=1 builds for this machine, in this tree; EMULATED=1 takes the programs of build/emulated, to try all this without a GPU.
# The other machine needs glibc and libstdc++ at least as new as here, and CUDA's and NCCL's libraries as here. Open MPI is in the
# package: PATH=FOLDER/mpi:$PATH mpirun -np 2 FOLDER/bin/train_causal starts ranks on a machine without any.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
folder=${1:-.gpu} variants=${VARIANTS:-causal asga dsa sliding_window}
[ "$variants" != all ] || variants=$(cd attention && printf '%s\n' *.cuh | sed 's/\.cuh$//')
tests=${TESTS-build/gpu/run_tests} trainers=. generators=build quick=""
tools=${TOOLS-"build/dev/bench_constants build/dev/bench_gpu build/dev/bench_patterns_gpu build/dev/ladder/ladder"}
size="--model qwen-2m --batch-size 2 --seq-len 160"   # of the runs that the GPU repeats
writes=${WRITES-"causal asga"} writer="--model qwen-134m" prompts=64   # what writes text there, and behind how many prompts
whole="$writer --batch-size 32 --seq-len 1024"   # of steps that are timed, for each variant
if [ -n "${EMULATED:-}" ]; then
    tests=build/emulated/run_tests trainers=build/emulated generators=build/emulated quick="--quick"
    tools="build/emulated/dev/bench_constants" size="--model qwen-tiny --batch-size 2 --seq-len 70"
    writes=causal writer="--model qwen-tiny" prompts=3 whole=$size
fi
mkdir -p "$folder"
rm -rf "${folder:?}"/*
folder=$(cd "$folder" && pwd)

programs=($tests)
for variant in $variants; do programs+=("$trainers/train_$variant"); done
for variant in $writes; do [[ " $variants " != *" $variant "* ]] || programs+=("$generators/generate_$variant"); done
# shellcheck disable=SC2206  # words
programs+=($tools)
tree=$PWD
if [ -z "${HERE:-}${EMULATED:-}" ]; then   # in a copy, whose flags are not those of this machine
    tree=$PWD/build/pack/tree
    mkdir -p "$tree"
    git ls-files -z | xargs -0 tar cf - | tar xf - -C "$tree"
    export ARCH=${ARCH:--march=x86-64-v3} CUDA_ARCH=${CUDA_ARCH:--gencode arch=compute_90a,code=sm_90a}
    # The programs find lib/ beside bin/ by themselves, and so do the libraries there (the newer tag would be for the program alone):
    # a variable would reach Python and the profilers, too.
    (cd "$tree" && rm -f "${programs[@]}")   # linked so in any case
    export LDFLAGS="-Wl,--disable-new-dtags,-rpath,'\$\$ORIGIN/../lib' ${LDFLAGS:-}"
fi
[ -n "${EMULATED:-}" ] || make --no-print-directory FLOAT32=1 -C "$tree" "VARIANTS=$(echo $variants)" "${programs[@]#./}" tokenize

# libraries_of FILE...: the paths of those to pack. A machine with CUDA and NCCL has the others.
there='/lib(c|m|dl|pthread|rt|stdc[+][+]|gcc_s|cublas|cublasLt|cudart|nccl)[-.0-9]*[.]so'
libraries_of() { ldd "$@" | awk -v there="$there" '$3 ~ /^\// && $3 !~ there { print $3 }' | sort -u; }
mkdir -p "$folder"/{bin,lib,data/bundled,cpu}
cd "$tree"
for program in "${programs[@]}"; do strip -o "$folder/bin/$(basename "$program")" "$program"; done
[ -z "${OLD:-}" ] || (cd "$here" && strip -o "$folder/bin/old_${OLD##*/}" "$OLD")
ln -s ../data "$folder/bin/data"   # where programs look for the bundled text
libraries=$(libraries_of "${programs[@]}")

# Open MPI's launcher, plug-ins and texts. Plug-ins for networks with libraries of their own stay here: ranks share one machine.
if grep -q 'Open MPI' <(mpirun --version 2> /dev/null) && grep -q libmpi <<< "$libraries"; then
    of_mpi() { ompi_info --parsable --path "$1" | cut -d : -f 3; }
    plugins=$(of_mpi pkglibdir)
    libraries=$(printf '%s\n' "$libraries" "$(libraries_of "$(command -v mpirun)" "$plugins"/mca_pmix_*.so)" | sort -u)
    mkdir -p "$folder"/mpi/{bin,plugins}
    cp -L "$(command -v mpirun)" "$folder/mpi/bin"
    cp -rL "$(of_mpi pkgdatadir)" "$folder/mpi/share" && cp -rL "$(of_mpi sysconfdir)" "$folder/mpi/etc"
    for plugin in "$plugins"/mca_*.so; do
        more=$(libraries_of "$plugin" | comm -23 - <(echo "$libraries"))
        [ -z "$(sed '/\/libmca_common/d' <<< "$more")" ] || continue
        cp -L "$plugin" "$folder/mpi/plugins" && xargs -r cp -L -t "$folder/lib" <<< "$more"
    done
    cat > "$folder/mpi/mpirun" << 'END'
#!/bin/sh
# Starts ranks on this machine with the Open MPI of this folder.
here=$(cd "$(dirname "$0")" && pwd) || exit
export OPAL_PREFIX="$here" OPAL_BINDIR="$here/bin" OPAL_LIBDIR="$here/../lib" OPAL_PKGLIBDIR="$here/plugins" OPAL_PKGDATADIR="$here/share" \
    OPAL_SYSCONFDIR="$here/etc" LD_LIBRARY_PATH="$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" OMPI_MCA_plm=isolated \
    OMPI_MCA_btl_vader_single_copy_mechanism=none PMIX_MCA_pcompress_base_silence_warning=1
exec "$here/bin/mpirun" "$@"
END
    chmod +x "$folder/mpi/mpirun"
fi
xargs -r cp -L -t "$folder/lib" <<< "$libraries"
cp data/bundled/*.bin data/bundled/*manifest.json "$folder/data/bundled"
mkdir "$folder/tests" && cp tests/checks.bash tests/gpu_end_to_end.sh "$folder/tests"
head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$folder/small.txt"   # for tests/gpu_end_to_end.sh
./tokenize --tokenizer bytes --out "$folder/data/small" --name small "$folder/small.txt" > /dev/null
rm "$folder/small.txt"
[ -z "${DATA:-}" ] || { mkdir "$folder/data/more" && (cd "$here" && cp $DATA "$folder/data/more"); }
mkdir -p "$folder"/{dev,scripts} && cp dev/gpu_day.py "$folder" && cp dev/compare_pytorch.py "$folder/dev"
cp -r scripts/attention_torch scripts/fixture_forms.py "$folder/scripts"
mkdir -p "$folder/scripts/experiments" && cp scripts/experiments/*.{py,toml} "$folder/scripts/experiments"
(cd "$here/scripts/experiments" && python3 -c 'import prepare; print(prepare.engine_commit())') > "$folder/ENGINE_COMMIT"
mkdir "$folder/model_25m"   # 25.9 million parameters, for bytes
cat > "$folder/model_25m/config.json" << 'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 264, "hidden_size": 512, "num_hidden_layers": 8,
 "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 1408, "hidden_act": "silu",
 "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 10000.0, "attention_bias": false,
 "tie_word_embeddings": true, "initializer_range": 0.02}
END
git rev-parse --short HEAD > "$folder/COMMIT"
[ -z "${EMULATED:-}" ] || touch "$folder/emulated"

# Twenty steps on the CPU, which those on the GPU have to follow.
for variant in $variants; do
    # shellcheck disable=SC2086
    "$trainers/train_$variant" --device cpu $size --steps 20 --val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0 \
        --train-data "$folder/data/bundled/sotu_train_*.bin" --val-data "" --out "$folder/cpu/$variant" > /dev/null
done
echo "$size" > "$folder/size"
echo "$quick" > "$folder/quick"   # where times mean nothing anyway
echo "$writer" > "$folder/writer"
echo "$whole" > "$folder/whole"
awk -v count=$prompts 'BEGIN {   # of 8, 16, ... bytes
    for (n = 1; n <= count; n++) {
        printf "{\"prompt_ids\": [65"
        for (t = 1; t < 8 * n; t++) printf ",%d", (7 * t + n) % 256
        print "]}"
    }
}' > "$folder/prompts.jsonl"

# One archive, a tenth as large: how much may be carried is limited. The dictionary (3 GB of memory here, 256 MB there) reaches from one
# program to the next, which have much in common.
cd "$folder"
[ -z "${HERE:-}" ] || exit 0
mapfile -t packed < <(ls -A | grep -vxF gpu_day.py)
python3 - "${packed[@]}" << 'END'
import lzma, sys, tarfile
filters = [{"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 2 ** 28}]
with lzma.open("package.tar.xz", "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w|") as archive:
    for name in sys.argv[1:]: archive.add(name)
END
rm -r "${packed[@]}"
du -sh "$folder"
