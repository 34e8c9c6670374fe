#!/usr/bin/env bash
# Makes every call on files fail, one by one, and checks what is left; kills runs at random moments: dev/faults.sh --help
# (dev/faults.py does it; dev/RELIABILITY.md has the results).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
make --no-print-directory USE_CUDA="${USE_CUDA:-0}" train_causal tokenize build/generate_causal build/tests/faults.so || exit
exec "${PYTHON:-python3}" dev/faults.py "$@"
