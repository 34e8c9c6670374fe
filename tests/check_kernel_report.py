#!/usr/bin/env python3
"""dev/kernel_report on small pieces of machine code as nvdisasm prints it: prints `ok NAME` or `FAIL NAME: why` for each check."""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "dev" / "kernel_report"))
import model   # noqa: E402
import report   # noqa: E402
import sass   # noqa: E402


def kernel(lines):
    """A kernel of these lines: labels end with a colon, the others are instructions, which get addresses."""
    text, address = "\t.section\t.text.k,\"ax\",@progbits\n", 0
    for line in filter(None, map(str.strip, lines.splitlines())):
        text += f"{line}\n" if line.endswith(":") else f"        /*{address:04x}*/                   {line} ;\n"
        address += 0 if line.endswith(":") else 16
    return sass.parse(text)[0]


def check(name, found, expected):
    print(f"ok {name}" if found == expected else f"FAIL {name}: {found} instead of {expected}")


def chain(lines):
    return len(kernel(lines).serial_loads(None))


# ---- serial loads

# As nvcc compiled dQ's sums before 2026-11-23: each old value is behind a branch, and waited for before the next is asked for.
check("three loads, each used before the next, are a chain of three", chain("""
    @!P0 BRA `(.L_x_1)
    LDG.E.64.STRONG.GPU R8, desc[UR8][R2.64]
.L_x_1:
    FADD R8, R8, R40
    FADD R9, R9, R41
    STG.E.64.STRONG.GPU desc[UR8][R2.64], R8
    @!P0 BRA `(.L_x_2)
    LDG.E.64.STRONG.GPU R10, desc[UR8][R2.64+0x20]
.L_x_2:
    FADD R10, R10, R42
    FADD R11, R11, R43
    STG.E.64.STRONG.GPU desc[UR8][R2.64+0x20], R10
    @P0 LDG.E.64.STRONG.GPU R12, desc[UR8][R2.64+0x40]
    FADD R13, R13, R45
    STG.E.64.STRONG.GPU desc[UR8][R2.64+0x40], R12
    EXIT"""), 3)
check("three loads issued together are one way to the cache", chain("""
    LDG.E R8, desc[UR8][R2.64]
    LDG.E R9, desc[UR8][R2.64+0x4]
    LDG.E R10, desc[UR8][R2.64+0x8]
    FADD R8, R8, R40
    FADD R9, R9, R41
    FADD R10, R10, R42
    EXIT"""), 1)
check("a load that nobody uses is waited for by nobody", chain("LDG.E R8, desc[UR8][R2.64]\nFADD R9, R9, R40\nEXIT"), 0)
check("the address of one load from another", chain("LDG.E.64 R2, [R2.64]\nLDG.E R4, [R2.64]\nIADD3 R5, R4, R3, RZ\nEXIT"), 2)
check("a product reads four registers from the one it names", chain("""
    LDG.E.64 R6, [R2.64]
    HMMA.16816.F32.BF16 R4, R20, R24, R4
    LDG.E.64 R6, [R2.64+0x8]
    HMMA.16816.F32.BF16 R4, R20, R24, R4
    EXIT"""), 2)
check("a fence waits for all loads", chain("LDG.E R4, [R2.64]\nMEMBAR.SC.GPU\nLDG.E R5, [R2.64]\nMEMBAR.SC.GPU\nEXIT"), 2)
check("of two ways the longer chain counts", chain("""
    @P0 BRA `(.L_x_1)
    LDG.E R4, [R2.64]
    IADD3 R2, R4, R2, RZ
    LDG.E R4, [R2.64]
    IADD3 R2, R4, R2, RZ
    BRA `(.L_x_2)
.L_x_1:
    LDG.E R4, [R2.64]
    IADD3 R2, R4, R2, RZ
.L_x_2:
    LDG.E R5, [R2.64]
    IADD3 R5, R5, R5, RZ
    EXIT"""), 3)

LOAD, NO_LOAD = "LDG.E R4, [R2.64]", "IADD3 R6, R6, R6, RZ"
check("a load on one way is waited for where ways meet", [chain(f"""
    @P0 BRA `(.L_x_1)
    {one}
    BRA `(.L_x_2)
.L_x_1:
    {other}
.L_x_2:
    IADD3 R5, R4, R3, RZ
    EXIT""") for one, other in ((LOAD, NO_LOAD), (NO_LOAD, LOAD))], [1, 1])

# ---- loops and the hot path

TILES = kernel("""
    STL [R1], R7
.L_x_0:
    @P0 BRA `(.L_x_1)
    ISETP.GE.AND P1, PT, R5, R6, PT
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
    @P4 BRA `(.L_x_5)
    BPT.TRAP 0x1
    STG.E desc[UR8][R2.64], R7
.L_x_5:
    @P5 BRA `(.L_x_0)
    EXIT
.L_x_6:
    BRA `(.L_x_6)""")
address = lambda header: TILES.code[TILES.blocks[header][0]].address   # noqa: E731
hot = TILES.hot_loop()
check("two loops, that of the products in that of the tiles; the code behind the end is none", sorted(map(address, TILES.loops)),
      [16, 128])
check("the hot loop is that of the products", (address(hot), address(TILES.outermost(hot))), (128, 16))
PATH = TILES.hot_path(TILES.outermost(hot), hot, 2)
check("the hot path leaves out mask and trap, and takes copies", [i.opcode.split(".")[0] for i in TILES.instructions(PATH)],
      ["BRA", "BRA", "LDGSTS", "IADD3", "LDSM", "HMMA", "MUFU", "BRA", "BAR", "BRA", "BRA"])
COUNTS = sass.counts_of([(TILES.instructions([b]), 2 if b in TILES.loops[hot] else 1) for b in PATH])
check("what the inner loop has counts as often as it runs",
      [COUNTS[c] for c in ("HMMA", "MUFU", "barriers", "instructions", "shared_cycles")], [2, 2, 1, 15, 12])
check("a spill inside a loop counts, one before it does not", TILES.local_in_loops(), 1)

TURNS = kernel("""
.L_x_0:
    LDG.E.STRONG.GPU R4, [R2.64]
.L_x_1:
    HMMA.16816.F32.BF16 R8, R20, R24, R8
.L_x_2:
    MUFU.EX2 R10, R10
    @P1 BRA `(.L_x_2)
    @P2 BRA `(.L_x_1)
    ISETP.NE.AND P3, PT, R4, R5, PT
    @!P3 BRA `(.L_x_4)
.L_x_3:
    NANOSLEEP 0x28
    LDG.E.STRONG.GPU R4, [R2.64]
    ISETP.NE.AND P3, PT, R4, R5, PT
    @P3 BRA `(.L_x_3)
.L_x_4:
    LDG.E.64.STRONG.GPU R6, [R2.64+0x8]
    IADD3 R6, R6, R6, RZ
    @P0 BRA `(.L_x_0)
    EXIT""")
hot = TURNS.hot_loop()
PATH = TURNS.hot_path(TURNS.outermost(hot), hot, 4)
check("nobody waits for another block on the hot path",
      [len(TURNS.serial_loads(TURNS.outermost(hot), blocks)) for blocks in (PATH, None)], [2, 3])
check("a loop inside the hot one runs more often still", [report.times_of(TURNS, b, hot, 4, 2) for b in PATH], [1, 4, 8, 4, 1, 1])

check("nvcc jumps out of a loop by a call with a condition", sorted(kernel("""
.L_x_0:
    IADD3 R4, R4, 0x1, RZ
    @!P0 CALL.REL.NOINC `(.L_x_1)
    BRA `(.L_x_0)
.L_x_1:
    CALL.REL.NOINC `($__internal_0_$__cuda_sm20_rcp_rn_f32_slowpath)
    EXIT""").order), [0, 1, 2])

# ---- what is written around the code

HEADER = """
	.section	.nv.info.k,"",@"SHT_CUDA_INFO"
	//----- nvinfo : EIATTR_MAX_THREADS
        /*0064*/ 	.word	0x00000080
        /*0068*/ 	.word	0x00000002
        /*006c*/ 	.word	0x00000001
	//----- nvinfo : EIATTR_CBANK_PARAM_SIZE
        /*0070*/ 	.word	0x00000003
	.section	.text.k,"ax",@progbits
        /*0000*/                   EXIT ;
"""
check("threads from the launch bound", [k.threads for k in sass.parse(HEADER)], [256])
LOG = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Function properties for a_function_that_it_calls
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 8 bytes cumulative stack size, 512 bytes smem"""
OF_PTXAS = {"spill_stores": 12, "spill_loads": 20, "registers": 254, "static_shared": 512}
def units(**chosen):
    return report.units_of(argparse.Namespace(variants=["causal"], **{"attention_only": False, "step_only": False, **chosen}))


check("what is compiled: attention and the other kernels of a step, or either",
      [units(), units(attention_only=True), units(step_only=True)], [["causal", "step"], ["causal"], ["step"]])
check("what ptxas says", report.resources(LOG), {"k": OF_PTXAS})
ROW = {"kernel": "k", "arch": "sm_90", "threads": 128, "registers": 246, "static_shared": 0, "dynamic_shared": 55296}
check("blocks per multiprocessor, by registers", report.blocks_per_multiprocessor("sm_90", ROW), 2)
check("by shared memory", report.blocks_per_multiprocessor("sm_80", {**ROW, "registers": 32}), 2)
check("none where one block does not fit", report.blocks_per_multiprocessor("sm_89", {**ROW, "dynamic_shared": 104448}), 0)

# ---- the budget

counted = {"kernel": "k<a,1>", "arch": "sm_90", **dict.fromkeys(report.BUDGETED, 0), "registers": 254, "instructions": 1000}
report.BUDGET = pathlib.Path(sys.argv[1]) / "budget.txt"
report.write_budget([counted], "nvcc 1")
check("what was written is within the budget", report.over_budget([counted], "nvcc 1"), [])
check("2% more instructions are, too", report.over_budget([{**counted, "instructions": 1020}], "nvcc 1"), [])
check("what has grown is named, with value and budget",
      report.over_budget([{**counted, "instructions": 1021, "serial_loads": 3}], "nvcc 1"),
      ["k<a,1> sm_90 instructions: 1021, budget 1020", "k<a,1> sm_90 serial_loads: 3, budget 0"])
check("a kernel without a line is named", report.over_budget([{**counted, "arch": "sm_80"}], "nvcc 1"),
      ["k<a,1> sm_80 has no line in budget.txt"])
check("another compiler's budget is not compared", report.over_budget([counted], "nvcc 2"), None)

# ---- predictions

attention = {**ROW, "blocks": 2, "HMMA": 256, "instructions": 1217, "shared_cycles": 384, "serial_loads": 0}
check("a kernel like one of those that were measured is predicted within 10%", 268 <= (model.predict(attention) or 0) <= 328, True)
check("with serial loads that is the most that it can reach", [model.is_bound({**attention, "serial_loads": n}) for n in (1, 16)],
      [False, True])
check("one with other occupancy is not predicted", model.predict({**attention, "blocks": 3}), None)
check("the constant is the one that dev/bench_constants prints", round(model.constant_of(model.FLASH_ATTENTION_2.values()) / 1e9, 2),
      model.CONSTANTS["CONSTANT_GHZ"])
model.FLASH_ATTENTION_2 = {**model.FLASH_ATTENTION_2, "backward HS 64": (200, 320, 1503, 678, 1)}
check("nothing is predicted by a model that is off by more than 10%", (model.calibrated(), model.predict(attention)), (False, None))
