"""What all experiments of a call share: ledger, data, programs, places to run in, and what a run is expected to take."""
import os
import re
import subprocess
from pathlib import Path
from statistics import median

import prepare
from jobs import has_weights, places, weights_of
from ledger import Ledger, key_of
from packages import EXIT_DATA, Refused
from plan import TIMED
from prepare import ROOT
from results import flops_of


class Session:
    """Built of the options of run.py."""

    def __init__(self, options):
        self.options = options
        self.out = Path(options.out).resolve()
        self.ledger = Ledger(options.ledger or self.out / 'ledger.jsonl')
        self.data = prepare.Data(self.out, options.data)
        self.commit = prepare.engine_commit()
        self.programs = Path(options.programs or ROOT).resolve()
        self.at = places(options.jobs or jobs_at(options.scale, options.ranks), options.ranks, options.cpu)
        self.alone = places(1, options.ranks, options.cpu)[:1]   # for what is timed: all processors, or the first GPU
        self._said = {}                # by programs with --dry-run
        self.planned = set()           # keys that describe() has counted
        self._times, self._counted = {}, -1

    def identify(self, run):
        """Sets the key of a run and of those that it stands on, and what it is expected to take."""
        identity = run.options | {'half': run.half}
        if self.options.ranks > 1: identity['ranks'] = self.options.ranks
        if run.kind != 'train': identity['kind'] = run.kind
        if run.origin: identity['origin'] = self.identify(run.origin).key
        if run.against: identity['against'] = [run.against.variant, {k: str(v) for k, v in run.against.options.items()}]
        if run.against and run.against.origin: identity['against'].append(self.identify(run.against.origin).key)
        run.key = key_of(run.variant, identity, self.commit, self.data.hash_of(run))
        if (measured := self.seconds(run)) is not None:
            run.seconds, run.measured = measured, True
        return run

    def seconds(self, run):
        """From the median of finished runs of this shape, None where there are none."""
        if self._counted != len(self.ledger.finished):
            self._counted, self._times = len(self.ledger.finished), {}
            for r in self.ledger.finished.values():
                time = r['result'].get('ms') if r.get('kind', 'train') == 'train' else r['result'].get('seconds')
                where = str((shape_of(r.get('variant'), r.get('options', {})), r.get('place'), r.get('kind', 'train')))
                if time: self._times.setdefault(where, []).append(time)
        found = self._times.get(str((shape_of(run.variant, run.options), self.place(run), run.kind)))
        return found and median(found) * (run.steps / 1e3 if run.kind == 'train' else 1)

    def place(self, run):
        """What step times depend on beside the run."""
        at = self.alone if run.kind in TIMED else self.at
        kind = 'gpu' if at[0].devices else f'{at[0].threads} threads'
        return f'{self.options.machine}, {len(at)} x {kind}' + (f', {at[0].ranks} ranks' if at[0].ranks > 1 else '')

    def command(self, run):
        """Options that say where this machine has what a run reads."""
        if run.origin and not has_weights(self.out, run.origin):
            raise Refused(f'{run.name}: the weights of {run.origin.name} are not in {self.out}; run.py without --stage makes them',
                          EXIT_DATA)
        if run.kind == 'writes':
            return {'checkpoint': str(weights_of(self.out, run.origin)), 'prompts': str(self.data.prompt(run))}
        options = self.data.options(run)
        if run.shape:
            options['model'] = self.data.model(run)
        if run.released:
            options['model'] = str(self.data.released(run))
        if run.origin:
            options |= {'model': str(weights_of(self.out, run.origin)), 'allow-new-tensors': 'true'}
        return options

    def record(self, run):
        """What a report wants to know of every run."""
        commit, _, changes = self.commit.partition('+')
        return {'commit': commit, 'dirty': bool(changes), 'data_hash': self.data.hash_of(run), 'place': self.place(run)}

    def said(self, run):
        """What the trainer prints with --dry-run, {row: value}; None where it is not built yet."""
        program, asked = self.programs / f'train_{run.variant}', str((run.variant, shape_of(run.variant, run.options)))
        if asked not in self._said:
            if not program.exists():
                return None
            model = self.data.model(run) if run.shape else run.options['model']
            words = [f'--{k}={v}' for k, v in run.options.items() if k not in ('model', 'seed', 'lr')]
            done = subprocess.run(
                [str(program), '--dry-run', '--val-every=0', f'--model={model}', *words], capture_output=True, text=True, cwd=ROOT
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ['no output'])[-1]
                raise Refused(f'{run.experiment}, arm {run.arm} at scale {run.scale}: {program.name} cannot be run as planned: {why}')
            self._said[asked] = dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', done.stdout, re.MULTILINE))
        return self._said[asked]

    def flops(self, run):
        """FLOPs of a token as the trainer counts them, None where it is not built yet."""
        said = self.said(run)
        return said and flops_of(said)


def shape_of(variant, options):
    """What a step's time depends on: everything but the seed, the rate and the lengths of the run."""
    without = ('seed', 'lr', 'steps', 'warmup-steps', 'val-every', 'val-batches', 'checkpoint-every')
    return variant, {k: str(v) for k, v in options.items() if k not in without}


def jobs_at(scale, ranks):
    """Runs at once where nobody says how many: as many as this machine's processors for those that take a second, else what places()
    takes, a run per GPU or one on the CPU."""
    return max(1, len(os.sched_getaffinity(0)) // ranks) if scale == 'smoke' else 0
