"""Running trainers: several at once, a GPU or some threads each, with progress over all and an orderly end.

Ctrl-C (or SIGTERM) is forwarded to the trainers, which save a checkpoint and end with code 75. No run starts after it, and the ledger
gets a line for each stopped one; a second call resumes them.
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

from ledger import Lock, flat, machine_lock, run_lock
from packages import EXIT_SIGNAL, HERE, ROOT, Refused
from results import first, last_step, read_log, result_of

EXIT_NOT_FINITE = 5
TURNS = HERE / 'turns.py'   # interleaved times


@dataclass
class Place:
    """Devices for one run at a time."""
    devices: str = ''  # CUDA_VISIBLE_DEVICES; '' on a CPU
    threads: int = 1
    ranks: int = 1


def places(jobs, ranks, on_cpu=False):
    """One for each GPU (or group of as many as there are ranks), else `jobs` shares of the processors."""
    gpus = [] if on_cpu else visible_gpus()
    groups = [','.join(gpus[i:i + ranks]) for i in range(0, len(gpus) - ranks + 1, ranks)]
    if gpus and not groups: raise Refused(f'--ranks {ranks}: this machine shows {len(gpus)} GPUs')
    if gpus: return [Place(group, 0, ranks) for group in groups[:jobs or len(groups)]]
    jobs = jobs or 1
    return [Place('', max(1, len(os.sched_getaffinity(0)) // (jobs * ranks)), ranks)] * jobs


def visible_gpus():
    """Numbers of the GPUs that programs may use."""
    if 'CUDA_VISIBLE_DEVICES' in os.environ:
        return [number for number in os.environ['CUDA_VISIBLE_DEVICES'].split(',') if number]
    if not shutil.which('nvidia-smi'): return []
    listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True)
    found = sum(line.startswith('GPU ') for line in listed.stdout.splitlines()) if not listed.returncode else 0
    return [str(n) for n in range(found)]


@dataclass
class Child:
    """A running trainer."""
    run: object
    lock: Lock
    place: Place
    process: subprocess.Popen
    folder: Path
    begun: float
    told: bool = False  # to stop: a second SIGINT would kill it


def weights_of(out, run):
    """The checkpoint of a finished run."""
    return Path(out) / 'runs' / run.key / f'step_{run.steps:08d}'


def has_weights(out, run):
    return (weights_of(out, run) / 'manifest.json').exists()


class Jobs:
    """Performs runs of a session. With `again`, finished runs are repeated for their weights. With `alone`, no other run of this OUT
    is on the machine meanwhile."""

    def __init__(self, session, say=print, keep_weights=False, again=False, alone=False):
        self.session, self.ledger, self.out, self.say = session, session.ledger, session.out, say
        self.free = list(session.alone if alone else session.at)
        self.keep_weights, self.again, self.total_places = keep_weights, again, len(self.free)
        self.machine = machine_lock(self.out / 'locks', session.options.machine, alone)
        self.children, self.stopping = [], None

    # ---- the loop

    def perform(self, runs):
        """Perform the unfinished runs. True when all are finished; False after a signal or a failure."""
        waiting = [run for run in runs if not self._is_done(run)]
        self.done_here, self.count, told = len(runs) - len(waiting), len(runs), time.time()
        pause = 0.05 if sum(run.seconds for run in waiting) < 60 else 0.3
        if self.done_here: self.say(f'{self.done_here} of {len(runs)} runs are finished already')
        handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            while waiting and not self.stopping and not self.machine.take(): time.sleep(0.2)
            while self.children or (waiting and not self.stopping):
                waiting = self._start(waiting)
                self._collect()
                if time.time() - told > (1 if sys.stderr.isatty() else 30):
                    told = time.time()
                    self._progress(waiting)
                time.sleep(pause)
        finally:
            self._wait_for_all()
            self.machine.release()
            for s, handler in handlers.items(): signal.signal(s, handler)
        return not self.stopping and all(map(self._is_done, runs))

    def _is_done(self, run):
        return run.key in self.ledger.finished and (not self.again or has_weights(self.out, run))

    def _on_signal(self, number, _):
        self.stopping = number
        for child in self.children: self._forward(child)

    def _forward(self, child):
        """Open MPI kills its ranks soon after signals other than SIGUSR1, before they have saved."""
        if not child.told: child.process.send_signal(signal.SIGUSR1 if child.place.ranks > 1 else signal.SIGINT)
        child.told = True

    def _wait_for_all(self):
        """After an error here: let the trainers save."""
        for child in self.children: self._forward(child)
        for child in self.children:
            child.process.wait()
            child.lock.release()
        self.children = []

    def _start(self, waiting):
        """Start runs that no other process holds in free places; return those that still wait."""
        later = []
        for run in waiting:
            lock = run_lock(self.out / 'locks', run.key)
            if self.stopping or not self.free or not lock.take():
                lock.release()
                later.append(run)
                continue
            self.ledger.refresh()
            if self._is_done(run) or self._harvest(run):
                lock.release()
                self.done_here += 1
                continue
            self.children.append(self._spawn(run, lock, self.free.pop(0)))
        if not later or self.children or self.stopping: return later
        time.sleep(0.5)  # another run.py has them all
        self.ledger.refresh()
        left = [run for run in later if not self._is_done(run)]
        self.done_here += len(later) - len(left)
        return left

    def _harvest(self, run):
        """Enter a run without starting it: its trainer outlived its run.py and has finished, or the run it starts from diverged."""
        folder = self.out / 'runs' / run.key
        if lost := [origin.name for origin in run.origins if self.ledger.finished[origin.key]['event'] == 'diverged']:
            self._enter(run, 'diverged', result_of(folder), f'the run that it starts from diverged ({lost[0]})')
            return True
        if self.again or run.kind != 'train' or not first(read_log(folder / 'log.jsonl'), 'done'): return False
        self._finish(run, folder, 0)
        return True

    # ---- commands

    def _words(self, run, folder, place):
        """The command of a run."""
        at = ({'threads': place.threads} if place.threads else {}) | ({} if place.devices else {'device': 'cpu'})
        timed = [sys.executable, str(TURNS), '--log', str(folder / 'log.jsonl')]
        if run.kind == 'writes':
            return [*timed, '--generate', *(shlex.join(self._generator(one, at)) for one in (run.against, run))]
        where = self.session.command(run) | {'out': str(folder)} | at
        if run.kind == 'turns':
            return [*timed, *(shlex.join(self._program(f'train_{one.variant}', one.options | where)) for one in (run.against, run))]
        mode = {'resume': 'true'} if run.kind == 'train' else {'evaluate': 'true', 'eval-log': str(folder / 'log.jsonl')}
        command = self._program(f'train_{run.variant}', mode | run.options | where)
        return ['mpirun', '-np', str(place.ranks), *command] if place.ranks > 1 else command

    def _generator(self, run, at):
        of_run = {name: value for name, value in run.options.items() if name != 'prompt'}   # the prompt is a file
        return self._program('generate', self.session.command(run) | of_run | at | {'ignore-eos': 'true', 'print-ids': 'true'})

    def _program(self, name, options):
        program = self.session.programs / name
        if not program.exists(): raise Refused(f'{program} is not there; make {name} builds it')
        return [str(program), *(f'--{name}={value}' for name, value in options.items())]

    def _spawn(self, run, lock, place):
        folder = self.out / 'runs' / run.key
        folder.mkdir(parents=True, exist_ok=True)
        command = self._words(run, folder, place)
        environment = os.environ | ({'CUDA_VISIBLE_DEVICES': place.devices} if place.devices else {'OMP_WAIT_POLICY': 'passive'})
        portable = (anywhere(word, self.out, self.session.data.given, self.session.programs) for word in command)
        self.ledger.append('start', key=run.key, name=run.name, command=shlex.join(portable))
        with open(folder / 'stdout.txt', 'ab' if run.kind == 'train' else 'wb') as out, open(folder / 'stderr.txt', 'wb') as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment,
                                       start_new_session=True, pass_fds=[lock.descriptor])
        child = Child(run, lock, place, process, folder, time.time())
        if self.stopping: self._forward(child)  # a signal came during the start
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
        """Append the record of a run that ended, with the reason where it is not done."""
        fields, rest = flat(status, run.options, result)
        fields = {'key': run.key, **run.labels, 'variant': run.variant, 'kind': run.kind, **fields, **self.session.record(run),
                  'command': self.ledger.commands.get(run.key, ''), 'options': run.options, **more, 'result': rest}
        if run.origin: fields['origin'] = run.origin.key
        self.ledger.append(status, **fields, **({'why': why} if why else {}))

    def _finish(self, run, folder, code, told=False, seconds=0.0):
        """Record a trainer that has ended."""
        result = result_of(folder, text_of(folder / 'stdout.txt'))
        if run.kind != 'train': result['seconds'] = round(seconds, 3)
        diverged = result.pop('diverged', '') or ('a loss is not finite' if code else '')
        if code in (0, EXIT_NOT_FINITE):
            if self.again:   # its result is in the ledger already
                before, now = self.ledger.finished[run.key]['weights_hash'], result['weights_hash']
                self.ledger.append('again', key=run.key, weights_hash=now)
                if before != now:
                    self.say(f'{run.name}: has other weights than the ledger says ({before}): another machine or number of threads')
            else: self._enter(run, 'diverged' if diverged else 'done', result, diverged)
            self.done_here += 1
            loss = 'done' if result['val_loss'] is None else f'validation {result["val_loss"]:.4f}'
            self.say(f'[{self.done_here}/{self.count}] {run.name}: {f"diverged: {diverged}" if diverged else loss}, '
                     f'{result["seconds"]:.0f} s')
            if not self.keep_weights:
                for checkpoint in folder.glob('step_*'): shutil.rmtree(checkpoint, ignore_errors=True)
        elif code == EXIT_SIGNAL or (told and code < 0):  # < 0: before it handled signals
            step = last_step(folder / 'log.jsonl')
            self.ledger.append('stopped', key=run.key, step=step)
            self.say(f'stopped: {run.name}, after step {step}; the same command goes on')
        else:
            lines = text_of(folder / 'stderr.txt').strip().splitlines()
            why = lines[-1] if lines else f'ended by signal {-code}' if code < 0 else f'ended with code {code}'
            self._enter(run, 'failed', result, why, code=code)
            self.say(f'FAILED: {run.name}: {why} ({folder}/stderr.txt)')

    def _progress(self, waiting):
        """Print the finished part of all runs, and the time that the rest should take."""
        left, parts = sum(run.seconds for run in waiting), []
        for child in self.children:
            share = min(1.0, last_step(child.folder / 'log.jsonl') / max(1, child.run.steps))
            spent = time.time() - child.begun
            left += spent * (1 - share) / share if share > 0.05 else child.run.seconds * (1 - share)
            parts.append(f'{child.run.arm} seed {child.run.seed} {100 * share:.0f}%')
        words = f'{self.done_here}/{self.count} runs, {human_time(left / max(1, self.total_places))} left: {", ".join(parts)}'
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
