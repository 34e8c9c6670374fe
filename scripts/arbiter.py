#!/usr/bin/env python3
"""Judges attention kernels of others: result and every gradient against attention in double, and whether they are the same bits in
every run, over lengths beside tiles, grouped queries, head sizes, windows and documents.

    python3 scripts/arbiter.py                       # on the GPU if PyTorch sees one, else on the CPU
    python3 scripts/arbiter.py flash Flex --compile  # kernels with such a word in their names, those that are compiled first too
    python3 scripts/arbiter.py --quick --runs 3      # four small cases
    python3 scripts/arbiter.py --write scripts/judged/RESULTS.md

Needs torch; which kernels need a package or a GPU is in scripts/judged/kernels.py, and they are left out without it. How far a
kernel may be off is derived in scripts/judged/judge.py. First come errors planted in a plain kernel, which have to be named.

Exit codes: 0 judged, whatever was found; 1 a planted error was not named; 2 usage.
"""
import argparse
import datetime
import platform
import sys
from functools import partial
from pathlib import Path

import torch

from judged.cases import ALL, QUICK
from judged.judge import NAMES, bits_differ, exact, limits_of, plain, what_is_biased, what_is_wrong, worst
from judged.kernels import KERNELS, results_of
from judged.planted import PLANTED

TYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


def unsteady(compute, numbers, case, runs, first):
    """{name: number of runs whose bits are not the first one's}."""
    count = {}
    for _ in range(runs - 1):
        for name in bits_differ(first, compute(numbers, case)): count[name] = count.get(name, 0) + 1
    return count


def judge_planted(limits, dtype, device, runs):
    """Rows (what was planted, what was said, whether that names it)."""
    for planted in PLANTED:
        numbers = planted.case.numbers(dtype, device)
        found = planted.compute(numbers, planted.case)
        said = what_is_wrong(found, numbers, planted.case, limits) or what_is_biased(planted.compute, planted.case, dtype, device)
        count = unsteady(planted.compute, numbers, planted.case, runs, found)
        only = planted.name.split(':')[0]
        named = bool(said) == bool(planted.verdict) and said.startswith(planted.verdict)
        named = named and list(count) == ([] if planted.repeatable else [only])
        yield planted.name, said or ', '.join(f'{name} differs in {n} of {runs - 1} runs' for name, n in count.items()), named


def judge(kernel, cases, limits, dtype, device, runs):
    """The cells of a row behind the kernel's name: cases, ratios, repeatability, remarks."""
    compute, most, count, remarks, refused = partial(results_of, kernel), {}, {}, {}, {}
    asked = [case for case in cases if kernel.takes(case) and (case in QUICK or not kernel.compiles)]
    for case in asked:
        numbers = case.numbers(dtype, device)
        try:
            found = compute(numbers, case)
        except Exception as error:      # whatever a kernel raises for what it does not do
            refused.setdefault((str(error).strip() or type(error).__name__).splitlines()[0][:90], []).append(case)
            continue
        for name, ratio in worst(found, exact(numbers, case)).items():
            most[name] = max(most.get(name, 0.0), ratio)
        said = what_is_wrong(found, numbers, case, limits) or (case in QUICK and what_is_biased(compute, case, dtype, device))
        if said: remarks.setdefault(said, []).append(case)
        for name, n in unsteady(compute, numbers, case, runs, found).items(): count[name] = max(count.get(name, 0), n)
    steady = ', '.join(f'{name} differs in up to {n}' for name, n in count.items()) or 'yes'
    words = [f'{said} ({of_cases(where)})' for said, where in remarks.items()]
    words += [f'refuses {of_cases(where)}: {why}' for why, where in refused.items()]
    done = len(asked) - sum(map(len, refused.values()))
    return [f'{done} of {len(cases)}', *(f'{most[name]:.2g}' if name in most else '-' for name in NAMES),
            steady if done else '-', '; '.join(words) or 'nothing']


def of_cases(cases):
    return str(cases[0]) + (f' and {len(cases) - 1} more' if len(cases) > 1 else '')


def line(cells):
    return '| ' + ' | '.join(str(cell).replace('|', '/') for cell in cells) + ' |'


def table(head, rows):
    return '\n'.join([line(head), line(['---'] * len(head)), *map(line, rows)])


def processor(device):
    if device == 'cuda': return torch.cuda.get_device_name()
    try:
        names = [text.split(':')[1].strip() for text in Path('/proc/cpuinfo').read_text().splitlines() if text.startswith('model name')]
    except OSError:
        names = []
    return f'{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads'


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('words', nargs='*', metavar='WORD', help='of the names of kernels; default: all')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--types', nargs='+', choices=TYPES, help='default: float32 and bfloat16, on a GPU float16, too')
    parser.add_argument('--runs', type=int, default=20, help='that have to give the same bits (20)')
    parser.add_argument('--quick', action='store_true', help='four small cases')
    parser.add_argument('--compile', action='store_true', help='kernels that are compiled first, too, in the four small cases')
    parser.add_argument('--write', type=Path, metavar='FILE', help='write what is printed there')
    options = parser.parse_args(arguments)
    if options.runs < 2: parser.error(f'--runs is {options.runs}; two can differ')
    chosen = lambda kernel: not options.words or any(word.lower() in kernel.name.lower() for word in options.words)
    options.kernels = [kernel for kernel in KERNELS if chosen(kernel)]
    if not options.kernels:
        parser.error(f'no kernel has {" or ".join(options.words)} in its name; there is {", ".join(k.name for k in KERNELS)}')
    options.types = options.types or ['float32', 'bfloat16'] + ['float16'] * (options.device == 'cuda')
    return options


def report(options):
    """Prints as it goes; the text, and whether every planted error was named and the plain kernel not."""
    text, good, cases = [], True, QUICK if options.quick else ALL

    def say(words):
        print(words, flush=True)
        text.append(words)

    say(f'{processor(options.device)}, torch {torch.__version__}, {datetime.date.today()}: '
        f'{len(cases)} cases, {options.runs} runs of each\n')
    kernels = []
    for kernel in options.kernels:
        why = 'needs --compile' if kernel.compiles and not options.compile else kernel.missing(options.device)
        if why: say(f'- left out: {kernel.name}: {why}')
        else: kernels.append(kernel)
    planted, found = [], []
    head = ['kernel', 'version', 'numbers', 'cases', *NAMES, 'same bits', 'what is wrong']
    print(table(head, []), file=sys.stderr)   # its rows as they come, where time ends before the whole table
    for name in options.types:
        dtype = TYPES[name]
        limits, of_plain = limits_of(cases, dtype, options.device)
        found.append(['the plain one', 'judge.py', name, f'{len(cases)} of {len(cases)}', *(f'{of_plain[n]:.2g}' for n in NAMES),
                      '-', 'the measure'])
        for what, said, named in judge_planted(limits, dtype, options.device, options.runs):
            planted.append([what, name, said, 'yes' if named else 'NO'])
            good = good and named
        for kernel in kernels:
            if dtype in kernel.types:
                found.append([kernel.name, kernel.version(), name, *judge(kernel, cases, limits, dtype, options.device, options.runs)])
                print(line(found[-1]), file=sys.stderr, flush=True)
    say('\n' + table(head, found))
    say('\n' + table(['planted error', 'numbers', 'what was said of it', 'named'], planted))
    return '\n'.join(text) + '\n', good


def main():
    options = options_of(sys.argv[1:])
    text, good = report(options)
    if options.write: options.write.write_text(HEAD + text)
    return 0 if good else 1


HEAD = '''# What scripts/arbiter.py found

Written by it with `--write`. Under out, dq, dk and dv stands the largest error of all cases, each number's in units of what rounding may
do to it. Wrong is what is more than 1 and more than twice what the plain kernel has (scripts/judged/judge.py derives it). Cases are
B x T x query heads / key heads x head size.

'''

if __name__ == '__main__':
    sys.exit(main())
