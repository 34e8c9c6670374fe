#!/usr/bin/env bash
# dev/kernel_report: how it reads machine code, that dev/bench_constants measures what it says, and that the kernels of a step of
# causal and asga are within their budget, for sm_80 and sm_90 (sm_89's code is nearly sm_80's). Prints `ok NAME`, `FAIL NAME: why`,
# or `skip NAME: why` without nvcc or nvdisasm. Needs build/emulated/dev/count_step.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
python=${PYTHON:-python3}

"$python" tests/check_kernel_report.py "$work" || bad "tests/check_kernel_report.py" "ended with status $?"

# ---- what it says where something is missing
mkdir -p "$work/tree/dev" "$work/tree/build" "$work/tree/attention"
cp -r dev/kernel_report "$work/tree/dev"
touch "$work/tree/attention/causal.cuh" "$work/tree/attention/asga.cuh"
made_up=("$python" "$work/tree/dev/kernel_report/report.py")
expect "kernel report: before make configure" 2 "make configure" "${made_up[@]}"
echo 'HAVE_CUDA := 0' > "$work/tree/build/config.mk"
expect "kernel report: without nvcc" 2 "there is no nvcc" "${made_up[@]}"
printf '%s\n' 'HAVE_CUDA := 1' 'NVCC := /none/nvcc' 'NVCC_FLAGS := -std=c++20' > "$work/tree/build/config.mk"
expect "kernel report: without nvdisasm" 2 "there is no nvdisasm" \
    env PATH=/none "$("$python" -c 'import sys; print(sys.executable)')" "${made_up[@]:1}"
expect "kernel report: a variant that is none" 2 "there is no attention/none.cuh; the variants are: asga causal" \
    "${made_up[@]}" --variants none
expect "kernel report: a budget of some kernels" 2 "not with --arch" "${made_up[@]}" --write-budget --arch sm_90

# ---- a whole step, which fails by itself where it launches something that dev/step_kernels.cuh does not describe
counts() { # counts NAME LAUNCHES MB: of the operations of this kind no more than that, with what is read again
    awk -F'|' -v name="$1" -v launches="$2" -v MB="$3" '$2 ~ "^ " name " *$" { found = 1; fine = $4 <= launches && $5 + $6 <= MB }
        END { exit !(found && fine) }' "$work/step"
}
expect "a step of 124M parameters launches what is described" 0 "" build/emulated/dev/count_step
cp "$work/stdout" "$work/step"
expect "where there is no GPU to emulate, a tool says so" 2 "there is no GPU" env EMULATED_GPU_COUNT=0 build/emulated/dev/count_step
check "and moves no more bytes outside of products and attention than it did" 'counts "everything else" 156 73433'

# ---- the kernels
name="kernels of causal and asga within their budget"
if ! grep -qx 'HAVE_CUDA := 1' build/config.mk; then
    skip "$name" "no nvcc on this machine"
elif ! scripts/install_nvdisasm.sh 2> "$work/why"; then
    skip "$name" "$(cat "$work/why")"
else
    "$python" tests/check_rate_kernels.py "$work" || bad "tests/check_rate_kernels.py" "ended with status $?"
    timeout 600 "$python" dev/kernel_report/report.py --arch sm_80 sm_90 --check > "$work/report" 2> "$work/stderr"
    case $?,$(tail -n 1 "$work/stderr") in
        0,*) ok "$name" ;;
        2,*"of another compiler"*) skip "$name" "$(tail -n 1 "$work/stderr")" ;;
        *) bad "$name" "$(head -n 20 "$work/stderr")" ;;
    esac
fi
exit 0
