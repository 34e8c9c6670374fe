#!/usr/bin/env python3
"""Plans and performs experiments, and resumes an earlier call.

    run.py e2_dsa --scale reduced --seeds 5 --jobs 2      # plan, hours, runs; results go into a ledger
    run.py e1_asga e2_dsa --scale smoke                   # several, one after the other
    run.py all --scale paper --dry-run                    # how many runs and hours

Ctrl-C saves checkpoints; the same command goes on. report.py makes a report of the ledger. Exit codes: 0 all runs are finished,
1 some failed, 2 usage, 3 data or disk, 75 stopped by a signal.
"""
import argparse
import platform
import re
import shlex
import subprocess
import sys

from packages import EXIT_FAILED, EXIT_SIGNAL, ROOT, Refused, guarded
from plan import SCALES, Experiment, choose, known_experiments
from work import Session, Work


def say(words):
    print(('\r\033[K' if sys.stderr.isatty() else '') + words, flush=True)


def build(programs):
    """Build the trainers of plans."""
    command = ['make', '--no-print-directory', *programs]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise Refused(f'{shlex.join(command)} failed; --no-build takes the programs that are there', EXIT_FAILED)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('experiments', nargs='+', metavar='EXPERIMENT', help=f'all, or: {", ".join(known_experiments())}')
    add('--scale', default='reduced', help=f'{", ".join(SCALES)} (default reduced)')
    add('--seeds', type=int, help='number of seeds (default: the plan\'s); 0: the sweep alone')
    add('--arms', nargs='+', help='arms to run beside the baseline (default: all)')
    add('--settings', nargs='+', help='settings to run (default: all)')
    add('--ranks', type=int, default=1, help='ranks of a run, a GPU each')
    add('--ledger', help='file of all runs (default OUT/ledger.jsonl)')
    add('--machine', default=re.sub(r'[^\w.-]', '_', platform.node()) or 'machine', help='name of this machine in the ledger')
    add('--programs', help='folder of the trainers (default: the tree\'s root)')
    options = parse_common(parser, 'out/experiments', arguments)
    if options.ranks < 1 or (options.seeds or 0) < 0: parser.error('--ranks is 1 or more, and --seeds is not negative')
    return options


def parse_common(parser, out, arguments):
    """Parse arguments with the options that compare.py has, too, and the default of --out in the tree."""
    add = parser.add_argument
    add('--data', help='folder with NAME_train_*.bin and NAME_val_*.bin, for plans that do not read the bundled text')
    add('--out', default=str(ROOT / out), help='folder for runs, locks, prepared data, the ledger')
    add('--jobs', type=int, default=0, help='runs at once, several per GPU if above the number of GPUs (default: one per GPU; on a CPU '
        'one, at scale smoke one per processor)')
    add('--cpu', action='store_true', help='leave GPUs alone: --device cpu for every program')
    add('--no-build', action='store_true', help='take the trainers as they are')
    add('--dry-run', action='store_true', help='print the plan and its hours; run nothing')
    add('--slurm', action='store_true', help='print the commands that submit all stages as arrays (array.sbatch)')
    add('--stage', help='a single stage: sweep, seeds, seconds, phase2, turns, writes, ...')
    add('--run', type=int, help='a single run of --stage, by number (array.sbatch)')
    options = parser.parse_args(arguments)
    if options.jobs < 0: parser.error('--jobs is not negative')
    if options.run is not None and not options.stage: parser.error('--run counts the runs of a --stage')
    return options


def main(arguments=None):
    options = parse(arguments)
    every = options.experiments == ['all']
    choose('scale', options.scale, SCALES)
    session, work = Session(options), []
    for name in known_experiments() if every else options.experiments:
        try:
            work.append(Work(session, Experiment(name), say))
        except Refused as refused:
            if not every: raise
            print(f'== {name}: not run. {refused}')
    for one in work:
        if options.stage and options.stage not in one.planner.stages():
            raise Refused(f'{one.experiment.name} at scale {options.scale} has no stage {options.stage}; it has: '
                          f'{", ".join(one.planner.stages())}')
    if options.slurm and len(work) != 1: raise Refused('--slurm submits the stages of one experiment; name one')
    if options.slurm: return work[0].submission('run.py', arguments)
    if not options.no_build and not options.dry_run:
        programs = {f'train_{one.experiment.arms[arm].get("variant", arm)}' for one in work for arm in one.planner.arms}
        build(sorted(programs | {'generate' for one in work if 'writes' in one.planner.stages()}))
    left = [run for one in work for run in one.describe()]
    hours = sum(run.seconds for run in left) / 3600
    print(f'together: {len(left)} runs, {hours:.2f} hours of runs left; ledger {session.ledger.path}')
    if options.dry_run: return 0
    worst = 0
    for one in work:
        try:
            code = one.perform()
        except Refused as refused:   # such as data that this machine lacks: the others can be run
            if not every: raise
            print(f'== {one.experiment.name}: not run. {refused}', file=sys.stderr)
            code = refused.code
        if code == EXIT_SIGNAL: return code
        worst = max(worst, code)
    return worst


if __name__ == '__main__':
    guarded(main)
