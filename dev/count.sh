#!/usr/bin/env bash
# The size of the project, from the files that git tracks: lines of code, of the core, of make and shell; words of the pages; and what
# ./train_causal is made of for the CPU (make USE_CUDA=0 train_causal comes first).
set -euo pipefail
cd "$(dirname "$0")/.."
lines() { git ls-files -z -- "$@" | xargs -0 cat | wc -l; }
row() { printf '%-40s %8s\n' "$@"; }
code=('*.cpp' '*.cu' '*.cuh' '*.h' '*.c' '*.py' '*.sh' '*.bash' Makefile)
row "code, lines" "$(lines "${code[@]}")"
row "attention, model, data, train_gpt.cu" "$(lines {attention,model,data}/'*.'{cpp,cu,cuh,h} train_gpt.cu)"
row "tests, lines" "$(lines tests/'*.'{cpp,cu,cuh,h,c,py,sh,bash})"
row "Python, lines" "$(lines '*.py')"
row "shell, lines" "$(lines '*.sh' '*.bash')"
row "Makefile, lines" "$(lines Makefile)"
row "Markdown, words" "$(git ls-files -z '*.md' | xargs -0 cat | wc -w)"
[ -e build/engine.a ] || exit 0
# Units of the program by the linker's trace, and the files of this tree that these units include.
units=$(g++ -fopenmp -Wl,-t -Wl,-t -o /dev/null build/train_gpt.o build/attention/causal.o build/engine.a \
    $(sed -nE 's/^(BLAS_LIBS|TEXT_LIBS|MPI_LIBS) :=//p' build/config.mk) -lpthread 2> /dev/null | grep -oE 'build/train_gpt.o|build/attention/causal.o|engine.a.[^ )]+\.o|\([a-z_0-9]+\.o\)' | grep -oE '[a-z_0-9]+\.o' | sort -u)
files=$(for unit in $units; do cat "$(find build -name "${unit%.o}.d" ! -path '*/emulated/*' ! -path '*/gpu/*' ! -path '*/ptx/*' ! -path 'build/tests/*' | head -n 1)"; done |
    tr -s ' \\' '\n' | grep -E '^(attention|model|data|build|train_gpt)[/.].*[^:]$' | sort -u)
row "./train_causal on the CPU, units" "$(wc -l <<< "$units")"
row "./train_causal on the CPU, files" "$(wc -l <<< "$files")"
row "./train_causal on the CPU, lines" "$(xargs cat <<< "$files" | wc -l)"
