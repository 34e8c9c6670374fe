#!/usr/bin/env bash
# Puts NVIDIA's disassembler, which dev/kernel_report needs, into build/python (the Python package nvidia-cuda-nvdisasm, 5 MB) where
# CUDA came without it. Without nvcc there is nothing to disassemble, and nothing is done. Exits 1 with a sentence when it cannot be
# had.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
folder=build/python
[ -x "$nvcc" ] || exit 0
for there in "${NVDISASM:-}" "$(command -v nvdisasm)" "$(dirname "$(realpath "$nvcc")")/nvdisasm" \
    "$folder"/lib/python*/site-packages/nvidia/*/bin/nvdisasm; do
    [ -x "$there" ] && exit 0
done
[ -x $folder/bin/pip ] || said=$(python3 -m venv --clear --system-site-packages $folder 2>&1) ||
    { echo "no nvdisasm: $(tail -n 1 <<< "$said")" >&2; exit 1; }
said=$($folder/bin/pip install --retries 1 --timeout 20 nvidia-cuda-nvdisasm 2>&1) ||
    { echo "no nvdisasm: $(tail -n 1 <<< "$said")" >&2; exit 1; }
