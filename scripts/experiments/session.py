"""A session: the ledger, data, programs and devices that all experiments of a call share, and the expected times of runs."""
import os
import subprocess
from pathlib import Path
from statistics import median

from jobs import has_weights, places, weights_of
from ledger import Ledger, key_of
from packages import EXIT_DATA, ROOT, Refused
from plan import TIMED
from prepare import Data, engine_commit
from results import flops_of, table_rows


class Session:
    """Made from the options of run.py."""

    def __init__(self, options):
        self.options = options
        self.out = Path(options.out).resolve()
        self.ledger = Ledger(options.ledger or self.out / 'ledger.jsonl')
        self.data, self.commit = Data(self.out, options.data), engine_commit()
        self.programs = Path(options.programs or ROOT).resolve()
        jobs = options.jobs   # by default one run per processor at scale smoke, whose runs take a second
        if not jobs and options.scale == 'smoke': jobs = max(1, len(os.sched_getaffinity(0)) // options.ranks)
        self.at = places(jobs, options.ranks, options.cpu)
        self.alone = places(1, options.ranks, options.cpu)[:1]   # for time measurements: all processors, or the first GPU
        self.planned = set()           # keys that Work.describe() has counted
        self._printed = {}             # by programs with --dry-run
        self._times, self._counted = {}, -1

    def identify(self, run):
        """Set the keys of a run and of those that it needs, and its expected time."""
        identity = run.options | {'half': run.half}
        if self.options.ranks > 1: identity['ranks'] = self.options.ranks
        if run.kind != 'train': identity['kind'] = run.kind
        if run.origin: identity['origin'] = self.identify(run.origin).key
        if run.against: identity['against'] = [run.against.variant, {k: str(v) for k, v in run.against.options.items()}]
        if run.against and run.against.origin: identity['against'].append(self.identify(run.against.origin).key)
        run.key = key_of(run.variant, identity, self.commit, self.data.hash_of(run))
        if (measured := self._seconds(run)) is not None: run.seconds, run.measured = measured, True
        return run

    def _seconds(self, run):
        """Expected seconds by the median of finished runs of this shape, None without any."""
        if self._counted != len(self.ledger.finished):
            self._counted, self._times = len(self.ledger.finished), {}
            for r in self.ledger.finished.values():
                kind = r.get('kind', 'train')
                time = r['result'].get('ms' if kind == 'train' else 'seconds')
                where = str((shape_of(r.get('variant'), r.get('options', {})), r.get('place'), kind))
                if time: self._times.setdefault(where, []).append(time)
        found = self._times.get(str((shape_of(run.variant, run.options), self._place(run), run.kind)))
        return found and median(found) * (run.steps / 1e3 if run.kind == 'train' else 1)

    def _place(self, run):
        """Machine and devices, which decide step times."""
        at = self.alone if run.kind in TIMED else self.at
        kind = 'gpu' if at[0].devices else f'{at[0].threads} threads'
        return f'{self.options.machine}, {len(at)} x {kind}' + (f', {at[0].ranks} ranks' if at[0].ranks > 1 else '')

    def command(self, run):
        """Options that name the files of a run on this machine."""
        if run.origin and not has_weights(self.out, run.origin):
            raise Refused(f'{run.name}: the weights of {run.origin.name} are not in {self.out}; run.py without --stage makes them',
                          EXIT_DATA)
        if run.kind == 'writes':
            return {'checkpoint': str(weights_of(self.out, run.origin)), 'prompts': str(self.data.prompt(run))}
        options = self.data.options(run)
        if run.shape: options['model'] = self.data.model(run)
        if run.released: options['model'] = str(self.data.released(run))
        if run.origin: options |= {'model': str(weights_of(self.out, run.origin)), 'allow-new-tensors': 'true'}
        return options

    def record(self, run):
        """The provenance of a run."""
        commit, _, changes = self.commit.partition('+')
        return {'commit': commit, 'dirty': bool(changes), 'data_hash': self.data.hash_of(run), 'place': self._place(run)}

    def printed(self, run):
        """{row: value} that the trainer prints with --dry-run; None where it is not built. Refuses options that it does not take."""
        program, asked = self.programs / f'train_{run.variant}', str(shape_of(run.variant, run.options))
        if asked not in self._printed:
            if not program.exists(): return None
            model = self.data.model(run) if run.shape else run.options['model']
            words = [f'--{k}={v}' for k, v in run.options.items() if k not in ('model', 'seed', 'lr')]
            done = subprocess.run([str(program), '--dry-run', '--val-every=0', f'--model={model}', *words],
                                  capture_output=True, text=True, cwd=ROOT)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ['no output'])[-1]
                raise Refused(f'{run.experiment}, arm {run.arm} at scale {run.scale}: {program.name} cannot be run as planned: {why}')
            self._printed[asked] = table_rows(done.stdout)
        return self._printed[asked]

    def flops(self, run):
        """FLOPs of a token as the trainer counts them, None where it is not built."""
        rows = self.printed(run)
        return rows and flops_of(rows)


def shape_of(variant, options):
    """What the time of a step depends on: everything but seed, rate and lengths of the run."""
    without = ('seed', 'lr', 'steps', 'warmup-steps', 'val-every', 'val-batches', 'checkpoint-every')
    return variant, {k: str(v) for k, v in options.items() if k not in without}
