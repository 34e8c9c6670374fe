"""sbatch array scripts of a plan."""
import shlex
import sys

from plan import TIMED
from prepare import ROOT


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
    for stage in [o.stage] if o.stage else work.planner.stages():
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
            *(['#SBATCH --exclusive'] if stage in ('timing', *TIMED) else []),
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
