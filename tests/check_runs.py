"""scripts/experiments: real runs at scale smoke, some killed and resumed, and what they leave: ledger, report, tables of variants."""
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as tree

from experiment_checks import ROOT, check, printed_by, refused
import compare
import gallery
import report as reports
from ledger import Ledger

HERE = ROOT / 'scripts/experiments'
RUN = [sys.executable, str(HERE / 'run.py'), '--no-build', '--cpu']
DSA = ['e2_dsa', '--scale', 'smoke', '--arms', 'dsa']
STREAM = ['e8_streaming', '--scale', 'smoke', '--arms', 'window_after']
TINY = ['--model', 'qwen-tiny', '--seq-len', '64']
SHORT = [*TINY, *'--seq-len 128 --steps 10 --val-batches 4 --dense-until 8'.split()]
FIELDS = ('experiment arm variant seed scale status steps tokens lr val_loss bits_per_byte seconds flops weights_hash commit dirty '
          'machine data_hash command date').split()   # of a finished run, flat


def start(*words, out):
    return subprocess.Popen([*RUN, *words, '--out', str(out)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ends(name, *command, code=0, says=''):
    """Check that a command ends with a code and says something on standard error; return its standard output."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    check(name, done.returncode == code and says in done.stderr, f'code {done.returncode}: {(done.stderr or done.stdout)[-300:]}')
    return done.stdout


def runs(name, *words, out, **expected):
    return ends(name, *RUN, *words, '--out', out, **expected)


def records(out, *events):
    return [record for record in map(json.loads, open(out / 'ledger.jsonl')) if record['event'] in (events or ('done',))]


def results(out):
    """The results of finished runs, without times."""
    return sorted((r['key'], r['arm'], r['seed'], r['val_loss'], r['weights_hash'], r['steps'])
                  for r in Ledger(out / 'ledger.jsonl').records if r['event'] == 'done')


def kill(process, trainers):
    """Kill run.py, with or without its trainers."""
    children = subprocess.run(['ps', '--ppid', str(process.pid), '-o', 'pid='], capture_output=True, text=True).stdout.split()
    for pid in [*(map(int, children) if trainers else []), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate()


def await_file(glob, folder, holds=lambda path: True, seconds=20):
    """The first file of a glob for which holds(path); None if none comes."""
    until = time.time() + seconds
    while time.time() < until:
        if found := [path for path in folder.glob(glob) if holds(path)]: return found[0]
        time.sleep(0.02)
    return None


def wrapped(folder, *options, line=''):
    """A folder of trainers that append options to those of a plan; `line` comes first."""
    folder.mkdir()
    for name in ('train_causal', 'train_dsa'):
        (folder / name).write_text(f'#!/bin/bash\n{line}\nexec {ROOT}/train_causal "$@" {" ".join(options)}\n')
        (folder / name).chmod(0o755)
    return ['--stage', 'sweep', '--run', '0', '--programs', str(folder)]


# ------------------------------------------------------------------------------------------------------------------ runs

def repeated(out):
    """A plan, repeated and with a ledger that was cut."""
    text = runs('a plan at scale smoke', *DSA, out=out)
    check('rates, then seeds', 'causal: best at' in text and 'best at' in text.split('seed 2')[0], text)
    lacking = [(r['key'], field) for r in records(out) for field in FIELDS
               if field not in r or r[field] is None and field != 'bits_per_byte']
    check('every line of a finished run has the contract\'s fields, flat', not lacking and len(records(out)) == 6, lacking[:3])
    swept = {(r['arm'], r['factor']): r['result']['tune_loss'] for r in records(out) if r['stage'] == 'sweep'}
    best = {arm: min((1, 2), key=lambda factor: swept[arm, factor]) for arm in ('causal', 'dsa')}
    used = {(r['arm'], r['factor']) for r in records(out, 'run') if r['stage'] == 'seeds'}
    check('seeds run at the rate with the lowest loss of the sweep', used == set(best.items()), (used, swept))
    before, whole = (out / 'ledger.jsonl').read_bytes(), results(out)
    check('a ledger names no folder of the machine', b'OUT/runs/' in before and str(out).encode() not in before
          and str(ROOT).encode() not in before)
    runs('the plan once more', *DSA, out=out)
    check('repeats nothing', (out / 'ledger.jsonl').read_bytes() == before)
    (out / 'ledger.jsonl').write_bytes(before[:-20])
    runs('with a line that was cut in half', *DSA, out=out, says='is cut short or no record, and passed over; run.py repeats its run')
    last = json.loads(before.splitlines()[-1])['key']
    check('that run is repeated, to the same result', results(out) == whole and last in {key for key, *_ in whole})
    return whole


def killed(out, whole):
    """Killed with its trainers and alone, then done by two at once."""
    for trainers, share in ((True, 1), (False, 4)):
        process = start(*DSA, out=out)
        await_file('ledger.jsonl', out, lambda path: path.read_text().count('"start"') >= share)
        kill(process, trainers)
    first = start(*DSA, out=out)
    runs('a second run.py beside the first', *DSA, out=out)
    first.communicate()
    check('the first ends as well', first.returncode == 0)
    check('killed, resumed and done by two, the ledger has the same results', results(out) == whole)


def phases(out):
    """Runs that start from the weights of others: a causal model read through a window."""
    runs('a second phase', *STREAM, out=out)
    found = {(r['arm'], r['setting']): r for r in records(out)}
    dense, windowed, first = found['causal', 'after'], found['window_after', 'after'], found['causal', 'trained']
    check('reads the weights of the first, densely with the loss that training found, through a window with another',
          abs(dense['val_loss'] - first['val_loss']) < 2e-6 and windowed['val_loss'] != dense['val_loss']
          and windowed['origin'] == first['key'])
    lines, whole = (out / 'ledger.jsonl').read_text().splitlines(True), results(out)
    of_first = [line for line in lines if '"stage":"phase2"' not in line]
    (out / 'ledger.jsonl').write_text(''.join(of_first))
    for checkpoint in out.glob('runs/*/step_*'): shutil.rmtree(checkpoint)
    runs('without the weights of the first phase', *STREAM, out=out, code=3, says='with another --ledger they are made again')
    (out / 'ledger.jsonl').unlink()
    runs('with another ledger', *STREAM, out=out)
    check('they are made again, the same, and the results too', results(out) == whole)
    (out / 'ledger.jsonl').write_text(''.join(of_first).replace('"done"', '"diverged"'))
    runs('after a first run that diverged', *STREAM, out=out)
    why = [r.get('why', '') for r in records(out, 'diverged')][1:]
    check('the second counts as diverged, and says why',
          len(why) == 4 and all('the run that it starts from diverged' in words for words in why), why)


def timed(out):
    """Interleaved times, with the machine to themselves."""
    (out / 'locks').mkdir(parents=True)
    with open(out / 'locks/machine-here.lock', 'w') as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        process = start(*'e4_speed --scale smoke --arms dsa --machine here --stage turns --run 1'.split(), out=out)
        await_file('ledger.jsonl', out)
        time.sleep(0.7)
        check('a time measurement waits for company to leave', not records(out, 'start'))
    process.communicate()
    check('then a round has its ratio and peak memory', process.returncode == 0 and
          [r['result']['ratio'] > 0 and r['result']['peak_bytes'] > 0 for r in records(out)] == [True])
    turns = [sys.executable, HERE / 'turns.py']
    text = ends('two programs, interleaved', *turns, '--rounds', '1', './train_causal', './train_dsa --window 8', '--', *TINY)
    check('the second against the first',
          re.search(r'^./train_dsa --window 8 [0-9.]+ ms, ./train_causal [0-9.]+ ms: [0-9.]+, from', text), text)
    ends('a program that fails in its turn', *turns, './train_causal', './train_dsa', '--', '--model', 'nothing', code=1,
         says='./train_causal --model nothing: ended with code')


def stopped(work):
    """A kill and Ctrl-C in a run that is long enough to be met: this trainer takes more steps than the plan has."""
    words = [*DSA, *wrapped(work / 'long', '--steps 1000 --warmup-steps 1 --val-every 1000 --checkpoint-every 100')]
    process = start(*words, out=work / 'stopped')
    saved = await_file('runs/*/step_*[0-9]/manifest.json', work / 'stopped')   # step_N.tmp is not finished
    kill(process, True)
    resumed = re.compile(r'"event":"config","step":([1-9]\d*),')
    process = start(*words, out=work / 'stopped')
    log = await_file('runs/*/log.jsonl', work / 'stopped', lambda path: resumed.search(path.read_text()))
    check('a run that was killed goes on from its last checkpoint', saved and log and int(resumed.search(log.read_text())[1]) >= 100)
    process.send_signal(signal.SIGINT)
    process.communicate()
    check('Ctrl-C ends with 75', process.returncode == 75, process.returncode)
    steps = [r['step'] > 0 for r in records(work / 'stopped', 'stopped')]
    check('a checkpoint was saved, and the ledger has its step', steps == [True] and list(work.glob('stopped/runs/*/step_*')))
    runs('the same command goes on', *words, out=work / 'stopped')
    check('from the checkpoint', log and len(resumed.findall(log.read_text())) == 2)
    runs('the same without Ctrl-C', *words, out=work / 'unstopped')
    check('to the same bits', results(work / 'stopped') == results(work / 'unstopped') != [])


def badly_ended(work):
    hot = wrapped(work / 'hot', '--lr 1000 --weight-decay 1000 --grad-clip 0 --qk-norm 0 --warmup-steps 0')
    runs('a rate at which nothing is learnt', *DSA, *hot, out=work / 'hot_runs')
    why = [r['why'] for r in records(work / 'hot_runs', 'diverged') if r['status'] == 'diverged']
    check('the run counts as diverged, and says why', len(why) == 1 and re.match('a loss is not finite|ended at', why[0]), why)
    broken = wrapped(work / 'broken', line='echo "no room" >&2; exit 4')
    runs('a program that fails', *DSA, *broken, out=work / 'broken_runs', code=1)
    check('the run counts as failed, and says why', [(r['status'], r['why']) for r in records(work / 'broken_runs', 'failed')] ==
          [('failed', 'no room')])
    if not shutil.which('mpirun'):
        print('skip two ranks: no mpirun')
        return
    os.environ['OMPI_MCA_rmaps_base_oversubscribe'] = '1'
    runs('two ranks', *DSA, '--stage', 'sweep', '--run', '0', '--ranks', '2', out=work / 'ranks')
    [log] = work.glob('ranks/runs/*/log.jsonl')
    check('both took part', '2 ranks' in records(work / 'ranks')[0]['place'] and '"ranks":2,' in log.read_text())


def kinds(out):
    """Runs of every other kind: tasks, mixed texts, labelled examples, distilled gates, equal FLOPs and seconds, writing."""
    for words in ('e5_isoflop --seeds 1 --arms sliding_window', 'e7_recall --seeds 1 --arms sliding_window',
                  'e9_cache --seeds 1 --arms sinks psa_50', 'e11_distil --arms random_gate', 'e12_tasks --arms dsa', 'e13_budget --arms dsa',
                  'e15_horizon --seeds 1 --arms sliding_window'):
        runs(f'{words.split()[0]} at scale smoke', *words.split(), '--scale', 'smoke', out=out)
    found = records(out)
    of = lambda experiment, setting='': [r for r in found if r['experiment'] == experiment and setting in ('', r['setting'])]
    correct = lambda rs: [0 <= r['result']['accuracy']['items'] <= 1 for r in rs]
    check('tasks with masks of their answers have items that count them', correct(of('e7_recall', 'mqar_tiny')) == [True] * 4)
    followed = {(r['arm'], r['lr']): [step for step, _ in r['result']['accuracy_at']] for r in of('e7_recall', 'mqar_tiny')}
    check('at every rate of a setting, followed over steps', followed == {
        (arm, lr): [6, 12] for arm in ('causal', 'sliding_window') for lr in (0.004, 0.008)}, followed)
    check('labelled examples have accuracy and F1', all(correct(of('e12_tasks'))) and
          all(0 <= r['result']['macro_f1']['items'] <= 1 for r in of('e12_tasks')) and len(of('e12_tasks')) == 2)
    wrote = [r for r in of('e9_cache') if r['kind'] == 'writes']
    check('every arm has the bytes of its cache, and what it reads its accuracy', len(wrote) == 3 == len(of('e9_cache', 'read')) and
          all(correct(of('e9_cache', 'read'))) and all((r['result']['device'], r['result']['weights']) == ('cpu', 'fp32') for r in wrote))
    equal = {r['arm']: r['steps'] for r in of('e5_isoflop', 'flops')}
    check('equal FLOPs give a cheaper arm more steps', equal['sliding_window'] > equal['causal'], equal)
    timed = [r['result']['ratio'] for r in of('e5_isoflop', 'seconds') if r['kind'] == 'turns' and r['arm'] == 'sliding_window']
    own = {r['key'] for r in records(out, 'run') if (r['experiment'], r['stage'], r['arm']) == ('e5_isoflop', 'seconds', 'sliding_window')}
    steps = [r['steps'] for r in found if r['key'] in own]   # a run of another setting, where it has as many steps
    check('and equal seconds those of its step times', steps == [round(equal['causal'] / timed[0])], (steps, timed, equal))
    check('a gate is distilled from the weights of another arm, and read', [r['origin'] for r in of('e11_distil', 'distilled')] and
          all(r['val_loss'] for r in of('e11_distil', 'top_1')))
    swept = {r['arm'] for r in of('e15_horizon') if r['stage'] == 'sweep'}
    check('an arm has the rate of the one that it is like, which is swept', swept == {'causal', 'dsa'} and
          [r['steps'] for r in of('e15_horizon') if (r['stage'], r['arm']) == ('seeds', 'sliding_window')] == [4, 8, 16], swept)
    check('the loss by position is kept', all(len(r['result']['by_position']) == 32 for r in of('e13_budget', 'positions')))


def report(work, ledgers):
    """The report of all these runs."""
    text = printed_by(reports.main, '--out', work / 'report', '--ledger', *ledgers)
    check('a report has a line for each claim that has runs', re.search(
        '^002: dsa - causal, published -0.023; ours .* [(]2 paired seeds[)], scale smoke; ', text, re.M), text)
    markdown, page = ((work / f'report/report.{ending}').read_text() for ending in ('md', 'html'))
    row = r'^\| (\w+) \| cpu \| 1 \| [0-9.]+ \| .* \| [0-9.]+ \| ([0-9.]+) \| ([0-9.]+%|-) \|$'
    caches = {arm: float(ratio) for arm, ratio, _ in re.findall(row, markdown, re.M)}
    check('a row for each cache, psa with more than causal keeps', set(caches) == {'causal', 'sinks', 'psa_50'} and
          caches['psa_50'] > 1 > caches['sinks'], caches)
    tree.fromstring(re.sub('<!DOCTYPE[^>]*>', '', page))   # refuses what is not well-formed
    outside = re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)[^)]*\)|@import[^;]*', page)
    check('the page has pictures and refers to nothing outside',
          not outside and page.count('<svg') >= 3 and not page.count('<script'), outside)
    check('the same as Markdown and CSV', '\n| 002, table 1 | dsa - causal | -0.023 | smoke |' in markdown and
          '\n| 000, table 1 | asga / causal | 1.087, ratio of step time | medium, NVIDIA H200' in markdown and
          len((work / 'report/results.csv').read_text().splitlines()) > 30)
    refused('a report of nothing', 'is not there; run.py writes it', lambda: reports.main(['--ledger', str(work / 'none.jsonl')]), 3)


def comparison(work):
    """compare.py on a text."""
    text = work / 'fox.txt'
    text.write_text(''.join(f'The quick brown fox jumps over the lazy dog. {n}\n' for n in range(2000)))
    command = ['--cpu', '--no-build', '--out', str(work / 'compare'), 'causal', 'dsa --window 4', '--text', str(text)]
    told = printed_by(compare.main, *command, '--seeds', '2', '--', *SHORT)
    check('a comparison on a text says how sparse each arm is, and has intervals',
          re.search(r'^\| causal \| [0-9,]+ \| 100.0% \|.* baseline ', told, re.M) and
          re.search(r'^\| dsa --window 4 \| [0-9,]+ \| [1-9][0-9]?\.[0-9]% \|.* \+- [0-9]', told, re.M) and
          re.search(r'^dsa --window 4 - causal: [+-][0-9.]+ \+- [0-9.]+ nats \(2 paired seeds, 95%\): .*Smallest difference', told,
                    re.M), told)
    check('it warns of a baseline without context', told.count('Caution: The baseline uses no context beyond a window') == 1 and
          told.count('Caution: The baseline has learnt no context') == 1, told)
    check('and keeps the weights that it reads alone', len(list(work.glob('compare/runs/*/step_*'))) == 1)
    mine = work / 'compare/ledger.jsonl'
    check('its report has pictures, the same from its ledger', (page := (work / 'compare/report.html').read_text()).count('<svg') == 2 and
          printed_by(reports.main, '--ledger', mine, '--out', work / 'again') == '' and (work / 'again/report.html').read_text() == page)
    for seed, loss in ((1, 2.5), (2, 2.25)):
        (work / f'torch_{seed}.jsonl').write_text('{"step":6,"loss":3}\n{"step":6,"val_loss":9}\n{"step":12,"val_loss":%g}\n' % loss)
    curves = [f'torch={work}/torch_{seed}.jsonl' for seed in (1, 2)]
    told = printed_by(compare.main, *command, '--curves', *curves, '--seeds', '2', '--', *SHORT)
    check('curves of another program stand beside them', '>torch<' in (work / 'compare/report.html').read_text() and
          re.search(r'^\| torch \| - \| - \| 2 \| 0 \| 2.3750 \+- 0.1768 \|', told, re.M) and
          re.search(r'^torch - causal: .*\(2 paired seeds, 95%\)', told, re.M), told)
    refused('a curve that is none', 'fox.txt: has no line with "step" and "val_loss"',
            lambda: compare.main([*command, '--curves', f'torch={text}', '--seeds', '2', '--', *SHORT]), 3)
    words, before = ['--seeds', '3', '--dry-run', '--', *SHORT], mine.read_bytes()
    told = printed_by(compare.main, *command, *words)
    check('a dry run has the runs that are left and their hours, and adds nothing', re.search(
        r'seeds: 6 runs, 4 finished; [0-9.]+ hours .*\n.*\n   step times: FLOPs at the rate of [0-9]+ finished runs', told) and
          mine.read_bytes() == before, told)
    told = printed_by(compare.main, '--slurm', *command, *words[:2], *words[3:])
    lines = [shlex.split(line.removeprefix('job=$(')[:-1]) for line in told.splitlines()]
    check('arrays of Slurm, one for each stage, wait for each other', [line[2] for line in lines] == ['--array=0-5', '--array=0-0'] and
          lines[1][3] == '--dependency=afterok:$job', told)
    of_slurm = os.environ | {'SLURM_ARRAY_TASK_ID': '5', 'PYTHON': sys.executable}
    subprocess.run(['bash', *lines[0][3:]], cwd=ROOT, env=of_slurm, check=True, stdout=subprocess.DEVNULL)
    ended = [(r['arm'], r['seed']) for r in records(work / 'compare') if r['arm'] != 'torch'][5:]
    check('an element of the array performs its run', ended == [('dsa --window 4', 3)], ended)
    mine.write_text(''.join(line for line in before.decode().splitlines(True) if '"plan"' not in line))
    refused('a comparison that was stopped has no report', 'no run of a known plan is finished; start run.py or compare.py again',
            lambda: reports.main(['--ledger', str(mine)]), 3)
    (work / 'nano.jsonl').write_text('{"iter":1,"loss":4.1}\n{"iter":2,"loss":4.0}\n')
    refused('a ledger of another engine', 'nano.jsonl: is no ledger of this engine, as 2 of its lines are no records',
            lambda: reports.main(['--ledger', str(work / 'nano.jsonl')]), 3)
    before = compare.tokenized([text], work / 'compare')
    text.write_text(text.read_text().replace('quick', 'quack'))
    check('a text that changed, not in size, has other shards', compare.tokenized([text], work / 'compare') != before)


def variants():
    """The table of variants and the gallery."""
    text = ends('rows of the table of variants', sys.executable, 'scripts/variant_table.py', '--print', 'causal', 'dsa')
    check('has a row for each', re.search(r'^\| train_causal \|.*\n\| train_dsa \|.*\| 14,392 \| [0-9.%, |]+\| yes \|$', text, re.M), text)
    text = printed_by(gallery.main, '--print', 'dsa')
    check('the gallery has the results, the text and the formula of a variant', re.search(
        r'\| \[dsa\]\(#dsa\)\|[0-9.]+\|.*## dsa\n.*\n\nDynamic Sparse Attention \(aardXiv 2510.00061.*```text\n.*O\'_th = g_th O_th',
        text, re.S), text)
    drawn = []
    gallery.TEXTS, gallery.TRAINING, gallery.save = 1, ('--steps', 1, *gallery.TRAINING[2:]), lambda *found: drawn.extend(found)
    gallery.draw('moba', gallery.ROOT)
    seen, attention, _ = drawn
    check('attention of the gallery adds up to 1, and has the keys of the mask', abs(attention.sum(1) - 1).max() < 1e-5 and
          ((attention > 0) == (seen > 0)).all() and 0.2 < seen.mean() < 0.4, seen.mean())


def main(work):
    whole = repeated(work / 'whole')
    killed(work / 'killed', whole)
    phases(work / 'phases')
    timed(work / 'turns')
    stopped(work)
    badly_ended(work)
    kinds(work / 'kinds')
    report(work, [work / 'whole/ledger.jsonl', work / 'kinds/ledger.jsonl'])
    comparison(work)
    variants()
