"""Performing runs: several at once, a GPU or some threads each, with progress over all and an orderly end.

Ctrl-C (or SIGTERM) is forwarded to the trainers, which save a checkpoint and end with code 75. No run starts after it, and the ledger
gets a line for each stopped one; a second call resumes them.
"""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from ledger import flat, lock
from packages import EXIT_SIGNAL, HERE, ROOT, Refused
from results import last_step, result_of

EXIT_NOT_FINITE = 5
TURNS = HERE / 'turns.py'   # interleaved times
PAUSE = 0.05                # seconds between two looks at a program


class Place(NamedTuple):
    """Devices for one run at a time; several places may share a GPU."""
    devices: str = ''  # CUDA_VISIBLE_DEVICES; '' on a CPU
    threads: int = 1
    ranks: int = 1


def places(jobs, ranks, on_cpu=False):
    """`jobs` of them, or one for each GPU (or group of as many as there are ranks), which more jobs share; shares of the processors on
    a CPU."""
    if not on_cpu and (gpus := visible_gpus()):
        groups = [','.join(gpus[i:i + ranks]) for i in range(0, len(gpus) - ranks + 1, ranks)]
        if not groups: raise Refused(f'--ranks {ranks}: this machine shows {len(gpus)} GPUs')
        return [Place(groups[n % len(groups)], 0, ranks) for n in range(jobs or len(groups))]
    jobs = jobs or 1
    return [Place('', max(1, len(os.sched_getaffinity(0)) // (jobs * ranks)), ranks)] * jobs


def visible_gpus():
    """Numbers of the GPUs that programs may use."""
    if 'CUDA_VISIBLE_DEVICES' in os.environ:
        return [number for number in os.environ['CUDA_VISIBLE_DEVICES'].split(',') if number]
    if not shutil.which('nvidia-smi'): return []
    listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True)   # prints an error without a driver
    return [str(n) for n in range(len(re.findall('^GPU ', listed.stdout, re.MULTILINE)))]


def weights_of(out, run, step=0):
    """The last checkpoint of a finished run, or that of a step."""
    return Path(out) / 'runs' / run.key / f'step_{step or run.steps:08d}'


class Jobs:
    """Performs runs of a session, one thread for each place. With `alone`, no other run of this OUT is on the machine meanwhile.
    `mutex` guards the ledger and what the threads share."""

    def __init__(self, session, say=print, kept=(), alone=False):
        self.session, self.ledger, self.out, self.say = session, session.ledger, session.out, say
        self.kept, self.alone, self.places = kept, alone, session.alone if alone else session.at
        self.mutex, self.stopping, self.running = threading.Lock(), None, {}   # running: run -> when it began

    def perform(self, runs):
        """Perform the unfinished runs. True when all are finished; False after a signal or a failure."""
        self.waiting = [run for run in runs if run.key not in self.ledger.finished]
        self.count = len(runs)
        if len(self.waiting) < self.count: self.say(f'{self.count - len(self.waiting)} of {self.count} runs are finished already')
        if not self.waiting: return True
        handlers = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        machine = None
        try:
            while not self.stopping and not machine:
                machine = lock(self.out / f'locks/machine-{self.session.options.machine}.lock', shared=not self.alone)
                if not machine: time.sleep(0.2)
            with futures.ThreadPoolExecutor(len(self.places)) as pool:
                working = [pool.submit(self._work, place) for place in self.places]
                while futures.wait(working, 1 if sys.stderr.isatty() else 30).not_done: self._tell_progress()
            for one in working: one.result()   # raises what a thread has raised
        finally:
            if machine: machine.close()
            for s, handler in handlers.items(): signal.signal(s, handler)
        return not self.stopping and all(run.key in self.ledger.finished for run in runs)

    def _stop(self, number=signal.SIGTERM, _=None):
        self.stopping = number

    def _work(self, place):
        """Perform waiting runs in a place until there are none."""
        try:
            while self.waiting and not self.stopping:
                run, taken = self._take()
                if not run: time.sleep(0.5)   # other calls have all of them
                else:
                    with taken: self._perform(run, place, taken)
        except BaseException:
            self._stop()   # the trainers of other threads save
            raise

    def _take(self):
        """The first waiting run that no other call performs, and its lock."""
        with self.mutex:
            for run in self.waiting:
                if taken := lock(self.out / f'locks/{run.key}.lock'):
                    self.waiting.remove(run)
                    return run, taken
        return None, None

    def _perform(self, run, place, taken):
        """Start a run unless another call has finished it, wait for it, and record how it ended."""
        folder = self.out / 'runs' / run.key
        with self.mutex:
            self.ledger.refresh()
            if run.key in self.ledger.finished: return
            if lost := [origin.name for origin in run.origins if self.ledger.finished[origin.key]['event'] == 'diverged']:
                self._enter(run, 'diverged', result_of(folder), f'the run that it starts from diverged ({lost[0]})')
                return
            process = self._start(run, folder, place, taken)
            self.running[run], told = time.time(), False
        while process.poll() is None:
            if self.stopping and not told:   # a second SIGINT kills a trainer; Open MPI kills its ranks after all but SIGUSR1
                process.send_signal(signal.SIGUSR1 if place.ranks > 1 else signal.SIGINT)
                told = True
            time.sleep(PAUSE)
        with self.mutex: self._finish(run, folder, process.returncode, told, time.time() - self.running.pop(run))

    def _start(self, run, folder, place, taken):
        """The process of a run, which holds the lock even if this one is killed."""
        folder.mkdir(parents=True, exist_ok=True)
        command = self._words(run, folder, place)
        environment = os.environ | ({'CUDA_VISIBLE_DEVICES': place.devices} if place.devices else {'OMP_WAIT_POLICY': 'passive'})
        portable = (anywhere(word, self.out, self.session.data.given, self.session.programs) for word in command)
        self.ledger.append('start', key=run.key, name=run.name, command=shlex.join(portable))
        with open(folder / 'stdout.txt', 'ab' if run.kind == 'train' else 'wb') as out, open(folder / 'stderr.txt', 'wb') as err:
            return subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment,
                                    start_new_session=True, pass_fds=[taken.fileno()])

    def _words(self, run, folder, place):
        """The command of a run."""
        at = ({'threads': place.threads} if place.threads else {}) | ({} if place.devices else {'device': 'cpu'})
        timed = [sys.executable, str(TURNS), '--log', str(folder / 'log.jsonl')]
        if run.kind == 'writes':
            return [*timed, '--generate', *(shlex.join(self._generator(one, at)) for one in (run.against, run))]
        where = self.session.command(run) | {'out': str(folder)} | at
        if run.kind == 'turns':
            both = (self._program(f'train_{one.variant}', one.options | where) for one in (run.against, run))
            return [*timed, '--steps', str(run.steps), *map(shlex.join, both)]
        if run.kind != 'train': mode = {'evaluate': 'true', 'eval-log': str(folder / 'log.jsonl')}
        elif run.resumes_at and not any(folder.glob('step_*')): mode = {}
        else:
            mode = {'resume': 'true'}
            where.pop('checkpoint', None)   # a cool-down that was stopped goes on from its own
        command = self._program(f'train_{run.variant}', mode | run.options | where)
        return ['mpirun', '-np', str(place.ranks), *command] if place.ranks > 1 else command

    def _generator(self, run, at):
        """The command of ./generate in a run of `writes`, whose prompt is a file."""
        options = self.session.command(run) | run.options | at | {'ignore-eos': 'true', 'print-ids': 'true'}
        del options['prompt']
        return self._program('generate', options)

    def _program(self, name, options):
        program = self.session.programs / name
        if not program.exists(): raise Refused(f'{program} is not there; make {name} builds it')
        return [str(program), *(f'--{name}={value}' for name, value in options.items())]

    def _enter(self, run, status, result, why='', **more):
        """Append the record of a run that ended, with the reason where it is not done."""
        fields, rest = flat(status, run.options, result)
        fields = {'key': run.key, **run.labels, 'variant': run.variant, 'kind': run.kind, **fields, **self.session.record(run),
                  'command': self.ledger.commands.get(run.key, ''), 'options': run.options, **more, 'result': rest}
        if run.origin: fields['origin'] = run.origin.key
        self.ledger.append(status, **fields, **({'why': why} if why else {}))

    def _finish(self, run, folder, code, told, seconds):
        """Record a program that has ended."""
        result = result_of(folder, text_of(folder / 'stdout.txt'))
        if run.kind != 'train': result['seconds'] = round(seconds, 3)
        if code in (0, EXIT_NOT_FINITE):
            diverged = result.pop('diverged', '') or ('a loss is not finite' if code else '')
            self._enter(run, 'diverged' if diverged else 'done', result, diverged)
            loss = 'done' if result['val_loss'] is None else f'validation {result["val_loss"]:.4f}'
            self.say(f'[{self._finished()}/{self.count}] {run.name}: {f"diverged: {diverged}" if diverged else loss}, '
                     f'{result["seconds"]:.0f} s')
            if run.key not in self.kept:   # keys of runs whose weights later ones start from
                for checkpoint in folder.glob('step_*'): shutil.rmtree(checkpoint, ignore_errors=True)
        elif code == EXIT_SIGNAL or (told and code < 0):  # < 0: before it handled signals
            step = last_step(folder / 'log.jsonl')
            self.ledger.append('stopped', key=run.key, step=step)
            self.say(f'stopped: {run.name}, after step {step}; the same command goes on')
        else:
            ended = f'ended by signal {-code}' if code < 0 else f'ended with code {code}'
            why = (text_of(folder / 'stderr.txt').strip().splitlines() or [ended])[-1]
            self._enter(run, 'failed', result, why, code=code)
            self.say(f'FAILED: {run.name}: {why} ({folder}/stderr.txt)')

    def _finished(self):
        return self.count - len(self.waiting) - len(self.running)

    def _tell_progress(self):
        """Print how many runs are finished, how far others are, and the time that the rest should take."""
        left, parts = sum(run.seconds for run in self.waiting), []
        for run, begun in list(self.running.items()):
            share = min(1.0, last_step(self.out / 'runs' / run.key / 'log.jsonl') / max(1, run.steps))
            left += (time.time() - begun) * (1 - share) / share if share > 0.05 else run.seconds * (1 - share)
            parts.append(f'{run.arm} seed {run.seed} {100 * share:.0f}%')
        words = f'{self._finished()}/{self.count} runs, {human_time(left / len(self.places))} left: {", ".join(parts)}'
        if sys.stderr.isatty(): print(f'\r\033[K{words[:120]}', end='', file=sys.stderr, flush=True)
        else: self.say(words)


def text_of(path):
    return path.read_text(errors='replace') if path.exists() else ''


def anywhere(word, out, data, programs):
    """A word of a command without folders of this machine: paths start at the tree or the programs (.), OUT or DATA, and the
    interpreter is python3."""
    if word == sys.executable: return 'python3'
    for folder, name in ((data, 'DATA'), (programs, '.'), (ROOT, '.'), (out.absolute(), 'OUT')):
        if folder: word = str(word).replace(f'{folder}/', f'{name}/')
    return word


def human_time(seconds):
    if seconds < 90: return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'
