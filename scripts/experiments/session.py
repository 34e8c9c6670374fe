"""A session: the ledger, data, programs and devices that all experiments of a call share."""
import os
import subprocess
from pathlib import Path

from jobs import places, weights_of
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

    def identify(self, run):
        """Set the keys of a run and of those that it needs."""
        identity = dict(run.options)
        if self.options.ranks > 1: identity['ranks'] = self.options.ranks
        if run.kind != 'train': identity['kind'] = run.kind
        if run.origin: identity['origin'] = self.identify(run.origin).key
        if run.resumes_at: identity['resumes_at'] = run.resumes_at
        if base := run.against:
            identity['against'] = [base.variant, {k: str(v) for k, v in base.options.items()}]
            if base.origin: identity['against'].append(self.identify(base.origin).key)
        run.key = key_of(run.variant, identity, self.commit, self.data.hash_of(run))
        return run

    def command(self, run):
        """Options that name the files of a run on this machine."""
        weights = run.origin and weights_of(self.out, run.origin, run.resumes_at)
        if weights and not (weights / 'manifest.json').exists():
            way = ('give that setting keep-checkpoints = 0 and a checkpoint-every that divides the step' if run.resumes_at else
                   'with another --ledger they are made again')
            raise Refused(f'{run.name}: the weights of {run.origin.name} are not in {self.out}; {way}', EXIT_DATA)
        if run.kind == 'writes': return {'checkpoint': str(weights), 'prompts': str(self.data.prompt(run))}
        options = self.data.options(run)
        if run.shape: options['model'] = self.data.model(run)
        if run.released: options['model'] = str(self.data.released(run))
        if run.resumes_at: options |= {'checkpoint': str(weights)}
        elif weights: options |= {'model': str(weights), 'allow-new-tensors': 'true'}
        return options

    def record(self, run):
        """The provenance of a run. Its place, machine and devices, decides step times."""
        commit, _, changes = self.commit.partition('+')
        at = self.alone if run.kind in TIMED else self.at
        kind = 'gpu' if at[0].devices else f'{at[0].threads} threads'
        place = f'{self.options.machine}, {len(at)} x {kind}' + (f', {at[0].ranks} ranks' if at[0].ranks > 1 else '')
        return {'commit': commit, 'dirty': bool(changes), 'data_hash': self.data.hash_of(run), 'place': place}

    def printed(self, run):
        """{row: value} that the trainer prints with --dry-run; None where it is not built. Refuses options that it does not take."""
        program = self.programs / f'train_{run.variant}'
        if not program.exists(): return None
        words = [f'--{k}={v}' for k, v in run.options.items() if k not in ('model', 'seed', 'lr')]
        words.append(f'--model={self.data.model(run) if run.shape else run.options["model"]}')
        asked = (run.variant, *sorted(words))
        if asked not in self._printed:
            done = subprocess.run([str(program), '--dry-run', '--val-every=0', *words], capture_output=True, text=True, cwd=ROOT)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ['no output'])[-1]
                raise Refused(f'{run.experiment}, arm {run.arm} at scale {run.scale}: {program.name} cannot be run as planned: {why}')
            self._printed[asked] = table_rows(done.stdout)
        return self._printed[asked]

    def flops(self, run):
        """FLOPs of a token as the trainer counts them, None where it is not built."""
        rows = self.printed(run)
        return rows and flops_of(rows)
