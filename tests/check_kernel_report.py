#!/usr/bin/env python3
"""dev/kernel_report on a kernel as nvdisasm and ptxas print it, and its budget: check_kernel_report.py FOLDER prints `ok NAME` or
`FAIL NAME: why` for each check."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "dev" / "kernel_report"))
import model   # noqa: E402
import report   # noqa: E402
import sass   # noqa: E402
from checks import check   # noqa: E402

HEADER = """
	.section	.nv.info.k,"",@"SHT_CUDA_INFO"
	//----- nvinfo : EIATTR_MAX_THREADS
        /*0064*/ 	.word	0x00000080
        /*0068*/ 	.word	0x00000001
        /*006c*/ 	.word	0x00000001
	//----- nvinfo : EIATTR_CBANK_PARAM_SIZE
        /*0070*/ 	.word	0x00000003
	.section	.text.k,"ax",@progbits
"""
# A loop over tiles, in it a mask, a copy, the loop of the products, a trap, a wait for another block, and serial loads: two on the
# hot path, a third in the wait. One spill is in a loop. Behind the end stands code that never runs.
CODE = """
    STL [R1], R7
.L_x_0:
    @P0 BRA `(.L_x_1)
    FSEL R10, R10, -INF , P1
    LDL R7, [R1]
.L_x_1:
    @!P2 BRA `(.L_x_2)
    LDGSTS.E.BYPASS.LTC128B.128 [R30], desc[UR8][R2.64]
    IADD3 R30, R30, 0x10, RZ
.L_x_2:
    LDSM.16.M88.4 R20, [R31]
    HMMA.16816.F32.BF16 R4, R20, R24, R4
    MUFU.EX2 R10, R10
    @P3 BRA `(.L_x_2)
    BAR.SYNC.DEFER_BLOCKING 0x0
    @P4 BRA `(.L_x_3)
    BPT.TRAP 0x1
.L_x_3:
    LDG.E.STRONG.GPU R4, [R2.64]
    ISETP.NE.AND P3, PT, R4, R5, PT
    @!P3 BRA `(.L_x_5)
.L_x_4:
    NANOSLEEP 0x28
    LDG.E.STRONG.GPU R4, [R2.64]
    ISETP.NE.AND P3, PT, R4, R5, PT
    @P3 BRA `(.L_x_4)
.L_x_5:
    LDG.E.64.STRONG.GPU R6, [R2.64+0x8]
    IADD3 R6, R6, R6, RZ
    STG.E desc[UR8][R2.64], R7
    @P5 BRA `(.L_x_0)
    EXIT
.L_x_6:
    BRA `(.L_x_6)"""
LOG = """ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the function 'k'
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Function properties for a_function_that_it_calls
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 246 registers, used 1 barriers, 8 bytes cumulative stack size, 512 bytes smem"""
# The hot path runs the loop of the products twice and leaves out mask, trap and wait.
COUNTED = {
    "kernel": "k", "arch": "sm_90", "threads": 128, "registers": 246, "spill_stores": 12, "spill_loads": 20, "spill_bytes": 32,
    "serialised": 1, "local_in_loops": 1, "static_shared": 512, "dynamic_shared": 55296, "shared_bytes": 55808, "blocks": 2, "instructions": 21,
    "HMMA": 2, "HGMMA": 0, "LDSM": 2, "MUFU": 2, "FP32": 0, "STS": 0, "LDS": 0, "SHFL": 0, "barriers": 1, "fences": 0, "other": 14,
    "shared_cycles": 12, "copy_block": 2, "loop_bytes": 384, "serial_loads": 2,
    "serial_on_any_way": 3, "predicted": None,
}


def kernel():
    """CODE as a kernel: labels end with a colon, the others are instructions, which get addresses."""
    text, address = HEADER, 0
    for line in filter(None, map(str.strip, CODE.splitlines())):
        text += f"{line}\n" if line.endswith(":") else f"        /*{address:04x}*/                   {line} ;\n"
        address += 0 if line.endswith(":") else 16
    return sass.parse(text)[0]


row = report.row_of(kernel(), "sm_90", report.resources(LOG)["k"], [55296, 2, 1])
check("a kernel's counts", row == COUNTED, row)

report.BUDGET = pathlib.Path(sys.argv[1]) / "budget.txt"
report.write_budget([row], "nvcc 1")
over = [report.over_budget([{**row, "instructions": n}], "nvcc 1") for n in (22, 23)]
check("2% more instructions are within the budget, rounded up, and no more", over == [[], ["k sm_90 instructions: 23, budget 22"]], over)
over = report.over_budget([{**row, "arch": "sm_80"}], "nvcc 1")
check("a kernel without a line is named", over == ["k sm_80 has no line in budget.txt"], over)
check("another compiler's budget is not compared", report.over_budget([row], "nvcc 2") is None)

attention = {**row, "HMMA": 256, "instructions": 1217, "shared_cycles": 384, "serial_loads": 0}
check("a kernel like one of those that were measured is predicted within 10%", 268 <= (model.predict(attention) or 0) <= 328)
