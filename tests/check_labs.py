#!/usr/bin/env python3
"""The labs of dev/labs: that each still fits the tree and can be graded, and one from the plant to "solved". (`dev/labs/lab.py try` tries all
of them.) Prints `ok NAME` or `FAIL NAME: why`. tests/labs.sh runs it.

    python3 tests/check_labs.py FOLDER      for copies; on the file system of build/, whose objects are links then
"""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'dev/labs'))
import lab as program   # noqa: E402
from checks import check   # noqa: E402

folder = Path(sys.argv[1]).absolute()
os.environ.update(LABS=str(folder), JOBS='1')
labs = program.all_labs()


def run(*command, **environment):
    """The exit code, and what was printed."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def call(*words, **environment):
    return run('dev/labs/lab.py', *words, **environment)


# ---- the list
levels = [lab.level for lab in labs.values()]
check('labs are numbered from 1, from easy to hard', list(labs) == list(range(1, len(labs) + 1)) and
      levels == sorted(levels, key=['easy', 'medium', 'hard'].index))
check('each patch fits the source', all(lab.fits() for lab in labs.values()), [n for n, lab in labs.items() if not lab.fits()])
fields = ('test', 'symptom', 'needs', 'show', 'sees', 'hint', 'cases')
check('each has all its fields', all(lab[name] for lab in labs.values() for name in fields) and all(len(lab.fields['sees']) == 1 for lab in labs.values()))
absent = []   # a case is a name as Catch2 takes it, that of a variant with the variant's in front
for lab in labs.values():
    for case in lab.fields['cases']:
        for variant in lab.variants:
            case = case.removeprefix(variant)
        if not re.search(r'CASE(_METHOD)?\((\w+, )?"' + re.escape(case.removesuffix('*')), (ROOT / lab.source_of_test()).read_text()):
            absent.append(f'{lab.number}: {case}')
check('each has test cases that there are', not absent, absent)
texts = [line for lab in labs.values() for name in ('symptom', 'show', 'hint') for line in lab.fields[name]]
check('a symptom, command or hint does not name the file', not any(lab.file in line for lab in labs.values() for line in texts))

# ---- requests, each bad one with one sentence
(folder / 'mine').mkdir(parents=True)
for name, words, expected, environment in [
        ('no number', ['start', ''], 'make labs lists them', {}), ('a number that is none', ['hint', '99'], 'there is no lab 99', {}),
        ('a word', ['check', 'x'], 'there is no lab x', {}), ('an unknown request', ['solve', '1'], 'usage:', {}),
        ('a copy that was never made', ['check', '1'], 'make lab N=1 plants the error', {}),
        ('a folder with something else in it', ['start', '1'], 'is no copy of lab 1', {'LAB': str(folder / 'mine')})]:
    code, printed = call(*words, **environment)
    check(f'labs: {name}', code == 2 and expected in printed and printed.count('\n') == 1, (code, printed))
check('make labs lists them', run('make', '--no-print-directory', 'labs')[1].count('\n') == len(labs) + 1)
check('make lab-hint has the hint', run('make', '--no-print-directory', 'lab-hint', 'N=14')[1] == labs[14]['hint'] + '\n')

# ---- one lab from the plant to "solved": quick to compile
lab, copy = labs[16], folder / '16'
code, printed = call('start', 16)
check('the error is planted, the rest is there', code == 0 and lab.new in (copy / lab.file).read_text() and (copy / 'small.toml').exists(), printed)
check('the symptom is printed, not the file', lab['symptom'] in printed and lab.file not in printed, printed)
check('the copy has neither solution nor tests', not any((copy / name).exists() for name in ('dev/labs', '.git')) and not list((copy / 'tests').glob('*.cpp')))
code, printed = call('check', 16)
check('as it is planted it is not yet solved', code == 1 and 'lab 16: not yet' in printed and lab.file not in printed, printed)
check('a copy stays as it is', 'stays as it is' in call('start', 16)[1])
whole = (ROOT / lab.file).read_text()
(copy / lab.file).write_text(whole + 'int other = no_such_word;\n')
(copy / 'Makefile').write_text('no makefile\n')
code, printed = call('check', 16)
check('a copy that does not compile gets the compiler\'s words',
      code == 1 and 'does not compile' in printed and 'no_such_word' in printed, printed)
(copy / lab.file).write_text(whole)
code, printed = call('check', 16)
check('with the line as it was it is solved', code == 0 and 'lab 16: solved' in printed, printed)
