#!/usr/bin/env bash
# dev/kernel_report: how it reads machine code, and that the kernels of a step of causal and asga are within their budget on sm_90
# (`make kernel-report` has all). Prints `ok NAME`, `FAIL NAME: why`, or `skip NAME: why` without nvcc or nvdisasm.
# Needs build/emulated/dev/bench_gpu.
. "$(dirname "$0")/checks.bash"

"$python" tests/check_kernel_report.py "$work" || bad "tests/check_kernel_report.py" "ended with status $?"

# ---- a whole step, which fails by itself where it launches something that dev/step_kernels.cuh does not describe
expect "a step of 124M parameters launches what is described" 0 "" build/emulated/dev/bench_gpu --count
check "and moves no more bytes outside of products and attention than it did" \
    'awk -F"|" "\$2 ~ /^ everything else *\$/ { fine = \$4 <= 148 && \$5 + \$6 <= 73433 } END { exit !fine }" "$work/stdout"'

# ---- the kernels
name="kernels of causal and asga within their budget"
if ! grep -qx 'HAVE_CUDA := 1' build/config.mk; then
    skip "$name" "no nvcc on this machine"
else
    timeout 600 "$python" dev/kernel_report/report.py --arch sm_90 --check > "$work/report" 2> "$work/stderr"
    case $?,$(tail -n 1 "$work/stderr") in
        0,*) ok "$name" ;;
        2,*"of another compiler"* | 2,*"no nvdisasm"*) skip "$name" "$(tail -n 1 "$work/stderr")" ;;
        *) bad "$name" "$(head -n 20 "$work/stderr")" ;;
    esac
fi
exit 0
