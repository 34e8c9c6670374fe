#!/usr/bin/env python3
"""Labs that grade themselves: an error is planted in a copy of the tree and described by its symptom alone; hidden tests find out whether
it is gone. dev/labs/README.md is for those who do them; labs.txt and the patches have the labs, and so their solutions.

    dev/labs/lab.py list                       make labs
    dev/labs/lab.py start|hint|check NUMBER    make lab, lab-hint, lab-check N=NUMBER; the copy is out/labs/NUMBER, or LAB=FOLDER
    dev/labs/lab.py try [NUMBER...]            as a student would: planted, the symptom shows and without the error does not, the check says
                                               "not yet", the line put back, the check says "solved"

LABS: the folder for copies, by default out/labs. There is also `base`, a copy of the tree as it is, where what labs need is built
once for all of them (with what build/ has already), and check/NUMBER, where a student's sources meet the hidden tests.
Exit codes: 0, or solved; 1 not yet; 2 a bad request.
"""
import fcntl
import filecmp
import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / 'dev/labs'
TREE = ['Makefile', 'README.md', 'attention', 'data', 'dev', 'model', 'scripts', 'tests', 'train_gpt.cu']
SOURCES = ['attention', 'data', 'model', 'train_gpt.cu']   # what a student may change
# What a copy is made of: everything but the tests and the labs. Of the tests the oracle in plain C, to compare with, and tokenizers.
COPIED = ['Makefile', 'README.md', 'attention', 'data', 'model', 'scripts', 'train_gpt.cu', 'dev/emulator', 'dev/ladder', 'dev/*.cpp', 'dev/*.cu',
          'dev/*.cuh', 'dev/HACKING.md', 'dev/README.md', 'tests/reference_qwen.c', 'tests/fixtures/tokenizers/*_tokenizer.json']
GIVEN = ['compare.py', 'round_trip.py', 'small.toml']
MADE = ['*.bin', 'sotu_manifest.json', '*.pyc', '__pycache__']   # not sources
OBJECTS = ['*.o', '*.d', '*.a', '*.cpp', '*flags', 'units', 'machine', 'commit', 'config.mk', 'reference_qwen']


def stop(code, sentence):
    """Ends the program with an exit code and a sentence."""
    print(sentence, file=sys.stderr)
    sys.exit(code)


class Lab:
    """An entry of labs.txt with its patch: one hunk of one file."""

    def __init__(self, entry):
        head, *lines = entry.splitlines()
        number, self.level, self.title = head.split(' ', 2)
        self.number = int(number)
        self.fields = {}
        for line in lines:
            name, _, value = line.partition(': ')
            self.fields.setdefault(name, []).append(value)
        patch = (HERE / f'{self.number:02}.patch').read_text()
        self.file = re.search(r'^\+\+\+ b/(.*)$', patch, re.M)[1]
        hunk = re.split(r'^@@.*\n', patch, flags=re.M)[1].splitlines(True)
        self.old, self.new = (''.join(line[1:] for line in hunk if line[0] in ' ' + sign) for sign in '-+')
        self.test, *self.variants = self['test'].split()
        self.commands = [f'make USE_CUDA=0 {self["needs"]}', *self.fields['show']]

    def __getitem__(self, name):
        return '\n'.join(self.fields.get(name, []))

    def fits(self, tree=ROOT):
        return self.old in (tree / self.file).read_text()

    def plant(self, tree):
        path = tree / self.file
        path.write_text(path.read_text().replace(self.old, self.new, 1))

    def source_of_test(self):
        return f'tests/{self.test.removeprefix("emulated/")}.cpp'

    def program(self):
        return 'build/emulated/run_tests' if self.test.startswith('emulated/') else 'build/tests/run_tests'

    def how(self):
        """The words for make that build the hidden tests' program: this test alone, with a table of these variants."""
        return [f'TESTS=build/tests/main.o build/tests/{self.test}.o', f'GPU_TESTS={self.source_of_test()[:-4]}.o',
                'EMULATOR_TESTS=', f'VARIANTS={" ".join(self.variants) or "causal"}', self.program()]


def all_labs():
    return {lab.number: lab for lab in map(Lab, re.split(r'^lab: ', (HERE / 'labs.txt').read_text(), flags=re.M)[1:])}


# ------------------------------------------------------------------------------------------------------------- copies of the tree

def files_of(tree, paths):
    """Sources among these files and folders, relative to the tree."""
    found = (one for path in paths for one in ([tree / path] if (tree / path).is_file() else (tree / path).rglob('*')))
    return {str(path.relative_to(tree)) for path in found
            if path.is_file() and not any(fnmatch.fnmatch(part, made) for part in path.parts for made in MADE)}


def update(start, end, paths):
    """These files and folders of `end` become those of `start`. Only what differs is written, so that make sees it."""
    wanted = files_of(start, paths)
    for path in files_of(end, paths) - wanted:
        (end / path).unlink()
    for path in wanted:
        if (end / path).exists() and filecmp.cmp(start / path, end / path, shallow=False):
            continue
        (end / path).parent.mkdir(parents=True, exist_ok=True)
        (end / path).unlink(missing_ok=True)   # it may be a hard link
        shutil.copy(start / path, end / path)


def take_objects(start, end, with_tests=True):
    """What `start` has compiled: as hard links, which nothing writes through (make renames what is complete), or as copies."""
    for path in sorted((start / 'build').rglob('*')):
        name = path.relative_to(start)
        if path.is_file() and any(fnmatch.fnmatch(path.name, kind) for kind in OBJECTS) and 'python' not in name.parts[1:2] and \
                (with_tests or 'tests' not in name.parts):
            (end / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, end / name)
            except OSError:
                shutil.copy2(path, end / name)


def copy_tree(end):
    """The tree as it is, with its times and with what build/ has compiled."""
    for path in files_of(ROOT, TREE):
        (end / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, end / path)
    take_objects(ROOT, end)


def make_in(tree, words):
    """The compiler's first complaint, or ""."""
    jobs = os.environ.get('JOBS') or str(os.cpu_count())
    environment = {key: value for key, value in os.environ.items() if key not in ('MAKEFLAGS', 'MFLAGS', 'MAKELEVEL')}   # of `make lab`
    done = subprocess.run(['make', '-C', tree, '--no-print-directory', f'-j{jobs}', 'USE_CUDA=0', *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', env=environment)
    lines = done.stdout.splitlines() or ['make fails']
    return '' if done.returncode == 0 else next((line for line in lines if 'error' in line.lower()), lines[-1])


# --------------------------------------------------------------------------------------------------------- what make's targets call

class Bench:
    """Where one lab is done: the folder of copies, the student's copy, and the base."""

    def __init__(self, lab):
        self.lab = lab
        folder = Path(os.environ.get('LABS') or 'out/labs')
        self.copy = Path(os.environ.get('LAB') or folder / str(lab.number))
        self.folder, self.base, self.check_in = folder, folder.absolute() / 'base', folder.absolute() / f'check/{lab.number}'
        self.label = self.copy / '.lab'

    def is_copy(self):
        return self.label.exists() and self.label.read_text() == str(self.lab.number)

    def prepare_base(self, *programs):
        """`base` as the tree is now, with these programs and the lab's hidden tests built."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.folder / 'lock', 'w')
        fcntl.flock(self.lock, fcntl.LOCK_EX)   # two at once would write the same files
        if not (self.base / '.complete').exists():
            shutil.rmtree(self.base, ignore_errors=True)
            copy_tree(self.base)
            (self.base / '.complete').touch()
        update(ROOT, self.base, TREE)
        print(f'building what lab {self.lab.number} needs, without the error (minutes where nothing has been built yet, else seconds) ...', flush=True)
        (self.base / self.lab.program()).unlink(missing_ok=True)   # it may have another lab's test
        if complaint := (programs and make_in(self.base, programs)) or make_in(self.base, self.lab.how()):
            stop(1, f'the tree itself does not build, without any error planted: {complaint}')

    def start(self):
        lab, copy = self.lab, self.copy
        if copy.exists() and not self.is_copy():
            stop(2, f'{copy} is there already and is no copy of lab {lab.number}; choose another place with LAB=FOLDER')
        if copy.exists():
            print(f'{copy} is there already and stays as it is (remove it to begin anew).')
        else:
            if not lab.fits():
                stop(1, f'lab {lab.number} does not fit this tree any more: its patch changes another line')
            self.prepare_base(*lab['needs'].split())
            for path in files_of(self.base, [one.relative_to(self.base) for name in COPIED for one in self.base.glob(name)]):
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.base / path, copy / path)
            (copy / 'out').mkdir()
            for name in GIVEN:
                shutil.copy(HERE / name, copy)
            take_objects(self.base, copy, with_tests=False)
            self.label.write_text(str(lab.number))
            lab.plant(copy)
            # Compiled here, and dated back: what the student's first make compiles would tell where the error is.
            if make_in(copy, lab['needs'].split()):
                stop(1, f'lab {lab.number}: with its error the tree does not compile')
            shutil.copystat(self.base / lab.file, copy / lab.file)
        where = f', with LAB={os.environ["LAB"]}' if os.environ.get('LAB') else ''
        print(f'\nLab {lab.number}, {lab.level}: {lab.title}\n{lab["symptom"]}\n\nWhat shows it, in the copy of the tree that has the error:\n    cd {copy}')
        print(''.join(f'    {line}\n' for line in lab.commands))
        print(f'A hint, one: make lab-hint N={lab.number}.  Graded: make lab-check N={lab.number}.  Both here, not in the copy{where}.')

    def passes(self, case):
        """One test case by itself, GPU code in several orders of threads and streams."""
        for seed in '0123' if self.lab.test.startswith('emulated/') else '0':
            done = subprocess.run([f'./{self.lab.program()}', case.replace(',', r'\,'), '--abort'], cwd=self.check_in, timeout=300, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', env=os.environ | {'EMULATOR_SEED': seed})
            if 'No test cases matched' in done.stdout:
                stop(1, f'lab {self.lab.number} is broken: there is no test case {case}')
            if done.returncode:
                return False
        return True

    def check(self):
        lab = self.lab
        if not self.copy.exists():
            stop(2, f'{self.copy} is not there; make lab N={lab.number} plants the error')
        if not self.is_copy():
            stop(2, f'{self.copy} is no copy of lab {lab.number}; name its folder with LAB=FOLDER')
        self.prepare_base()
        shutil.rmtree(self.check_in, ignore_errors=True)
        shutil.copytree(self.base, self.check_in, copy_function=os.link, symlinks=True)
        update(self.copy, self.check_in, SOURCES)
        (self.check_in / lab.program()).unlink()
        if complaint := make_in(self.check_in, lab.how()):
            stop(1, f'lab {lab.number}: the copy does not compile: {complaint}')
        cases = lab.fields['cases']
        failed = len(cases) - sum(map(self.passes, cases))
        shutil.rmtree(self.check_in)
        if failed:
            print(f'lab {lab.number}: not yet; {failed} of {len(cases)} hidden tests fail. What still happens:\n{lab["symptom"]}')
            sys.exit(1)
        print(f'lab {lab.number}: solved')


def try_lab(lab):
    """What is wrong with the lab; prints its row."""
    os.environ['LAB'] = str(Path(os.environ['LABS']) / f'try_{lab.number}')
    bench, wrong = Bench(lab), []

    def shown(tree):
        (tree / 'out').mkdir(exist_ok=True)
        for name in GIVEN:
            shutil.copy(HERE / name, tree)
        done = subprocess.run(['bash', '-c', '\n'.join(lab.commands)], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', timeout=600)
        return re.search(lab['sees'], re.sub(r'[\r\n]', ' ', done.stdout))

    def verdict():
        return subprocess.run([sys.executable, __file__, 'check', str(lab.number)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True).stdout

    shutil.rmtree(bench.copy, ignore_errors=True)
    bench.start()
    bench.lock.close()   # for the checks
    wrong += [] if shown(bench.copy) else ['the symptom does not show']
    wrong += ['the symptom shows without the error'] if shown(bench.base) else []
    wrong += [] if f'lab {lab.number}: not yet' in verdict() else ['no "not yet"']
    shutil.copy(ROOT / lab.file, bench.copy / lab.file)
    wrong += [] if f'lab {lab.number}: solved' in verdict() else ['not solved']
    shutil.rmtree(bench.copy)
    print(f'| {lab.number} | {lab.level} | {lab.title} |', *wrong)
    return wrong


def main():
    os.chdir(ROOT)
    labs, (job, *words) = all_labs(), sys.argv[1:] or ['']
    os.environ['OMP_WAIT_POLICY'] = 'passive'   # threads that spin while they wait slow a busy machine down
    if job == 'list':
        for lab in labs.values():
            print(f'{lab.number:3}  {lab.level:7} {lab.title}')
        print('make lab N=1 plants the first; dev/labs/README.md says how to go on.')
        return
    if job == 'try':
        os.environ.setdefault('LABS', 'out/labs_tried')
        sys.exit(any([try_lab(labs[int(word)]) for word in words or labs]))
    if job not in ('start', 'hint', 'check') or len(words) != 1:
        stop(2, 'usage: dev/labs/lab.py list | start NUMBER | hint NUMBER | check NUMBER | try [NUMBER...]')
    if not words[0]:
        stop(2, 'which lab? Give its number, for instance N=1; make labs lists them')
    if not words[0].isdigit() or int(words[0]) not in labs:
        stop(2, f'there is no lab {words[0]}: they go from 1 to {len(labs)} (make labs)')
    lab = labs[int(words[0])]
    if job == 'hint':
        print(lab['hint'])
    else:
        Bench(lab).start() if job == 'start' else Bench(lab).check()


if __name__ == '__main__':
    try:
        main()
    except OSError as error:
        print(f'{error.filename}: {error.strerror}; choose another folder with LABS=FOLDER', file=sys.stderr)
        sys.exit(1)
