#!/usr/bin/env python3
"""Measures the tests with mutants: changes one line of the sources at a time, builds what the line reaches, and runs its tests.

    dev/mutate.py --mutants 20 --seed 1                    # anywhere in the engine; an hour or more
    dev/mutate.py --mutants 5 --files 'attention/asga.cuh' # in files of these names
    dev/mutate.py --mutants 20 --seed 1 --list             # print the mutants; build nothing

A mutant is killed when a test fails, crashes or does not end; one that does not compile is drawn again. Lines are drawn by seed,
each code line alike, with one of these operators: + for -, < for <=, == for !=, && for ||, an integer off by one, exchanged
arguments, a dropped statement, 0 in place of an assigned value. Builds and tests run in a copy of the tree under out/mutants, on the
CPU and, for device code, on the emulated GPU. Exit codes: 0 all killed, 1 survivors, 2 usage or a tree whose tests fail unchanged.
"""
import argparse
import fnmatch
import os
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'dev/labs'))
from lab import TREE, copy_tree, update   # noqa: E402
COPY = ROOT / 'out/mutants'
SOURCES = ('attention/', 'model/', 'data/', 'train_gpt.cu')
VARIANTS = 'causal asga dsa'   # of the tables, where a line belongs to no variant
SWAPS = [(' + ', ' - '), (' - ', ' + '), (' * ', ' + '), (' < ', ' <= '), (' <= ', ' < '), (' > ', ' >= '), (' >= ', ' > '), (' == ', ' != '),
         (' != ', ' == '), (' && ', ' || '), (' || ', ' && '), (' += ', ' -= '), ('++', '--')]


def sources(patterns):
    """Files of the engine whose path or name fits one of the patterns."""
    tracked = subprocess.run(['git', '-C', ROOT, 'ls-files', *SOURCES], capture_output=True, text=True, check=True).stdout.split()
    files = [f for f in tracked if f.endswith(('.cpp', '.cu', '.cuh', '.h'))]
    return [f for f in files if not patterns or any(fnmatch.fnmatch(f, p) or fnmatch.fnmatch(pathlib.Path(f).name, p) for p in patterns)]


def masked(line):
    """The line with strings, character constants and comments blanked, so that positions stay."""
    return re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//.*', lambda m: ' ' * len(m[0]), line)


def mutants_of(line):
    """All changes of one line, as (operator, new line)."""
    code, found = masked(line), []
    if not code.strip() or code.lstrip().startswith(('#', 'template', 'using', 'static_assert', 'namespace')):
        return []
    for old, new in SWAPS:
        at = code.find(old)
        if at >= 0: found.append((f'{old.strip()} -> {new.strip()}', line[:at] + new + line[at + len(old):]))
    for m in list(re.finditer(r'(?<![\w.])\d+(?![\w.])', code))[:2]:
        found.append(('off by one', line[:m.start()] + str(int(m[0]) + 1) + line[m.end():]))
    if m := re.search(r'\w\((\w[\w.\[\]]*), (\w[\w.\[\]]*)\)', code):
        found.append(('exchanged arguments', line[:m.start(1)] + m[2] + ', ' + m[1] + line[m.end(2):]))
    if m := re.match(r'(\s*)(?!return|const|auto|float|double|int|size_t|bool|using|break|continue|case)[\w.:\->\[\]*]+(\(| [+*-]?= ).*;\s*$', code):
        found.append(('dropped statement', m[1] + ';'))
    if m := re.match(r'(\s*[\w.:\->\[\]* ]+ [+]?= )([^=].*);\s*$', code):
        found.append(('0 for a value', f'{line[:m.end(1)]}0;'))
    return [(name, new) for name, new in found if new != line]


def mutable_lines(files):
    """(file, line number from 1, its mutants) of every line that has one."""
    return [(file, number, found) for file in files
            for number, line in enumerate((ROOT / file).read_text().split('\n'), 1) if (found := mutants_of(line))]


def draw(generator, lines):
    """One mutant (file, line number, operator, new line)."""
    file, number, found = generator.choice(lines)
    return file, number, *generator.choice(found)


def programs_of(file):
    """What make is asked for and what is run for a line of a file."""
    variant = pathlib.Path(file).stem
    if file == f'attention/{variant}.cuh':
        return [f'VARIANTS=causal {variant}'], [f'build/tests/test_{variant}', f'build/emulated/test_{variant}']
    host = [f'VARIANTS={VARIANTS}'], ['build/tests/run_tests']
    return (host[0], host[1] + ['build/emulated/operation_tests', 'build/emulated/test_asga']) if file.endswith(('.cu', '.cuh')) else host


def build(file, log):
    arguments, programs = programs_of(file)
    command = ['make', '--no-print-directory', 'USE_CUDA=0', *arguments, *programs]
    with open(log, 'w') as out:
        return subprocess.run(command, cwd=COPY, stdout=out, stderr=out).returncode == 0


def failing(file, limit):
    """The first program whose tests fail, '' if all pass."""
    for program in programs_of(file)[1]:
        try:
            done = subprocess.run([program, '--abort'], cwd=COPY, capture_output=True, timeout=limit,
                                  env=os.environ | {'OMP_WAIT_POLICY': 'passive'})
        except subprocess.TimeoutExpired:
            return f'{program} (time limit)'
        if done.returncode: return program
    return ''


def try_mutant(number, mutant, limit):
    """Prints what became of a mutant; returns 'killed', 'survived' or 'invalid'."""
    file, line, operator, new = mutant
    path = COPY / file
    original = path.read_text()
    lines = original.split('\n')
    old, lines[line - 1] = lines[line - 1].strip(), new
    try:
        path.write_text('\n'.join(lines))
        if not build(file, COPY / 'mutant.log'): return 'invalid'
        killer = failing(file, limit)
    finally:
        path.write_text(original)
    print(f'{number:4d} {"killed" if killer else "SURVIVED"}  {file}:{line}  {operator}: {old}  =>  {new.strip()}'
          + (f'  [{killer}]' if killer else ''), flush=True)
    return 'killed' if killer else 'survived'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--mutants', type=int, default=20, help='number of mutants that compile (default 20)')
    parser.add_argument('--seed', type=int, default=1, help='seed of the sample (default 1)')
    parser.add_argument('--files', nargs='+', metavar='PATTERN', help='names of files to mutate (default: all sources)')
    parser.add_argument('--limit', type=int, default=600, help='seconds for a test program (default 600)')
    parser.add_argument('--list', action='store_true', help='print the mutants; build nothing')
    options = parser.parse_args()
    lines, generator = mutable_lines(sources(options.files)), random.Random(options.seed)
    if not lines:
        parser.error('no line of these files can be mutated; --files takes paths or names such as asga.cuh')
    if options.list:
        for number in range(1, options.mutants + 1): print(number, *draw(generator, lines)[:3])
        return 0
    if not COPY.exists(): copy_tree(COPY)
    update(ROOT, COPY, TREE)
    count, sound = {'killed': 0, 'survived': 0, 'invalid': 0}, set()
    while count['killed'] + count['survived'] < options.mutants:
        mutant = draw(generator, lines)
        programs = str(programs_of(mutant[0]))
        if programs not in sound:   # without a mutant they must pass, or their failure means nothing
            if not build(mutant[0], COPY / 'mutant.log') or failing(mutant[0], options.limit):
                print(f'{mutant[0]}: the unchanged tree does not pass; see {COPY / "mutant.log"}', file=sys.stderr)
                return 2
            sound.add(programs)
        count[try_mutant(count['killed'] + count['survived'] + 1, mutant, options.limit)] += 1
    print(f'{count["killed"]} of {options.mutants} killed; {count["invalid"]} drawn again, as they did not compile')
    return int(count['survived'] > 0)


if __name__ == '__main__':
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(75)
