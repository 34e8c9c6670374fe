"""Machine code as nvdisasm prints it: instructions, control flow, loops, the hot path through a loop, and chains of serial loads.

A kernel's code is cut into blocks: runs of instructions that are entered at the first and left at the last. An edge from a block to
one that dominates it closes a loop (Aho, Lam, Sethi, Ullman, section 9.6); without these edges blocks have an order in which
everything below is computed.
"""
import collections
import re

Instruction = collections.namedtuple("Instruction", "predicate opcode operands")

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LABEL = re.compile(r"^(\.L_[\w$]+):")
SECTION = re.compile(r"^\s*\.section\s+([^,\s]+)")
WORD = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+\.word\s+0x([0-9a-f]+)")
TARGET = re.compile(r"\((\.L_[\w$]+)\)")
REGISTER = re.compile(r"\bR(\d+)(\.64)?")

# What is counted: a name, and the opcodes without their modifiers. FP32 is what runs where fused multiply-adds do.
KINDS = {"HMMA": {"HMMA"}, "HGMMA": {"HGMMA"}, "LDSM": {"LDSM"}, "MUFU": {"MUFU"}, "FP32": {"FADD", "FMUL", "FFMA"}, "STS": {"STS"}, "LDS": {"LDS"},
         "SHFL": {"SHFL"}, "barriers": {"BAR"}, "fences": {"MEMBAR", "FENCE"}}
PRODUCTS = {"HMMA", "HGMMA"}   # of tensor cores: by a warp, by a warpgroup
KIND_OF = {opcode: kind for kind, opcodes in KINDS.items() for opcode in opcodes}
LOADS = {"LD", "LDG", "ATOM", "ATOMG"}   # what comes from global memory into registers: a way to the L2 cache and back
MOVES_AS_WIDE_AS_IT_SAYS = LOADS | {"STG", "ST", "LDS", "STS", "LDL", "STL", "RED", "REDG"}
NEVER_GOES_ON = {"BRA", "BRX", "BRXU", "JMP", "JMX", "RET", "EXIT", "KILL"}   # unless there is a condition


def opcode_of(instruction):
    return instruction.opcode.split(".")[0]


class Kernel:
    """One kernel of a cubin. `threads` is the launch bound, None where there is none."""

    def __init__(self, name, code, labels, threads=None):
        self.name, self.code, self.threads = name, code, threads
        self.multiplies = any(opcode_of(i) in PRODUCTS for i in code)
        self._cut(labels)
        self._order()
        self._find_loops()

    def _cut(self, labels):
        """blocks: (first, behind the last) instruction; next: the blocks that may follow each."""
        starts = {0} | set(labels.values())
        starts |= {n + 1 for n, i in enumerate(self.code) if opcode_of(i) in NEVER_GOES_ON or TARGET.search(i.operands)}
        starts = sorted(s for s in starts if s < len(self.code))
        self.blocks = list(zip(starts, starts[1:] + [len(self.code)]))
        block_at = {start: n for n, start in enumerate(starts)}
        self.next = []
        for n, (_, end) in enumerate(self.blocks):
            last = self.code[end - 1]
            follow = [block_at.get(labels.get(t)) for t in TARGET.findall(last.operands)]   # calls of a label are jumps, too
            if opcode_of(last) in {"BSSY", "WARPSYNC"}: follow = []   # names where threads meet again, and goes on
            if opcode_of(last) not in NEVER_GOES_ON or is_conditional(last): follow.append(n + 1)
            self.next.append([f for f in dict.fromkeys(follow) if f is not None and f < len(self.blocks)])

    def _order(self):
        """order: the blocks that can be reached, each behind all that lead to it but for the ends of loops."""
        seen, behind, stack = {0}, [], [(0, iter(self.next[0]))] if self.blocks else []
        while stack:
            block, rest = stack[-1]
            follow = next((f for f in rest if f not in seen), None)
            if follow is None:
                behind.append(block)
                stack.pop()
            else:
                seen.add(follow)
                stack.append((follow, iter(self.next[follow])))
        self.order = behind[::-1]
        self.place = {block: n for n, block in enumerate(self.order)}

    def _find_loops(self):
        """loops: header -> its blocks. Sets of blocks are whole numbers with a bit for each."""
        before = collections.defaultdict(list)
        for block in self.order:
            for follow in self.next[block]: before[follow].append(block)
        dominators = {block: -1 for block in self.order}
        changed = True
        while changed:
            changed = False
            for block in self.order:
                all_of = -1 if before[block] and block != 0 else 0
                for b in before[block] if block != 0 else []: all_of &= dominators[b]
                changed |= dominators[block] != (all_of | 1 << block)
                dominators[block] = all_of | 1 << block
        self.loops = {}
        for block in self.order:
            for header in self.next[block]:
                if not dominators[block] >> header & 1: continue
                body, open_ends = self.loops.setdefault(header, {header}), [block]
                while open_ends:
                    end = open_ends.pop()
                    if end in body: continue
                    body.add(end)
                    open_ends += before[end]

    def instructions(self, blocks):
        return [i for b in blocks for i in self.code[slice(*self.blocks[b])]]

    def innermost(self, block):
        """The header of the smallest loop that the block is in, or None."""
        return min((h for h in self.loops if block in self.loops[h]), key=lambda h: len(self.loops[h]), default=None)

    def outermost(self, header):
        return max((h for h in self.loops if header in self.loops[h]), key=lambda h: len(self.loops[h]))

    def hot_loop(self):
        """The header of the loop with the most products of its own (not of a loop inside it); where there is none, with the most global
        loads, stores and copies; None without a loop. Of equals the smallest."""
        def own(header, opcodes):
            blocks = [b for b in self.loops[header] if self.innermost(b) == header]
            return sum(opcode_of(i) in opcodes for i in self.instructions(blocks))
        for opcodes in (PRODUCTS, {"LDG", "STG", "LDGSTS"}):
            best = max(self.loops, key=lambda h: (own(h, opcodes), -len(self.loops[h])), default=None)
            if best is not None and own(best, opcodes): return best
        return None

    def hot_path(self, header, hot, rounds=1):
        """The blocks of one way through the loop with this header, or with None through the kernel, that has the most products; of such
        ways the most copies, stores and loads past the first-level cache (in a kernel without products: all loads); of such the fewest
        instructions. Copies, stores and loads of rare inner loops do not count, so that these are passed by: of all but `hot`,
        which runs `rounds` times, and those with loads past the first-level cache. A loop that sleeps waits for another block: nobody
        waits on this way. A block that traps is on no way."""
        moves = {b: sum(self._moves_data(i) for i in self.instructions([b])) for b in self.order}
        code_of = {h: self.instructions(body) for h, body in self.loops.items()}
        strong = {h for h, code in code_of.items() if any(".STRONG" in i.opcode for i in code)}
        waiting = {h for h, code in code_of.items() if h not in (header, hot) and any(opcode_of(i) == "NANOSLEEP" for i in code)}
        frequent = {header, hot} | strong - waiting

        def score(block):
            times = rounds if hot is not None and block in self.loops[hot] else 1
            code = self.instructions([block])
            moved = moves[block] if self.innermost(block) in frequent else 0
            return times * sum(opcode_of(i) in PRODUCTS for i in code), times * moved, -times * len(code)

        best, came_from, end = {}, {}, None
        start = header if header is not None else 0
        for block in self._inside(header):
            if block != start and block not in best: continue
            total = tuple(map(sum, zip(best.get(block, (0, 0, 0)), score(block))))
            best[block] = total
            follows = self.next[block]
            if (header in follows if header is not None else not follows) and (end is None or total > best[end]): end = block
            for follow in follows:
                if self.place[follow] > self.place[block] and total > best.get(follow, (-1,)):
                    best[follow], came_from[follow] = total, block
        path = []
        while end is not None:
            path.append(end)
            end = came_from.get(end)
        return path[::-1]

    def _moves_data(self, instruction):
        opcode = opcode_of(instruction)
        return opcode in {"LDGSTS", "STG", "STS"} or opcode in LOADS and (".STRONG" in instruction.opcode or not self.multiplies)

    def _inside(self, header):
        """The blocks of a loop, or with None of the kernel, that do not trap, in order."""
        blocks = [b for b in self.order if header is None or b in self.loops[header]]
        return [b for b in blocks if not any(opcode_of(i) == "BPT" for i in self.instructions([b]))]

    def serial_loads(self, header, blocks=None):
        """The longest chain of loads, on any way once through the loop (or, with None, the kernel), or through `blocks` of it, of
        which each has been used, or been waited for by a fence, before the next is issued: that many ways to the L2 cache and back,
        one after the other. `arrives` has the length of the chain that ends with the load into each register."""
        inside = [b for b in self._inside(header) if blocks is None or b in blocks]
        states, longest = {inside[0]: (0, {})}, 0
        for block in inside:
            if block not in states: continue
            chain, arrives = states[block][0], dict(states[block][1])
            for i in self.instructions([block]):
                waited = list(arrives) if opcode_of(i) in KINDS["fences"] else [r for r in registers_of(i) if r in arrives]
                for r in waited: chain = max(chain, arrives.pop(r))
                if opcode_of(i) in LOADS: arrives.update(dict.fromkeys(loaded_registers(i), chain + 1))
            longest = max(longest, chain)
            for follow in self.next[block]:
                if self.place[follow] <= self.place[block]: continue
                other_chain, other = states.get(follow, (0, {}))
                merged = {r: max(arrives.get(r, 0), other.get(r, 0)) for r in {*arrives, *other}}
                states[follow] = max(chain, other_chain), merged
        return longest

    def uses_shared_memory(self):
        return any(opcode_of(i) in {"LDS", "STS", "LDSM", "LDGSTS", "ATOMS"} for i in self.code)

    def local_in_loops(self):
        """Loads and stores of a thread's own memory (spills, arrays with an index) inside loops."""
        inside = set().union(*self.loops.values())
        return sum(opcode_of(i) in {"LDL", "STL"} for i in self.instructions(inside))


def is_conditional(instruction):
    """Whether a branch may go on behind itself: it has a predicate, or a condition among its operands."""
    if instruction.predicate not in (None, "PT"): return True
    return opcode_of(instruction) == "BRA" and not instruction.operands.startswith("`(")


def width_of(opcode):
    return 4 if ".128" in opcode else 2 if ".64" in opcode else 1


def shared_cycles(instruction):
    """How long an instruction keeps shared memory busy, at 128 bytes a cycle and without bank conflicts."""
    opcode = opcode_of(instruction)
    if opcode == "LDSM": return {".4": 4, ".2": 2}.get(instruction.opcode[-2:], 1)   # LDSM.16.M88.4
    return width_of(instruction.opcode) if opcode in {"LDS", "STS", "LDGSTS"} else 0


def loaded_registers(instruction):
    first = next((o for o in instruction.operands.split(", ") if REGISTER.match(o)), "")
    start = int(first[1:].split(".")[0]) if first else 0
    return range(start, start + width_of(instruction.opcode)) if first else range(0)


def registers_of(instruction):
    """The registers that an instruction reads or writes. An operand names the first of several."""
    opcode, found = opcode_of(instruction), set()
    for position, operand in enumerate(instruction.operands.split(", ")):
        for first, pair in REGISTER.findall(operand):
            if pair: width = 2
            elif "[" in operand: width = 1
            elif opcode == "HMMA": width = 2 if position == 2 else 4
            elif opcode == "HGMMA": width = 4 if position == 1 else int(instruction.opcode.split("x")[1]) // 2
            elif opcode in MOVES_AS_WIDE_AS_IT_SAYS: width = width_of(instruction.opcode)
            elif opcode == "LDSM": width = 4
            else: width = 2 if opcode in {"DADD", "DMUL", "DFMA", "DSETP"} or ".WIDE" in instruction.opcode else 1
            found.update(range(int(first), int(first) + width))
    return found


def parse(text):
    """The kernels in what nvdisasm printed for a cubin."""
    kernels, threads = [], {}
    section = attribute = None
    code, labels = [], {}
    for line in text.splitlines() + [".section the_end"]:
        if match := SECTION.match(line):
            if section and section.startswith(".text.") and code: kernels.append((section[len(".text."):], code, labels))
            section, attribute, code, labels = match[1], None, [], {}
        elif "nvinfo : " in line:
            attribute = line.split("nvinfo : ")[1].strip()
        elif attribute == "EIATTR_MAX_THREADS" and (match := WORD.match(line)):
            name = section[len(".nv.info."):]
            threads[name] = threads.get(name, 1) * int(match[1], 16)
        elif match := LABEL.match(line):
            labels[match[1]] = len(code)
        elif match := INSTRUCTION.match(line):
            code.append(Instruction(*match.groups()))
    return [Kernel(name, code, labels, threads.get(name)) for name, code, labels in kernels]


def counts_of(instructions_and_times):
    """How often each of KINDS occurs, how many instructions there are in all, and for how many cycles they keep shared memory busy,
    in pairs of instructions and how often they run."""
    total = collections.Counter(dict.fromkeys([*KINDS, "shared_cycles"], 0))
    for instructions, times in instructions_and_times:
        total["instructions"] += times * len(instructions)
        total["shared_cycles"] += times * sum(map(shared_cycles, instructions))
        for i in instructions: total[KIND_OF.get(opcode_of(i), "other")] += times
    return dict(total)
