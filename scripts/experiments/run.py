#!/usr/bin/env python3
"""Plans and runs experiments, and goes on where an earlier call was stopped.

    run.py e2_dsa --scale reduced --seeds 5 --jobs 2      # plan, hours, runs; results go into a ledger
    run.py e1_asga e2_dsa --scale smoke                   # several, one after the other
    run.py all --scale paper --dry-run                    # how many runs and hours, and what is left out
    run.py e5_isoflop --scale paper --slurm               # sbatch array scripts of the plan, one per stage

Ctrl-C saves checkpoints; the same command goes on. report.py makes a report of the ledger. Exit codes: 0 all runs are finished,
1 some failed, 2 usage, 3 data or disk, 75 stopped by a signal.
"""
import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import prepare
from jobs import Jobs, human_time, places
from ledger import Ledger, key_of
from packages import EXIT_FAILED, EXIT_SIGNAL, EXIT_USAGE, Refused, guarded
from plan import SCALES, Experiment, Planner, known_experiments
from prepare import ROOT


class Session:
    """What all experiments of a call share."""

    def __init__(self, options):
        self.options = options
        self.out = Path(options.out).resolve()
        self.ledger = Ledger(options.ledger or default_ledger(options.scale, self.out, options.machine))
        self.data = prepare.Data(self.out, options.data)
        self.commit = prepare.engine_commit()
        self.programs = Path(options.programs or ROOT)
        self.at = places(options.jobs, options.ranks, options.cpu)
        self._flops = {}

    def identify(self, run):
        """Sets the key of a run, and what it is expected to take."""
        identity = run.options | {'half': run.half} | ({'ranks': self.options.ranks} if self.options.ranks > 1 else {})
        run.key = key_of(run.variant, identity, self.commit, self.data.hash_of(run))
        if (measured := self.milliseconds(run)) is not None:
            run.seconds, run.measured = run.steps * measured / 1e3, True
        return run

    def milliseconds(self, run):
        """Median step time of finished runs of this shape, None where there are none."""
        found = [
            r['result']['ms']
            for r in self.ledger.finished.values()
            if shape_of(r.get('variant'), r.get('options', {})) == shape_of(run.variant, run.options)
            and r.get('place') == self.place()
            and r['result'].get('ms')
        ]
        return median(found) if found else None

    def place(self):
        """What step times depend on beside the run."""
        first = self.at[0]
        kind = 'gpu' if first.devices else f'{first.threads} threads'
        return f'{self.options.machine}, {len(self.at)} x {kind}' + (f', {first.ranks} ranks' if first.ranks > 1 else '')

    def command(self, run):
        """Options that say where this machine has what a run reads."""
        options = self.data.options(run)
        if run.shape:
            options['model'] = self.data.model(run)
        return options

    def record(self, run):
        """What a report wants to know of every run."""
        return {'commit': self.commit, 'data_hash': self.data.hash_of(run), 'place': self.place()}

    def flops(self, run):
        """FLOPs of a token as the trainer counts them, None where it is not built yet."""
        program, asked = self.programs / f'train_{run.variant}', str((run.variant, shape_of(run.variant, run.options)))
        if asked in self._flops:
            return self._flops[asked]
        if not program.exists():
            return None
        model = self.data.model(run) if run.shape else run.options['model']
        words = [f'--{k}={v}' for k, v in run.options.items() if k not in ('model', 'seed', 'lr')]
        done = subprocess.run(
            [str(program), '--dry-run', '--val-every=0', f'--model={model}', *words], capture_output=True, text=True, cwd=ROOT
        )
        found = re.search(r'^\| FLOPs per token of training +\| (\S+) +\|$', done.stdout, re.MULTILINE)
        if not found:
            raise Refused(f'{program} --dry-run counts no FLOPs: {(done.stderr.strip().splitlines() or ["no output"])[-1]}')
        self._flops[asked] = float(found[1])
        return self._flops[asked]


def shape_of(variant, options):
    """What a step's time depends on: everything but the seed, the rate and the lengths of the run."""
    without = ('seed', 'lr', 'steps', 'warmup-steps', 'val-every', 'val-batches', 'checkpoint-every')
    return variant, {k: str(v) for k, v in options.items() if k not in without}


def default_ledger(scale, out, machine):
    """Smoke runs leave nothing in the tree."""
    return out / 'ledger-smoke.jsonl' if scale == 'smoke' else Path(__file__).resolve().parent / 'results' / f'{machine}.jsonl'


# ------------------------------------------------------------------------------------------------------------- one experiment


class Work:
    """One experiment of a call: its stages, and the choices between them, which the ledger keeps."""

    def __init__(self, session, name):
        self.session, o = session, session.options
        self.experiment = Experiment(name)
        self.notes = []
        self.planner = Planner(self.experiment, o.scale, o.arms, o.seeds, self.rate_of, self.steps_of, session.flops)

    def runs(self, stage):
        return [self.session.identify(run) for run in self.planner.runs(stage)]

    def choice(self, kind, runs):
        """The name of a choice that stands on these runs: other data or another engine make another choice."""
        keys = key_of(kind, {'keys': sorted(run.key for run in runs)}, '', '')
        return f'{self.experiment.name}/{self.session.options.scale}/{kind}/{keys}'

    def rate_of(self, arm):
        """The best factor of the arm's sweep; 1 before it is done or where there is none, None where all rates diverged."""
        if not self.planner.rates:
            return 1.0
        runs = [run for run in self.runs('sweep') if run.arm == arm]
        ledger = self.session.ledger
        name = self.choice(f'rate of {arm}', runs)
        if name not in ledger.fixed and not all(run.key in ledger.finished for run in runs):
            return 1.0
        return ledger.fix(name, lambda: best_rate(runs, ledger) | {'labels': runs[0].labels})['factor']

    def steps_of(self, run):
        """Steps of equal seconds: as many as take the baseline's time, with step times of the runs of equal FLOPs or tokens."""
        own, base = (self.timing(arm) for arm in (run.arm, self.experiment.baseline))
        if not all(r.key in self.session.ledger.finished for r in own + base) or self.session.options.dry_run:
            return round(run.steps / self.experiment.relative_seconds.get(run.arm, 1.0))
        return self.session.ledger.fix(
            self.choice(f'steps of {run.arm} in equal seconds', own + base),
            lambda: {'steps': max(1, round(run.steps * self.measured(base) / self.measured(own)))},
        )['steps']

    def timing(self, arm):
        return [run for run in self.runs('seeds') if run.arm == arm]

    def measured(self, runs):
        return median(self.session.ledger.finished[run.key]['result']['ms'] for run in runs)

    # ---- planning in words

    def describe(self):
        """Prints number of runs and hours per stage, and what is left out; returns (runs, hours) that are not done yet."""
        total, o = [0, 0.0], self.session.options
        print(f'== {self.experiment.name}, scale {o.scale}: {self.experiment.title}')
        print(f'   arms: {", ".join(self.planner.arms)}; baseline {self.experiment.baseline}')
        for name, why in self.experiment.left_out(o.scale):
            print(f'   left out: {name} needs {why}')
        for stage in self.planner.stages():
            runs = self.runs(stage)
            todo = [run for run in runs if run.key not in self.session.ledger.finished]
            seconds, measured = sum(run.seconds for run in todo), sum(run.measured for run in todo)
            source = (
                'all step times measured'
                if measured == len(todo)
                else f'step times: {measured} runs measured, {len(todo) - measured} estimated ({self.planner.table["estimate"]})'
            )
            print(
                f'   {stage}: {len(runs)} runs, {len(runs) - len(todo)} finished; {seconds / 3600:.2f} hours of runs left, '
                f'{human_time(seconds / len(self.session.at))} at {len(self.session.at)} at once' + (f'; {source}' if todo else '')
            )
            total[0] += len(todo)
            total[1] += seconds / 3600
        return total

    # ---- doing it

    def perform(self):
        """Stage after stage; the exit code."""
        s = self.session
        for stage in self.planner.stages():
            if s.options.stage and stage != s.options.stage:
                continue
            if stage != 'sweep' and self.planner.rates:
                self.require_finished('sweep')
            if stage == 'seconds':
                self.require_finished('seeds')
            runs = s_runs = self.runs(stage)
            if s.options.run is not None:
                if not 0 <= s.options.run < len(runs):
                    raise Refused(f'--run {s.options.run}: stage {stage} has runs 0 to {len(runs) - 1}')
                s_runs = [runs[s.options.run]]
            self.label(s_runs)
            jobs = Jobs(s.ledger, s.out, s.at, s.command, s.programs, s.record, self.experiment.keep_weights, say)
            complete = jobs.perform(s_runs)
            if jobs.stopping:
                return EXIT_SIGNAL
            if not complete:
                return EXIT_FAILED
            if stage == 'sweep' and s.options.run is None:
                self.tell_rates()
        return 0

    def require_finished(self, stage):
        """Refuses a stage that stands on one that is not finished."""
        missing = sum(run.key not in self.session.ledger.finished for run in self.runs(stage))
        if missing:
            raise Refused(f'{self.experiment.name}: stage {stage} has {missing} runs that are not finished, which this stands on')

    def label(self, runs):
        """Says in the ledger which runs belong to this experiment: others may share them."""
        ledger = self.session.ledger
        known = {
            (r.get('key'), r.get('experiment'), r.get('stage'), r.get('scale'), r.get('arm'), r.get('setting'))
            for r in ledger.records
            if r['event'] == 'run'
        }
        new = [run for run in runs if (run.key, run.experiment, run.stage, run.scale, run.arm, run.setting) not in known]
        if new:
            ledger.append_all([('run', {'key': run.key, **run.labels}) for run in new])

    def tell_rates(self):
        for arm in self.planner.arms:
            factor = self.rate_of(arm)
            if factor is None:
                print(f'   {arm}: every rate diverged; it has no further runs')
            elif factor in (min(self.planner.rates), max(self.planner.rates)):
                print(f'   {arm}: best at {factor:g} x, AN END POINT of the sweep: its best rate may lie beyond')
            else:
                print(f'   {arm}: best at {factor:g} x the rate')


def best_rate(runs, ledger):
    """The factor with the lowest mean loss over the sweep's seeds; one rate with a diverged run is out."""
    losses = {}
    for run in runs:
        record = ledger.finished[run.key]
        losses.setdefault(run.factor, []).append(record['result']['val_loss'] if record['event'] == 'done' else None)
    sound = {factor: sum(of) / len(of) for factor, of in losses.items() if None not in of}
    best = min(sound, key=sound.get) if sound else None
    return {'factor': best, 'end_point': best in (min(losses), max(losses)), 'losses': {f'{f:g}': sound.get(f) for f in losses}}


def say(words):
    print(('\r\033[K' if sys.stderr.isatty() else '') + words, flush=True)


def build(programs):
    """The trainers that plans need."""
    command = ['make', '--no-print-directory', f'-j{len(os.sched_getaffinity(0))}', *programs]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise Refused(f'{shlex.join(command)} failed; --no-build takes the programs that are there', EXIT_FAILED)


def write_slurm(work, folder):
    """One sbatch array script per stage. An element is `run.py ... --run N`; the ledger lies on the disk that all nodes share."""
    session, o = work.session, work.session.options
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        str(work.experiment.name),
        '--scale',
        o.scale,
        '--ranks',
        o.ranks,
        '--ledger',
        session.ledger.path.resolve(),
        '--out',
        session.out,
        '--machine',
        o.machine,
        '--no-build',
    ]
    for name in ('data', 'seeds', 'programs'):
        if getattr(o, name) is not None:
            words += [f'--{name}', getattr(o, name)]
    if o.arms:
        words += ['--arms', *o.arms]
    before = ''
    for stage in work.planner.stages():
        runs = work.runs(stage)
        minutes = max(10, int(1.5 * max(run.seconds for run in runs) / 60) + 10)
        path = folder / f'{work.experiment.name}_{o.scale}_{stage}.sbatch'
        script = [
            '#!/bin/bash',
            f'#SBATCH --job-name={work.experiment.name}_{stage}',
            f'#SBATCH --array=0-{len(runs) - 1}',
            f'#SBATCH --gpus={o.ranks}',
            f'#SBATCH --ntasks={o.ranks}',
            f'#SBATCH --time={minutes}',
            '#SBATCH --signal=B:INT@120',
            '#SBATCH --requeue',
            f'# {len(runs)} runs; the estimate: {work.planner.table["estimate"]}',
            f'cd {shlex.quote(str(ROOT))}',
            'trap \'kill -INT $child; wait $child\' INT',
            f'{shlex.quote(sys.executable)} scripts/experiments/run.py {shlex.join(map(str, words))} --stage {stage} '
            '--run "$SLURM_ARRAY_TASK_ID" --jobs 1 &',
            'child=$!',
            'wait $child',
        ]
        path.write_text('\n'.join(script) + '\n')
        print(f'{path}: {len(runs)} runs; submit with: job{stage}=$(sbatch --parsable{before} {path})')
        before = f' --dependency=afterok:$job{stage}'


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('experiments', nargs='+', metavar='EXPERIMENT', help=f'all, or: {", ".join(known_experiments())}')
    parser.add_argument('--scale', default='reduced', help=f'{", ".join(SCALES)} (default reduced)')
    parser.add_argument('--seeds', type=int, help='instead of those of the plan; 0: the sweep alone')
    parser.add_argument('--arms', nargs='+', help='these and the baseline')
    parser.add_argument('--jobs', type=int, default=0, help='runs at once (default: one per GPU; on a CPU one)')
    parser.add_argument('--ranks', type=int, default=1, help='ranks of a run, a GPU each')
    parser.add_argument('--cpu', action='store_true', help='leave GPUs alone')
    parser.add_argument(
        '--data', help='folder with NAME_train_*.bin and NAME_val_*.bin, for plans that do not read the bundled text'
    )
    parser.add_argument('--out', default=str(ROOT / 'out/experiments'), help='runs, locks, prepared data')
    parser.add_argument('--ledger', help='default: results/MACHINE.jsonl; at scale smoke OUT/ledger-smoke.jsonl')
    parser.add_argument('--machine', default=re.sub(r'[^\w.-]', '_', platform.node()) or 'machine', help='its name in the ledger')
    parser.add_argument('--programs', help='folder of the trainers (default: the tree\'s root)')
    parser.add_argument('--no-build', action='store_true', help='take the trainers as they are')
    parser.add_argument('--dry-run', action='store_true', help='the plan and its hours; run nothing')
    parser.add_argument('--slurm', action='store_true', help='write sbatch scripts of the plan into OUT/slurm; run nothing')
    parser.add_argument('--stage', choices=['sweep', 'seeds', 'seconds'], help='this stage alone')
    parser.add_argument('--run', type=int, help='the N-th run of --stage alone (for arrays of Slurm)')
    options = parser.parse_args(arguments)
    if min(options.ranks, 1) < 1 or options.jobs < 0 or (options.seeds or 0) < 0:
        parser.error('--ranks, --jobs and --seeds are not negative')
    if options.run is not None and not options.stage:
        parser.error('--run counts the runs of a --stage')
    return options


def main(arguments=None):
    options = parse(arguments)
    every = options.experiments == ['all']
    from plan import choose

    choose('scale', options.scale, SCALES)
    session, work = Session(options), []
    for name in known_experiments() if every else options.experiments:
        try:
            work.append(Work(session, name))
        except Refused as refused:
            if not every:
                raise
            print(f'== {name}: not run. {refused}')
    if options.stage:
        for one in work:
            if options.stage not in one.planner.stages():
                raise Refused(
                    f'{one.experiment.name} at scale {options.scale} has no stage {options.stage}; it has: '
                    f'{", ".join(one.planner.stages())}'
                )
    if not options.no_build and not options.dry_run and not options.slurm:
        build(sorted({f'train_{one.experiment.arms[arm].get("variant", arm)}' for one in work for arm in one.planner.arms}))
    todo = [one.describe() for one in work]
    print(
        f'together: {sum(runs for runs, _ in todo)} runs, {sum(hours for _, hours in todo):.2f} hours of runs left; '
        f'ledger {session.ledger.path}'
    )
    if options.slurm:
        for one in work:
            write_slurm(one, session.out / 'slurm')
    if options.dry_run or options.slurm:
        return 0
    worst = 0
    for one in work:
        code = one.perform()
        if code == EXIT_SIGNAL:
            return code
        worst = max(worst, code)
    return worst


if __name__ == '__main__':
    guarded(main)
