#!/usr/bin/env bash
# The same models in PyTorch and in this engine, in turns, on a GPU: dev/compare_pytorch.sh [ROW ...] [OPTIONS]; --help lists both.
# PYTHON is the python3 that has PyTorch. First comes a check that both compute the same.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import torch, safetensors' 2> /dev/null; then
    echo "compare_pytorch: $python lacks torch or safetensors; set PYTHON to one that has both" >&2
    exit 2
fi
make --no-print-directory FLOAT32=1 -j"$(nproc)" train_causal train_asga train_asga_fixed > /dev/null
case " $* " in *" --check "* | *" --help "* | *" -h "*) exec "$python" dev/compare_pytorch.py "$@" ;; esac
"$python" dev/compare_pytorch.py --check
exec "$python" dev/compare_pytorch.py "$@"
