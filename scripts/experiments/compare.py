#!/usr/bin/env python3
"""Is one attention variant better than another on a text? Several seeds, the same rows in the same order, and error bars.

    compare.py causal asga                                        # the first is the baseline; the bundled text, three seeds
    compare.py causal dsa 'dsa --window 128' --text book.txt      # a text of one's own, in bytes; options of one arm
    compare.py causal asga --seeds 5 --rates 0.5 1 2 -- --steps 2000 --seq-len 1024 --window 64 --dense-until 128

Options behind `--` are for all; a variant passes over --window and --dense-until where it has none. Without them: 500 steps of 8 x
512 tokens, qwen-1m, learning rate 4e-3, --window 32 --dense-until 64, so that what is sparse is sparse at this length: the column
of pairs says how sparse. With --rates each arm takes its best of these factors, tuned on one half of the validation tokens; losses
are of the other. Finished runs are kept in OUT, and what was stopped goes on.

Exit codes: 0 done, 1 a run failed, 2 usage, 3 data, 75 stopped by a signal.
"""
import argparse
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import run as runner
from packages import EXIT_DATA, Refused, before_and_behind_dashes, guarded, require
from plan import Experiment
from prepare import ROOT
from session import Session
from work import Work

DEFAULTS = {'model': 'qwen-1m', 'seq-len': 512, 'batch-size': 8, 'steps': 500, 'lr': 4e-3, 'window': 32, 'dense-until': 64,
            'val-batches': 1000}


def options_of(words):
    """{name: value} of --name value or --name=value."""
    found, rest = {}, list(words)
    while rest:
        name, sign, value = rest.pop(0).partition('=')
        if not re.fullmatch(r'--[a-z][a-z0-9-]*', name) or not (sign or rest):
            raise Refused(f'{name}: options of a trainer are --NAME VALUE')
        found[name[2:]] = value if sign else rest.pop(0)
    return found


def experiment(arms, shared, seeds, rates):
    """The comparison as the plan of an experiment."""
    options = DEFAULTS | shared
    rate, steps = float(options.pop('lr')), int(options['steps'])
    options = {'val-every': max(1, steps // 4), 'checkpoint-every': max(1, steps // 4)} | options
    tables = {}
    for words in arms:
        variant, *own = shlex.split(words)
        if not (ROOT / f'attention/{variant}.cuh').exists():
            raise Refused(f'{variant}: there is no attention/{variant}.cuh; ls attention/*.cuh names the variants')
        tables[words] = {'variant': variant, 'options': options_of(own)}
    if len(tables) != len(arms) or len(arms) < 2:
        raise Refused('give two arms or more, all different: the baseline first')
    scale = {'lr': rate, 'seeds': seeds, 'seconds_per_step': 0.0, 'estimate': 'unknown', 'options': options, 'rates': rates}
    return Experiment('compare', table={'title': ' against '.join(reversed(arms)), 'baseline': arms[0], 'arms': tables,
                                        'scales': {'reduced': scale}})


def tokenized(texts, out):
    """A folder of shards of these files, made once."""
    folder = out / 'text'
    if not list(folder.glob('*_manifest.json')):
        command = ['./tokenize', '--tokenizer', 'bytes', '--out', str(folder), '--name', 'text', '--val-fraction', '0.1',
                   *map(str, texts)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode: raise Refused(f'{shlex.join(command)}: {done.stderr.strip()}', EXIT_DATA)
    (folder / 'made_of').touch()
    before, now = (folder / 'made_of').read_text(), '\n'.join(f'{path} {path.stat().st_size}' for path in texts)
    if before not in ('', now): raise Refused(f'{folder}: is of other texts ({before.split()[0]}); give another --out')
    (folder / 'made_of').write_text(now)
    return folder


def show(work):
    """The table, and a sentence for every arm."""
    import stats
    from analysis import Arm
    from tables import as_markdown, interval, mean_loss, number
    finished, arms, pairs = work.session.ledger.finished, {}, {}
    for run in work.runs('seeds'):
        arms.setdefault(run.arm, Arm(run.arm, factor=run.factor)).records[run.seed] = finished[run.key]
        visible = re.search(r'([0-9.]+)% of causal', (work.session.said(run) or {}).get('visible pairs per sequence', ''))
        pairs[run.arm] = f'{visible[1]}%' if visible else '-'
    base = arms[work.experiment.baseline]
    found = {name: stats.compare(arm.losses, base.losses) for name, arm in arms.items() if arm is not base}
    stats.adjust(list(found.values()))
    head = ['arm', 'parameters', 'pairs, of causal', 'runs', 'diverged', 'rate x', 'validation loss', 'difference', 'p (Holm)',
            'bits per byte', 'ms a step']
    rows = []
    for name, arm in arms.items():
        c = found.get(name)
        rows.append([name, number(arm.mean('parameters'), ',.0f'), pairs[name], str(len(arm.records)), str(len(arm.diverged)),
                     f'{arm.factor:g}', mean_loss(arm),
                     interval(c) if c else 'baseline', number(c.adjusted if c else None, '.3g'), number(arm.mean('val_bpb')),
                     number(arm.mean('ms'), '.1f')])
    print('\n' + as_markdown(head, rows))
    for name, c in found.items():
        if c.pairs < 2:
            print(f'{name}: one pair of seeds says nothing about a difference; give --seeds 3 or more{stats.lost_pairs(c)}.')
            continue
        seen = max(c.p, c.adjusted) < stats.ALPHA
        word = 'no difference shows' if not seen else 'lower' if c.mean < 0 else 'higher'
        print(f'{name} - {base.name}: {c.mean:+.4f} +- {c.half_width:.4f} nats ({c.pairs} paired seeds, 95%): {word}'
              f'{stats.lost_pairs(c)}. Smallest difference that so many seeds see: {stats.smallest_detectable(c.pairs, c.sd):.3f}.')


def main(arguments=None):
    words, shared = before_and_behind_dashes(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('arms', nargs='+', metavar='VARIANT', help='the baseline, then what is compared with it')
    parser.add_argument('--text', nargs='+', type=Path, metavar='FILE', help='text to train on, in bytes; the last tenth validates')
    parser.add_argument('--data', help='folder with NAME_train_*.bin and NAME_val_*.bin instead')
    parser.add_argument('--seeds', type=int, default=3, help='default 3')
    parser.add_argument('--rates', type=float, nargs='+', default=[], help='factors of the learning rate to choose from')
    parser.add_argument('--jobs', type=int, default=0, help='runs at once (default: one per GPU; on a CPU one)')
    parser.add_argument('--cpu', action='store_true', help='leave GPUs alone')
    parser.add_argument('--out', default=str(ROOT / 'out/compare'), help='runs and their ledger')
    parser.add_argument('--no-build', action='store_true', help='take the trainers as they are')
    options = parser.parse_args(words)
    if options.seeds < 1 or options.jobs < 0 or (options.text and options.data):
        parser.error('--seeds is at least 1, --jobs not negative, and --text and --data exclude each other')
    require('scipy', 'numpy')   # before hours of runs, not after them
    plan, out = experiment(options.arms, options_of(shared), options.seeds, options.rates), Path(options.out).resolve()
    if not options.no_build: runner.build(sorted({f'train_{table["variant"]}' for table in plan.arms.values()} | {'tokenize'}))
    for path in options.text or []:
        if not path.is_file(): raise Refused(f'{path}: is no file', EXIT_DATA)
    data = tokenized([path.resolve() for path in options.text], out) if options.text else options.data
    if data: plan.scales['reduced']['data'] = 'own'
    settings = ['all', '--out', str(out), '--ledger', str(out / 'ledger.jsonl'), '--jobs', str(options.jobs)]
    settings += (['--data', str(data)] if data else []) + (['--cpu'] if options.cpu else [])
    work = Work(Session(runner.parse(settings)), plan, runner.say)
    code = work.perform()
    if code == 0: show(work)
    return code


if __name__ == '__main__':
    guarded(main)
