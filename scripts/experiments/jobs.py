"""Runs trainers, several at once: a GPU or some threads each, progress over all, and an orderly end.

Ctrl-C (or SIGTERM) is passed on to the trainers, which save a checkpoint and end with code 75; nothing new is started, and the
ledger gets a line for each. A second call goes on from there.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ledger import MachineLock, RunLock, flat
from packages import EXIT_SIGNAL, Refused
from prepare import ROOT
from results import is_finished, last_step, read_log, result_of

EXIT_NOT_FINITE = 5
HERE = Path(__file__).resolve().parent
TURNS, WRITING = HERE / 'turns.py', HERE / 'writing.py'   # what takes times: of trainers, and of ./generate


@dataclass
class Place:
    """Where one run at a time may work."""

    devices: str = ''  # CUDA_VISIBLE_DEVICES; '' on a CPU
    threads: int = 1
    ranks: int = 1


def places(jobs, ranks, on_cpu=False):
    """One for each GPU (or group of as many as there are ranks), else `jobs` shares of the processors."""
    gpus = [] if on_cpu else visible_gpus()
    if gpus:
        groups = [','.join(gpus[i : i + ranks]) for i in range(0, len(gpus) - ranks + 1, ranks)]
        if not groups:
            raise Refused(f'--ranks {ranks}: this machine shows {len(gpus)} GPUs')
        return [Place(group, 0, ranks) for group in groups[: jobs or len(groups)]]
    jobs = jobs or 1
    return [Place('', max(1, len(os.sched_getaffinity(0)) // (jobs * ranks)), ranks) for _ in range(jobs)]


def visible_gpus():
    """Numbers of the GPUs that programs may use."""
    if 'CUDA_VISIBLE_DEVICES' in os.environ:
        return [number for number in os.environ['CUDA_VISIBLE_DEVICES'].split(',') if number]
    if not shutil.which('nvidia-smi'):
        return []
    listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True)
    return (
        [str(n) for n in range(sum(line.startswith('GPU ') for line in listed.stdout.splitlines()))]
        if not listed.returncode
        else []
    )


@dataclass
class Child:
    """A trainer that is running."""

    run: object
    lock: RunLock
    place: Place
    process: subprocess.Popen
    folder: Path
    begun: float
    told: bool = False  # to stop: a second SIGINT would kill it


def weights_of(out, run):
    """The checkpoint that a finished run leaves."""
    return Path(out) / 'runs' / run.key / f'step_{run.steps:08d}'


def has_weights(out, run):
    return (weights_of(out, run) / 'manifest.json').exists()


class Jobs:
    """Does the runs of a plan. `command(run)` are the options that say where things are; `record` is added to every result. With
    `again`, runs that are finished are done once more for their weights. With `alone`, nothing else runs on `machine` meanwhile."""

    def __init__(self, ledger, out, at, command, programs, record, keep_weights=False, say=print, again=False, machine='',
                 alone=False, data=None):
        self.ledger, self.out, self.data, self.free = ledger, Path(out), data, list(at)
        self.command, self.programs, self.record = command, Path(programs), record
        self.keep_weights, self.say, self.again = keep_weights, say, again
        self.machine = MachineLock(self.out / 'locks', machine, alone)
        self.children, self.stopping, self.failed = [], None, []
        self.total_places = len(at)

    # ---- the loop

    def perform(self, runs):
        """Does what is not finished. True when all are; False after a signal or when some failed."""
        waiting = [run for run in runs if not self._is_done(run) and run.key not in self.failed]
        already, self.count, begun = len(runs) - len(waiting), len(runs), time.time()
        self.expected_total = sum(run.seconds for run in waiting)
        self.done_here = already
        if already:
            self.say(f'{already} of {len(runs)} runs are finished already')
        handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        spoken = begun
        try:
            while waiting and not self.stopping and not self.machine.take():
                time.sleep(0.2)
            while self.children or (waiting and not self.stopping):
                waiting = self._start(waiting)
                self._collect()
                if time.time() - spoken > 30 or (sys.stderr.isatty() and time.time() - spoken > 1):
                    spoken = time.time()
                    self._progress(waiting)
                time.sleep(0.05 if self.expected_total < 60 else 0.3)
        finally:
            self._wait_for_all()
            self.machine.release()
            for s, handler in handlers.items():
                signal.signal(s, handler)
        return not self.stopping and all(map(self._is_done, runs))

    def _is_done(self, run):
        return run.key in self.ledger.finished and (not self.again or has_weights(self.out, run))

    def _on_signal(self, number, _):
        self.stopping = number
        for child in self.children:
            self._forward(child)

    def _forward(self, child):
        """Open MPI kills its ranks soon after other signals, before they could save."""
        if not child.told:
            child.process.send_signal(signal.SIGUSR1 if child.place.ranks > 1 else signal.SIGINT)
        child.told = True

    def _wait_for_all(self):
        """After an error here: trainers save, and the ledger says so if it can."""
        for child in self.children:
            self._forward(child)
        for child in self.children:
            child.process.wait()
            child.lock.release()
        self.children = []

    def _start(self, waiting):
        """Gives free places to runs that nobody else does; returns those that still wait."""
        later = []
        for run in waiting:
            if self.stopping or not self.free:
                later.append(run)
                continue
            lock = RunLock(self.out / 'locks', run.key)
            if not lock.held:  # another run.py does it
                later.append(run)
                continue
            self.ledger.refresh()
            if self._is_done(run) or self._harvest(run):
                lock.release()
                self.done_here += 1
                continue
            self.children.append(self._spawn(run, lock, self.free.pop(0)))
        if later and not self.children and not self.stopping:
            time.sleep(0.5)  # for another run.py
            self.ledger.refresh()
            done = [run for run in later if self._is_done(run)]
            self.done_here += len(done)
            later = [run for run in later if run not in done]
        return later

    def folder(self, run):
        return self.out / 'runs' / run.key

    def _harvest(self, run):
        """A trainer that outlived its run.py has finished without a line in the ledger; a run whose origin diverged has no result
        to wait for."""
        for origin in run.origins:
            if self.ledger.finished[origin.key]['event'] == 'diverged':
                self._enter(run, 'diverged', result_of(self.folder(run)), f'the run that it starts from diverged ({origin.name})')
                return True
        if self.again or run.kind != 'train' or not is_finished(read_log(self.folder(run) / 'log.jsonl')):
            return False
        self._finish(run, self.folder(run), 0)
        return True

    def _words(self, run, folder, place):
        """The command of a run."""
        at = ({'threads': place.threads} if place.threads else {}) | ({} if place.devices else {'device': 'cpu'})
        if run.kind == 'writes':
            return [sys.executable, str(WRITING), '--log', str(folder / 'log.jsonl'),
                    *(shlex.join(self._generator(one, at)) for one in (run.against, run))]
        where = self.command(run) | {'out': str(folder)} | at
        if run.kind == 'turns':
            return [sys.executable, str(TURNS), '--log', str(folder / 'log.jsonl'),
                    *(shlex.join(self._trainer(one, one.options | where)) for one in (run.against, run))]
        first = {'resume': 'true'} if run.kind == 'train' else {'evaluate': 'true', 'eval-log': str(folder / 'log.jsonl')}
        command = self._trainer(run, first | run.options | where)
        return ['mpirun', '-np', str(place.ranks), *command] if place.ranks > 1 else command

    def _trainer(self, run, options):
        return self._program(f'train_{run.variant}', options)

    def _generator(self, run, at):
        of_run = {name: value for name, value in run.options.items() if name != 'prompt'}   # the prompt is a file
        return self._program('generate', self.command(run) | of_run | at | {'ignore-eos': 'true', 'print-ids': 'true'})

    def _program(self, name, options):
        program = self.programs / name
        if not program.exists():
            raise Refused(f'{program} is not there; make {name} builds it')
        return [str(program), *(f'--{name}={value}' for name, value in options.items())]

    def _spawn(self, run, lock, place):
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        command = self._words(run, folder, place)
        environment = os.environ | ({'CUDA_VISIBLE_DEVICES': place.devices} if place.devices else {'OMP_WAIT_POLICY': 'passive'})
        self.ledger.append('start', key=run.key, name=run.name, command=shlex.join(anywhere(word, self.out, self.data, self.programs) for word in command))
        with open(folder / 'stdout.txt', 'ab' if run.kind == 'train' else 'wb') as out, open(folder / 'stderr.txt', 'wb') as err:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
                pass_fds=[lock.descriptor],
            )
        child = Child(run, lock, place, process, folder, time.time())
        if self.stopping:
            self._forward(child)  # a signal came while it was being started
        return child

    # ---- ends

    def _collect(self):
        for child in [c for c in self.children if c.process.poll() is not None]:
            self.children.remove(child)
            try:
                self._finish(child.run, child.folder, child.process.returncode, child.told, time.time() - child.begun)
            finally:
                child.lock.release()
                self.free.insert(0, child.place)

    def _enter(self, run, status, result, why='', **more):
        """The ledger's line for a run that ended, and why where it is not done."""
        fields, rest = flat(status, run.options, result)
        fields = {'key': run.key, **run.labels, 'variant': run.variant, 'kind': run.kind, **fields, **self.record(run),
                  'command': self.ledger.commands.get(run.key, ''), 'options': run.options, **more, 'result': rest}
        if run.origin: fields['origin'] = run.origin.key
        self.ledger.append(status, **fields, **({'why': why} if why else {}))

    def _enter_again(self, run, result):
        """The line for a run whose result is in the ledger already."""
        before = self.ledger.finished[run.key]['weights_hash']
        self.ledger.append('again', key=run.key, weights_hash=result['weights_hash'])
        if before != result['weights_hash']:
            self.say(f'{run.name}: has other weights than the ledger says ({before}): another machine or number of threads')

    def _finish(self, run, folder, code, told=False, seconds=0.0):
        """The ledger's line for a trainer that has ended."""
        printed = (folder / 'stdout.txt').read_text(errors='replace') if (folder / 'stdout.txt').exists() else ''
        result = result_of(folder, printed)
        if run.kind != 'train': result['seconds'] = round(seconds, 3)
        diverged = result.pop('diverged', '')
        if code == 0 or code == EXIT_NOT_FINITE:
            why = diverged or ('a loss is not finite' if code else '')
            if self.again: self._enter_again(run, result)
            else: self._enter(run, 'diverged' if why else 'done', result, why)
            self.done_here += 1
            loss = (
                'diverged: ' + why if why else f'validation {result["val_loss"]:.4f}' if result['val_loss'] is not None else 'done'
            )
            self.say(f'[{self.done_here}/{self.count}] {run.name}: {loss}, {result["seconds"]:.0f} s')
            if not self.keep_weights:
                for checkpoint in folder.glob('step_*'):
                    shutil.rmtree(checkpoint, ignore_errors=True)
        elif code == EXIT_SIGNAL or (told and code < 0):  # < 0: before it was ready for signals
            self.ledger.append('stopped', key=run.key, step=last_step(folder / 'log.jsonl'))
            self.say(f'stopped: {run.name}, after step {last_step(folder / "log.jsonl")}; the same command goes on')
        else:
            lines = (
                (folder / 'stderr.txt').read_text(errors='replace').strip().splitlines() if (folder / 'stderr.txt').exists() else []
            )
            why = lines[-1] if lines else f'ended by signal {-code}' if code < 0 else f'ended with code {code}'
            self.failed.append(run.key)
            self._enter(run, 'failed', result, why, code=code)
            self.say(f'FAILED: {run.name}: {why} ({folder}/stderr.txt)')

    # ---- progress

    def _progress(self, waiting):
        """How far all runs are, and how long the rest takes if it goes on as expected."""
        left, parts = sum(run.seconds for run in waiting), []
        for child in self.children:
            step = last_step(child.folder / 'log.jsonl')
            share = min(1.0, step / max(1, child.run.steps))
            spent = time.time() - child.begun
            left += spent * (1 - share) / share if share > 0.05 else child.run.seconds * (1 - share)
            parts.append(f'{child.run.arm} seed {child.run.seed} {100 * share:.0f}%')
        words = f'{self.done_here}/{self.count} runs, {human_time(left / max(1, self.total_places))} left: {", ".join(parts)}'
        if sys.stderr.isatty():
            print(f'\r\033[K{words[:120]}', end='', file=sys.stderr, flush=True)
        else:
            self.say(words)


def anywhere(word, out, data=None, programs=ROOT):
    """A word of a command with paths as seen from the tree, where programs are, OUT for the folder of runs, DATA for that of --data, and
    python3 for the interpreter wherever it is: a ledger names no machine's folders."""
    if word == sys.executable: return 'python3'
    for folder, name in ((data, 'DATA'), (programs, '.'), (ROOT, '.'), (out.absolute(), 'OUT')):
        if folder: word = str(word).replace(f'{folder}/', f'{name}/')
    return word


def human_time(seconds):
    """Seconds as one would say them."""
    if seconds < 90:
        return f'{seconds:.0f} s'
    if seconds < 5400:
        return f'{seconds / 60:.0f} min'
    return f'{seconds / 3600:.1f} h'
