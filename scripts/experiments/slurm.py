"""sbatch array scripts of a plan."""
import shlex
import sys

from packages import ROOT
from plan import TIMED

SCRIPT = '''\
#!/bin/bash
#SBATCH --job-name={name}_{stage}
#SBATCH --array=0-{last}
#SBATCH --gpus={ranks}
#SBATCH --ntasks={ranks}
#SBATCH --time={minutes}
#SBATCH --signal=B:INT@120
#SBATCH --requeue
{exclusive}# {runs} runs; the estimate: {estimate}
cd {root}
trap 'kill -INT $child; wait $child' INT
{python} scripts/experiments/run.py {words} --stage {stage} --run "$SLURM_ARRAY_TASK_ID" --jobs 1 &
child=$!
wait $child
'''


def write_slurm(work, folder):
    """Write one sbatch array script per stage, whose elements call `run.py ... --run N` with the ledger on a shared disk."""
    session, o, name, before = work.session, work.session.options, work.experiment.name, ''
    folder.mkdir(parents=True, exist_ok=True)
    words = [name, '--scale', o.scale, '--ranks', o.ranks, '--ledger', session.ledger.path.resolve(), '--out', session.out,
             '--machine', o.machine, '--no-build']
    for option in ('data', 'seeds', 'programs'):
        if getattr(o, option) is not None: words += [f'--{option}', getattr(o, option)]
    if o.arms: words += ['--arms', *o.arms]
    for stage in [o.stage] if o.stage else work.planner.stages():
        runs, path = work.runs(stage), folder / f'{name}_{o.scale}_{stage}.sbatch'
        path.write_text(SCRIPT.format(
            name=name, stage=stage, last=len(runs) - 1, ranks=o.ranks, runs=len(runs), estimate=work.planner.table['estimate'],
            minutes=max(10, int(1.5 * max(run.seconds for run in runs) / 60) + 10),
            exclusive='#SBATCH --exclusive\n' if stage in ('timing', *TIMED) else '',
            root=shlex.quote(str(ROOT)), python=shlex.quote(sys.executable), words=shlex.join(map(str, words))))
        print(f'{path}: {len(runs)} runs; submit with: job{stage}=$(sbatch --parsable{before} {path})')
        before = f' --dependency=afterok:$job{stage}'
