"""scripts/experiments: plans of all experiments, the options that trainers take, refusals of run.py and compare.py, Slurm scripts."""
import contextlib
import io
import json
import os
import re
import subprocess
import sys

from experiment_checks import ROOT, check, printed_by, refused
import compare
import plan
import run as runner
from work import Session

CPU = ['--no-build', '--cpu']


def plans():
    for name in plan.known_experiments():
        experiment = plan.Experiment(name)
        for scale in experiment.scales:
            planner = plan.Planner(experiment, scale)
            runs = [run for stage in planner.stages() for run in planner.runs(stage)]
            identities = {json.dumps([run.stage, run.setting, run.arm, run.options, run.task], sort_keys=True)
                          for run in runs}
            check(f'{name} at scale {scale} plans runs, none twice', 0 < len(runs) == len(identities), (len(runs), len(identities)))
    planner = plan.Planner(plan.Experiment('e1_asga'), 'smoke')
    first, swept = ([run.options for run in planner.runs(stage)] for stage in ('seeds', 'sweep'))
    check('a sweep has had the first seed of every arm', all(options in swept for options in first[:len(planner.arms)]), (first, swept))
    of = lambda **more: plan.Planner(plan.Experiment('e7_recall'), 'reduced', **more).runs('seeds')
    told = lambda runs: sorted({(run.seed, run.options['lr']) for run in runs if run.setting == 'learn_copy'})
    check('a setting has its own rates, and as many seeds of its own as are asked for',
          told(of()) == [(seed, lr) for seed in range(1, 6) for lr in (0.002, 0.004, 0.008)] and len(told(of(seeds=2))) == 6 and
          {run.seed for run in of() if run.setting == 'copy_32'} == {1})
    check('and settings can be chosen', {run.setting for run in of(settings=['learn_copy'])} == {'learn_copy'})
    equal = plan.Planner(plan.Experiment('e5_isoflop'), 'smoke', flops=lambda run: 100.0 if run.arm == 'causal' else 50.0)
    steps = {(run.setting, run.arm): run.steps for run in equal.runs('seeds')}
    check('equal FLOPs: half the FLOPs of a token, twice the steps',
          steps['flops', 'sliding_window'] == 2 * steps['flops', 'causal'], steps)


def unknown_keys(work):
    text = (ROOT / 'scripts/experiments/e2_dsa.toml').read_text()
    place = '[arms.dsa_no_window]\n'
    for words, changed in (('unknown key wall in [arms.dsa_no_window]; there are: from, ignore, label', text.replace(place, place + 'wall = 1\n')),
                           ('unknown key wall; there are: arms, baseline', 'wall = 1\n' + text),
                           ("does not fill its words in braces: 'b'", text + '[settings."{b}"]\neach = { a = [1] }\n'),
                           ('"x" is there twice', text + '[settings."{b}"]\neach = { b = ["x", "x"] }\n'),
                           ("does not fill its words in braces: it has no values", text + '[settings."{b}"]\neach = {}\n'),
                           ('it has no values', text + '[settings."{b}"]\neach = { b = [] }\n'),
                           ('settings.a.options is no table', text + '[settings.a]\noptions = 3\n'),
                           ('scales.huge is no table', text + '[scales]\nhuge = 1\n')):
        (work / 'e2_dsa.toml').write_text(changed)
        refused('a TOML with an ' + words.split(';')[0], words, lambda: plan.Experiment('e2_dsa', work), 2)
    plain = {'s1': {'label': '5%'}, 's2': {'label': '{'}}
    check('tables without `each` stay as they are', plan.for_each(dict(plain)) == plain, plan.for_each(dict(plain)))
    numbered = plan.for_each({'{n}': {'each': {'n': [1]}, 'seeds': '{n}'}})
    check('names are words, values what they were', numbered == {'1': {'seeds': 1}}, numbered)


OF_EVERY_TRAINER = {'window', 'dense-until'}   # --help leaves them out where they have no effect


def options_of_programs(work):
    """Trainers and ./generate take the options of all plans; each trainer the values of its longest list of them at scale reduced."""
    names, longest = {}, {}
    for name in plan.known_experiments():
        experiment = plan.Experiment(name)
        for scale in experiment.scales:
            planner = plan.Planner(experiment, scale)
            for run in [run for stage in planner.stages() for run in planner.runs(stage)]:
                program = 'generate' if run.kind == 'writes' else f'train_{run.variant}'
                names.setdefault(program, set()).update(run.options)
                if scale == 'reduced' and run.kind == 'train' and len(run.options) > len(getattr(longest.get(program), 'options', ())):
                    longest[program] = run
    for program, options in sorted(names.items()):
        told = subprocess.run([ROOT / program, '--help'], capture_output=True, text=True).stdout
        lacking = options - set(re.findall(r'--([a-z0-9-]+)', told)) - {'prompt'} - OF_EVERY_TRAINER
        check(f'{program} takes the options of the plans', told and not lacking, lacking)
    session = Session(runner.parse(['all', *CPU, '--out', str(work / 'planned')]))
    for program, run in sorted(longest.items()):
        check(f'{program} can be run as planned at scale reduced', 'parameters' in session.printed(run))
    medium = plan.Planner(plan.Experiment('e2_dsa'), 'medium').runs('seeds')[0]
    found = int(session.printed(medium)['parameters'].replace(',', ''))
    check('the model of scale medium has 25 million parameters', 24e6 < found < 26e6, found)


def words_of_plans(work):
    """What run.py prints before it runs anything."""
    stage = ['e2_dsa', '--scale', 'smoke', '--stage', 'sweep', '--dry-run', '--out', str(work / 'planned')]
    text = printed_by(runner.main, *CPU, *stage)
    check('a stage alone is the only one that counts', re.findall(r'^   (\w+: \d+) runs, ', text, re.M) == ['sweep: 12'] and
          '\ntogether: 12 runs' in text, text)
    check('a plan says where its hours come from', 'step times: a guess for one busy core' in text, text)
    refused('a run that the stage does not have, planned', '--run 1000: stage sweep has runs 0 to 11',
            lambda: runner.main([*CPU, *stage, '--run', '1000']), 2)
    text = printed_by(runner.main, *CPU, *'e2_dsa --scale reduced --dry-run --out'.split(), work / 'planned')
    check('an experiment, planned', all(words in text for words in ('sweep: 30 runs, 0 finished', 'seeds: 30 runs')), text)
    check('planning leaves no ledger', (work / 'planned').is_dir() and not (work / 'planned/ledger.jsonl').exists())
    command = ['bash', 'scripts/experiments/array.sbatch', *stage[:-3], '--cpu', '--out', work / 'array']
    of_slurm = os.environ | {'SLURM_ARRAY_TASK_ID': '3', 'PYTHON': sys.executable}
    subprocess.run(command, cwd=ROOT, env=of_slurm, check=True, stdout=subprocess.DEVNULL)
    ended = [r['arm'] for r in map(json.loads, open(work / 'array/ledger.jsonl')) if r['event'] == 'done']
    check('an array element of Slurm performs one run of a stage', ended == ['dsa_fixed_window'], ended)


def refusals(work):
    """Bad input of run.py: a sentence, before anything runs."""
    (work / 'other').mkdir()
    trainer = work / 'other/train_causal'
    trainer.write_text('#!/bin/sh\necho "train_causal: error: unknown option --window" >&2\nexit 2\n')
    trainer.chmod(0o755)
    dsa = ['e2_dsa', '--scale', 'smoke', '--arms', 'dsa']
    for name, code, words, arguments in (
            ('an experiment that does not exist', 2, 'unknown experiment e99; there are: e1_asga, e2_dsa', ['e99']),
            ('a scale that does not exist', 2, 'unknown scale huge; there are: smoke, reduced, medium, paper',
             ['e2_dsa', '--scale', 'huge']),
            ('an arm that does not exist', 2, 'unknown arm flash; there are: causal, dsa', ['e2_dsa', '--arms', 'flash']),
            ('no ranks', 2, '--ranks is 1 or more', ['e2_dsa', '--ranks', '0']),
            ('labelled examples that are not there', 3, 'has no digits.csv.gz; give a folder that has it with --data',
             ['e12_tasks', '--arms', 'dsa', '--seeds', '1']),
            ('a second phase before the first', 2, '1 runs whose weights later ones start from are not finished',
             ['e8_streaming', '--scale', 'smoke', '--arms', 'window_after', '--stage', 'phase2', '--run', '0']),
            ('a stage before the one that it stands on', 2, '4 runs that are not finished', [*dsa, '--stage', 'seeds', '--run', '0']),
            ('a text that is not there', 3, 'give the folder with --data FOLDER', ['e2_dsa', '--scale', 'medium', '--arms', 'dsa']),
            ('a trainer that is not there', 2, 'make train_causal builds it', [*dsa, '--programs', str(work)]),
            ('a ledger that cannot be written', 3, 'give another --ledger', [*dsa, '--ledger', '/dev/null/x']),
            ('a trainer that does not take the plan\'s options', 2, 'e2_dsa, arm causal at scale reduced: train_causal cannot be run as '
             'planned: train_causal: error: unknown option --window', ['e2_dsa', '--programs', str(work / 'other')])):
        refused(f'run.py refuses {name}', words, lambda: runner.main([*CPU, '--out', str(work / 'a'), *arguments]), code)
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        code = runner.main([*CPU, 'all', '--scale', 'medium', '--seeds', '0', '--programs', str(work), '--out', str(work / 'a')])
    check('of all experiments, those without their text are told',
          code == 3 and 'e5_isoflop: not run. e5_isoflop at scale medium reads' in told.getvalue(), (code, told.getvalue()))


def comparisons(work):
    """Bad input of compare.py, which may train nothing."""
    def refuses(name, words, *arguments):
        refused(f'compare.py refuses {name}', words,
                lambda: compare.main(['--cpu', '--no-build', '--out', str(work / 'compare'), 'causal', *arguments]), 2)
    refuses('a variant that is not there', 'there is no attention/flash.cuh', 'flash')
    for name in ('lr', 'lr-times', 'seed', 'out', 'threads', 'device', 'resume', 'checkpoint', 'train-data', 'val-data', 'config',
                 'evaluate'):
        itself = 'compare.py decides that itself'
        refuses(f'an arm\'s own --{name}', f'--{name} in the arm "causal --{name}=5": {itself}', f'causal --{name}=5')
        if name != 'lr': refuses(f'--{name} for all arms', f'--{name} behind --: {itself}', 'dsa', '--', f'--{name}', '5')
    for name in ('val-every', 'val-batches'):
        refuses(f'--{name} 0', f'--{name} 0 behind --: without validations', 'dsa', '--', f'--{name}', '0')
        refuses(f'an arm\'s own --{name} 0', 'without validations', f'dsa --{name} 0')
    for rate in ('nan', 'inf', '0', '-1'):
        refuses(f'--rates {rate}', '--rates are positive numbers', 'dsa', f'--rates={rate}')
        refuses(f'--lr {rate} for all arms', f'--lr {rate}: is no number above 0', 'dsa', '--', '--lr', rate)
    refuses('steps that are no number', '--steps many: is no whole number', 'dsa', '--', '--steps', 'many')
    refuses('an arm without a variant', 'an arm is empty', '')
    refuses('an option without its value', '--steps: options of a trainer are --NAME VALUE', 'dsa', '--', '--steps')
    refuses('one arm', 'give two arms or more')
    check('options of a trainer', compare.options_of(['--steps', '5', '--lr=1e-3']) == {'steps': '5', 'lr': '1e-3'})
    runs = plan.Planner(compare.experiment(['causal', 'dsa', 'dsa --window 8'], {'steps': '5'}, 3, []), 'reduced').runs('seeds')
    check('arms with options of their own', [(run.arm, run.options['window']) for run in runs[:3]] ==
          [('causal', 32), ('dsa', 32), ('dsa --window 8', '8')] and len(runs) == 9, runs[:3])
    refuses('a quote that is not closed', 'No closing quotation', "dsa --window '4")
    refuses('an arm twice, written in two ways', '"causal  --window=32" is the same as "causal"', 'causal  --window=32')
    refuses('an option that the second arm\'s trainer does not have',
            'compare, arm dsa --wnidow 4 at scale reduced: train_dsa cannot be run as planned', 'dsa --wnidow 4', '--', '--model', 'qwen-tiny')
    check('what compare.py refuses trains nothing', not (work / 'compare/ledger.jsonl').exists())


def main(work):
    plans()
    unknown_keys(work)
    options_of_programs(work)
    words_of_plans(work)
    refusals(work)
    comparisons(work)
