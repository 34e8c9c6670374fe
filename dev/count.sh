#!/usr/bin/env bash
# The size of the project, from the files that git tracks: lines of code, of the core, of make and shell; words of the pages; and what
# ./train_causal is made of for the CPU (make USE_CUDA=0 LDFLAGS=-Wl,-Map=build/train_causal.map train_causal comes first).
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
[ -e build/train_causal.map ] || exit 0
# A trainer's units are those that the linker took from the engine. Its files are those of this tree that its units include.
units="train_gpt.o causal.o $(grep -oP '^build/engine\.a\(\K\w+\.o' build/train_causal.map | sort -u | grep -v causal)"
files=$(for unit in $units; do find build -name "${unit%.o}.d" ! -path 'build/[egpt]*/*' ! -path '*/generate/generate.d' -exec cat {} +; done |
    tr -s ' \\' '\n' | grep -E '^(attention|model|data|build|train_gpt)[/.].*[^:]$' | sort -u)
row "./train_causal on the CPU, units" "$(wc -w <<< "$units")"
row "./train_causal on the CPU, files" "$(wc -l <<< "$files")"
row "./train_causal on the CPU, lines" "$(xargs cat <<< "$files" | wc -l)"
