#!/usr/bin/env python3
"""Compares attention variants on a text: several seeds, the same rows in the same order, error bars.

    compare.py causal asga                                        # the first is the baseline; the bundled text, three seeds
    compare.py causal dsa 'dsa --window 128' --text book.txt      # your own text, in bytes; options of one arm
    compare.py causal asga --seeds 5 --rates 0.5 1 2 -- --steps 2000 --seq-len 1024 --window 64 --dense-until 128
    compare.py --dry-run causal asga                              # the runs and an estimate of their hours
    compare.py --slurm causal asga | bash                         # one array per stage; then the same command without --slurm
    compare.py causal mine --curves torch=1.jsonl torch=2.jsonl   # beside losses of another program, of seeds 1, 2, ...

Options behind `--` are for all arms; those that compare.py sets itself (seeds, an arm's rate, data) are refused. Variants without a
window ignore --window and --dense-until. Defaults: 500 steps of 8 x 512 tokens, qwen-1m, learning rate 4e-3, --window 32 --dense-until
64, so that sparse variants are sparse at this length (column "pairs"). With --rates each arm takes its best of these factors, tuned on
one half of the validation tokens; losses are of the other. Cautions say what the table cannot show (guards.py). OUT keeps finished
runs, and the same command resumes stopped ones. OUT/report.html has the tables and pictures, as report.py --ledger OUT/ledger.jsonl
makes them again. A curve is a JSON Lines file with "step" and "val_loss", such as a log.jsonl; whether its program read the same rows
is not known. scripts/check_published.py --module compares a PyTorch module's results and gradients with a variant's.

Exit codes: 0 done, 1 a run failed, 2 usage, 3 data, 75 stopped by a signal.
"""
import argparse
import hashlib
import math
import re
import shlex
import subprocess
from pathlib import Path
from statistics import median

import report as reports
import run as runner
import stats
from analysis import Report
from guards import cautions, unigram_loss
from ledger import Ledger, key_of
from packages import EXIT_DATA, HERE, ROOT, Refused, guarded, split_at_dashes
from plan import Experiment
from results import finite, read_log
from tables import arm_table, as_markdown, number
from work import Session, Work

DEFAULTS = {'model': 'qwen-1m', 'seq-len': 512, 'batch-size': 8, 'steps': 500, 'lr': 4e-3, 'window': 32, 'dense-until': 64,
            'val-batches': 1000}
TOKENS = ('total-batch-tokens', 'batch-size', 'seq-len')   # of a step
BUNDLED = 'data/bundled/sotu_manifest.json'   # trainers read it where no text is given, and when options are tried
# Options of a trainer that the plan sets, so that an arm would be compared with itself.
DECIDED = {'lr', 'lr-times', 'seed', 'out', 'threads', 'device', 'resume', 'checkpoint', 'train-data', 'val-data', 'config',
           'evaluate', 'dry-run', 'show-mask'}


def options_of(words):
    """{name: value} of --name value or --name=value."""
    found, rest = {}, list(words)
    while rest:
        name, sign, value = rest.pop(0).partition('=')
        if not re.fullmatch(r'--[a-z][a-z0-9-]*', name) or not (sign or rest):
            raise Refused(f'{name}: options of a trainer are --NAME VALUE')
        found[name[2:]] = value if sign else rest.pop(0)
    return found


def positive(kind, name, value):
    """The value of an option that the plan computes with: positive and finite."""
    try:
        if 0 < kind(value) < math.inf: return kind(value)
    except ValueError:
        pass
    raise Refused(f'--{name} {value}: is no {"whole " if kind is int else ""}number above 0')


def check_options(options, where, decided=DECIDED):
    """Refuse options that the plan overwrites, and those that leave runs without a loss to compare."""
    for name, value in options.items():
        if name in decided:
            raise Refused(f'--{name} {where}: compare.py decides that itself; --help tells of --rates, --seeds, --text, --data, '
                          '--out, --cpu and --jobs, and a rate for all arms goes behind --, as -- --lr 0.02')
        if name == 'steps': positive(int, name, value)
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
    check_options(shared, 'behind --', DECIDED - {'lr'})
    options = DEFAULTS | shared
    rate, steps = positive(float, 'lr', options.pop('lr')), int(options['steps'])
    options = {'val-every': max(1, steps // 4), 'checkpoint-every': max(1, steps // 4)} | options
    if len(arms) < 2: raise Refused('give two arms or more: the baseline first')
    tables, seen = {}, {}
    for words in arms:
        variant, own = parsed(words)
        same = seen.setdefault(key_of(variant, options | own, '', ''), words)   # in whatever spelling
        if same != words or words in tables: raise Refused(f'"{words}" is the same as "{same}"; give arms that differ')
        tables[words] = {'variant': variant, 'options': own}
    scale = {'lr': rate, 'seeds': seeds, 'seconds_per_step': 0.0, 'estimate': 'unknown', 'options': options, 'rates': rates}
    table = {'title': ' against '.join(reversed(arms)), 'baseline': arms[0], 'arms': tables, 'scales': {'reduced': scale}}
    if (bins := positive(int, 'seq-len', options['seq-len']) // 32) > 3:   # whether the baseline uses context: guards.py
        of_positions = {'after': '', 'evaluate': True, 'arms': arms[:1], 'seeds': 1, 'options': {'position-bins': bins}}
        table['settings'] = {'': {}, 'positions': of_positions}
    return Experiment('compare', table=table)


def tokenized(texts, out):
    """A folder of shards of these files, made once; its name is a hash of their bytes."""
    digest = hashlib.sha256()
    for path in texts:
        if not path.is_file(): raise Refused(f'{path}: is no file', EXIT_DATA)
        with open(path, 'rb') as file: digest.update(hashlib.file_digest(file, 'sha256').digest())
    folder = out / f'text-{digest.hexdigest()[:10]}'
    if not list(folder.glob('*_manifest.json')):
        command = ['./tokenize', '--tokenizer', 'bytes', '--out', str(folder), '--name', 'text', '--val-fraction', '0.1',
                   *map(str, texts)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode: raise Refused(f'{shlex.join(command)}: {done.stderr.strip()}', EXIT_DATA)
    return folder


def tokens_of_step(options):
    o = {name: int(value) for name, value in options.items() if name in TOKENS}
    return o.get('total-batch-tokens', o['batch-size'] * o['seq-len'])


def imported(curves, work):
    """Records of runs of other programs from "ARM=FILE" in the order of seeds: [(labels with a key, result), ...]."""
    tokens, found = tokens_of_step(work.experiment.scales['reduced']['options']), {}
    for words in curves:
        arm, sign, path = words.partition('=')
        if not (arm and sign): raise Refused(f'--curves {words}: give ARM=FILE, such as torch=run_1/log.jsonl')
        if arm in work.experiment.arms: raise Refused(f'--curves {words}: {arm} is an arm that is trained; choose another name')
        if not Path(path).is_file(): raise Refused(f'--curves: {path}: is no file', EXIT_DATA)
        found.setdefault(arm, []).append(Path(path))
    return [(dict(experiment='compare', scale='reduced', stage='seeds', arm=arm, setting='', seed=seed, factor=1.0,
                  key=key_of(arm, {'seed': seed}, '', hashlib.sha256(path.read_bytes()).hexdigest())), curve_of(path, tokens))
            for arm, paths in found.items() for seed, path in enumerate(paths, 1)]


def curve_of(path, tokens):
    """The result of a run whose steps have so many tokens, from its validations."""
    points = sorted({r['step']: r['val_loss'] for r in read_log(path)[None]
                     if finite(r.get('val_loss')) and isinstance(r.get('step'), int)}.items())
    if not points: raise Refused(f'--curves: {path}: has no line with "step" and "val_loss", a whole number and a finite one', EXIT_DATA)
    step, loss = points[-1]
    return {'val_loss': loss, 'steps': step, 'tokens': step * tokens, 'seconds': None,
            'validation': [[n, n * tokens, of, None] for n, of in points]}


def expect(work):
    """Set the plan's step times: FLOPs at the median rate of finished runs, of the same variant if there are any, on such a device."""
    session, plan, rates, on_gpu = work.session, work.experiment, {}, bool(work.session.at[0].devices)
    for path in [*sorted((HERE / 'results').glob('*.jsonl')), session.ledger.path]:
        for record in Ledger(path).finished.values():
            r = record['result']
            counted = r.get('ms') and r.get('validation') and r.get('flops_per_token')
            if not counted or ('gpu' in record.get('place', '')) != on_gpu: continue
            step, tokens, *_ = r['validation'][-1]
            rates.setdefault(record.get('variant'), []).append(tokens / step * r['flops_per_token'] / r['ms'] * 1e3)
    every = [rate for of in rates.values() for rate in of]
    for run in work.runs('seeds'):   # refuses options that a trainer lacks before the baseline trains
        per_token = session.flops(run)
        if per_token is None: raise Refused(f'train_{run.variant} is not there; make train_{run.variant} builds it')
        if every: plan.relative_seconds[run.arm] = tokens_of_step(run.options) * per_token / median(rates.get(run.variant, every))
    plan.scales['reduced'] |= {'seconds_per_step': 1.0} if every else {}
    plan.scales['reduced']['estimate'] = f'FLOPs at the rate of {len(every)} finished runs, without validation' if every else 'unknown'


def show(work, report):
    """Print the table, and a sentence for every arm."""
    planned, runs = work.runs('seeds'), report.trained[report.trained.setting == '']
    comparisons = report.comparisons['compare', 'reduced', '']
    table = arm_table(runs, comparisons, work.experiment.baseline)
    means = runs.groupby('arm', sort=False)[['parameters', 'val_bpb', 'ms']].mean()
    first = {run.arm: run for run in reversed(planned)}
    printed = [(work.session.printed(first[arm]) if arm in first else None) or {} for arm in means.index]
    pairs = [re.match('.*?([0-9.]+%) of causal', of.get('visible pairs per sequence', '')) for of in printed]
    table.insert(1, 'parameters', [number(value, ',.0f') for value in means.parameters])
    table.insert(2, 'pairs, of causal', [visible[1] if visible else '-' for visible in pairs])
    table['bits per byte'], table['ms a step'] = [number(v) for v in means.val_bpb], [number(v, '.1f') for v in means.ms]
    print('\n' + as_markdown(table))
    for (name, base), c in comparisons.items():
        if c.pairs < 2:
            print(f'{name}: one pair of seeds says nothing about a difference; give --seeds 3 or more{c.lost}.')
            continue
        seen = max(c.p, c.adjusted) < stats.ALPHA
        word = 'no difference shows' if not seen else 'lower' if c.mean < 0 else 'higher'
        if c.identical: word = 'identity: equal weights hashes'
        print(f'{name} - {base}: {c.mean:+.4f} +- {c.half_width:.4f} nats ({c.pairs} paired seeds, 95%): {word}{c.lost}. '
              f'Smallest difference that so many seeds see: {stats.smallest_detectable(c.pairs, c.sd):.3f}.')
    unigram = unigram_loss(work.session.data.globs(planned[0].data)[0])
    for caution in cautions(runs, work.experiment.baseline, comparisons, report.runs, unigram): print(f'Caution: {caution}')


def main(arguments=None):
    words, of_all = split_at_dashes(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('arms', nargs='+', metavar='VARIANT', help='the baseline, then the arms to compare with it')
    add('--text', nargs='+', type=Path, metavar='FILE', help='text to train on, in bytes; the last tenth validates')
    add('--seeds', type=int, default=3, help='number of seeds (default 3)')
    add('--curves', nargs='+', default=[], metavar='ARM=FILE', help='validation losses of another program\'s runs, seed after seed')
    add('--rates', type=float, nargs='+', default=[], help='factors of the learning rate to choose from')
    options = runner.parse_common(parser, 'out/compare', words)
    if options.seeds < 1 or (options.text and options.data): parser.error('--seeds is at least 1, and --text and --data exclude each other')
    if not all(0 < rate < math.inf for rate in options.rates): parser.error('--rates are positive numbers')
    plan, out = experiment(options.arms, options_of(of_all), options.seeds, options.rates), Path(options.out).resolve()
    if not (options.no_build or options.dry_run or options.slurm):
        runner.build(sorted({f'train_{table["variant"]}' for table in plan.arms.values()} | {'tokenize', BUNDLED}))
    data = tokenized([path.resolve() for path in options.text], out) if options.text else options.data
    if data: plan.scales['reduced']['data'] = 'own'
    shared = vars(options) | {'arms': None, 'seeds': None, 'data': data and str(data)}   # the plan has its arms and seeds
    work = Work(Session(argparse.Namespace(**vars(runner.parse(['all'])) | shared)), plan, runner.say)
    if not (ROOT / BUNDLED).exists(): raise Refused(f'{BUNDLED} is not there, on which options are tried; make {BUNDLED}', EXIT_DATA)
    expect(work)
    curves = imported(options.curves, work)
    if options.slurm: return work.submission('compare.py', arguments)
    work.describe()
    code = 0 if options.dry_run else work.perform()
    if code or options.dry_run or options.stage: return code
    work.record_plan(curves)
    report = Report([work.session.ledger.path], [plan.name])
    show(work, report)
    reports.write(report, out)
    print(f'{out}/report.html: tables and pictures')
    return 0


if __name__ == '__main__':
    guarded(main)
