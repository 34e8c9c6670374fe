"""The session that all experiments of a call share: ledger, data, programs and devices; and one experiment of it: its stages, and what
later ones take from the results of earlier ones."""
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import mean, median

from jobs import Jobs, human_time, places, weights_of
from ledger import Ledger, key_of
from packages import EXIT_DATA, EXIT_FAILED, EXIT_SIGNAL, ROOT, Refused
from plan import TIMED, Planner
from prepare import Data, engine_commit
from results import flops_of, loss_of_sweep, table_rows


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


class Work:
    """Plans an experiment within a session, and performs its unfinished runs."""

    def __init__(self, session, experiment, say=print):
        self.session, self.experiment, self.say, o = session, experiment, say, session.options
        self._rates = {}     # best ones, once the sweep is finished
        self.planner = Planner(self.experiment, o.scale, o.arms, o.seeds, self.rate_of, self.steps_of, session.flops, o.settings)

    def runs(self, stage):
        return [self.session.identify(run) for run in self.planner.runs(stage)]

    def unfinished(self, runs):
        return [run for run in runs if run.key not in self.session.ledger.finished]

    def rate_of(self, arm):
        """The best factor of the arm's sweep; 1 without a finished sweep, None where all rates diverged."""
        if not self.planner.rates or 'from' in self.experiment.arms[arm]: return 1.0
        arm = self.experiment.sweep.get('like', {}).get(arm, arm)
        if arm not in self._rates:
            runs = [run for run in self.runs('sweep') if run.arm == arm]
            if self.unfinished(runs): return 1.0
            losses = {}
            for run in runs:   # the mean over seeds, without rates of diverged runs
                record = self.session.ledger.finished[run.key]
                loss = loss_of_sweep(record['result']) if record['event'] == 'done' else None
                losses.setdefault(run.factor, []).append(math.inf if loss is None else loss)
            best = min(losses, key=lambda factor: mean(losses[factor]))
            self._rates[arm] = best if mean(losses[best]) < math.inf else None
        return self._rates[arm]

    def steps_of(self, run):
        """Steps of equal seconds: as many as take the baseline's time, by the median ratio of interleaved step times, or by those
        that the plan expects."""
        rounds = [one for one in self.runs('timing') if (one.arm, one.setting) == (run.arm, run.setting)]
        if self.session.options.dry_run or self.unfinished(rounds): return round(run.steps / self.planner.relative_seconds(run.arm))
        return round(run.steps / median(self.session.ledger.finished[one.key]['result']['ratio'] for one in rounds))

    def describe(self):
        """Print runs and hours of every stage, or of --stage; return the runs that are neither finished nor counted by an
        experiment before. Refuses options that a built trainer does not take, before hours of runs (at scale smoke the runs
        themselves show them as soon)."""
        s, o, left = self.session, self.session.options, []
        print(f'== {self.experiment.name}, scale {o.scale}: {self.experiment.title}')
        print(f'   arms: {", ".join(self.planner.arms)}; baseline {self.experiment.baseline}')
        for stage in self.asked_stages():
            runs = self.asked_runs(stage)
            unfinished = self.unfinished(runs)
            todo = [run for run in unfinished if run.key not in s.planned]
            s.planned.update(run.key for run in todo)
            left += todo
            for run in todo:
                if run.kind in ('train', 'turns') and o.scale != 'smoke': s.printed(run)
            seconds, shared = sum(run.seconds for run in todo), len(unfinished) - len(todo)
            print(f'   {stage}: {len(runs)} runs, {len(runs) - len(unfinished)} finished'
                  + (f', {shared} shared with what is above' if shared else '') + f'; {seconds / 3600:.2f} hours of runs left, '
                  f'{human_time(seconds / len(s.at))} at {len(s.at)} at once')
        print(f'   step times: {self.planner.table["estimate"]}')
        return left

    def submission(self, program, arguments):
        """Print the sbatch command of each stage, which waits for the one before."""
        words, after = shlex.join(word for word in arguments or sys.argv[1:] if word != '--slurm'), ''
        for stage in self.planner.stages():
            alone = ' --exclusive' if stage in ('timing', *TIMED) else ''
            print(f'job=$(sbatch --parsable --array=0-{len(self.runs(stage)) - 1}{after}{alone} scripts/experiments/array.sbatch '
                  f'{program} --stage {stage} {words})')
            after = ' --dependency=afterok:$job'
        return 0

    def record_plan(self, imported=()):
        """Append the plan and the keys of its runs to the ledger: report.py has no file of a plan that compare.py made. `imported` has
        (labels, result) of runs of other programs, which are appended too."""
        ledger = self.session.ledger
        new = [(labels, result) for labels, result in imported if labels['key'] not in ledger.finished]
        keys = [run.key for stage in self.planner.stages() for run in self.runs(stage)] + [labels['key'] for labels, _ in imported]
        table = {name: getattr(self.experiment, name) for name in ('title', 'baseline', 'arms', 'settings', 'scales')}
        table['arms'] = table['arms'] | {labels['arm']: {} for labels, _ in imported}
        ledger.append_all([*(('done', labels | {'variant': labels['arm'], 'result': result}) for labels, result in new),
                           *(('run', labels) for labels, _ in imported),
                           ('plan', {'experiment': self.experiment.name, 'table': table, 'keys': keys})])

    def asked_stages(self):
        """All stages, or the one of --stage."""
        return [stage for stage in self.planner.stages() if self.session.options.stage in (None, stage)]

    def asked_runs(self, stage):
        """All runs of a stage, or the one of --run."""
        runs, number = self.runs(stage), self.session.options.run
        if number is None: return runs
        if not 0 <= number < len(runs): raise Refused(f'--run {number}: stage {stage} has runs 0 to {len(runs) - 1}')
        return [runs[number]]

    def perform(self):
        """Perform stage after stage; return the exit code."""
        for stage in self.asked_stages():
            for before, needed in ('sweep', stage != 'sweep' and self.planner.rates), ('timing', stage == 'seconds'):
                if needed: self.require(self.runs(before), f'stage {before} has {{}} runs that are not finished; finish them first')
            runs = self.asked_runs(stage)
            self.require([origin for run in runs for origin in run.origins], '{} runs whose weights later ones start from are not '
                         'finished; run.py without --stage does them first')
            self.label(runs)
            kept = {origin.key for later in self.planner.stages() for run in self.runs(later) for origin in run.origins}
            if stage == 'sweep' and kept: kept = {run.key for run in runs}   # the best rate is not known yet
            jobs = Jobs(self.session, self.say, kept, alone=any(run.kind in TIMED for run in runs))
            complete = jobs.perform(runs)
            if jobs.stopping: return EXIT_SIGNAL
            if not complete: return EXIT_FAILED
            if stage == 'sweep' and self.session.options.run is None: self.tell_rates()
        return 0

    def require(self, runs, words):
        """Refuse to go on after unfinished runs, whose number stands in the words."""
        if missing := {run.key for run in self.unfinished(runs)}:
            raise Refused(f'{self.experiment.name}: {words.format(len(missing))}')

    def label(self, runs):
        """Record which runs belong to this experiment; others may share them."""
        ledger, names = self.session.ledger, ('key', 'experiment', 'stage', 'scale', 'arm', 'setting')
        known = {tuple(r.get(name) for name in names) for r in ledger.records if r['event'] == 'run'}
        new = [run for run in runs if tuple(getattr(run, name) for name in names) not in known]
        if new: ledger.append_all([('run', {'key': run.key, **run.labels}) for run in new])

    def tell_rates(self):
        for arm in self.planner.arms:
            factor = self.rate_of(arm)
            if factor is None: self.say(f'   {arm}: every rate diverged; it has no further runs')
            elif factor in (min(self.planner.rates), max(self.planner.rates)):
                self.say(f'   {arm}: best at {factor:g} x, AN END POINT of the sweep: its best rate may lie beyond')
            else: self.say(f'   {arm}: best at {factor:g} x the rate')
