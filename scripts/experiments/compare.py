#!/usr/bin/env python3
"""Is one attention variant better than another on a text? Several seeds, the same rows in the same order, and error bars.

    compare.py causal asga                                        # the first is the baseline; the bundled text, three seeds
    compare.py causal dsa 'dsa --window 128' --text book.txt      # a text of one's own, in bytes; options of one arm
    compare.py causal asga --seeds 5 --rates 0.5 1 2 -- --steps 2000 --seq-len 1024 --window 64 --dense-until 128

Options behind `--` are for all; what compare.py decides itself (seeds, an arm's rate, data) is refused. A variant passes over --window
and --dense-until where it has none. Without them: 500 steps of 8 x 512 tokens, qwen-1m, learning rate 4e-3, --window 32 --dense-until
64, so that what is sparse is sparse at this length: the column of pairs says how sparse. With --rates each arm takes its best of these
factors, tuned on one half of the validation tokens; losses are of the other. Finished runs are kept in OUT, and what was stopped goes
on.

Exit codes: 0 done, 1 a run failed, 2 usage, 3 data, 75 stopped by a signal.
"""
import argparse
import hashlib
import math
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import run as runner
from ledger import key_of
from packages import EXIT_DATA, Refused, before_and_behind_dashes, guarded, require
from plan import Experiment
from prepare import ROOT
from session import Session
from work import Work

DEFAULTS = {'model': 'qwen-1m', 'seq-len': 512, 'batch-size': 8, 'steps': 500, 'lr': 4e-3, 'window': 32, 'dense-until': 64,
            'val-batches': 1000}
BUNDLED = 'data/bundled/sotu_manifest.json'   # trainers read it where no text is given, and when options are tried
# Options of a trainer that are this program's own business, and what to do instead. The plan overwrites most of them, so that an arm
# would be compared with itself.
DECIDED = {'lr': 'a rate for all goes behind --, as -- --lr 0.02, and --rates 0.5 1 2 finds the best for each arm',
           'lr-times': '--rates 0.5 1 2 finds the best rate for each arm', 'seed': '--seeds N takes the seeds 1 to N',
           'out': '--out FOLDER before -- holds all runs', 'threads': 'runs share the processors; --jobs N says how many run at once',
           'device': '--cpu leaves GPUs alone', 'resume': 'what was stopped goes on when the same command is given again',
           'checkpoint': 'all arms start from scratch, or from the folder in -- --model FOLDER',
           'train-data': '--text FILE or --data FOLDER names it', 'val-data': '--text FILE or --data FOLDER names it',
           'config': 'give the options themselves'}
DECIDED |= dict.fromkeys(('evaluate', 'dry-run', 'show-mask'), 'every run trains')


def options_of(words):
    """{name: value} of --name value or --name=value."""
    found, rest = {}, list(words)
    while rest:
        name, sign, value = rest.pop(0).partition('=')
        if not re.fullmatch(r'--[a-z][a-z0-9-]*', name) or not (sign or rest):
            raise Refused(f'{name}: options of a trainer are --NAME VALUE')
        found[name[2:]] = value if sign else rest.pop(0)
    return found


def number(kind, name, value):
    """The value of an option that the plan computes with: positive, and no nan or inf."""
    try:
        found = kind(value)
    except ValueError:
        found = 0
    if not 0 < found < math.inf: raise Refused(f'--{name} {value}: is no {"whole " if kind is int else ""}number above 0')
    return found


def check_options(options, where, but=()):
    """Refuses what would be overwritten, or would leave runs without the loss that is compared."""
    for name, value in options.items():
        if name in DECIDED and name not in but: raise Refused(f'--{name} {where}: compare.py decides that itself; {DECIDED[name]}')
        if name == 'steps': number(int, name, value)
        if name in ('val-every', 'val-batches') and re.fullmatch(r'[+-]?[0.]+', value):
            raise Refused(f'--{name} {value} {where}: without validations there is no loss to compare; leave it out')


def parsed(arm):
    """(variant, options) of the words of an arm."""
    try:
        variant, *own = shlex.split(arm) or ['']
    except ValueError as error:
        raise Refused(f'{arm}: {error}') from error
    if not variant: raise Refused('an arm is empty; it is a variant, with options behind it: \'dsa --window 128\'')
    if not (ROOT / f'attention/{variant}.cuh').exists():
        raise Refused(f'{variant}: there is no attention/{variant}.cuh; ls attention/*.cuh names the variants')
    options = options_of(own)
    check_options(options, f'in the arm "{arm}"')
    return variant, options


def experiment(arms, shared, seeds, rates):
    """The comparison as the plan of an experiment."""
    check_options(shared, 'behind --', but=('lr',))
    options = DEFAULTS | shared
    rate, steps = number(float, 'lr', options.pop('lr')), int(options['steps'])
    options = {'val-every': max(1, steps // 4), 'checkpoint-every': max(1, steps // 4)} | options
    if len(arms) < 2: raise Refused('give two arms or more: the baseline first')
    tables, seen = {}, {}
    for words in arms:
        variant, own = parsed(words)
        same = seen.setdefault(key_of(variant, options | own, '', ''), words)   # however it is written
        if same != words or words in tables: raise Refused(f'"{words}" is the same as "{same}"; give arms that differ')
        tables[words] = {'variant': variant, 'options': own}
    scale = {'lr': rate, 'seeds': seeds, 'seconds_per_step': 0.0, 'estimate': 'unknown', 'options': options, 'rates': rates}
    return Experiment('compare', table={'title': ' against '.join(reversed(arms)), 'baseline': arms[0], 'arms': tables,
                                        'scales': {'reduced': scale}})


def tokenized(texts, out):
    """A folder of shards of these files, made once."""
    folder = out / 'text'
    made_of = folder / 'made_of'
    now = ''
    for path in texts:
        with open(path, 'rb') as file: now += f'{hashlib.file_digest(file, "sha256").hexdigest()}  {path}\n'
    if not list(folder.glob('*_manifest.json')):
        folder.mkdir(parents=True, exist_ok=True)
        made_of.write_text(now)   # before the shards: there are none of which nobody knows what they are of
        command = ['./tokenize', '--tokenizer', 'bytes', '--out', str(folder), '--name', 'text', '--val-fraction', '0.1',
                   *map(str, texts)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode: raise Refused(f'{shlex.join(command)}: {done.stderr.strip()}', EXIT_DATA)
    if not made_of.exists() or made_of.read_text() != now:
        raise Refused(f'{folder}: is of other texts, or of these before they changed; give another --out')
    return folder


def try_options(work):
    """Refuses an arm that its trainer does not take: now, not when the baseline has trained."""
    if not (ROOT / BUNDLED).exists(): raise Refused(f'{BUNDLED} is not there, on which options are tried; make {BUNDLED}', EXIT_DATA)
    for run in work.runs(work.planner.stages()[0]):
        if work.session.said(run) is None: raise Refused(f'train_{run.variant} is not there; make train_{run.variant} builds it')


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
    if not all(0 < rate < math.inf for rate in options.rates): parser.error('--rates are positive numbers')
    require('scipy', 'numpy')   # before hours of runs, not after them
    plan, out = experiment(options.arms, options_of(shared), options.seeds, options.rates), Path(options.out).resolve()
    if not options.no_build:
        runner.build(sorted({f'train_{table["variant"]}' for table in plan.arms.values()} | {'tokenize', BUNDLED}))
    for path in options.text or []:
        if not path.is_file(): raise Refused(f'{path}: is no file', EXIT_DATA)
    data = tokenized([path.resolve() for path in options.text], out) if options.text else options.data
    if data: plan.scales['reduced']['data'] = 'own'
    settings = ['all', '--out', str(out), '--ledger', str(out / 'ledger.jsonl'), '--jobs', str(options.jobs)]
    settings += (['--data', str(data)] if data else []) + (['--cpu'] if options.cpu else [])
    work = Work(Session(runner.parse(settings)), plan, runner.say)
    try_options(work)
    code = work.perform()
    if code == 0: show(work)
    return code


if __name__ == '__main__':
    guarded(main)
