"""scripts/experiments: runs that start from the weights of others or of released models, what settings have of their own, interleaved
times of steps and of ./generate, texts with rows of a task among them, labelled examples, lines of ledgers."""

import json
import re
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from experiment_checks import ROOT, check, planted_plan, refused, session_in
import jobs
import labelled
import ledger
import plan
import prepare
import results
import shards
import xxhash
from scipy import stats as reference
from turns import median_interval


def planned(**settings):
    """An experiment with arms a (the baseline), b and gate, which starts from a."""
    arms = {'a': {'variant': 'causal'}, 'b': {'variant': 'dsa'},
            'gate': {'variant': 'seer', 'from': 'a', 'options': {'window': 1, 'lr-times': 0}}}
    return planted_plan(arms, settings, options={'steps': 10, 'val-every': 5, 'total-batch-tokens': 64}, arm_options={'gate': {'window': 2}})


def phases(work):
    three = {'first': {'label': 'trained'}, 'second': {'after': 'first', 'arms': ['a', 'gate']},
             'third': {'after': 'second', 'evaluate': True, 'arms': ['a', 'gate']}}
    planner = plan.Planner(planned(**three), 'smoke')
    check('a stage for each phase', planner.stages() == ['seeds', 'phase2', 'phase3'], planner.stages())
    first, second, third = (planner.runs(stage) for stage in planner.stages())
    check('arms that start from another have no first phase', [run.arm for run in first] == ['a', 'b'] * 2)
    check('a second phase starts from the arm that it is from',
          [(run.arm, run.origin.arm, run.origin.setting, run.origin.seed) for run in second] ==
          [('a', 'a', 'first', 1), ('gate', 'a', 'first', 1), ('a', 'a', 'first', 2), ('gate', 'a', 'first', 2)])
    check('a third from its own second', [(run.origin.arm, run.origin.setting) for run in third] ==
          [('a', 'second'), ('gate', 'second')] * 2)
    only = plan.Planner(planned(**three | {'second': {'after': 'first', 'arms': ['gate']}}), 'smoke').runs('phase3')
    check('or from the last that the arm has', [(run.origin.arm, run.origin.setting) for run in only] ==
          [('a', 'first'), ('gate', 'second')] * 2)
    check('the scale has the last word on an arm, and its own factor counts',
          second[1].options['window'] == 2 and second[1].options['lr'] == 0 and first[0].options['lr'] == 1e-3, second[1].options)
    check('what only reads has no options of training',
          third[0].kind == 'evaluate' and not {'steps', 'lr', 'val-every', 'total-batch-tokens'} & set(third[0].options))
    session = session_in(work)
    keys = [session.identify(run).key for run in third]
    session.commit = 'another'
    check('keys stand on the engine', len(set(keys)) == 4 and session.identify(third[0]).key != keys[0])
    other = plan.Planner(planned(**three | {'first': {'options': {'steps': 11}}}), 'smoke').runs('phase3')
    check('and on the runs before', session.identify(other[0]).key != session.identify(third[0]).key)
    trunk = {'trunk': {'options': {'schedule': 'constant'}},
             'cooled': {'after': 'trunk', 'resumes_at': 6, 'options': {'schedule': 'wsd', 'steps': 8}}}
    cooled = plan.Planner(planned(**trunk), 'smoke').runs('phase2')
    key = session.identify(cooled[0]).key
    check('a cool-down takes the steps after its trunk, whose checkpoint is in its key', {(run.resumes_at, run.seconds) for run in cooled} ==
          {(6, 2)} and session.identify(plan.replace(cooled[0], resumes_at=7)).key != key, [(r.resumes_at, r.seconds) for r in cooled])
    last = plan.Planner(planned(**trunk | {'cooled': trunk['cooled'] | {'resumes_at': cooled[0].origin.steps,
                                                                       'options': {'steps': cooled[0].origin.steps + 2}}}), 'smoke').runs('phase2')
    check('a cool-down takes the last checkpoint of its trunk', {run.seconds for run in last} == {2}, [run.seconds for run in last])
    refused('a cool-down of nothing', 'is `after`', lambda: planned(x={'resumes_at': 3}))
    refused('a cool-down past the end', 'and ends at 6', lambda: plan.Planner(planned(**trunk | {'cooled': trunk['cooled'] | {'options': {'steps': 6}}}),
                                                                              'smoke').runs('phase2'))
    refused('a circle of settings', 'in a circle', lambda: planned(x={'after': 'y'}, y={'after': 'x'}))
    refused('weights without a run that trains them', 'has no weights to start from', lambda: plan.Planner(
        planned(first={'arms': ['b']}, second={'after': 'first', 'arms': ['gate']}), 'smoke').runs('phase2'))
    refused('a setting after one that is not there', 'unknown setting', lambda: planned(x={'after': 'nowhere'}))
    refused('a setting after one with several rates', '[settings.x] has `rates`', lambda: planned(x={'rates': [1, 2]}, y={'after': 'x'}))


def own_of_settings():
    """Seeds, step times and layers of a setting."""
    shape = {'num_hidden_layers': 4, 'hidden_size': 8}
    cost = {'a': lambda layers: 100 + 50 * layers, 'b': lambda layers: 100 + 30 * layers}
    settings = {'all': {}, 'few': {'seeds': 1, 'relative_seconds': {'b': 3}}, 'deep': {'equal': 'layers', 'model': shape}}
    planner = plan.Planner(planned(**settings), 'smoke',
                           flops=lambda run: cost[run.arm](run.shape['num_hidden_layers']) if run.arm in cost else None)
    runs = {(run.setting, run.arm, run.seed): run for run in planner.runs('seeds')}
    check('a setting with fewer seeds', ('all', 'b', 2) in runs and ('few', 'b', 2) not in runs, list(runs))
    check('and with step times of its own', runs['all', 'b', 1].seconds == 10 and runs['few', 'b', 1].seconds == 30)
    base, deep = runs['deep', 'a', 1], runs['deep', 'b', 1]
    check('as many layers as the budget pays for', (base.shape, deep.shape) == (shape, shape | {'num_hidden_layers': 7}) and
          base.options['model'] != deep.options['model'] == plan.shape_name(deep.shape) and deep.seconds == 17.5, deep)
    blind = plan.Planner(planned(**settings), 'smoke').runs('seeds')
    check('the same number where programs are not built', all(run.shape in ({}, shape) for run in blind))
    preset = plan.Planner(planned(deep={'equal': 'layers'}), 'smoke', flops=lambda run: 1)
    refused('layers of a preset', 'give it a `model`', lambda: preset.runs('seeds'))


def released(work):
    """A model that --data brings: its weights first, its tokens in every phase."""
    settings = {'as_it_is': {'released': 'Tiny', 'arms': ['a']},
                'read': {'released': 'Tiny', 'after': 'as_it_is', 'arms': ['a'], 'evaluate': True}}
    planner = plan.Planner(planned(**settings), 'smoke')
    first, read = planner.runs('seeds')[0], planner.runs('phase2')[0]
    given = lambda: session_in(work, work / 'given')
    check('is planned without it', session_in(work).identify(read).key != '')
    (work / 'given/Tiny').mkdir(parents=True)
    refused('is refused in the plan where it is not', 'has no config.json and *.safetensors of the released Tiny',
            lambda: given().identify(read))
    for name, content in (('config.json', b'{}'), ('model.safetensors', b'1'), ('text_train_000001.bin', b'2')):
        (work / 'given/Tiny' / name).write_bytes(content)
    (work / 'given/Tiny/text_val_000000.bin').write_bytes(shards.header(shards.MAGIC_16, 1, 4) + bytes(8))
    command = given().command(first)
    check('its weights and its text', (command['model'], command['train-data']) ==
          (f'{work}/given/Tiny', f'{work}/given/Tiny/text_train_*.bin'), command)
    weights = jobs.weights_of(work / 'out', given().identify(read).origin)
    weights.mkdir(parents=True)
    (weights / 'manifest.json').touch()
    check('then those of the run before', given().command(read)['model'] == str(weights))
    (work / 'given/Tiny/model.safetensors').write_bytes(b'other')
    check('other weights are another run', given().identify(read).origin.key != weights.parent.name)


def step_times(work):
    for n in (1, 2, 5, 6, 7, 9, 20):
        middle, low, high, coverage = median_interval(list(range(n)))
        k = int(low)                          # values are their own ranks
        of_scipy = max(0, 1 - 2 * reference.binom.cdf(k, n, 0.5))
        narrower = 1 - 2 * reference.binom.cdf(k + 1, n, 0.5)
        check(f'interval of a median of {n}', abs(coverage - of_scipy) < 1e-12 and high == n - 1 - low and
              (coverage >= 0.95 or k == 0) and not (narrower >= 0.95 and low + 1 < high), (low, high, coverage))
    check('six rounds are the fewest for 95%', median_interval([1] * 5)[3] < 0.95 <= median_interval([1] * 6)[3])
    planner = plan.Planner(planned(short={'turns': {'rounds': 2}, 'options': {'seq-len': 64}}, long={'turns': {'rounds': 3, 'steps': 4}, 'arms': ['a', 'b']}), 'smoke')
    runs = planner.runs('turns')
    check('rounds of every setting, each with the baseline', planner.stages() == ['turns'] and len(runs) == 2 * 2 + 3 * 2 and
          all(run.against.variant == 'causal' and run.kind == 'turns' for run in runs), len(runs))
    words = [sys.executable, str(jobs.TURNS), f'{work}/bin/train_causal', f'--out={work}/out/runs/1', f'--train-data={work}/text/a_*.bin', '--steps=9']
    found = [jobs.anywhere(word, work / 'out', work / 'text', work / 'bin') for word in words]
    check('a ledger names no folder of this machine', found == ['python3', './scripts/experiments/turns.py', './train_causal', '--out=OUT/runs/1', '--train-data=DATA/a_*.bin', '--steps=9'], found)
    equal = plan.Planner(planned(one={'equal': 'flops'}, two={'equal': 'seconds', 'arms': ['a', 'b']}), 'reduced',
                         steps_of=lambda run: {'b': 7}[run.arm])
    timing, seconds = (equal.runs(stage) for stage in ('timing', 'seconds'))
    check('equal seconds go by step times in interleaved rounds', equal.stages() == ['seeds', 'timing', 'seconds'] and
          [run.seed for run in timing if run.arm == 'b'] == [1, 2, 3] and all(run.kind == 'turns' for run in timing) and
          [run.steps for run in seconds] == [10, 7] * 2, [run.name for run in timing + seconds])


COPY = {'kind': 'copy', 'T': 32, 'length': 4, 'distance': 8, 'rows': 8, 'items': 4}
BYTES = {'after': 'trained', 'writes': {'rounds': 3, 'prompt': 5, 'tokens': 7}, 'seconds_per_step': 2}


SAYS = """# says LATER BYTES DEVICE CODE --log=FILE: two tokens behind the first took so many seconds, or a third of it in the first call
import json, pathlib, sys
later, kept, device, code, log = sys.argv[1:]
once = pathlib.Path(sys.argv[0] + '.once')
seconds = float(later) * (1 if once.exists() else 1 / 3)
once.touch()
pathlib.Path(log[6:]).write_text(json.dumps({'event': 'writing', 'machine': 'm', 'commit': 'c', 'dirty': 0, 'binary_hash': 'p', 'device': device, 'weights': 'fp32',
    'prompt_tokens': 5, 'reading_seconds': 0.5, 'later_tokens': 2, 'writing_seconds': seconds, 'cache_bytes': int(kept)}))
sys.exit(print('no room', file=sys.stderr) or int(code))
"""


def writing(**settings):
    """An experiment of the text "own" with arms a (the baseline), b and sparse, which reads the weights of a on the CPU."""
    arms = {'a': {'variant': 'causal'}, 'b': {'variant': 'dsa'},
            'sparse': {'variant': 'causal', 'from': 'a', 'options': {'attention': 'psa', 'device': 'cpu'}}}
    every = {'trained': {}, 'read': {'after': 'trained', 'evaluate': True}, 'bytes': BYTES} | settings
    return planted_plan(arms, every, data='own', mixed=COPY, options={'steps': 10, 'window': 4})


def session_of(work):
    """With a text of 100 tokens, 20 of which validate, and programs that are only there."""
    for name, tokens in (('text_train_000001', range(80)), ('text_val_000000', range(100, 120))):
        words = struct.pack(f'<{len(tokens)}H', *tokens)
        (work / f'{name}.bin').write_bytes(shards.header(shards.MAGIC_16, 1, len(tokens)) + words)
    (work / 'text_manifest.json').write_text('{"shards": []}')
    for name in ('train_causal', 'train_dsa', 'generate'): (work / name).touch()
    return session_in(work, work, work)


def writes(session):
    planner = plan.Planner(writing(), 'smoke')
    check('writing comes after all that reads', planner.stages() == ['seeds', 'phase2', 'writes'], planner.stages())
    runs = [session.identify(run) for run in planner.runs('writes')]
    check('so many rounds of every arm', [run.arm for run in runs] == ['a', 'b', 'sparse'] * 3 and len({run.key for run in runs}) == 9)
    check('each with the weights of the first seed, its own or those that it is from, interleaved with the baseline\'s',
          {(run.arm, *((of.arm, of.seed) for of in run.origins)) for run in runs} ==
          {('a', ('a', 1), ('a', 1)), ('b', ('b', 1), ('a', 1)), ('sparse', ('a', 1), ('a', 1))})
    check('with the options of ./generate alone', runs[2].options == {'seed': 1, 'attention': 'psa', 'device': 'cpu', 'prompt': 5,
                                                                      'tokens': 7} and runs[2].seconds == 6, runs[2].options)
    other = plan.Planner(writing(trained={'options': {'steps': 11}}), 'smoke').runs('writes')
    check('keys stand on the weights', session.identify(other[1]).key != runs[1].key)
    other = planner.runs('writes')[1]
    other.against.origin.options['steps'] = 11
    check('and on the baseline\'s', session.identify(other).key != runs[1].key)
    refused('writing with the weights of nothing', 'give it an `after`', lambda: writing(bytes={'writes': BYTES['writes']}))
    refused('a round of unknown length', 'lacks the key tokens', lambda: writing(bytes=BYTES | {'writes': {'rounds': 1, 'prompt': 2}}))
    refused('and with a key that there is not', 'unknown key batch', lambda: writing(bytes=BYTES | {'writes': {'batch': 2}}))
    return planner


def commands(session, planner):
    """Where programs are told to compute."""
    work = jobs.Jobs(session)
    found = {run.arm: run for run in planner.runs('writes')}
    for run in found.values():
        session.identify(run)
        for origin in run.origins:
            folder = jobs.weights_of(session.out, origin)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / 'manifest.json').touch()
    told = lambda run, devices: [re.findall(r'--device=(\w+)', word)[-1:] for word in
                                 work._words(run, Path('x'), jobs.Place(devices, 1))[-2:]]
    check('without GPUs both calls are told so', [told(run, '') for run in found.values()] == [[['cpu'], ['cpu']]] * 3)
    check('with one, what only a CPU can is compared with the baseline there',
          [told(run, '0') for run in found.values()] == [[[], []], [[], []], [['cpu'], ['cpu']]],
          [told(run, '0') for run in found.values()])
    words = work._words(found['sparse'], Path('x'), jobs.Place('', 3))
    check('./generate has checkpoint, prompt and options', all(f'--{option}' in words[-1] for option in (
        'checkpoint=', 'prompts=', 'tokens=7', 'seed=3', 'attention=psa', 'threads=3', 'ignore-eos')) and
        'prompt=' not in words[-1] and 'attention' not in words[-2], words)
    train = [run for run in planner.runs('seeds') if run.arm == 'b'][0]
    check('so are trainers', '--device=cpu' in work._words(train, Path('x'), jobs.Place('', 1)) and
          not any('device' in word for word in work._words(train, Path('x'), jobs.Place('0', 1))))
    prompt = json.loads(Path(session.command(found['b'])['prompts']).read_text())
    check('the prompt is of the half that is reported on', prompt == {'prompt_ids': list(range(110, 115))}, prompt)
    found['b'].options['prompt'] = 11
    refused('and no longer than it', 'has 10 tokens', lambda: session.command(found['b']))


def mixed(session, planner):
    train, read = planner.runs('seeds')[0], planner.runs('phase2')[0]
    options, reading = session.data.options(train), session.data.options(read)
    glob = Path(options['train-data'])
    files = [path.read_bytes() for path in sorted(glob.parent.glob(glob.name))]
    check('rows of the task stand beside the text', [struct.unpack('<3i', file[:12])[1:] for file in files] == [(1, 80), (2, 256)] and
          'text_train_000002.bin' in (glob.parent / 'text_manifest.json').read_text())
    listed = {shard['file']: shard for shard in json.loads((glob.parent / 'text_manifest.json').read_text())['shards']}
    check('with the hash of its bytes', listed['text_train_000002.bin']['xxh64'] == xxhash.xxh64(files[1]).hexdigest(), listed)
    bundled = {shard['file']: shard for shard in json.loads((ROOT / 'data/bundled/sotu_manifest.json').read_text())['shards']}
    check('which is the one that ./tokenize writes', bundled['sotu_val_000000.bin']['xxh64'] ==
          xxhash.xxh64((ROOT / 'data/bundled/sotu_val_000000.bin').read_bytes()).hexdigest())
    check('items count what is copied where a text is only read', 'eval-data' not in options and
          Path(reading['eval-data']).exists() and reading['train-data'] == options['train-data'], reading)
    read, validation = reading['val-data'], options['val-data']
    check('a run validates on both halves of the validation tokens, and a reading run on that of results',
          validation == f'1 {read} 1 {read.replace("report", "tune")}' and
          [shards.ids(Path(half), 10) for half in validation.split()[1::2]] == [tuple(range(110, 120)), tuple(range(100, 110))], validation)
    plain = session.data.hash_of(plan.Run(**vars(train) | {'mixed': {}}))
    check('and the hash of the data says so', session.data.hash_of(train).startswith(plain + '+copy-'), session.data.hash_of(train))


def one_round(work):
    """turns.py --generate with programs that say what they measured."""
    program = work / 'says'
    program.write_text(f'#!{sys.executable}\n' + SAYS)
    program.chmod(0o755)
    call = lambda base, other: subprocess.run([sys.executable, str(jobs.TURNS), '--generate', '--log',
                                               str(work / 'log.jsonl'), f'{program} {base}', f'{program} {other}'],
                                              capture_output=True, text=True)
    done = call('0.3 4000 cpu 0', '0.1 1000 cpu 0')
    found = results.result_of(work)
    check('a round: milliseconds of a token, their ratio to the mean before and after, bytes', not done.returncode and
          (found['ms'], found['ratio'], found['first_ratio']) == (50, 0.5, 1) and
          (found['cache_bytes'], found['baseline_cache_bytes']) == (1000, 4000), (done.stderr, found))
    (work / 'log.jsonl').unlink()
    done = call('0.2 4000 cuda 0', '0.1 1000 cpu 0')
    check('no ratio of two devices', done.returncode == 1 and 'a ratio of times needs one device' in done.stderr and
          not (work / 'log.jsonl').exists(), done.stderr)
    check('a call that fails is a sentence', 'ended with code 4: no room' in call('0.2 1 cpu 0', '0.1 1 cpu 4').stderr)


def classes(work):
    training, held_out = labelled.write({'kind': 'bars'}, None, work / 'bars')
    content = (work / 'bars/training/labelled_train_000001.bin').read_bytes()
    tokens = len(content[1024:]) // 3
    words = [int.from_bytes(content[1024 + 2 * k:1026 + 2 * k], 'little') for k in range(tokens)]
    counted = content[1024 + 2 * tokens:]
    check('a document for each example', words.count(256) == training and int.from_bytes(content[4:8], 'little') == 2)
    said = bytes(w if c and w < 256 else 10 for w, c in zip(words, counted)).split()
    check('the labels alone count, with the ends behind them', len(said) == training and set(said) == {b'across', b'down'})
    items = [json.loads(line) for line in (work / 'bars/items.jsonl').read_text().splitlines()]
    text = bytes(w for w in words if w < 256).decode()
    check('what is held out is not trained on', len(items) == held_out and not any(item['query'] in text for item in items))
    labelled.write({'kind': 'bars', 'mask': False}, None, work / 'plain')
    plain = (work / 'plain/training/labelled_train_000001.bin').read_bytes()
    check('without a mask, every token does', int.from_bytes(plain[4:8], 'little') == 1 and len(plain) == 1024 + 2 * tokens)
    tokenizer = ROOT / 'tests/fixtures/tokenizers/gpt2_tokenizer.json'
    labelled.write({'kind': 'bars'}, None, work / 'tokens', tokenizer)
    for part, documents in (('training', training), ('held_out', held_out)):
        manifest = json.loads((work / f'tokens/{part}/labelled_manifest.json').read_text())
        content = (work / f'tokens/{part}/labelled_train_000001.bin').read_bytes()
        count = int.from_bytes(content[8:12], 'little')
        mask = content[1024 + 2 * count:]
        check(f'{part} in the tokens of a tokenizer.json: an example a document, its label and its end count',
              manifest['documents'] == documents and 'bytes' != manifest['tokenizer'] and
              mask.count(b'\0\1') == documents and sum(mask) >= 2 * documents, (manifest['documents'], sum(mask)))
    (work / 'text').mkdir()
    data = prepare.Data(work, work / 'text')
    run = plan.Run('e12_tasks', 'paper', 'phase2', 'causal', '', 1, 'causal', 1, {}, 'labelled',
                   {'kind': 'bars', 'tokens': True})
    refused('no tokenizer beside a text', 'has 0 files *_tokenizer.json', lambda: data.options(run))
    (work / 'text/text_tokenizer.json').write_bytes(tokenizer.read_bytes())
    found = data.options(run)
    check('and with one, shards for a run', Path(found['eval-data']).exists() and
          all(list(Path(found[k]).parent.glob(Path(found[k]).name)) for k in ('train-data', 'val-data')), found)
    (work / 'ag_news.csv').write_text('"3","Title, one","Words  here"\n"1","Two","More"\n', encoding='utf-8')
    check('topics of news', list(labelled.topics(work / 'ag_news.csv')) == [('Title, one Words here', 'Business'), ('Two More', 'World')])
    (work / 'ag_news.csv').write_text('"5","Title","Words"\n', encoding='utf-8')
    refused('a topic that there is not', 'ag_news.csv:1: is no class from 1 to 4', lambda: list(labelled.topics(work / 'ag_news.csv')))
    refused('digits without their file', 'has no digits.csv.gz', lambda: labelled.write({'kind': 'digits'}, work, work / 'digits'))
    record = {'event': 'evaluation', 'step': 1, 'task': 'items', 'acc_sum': 0.5, 'macro_f1': 0.4}
    check('accuracy and F1 are kept', results.evaluations(defaultdict(list, evaluation=[record])) ==
          {'accuracy': {'items': 0.5}, 'macro_f1': {'items': 0.4}})


def sweeps():
    planners = [plan.Planner(plan.Experiment(name), 'reduced') for name in ('e1_asga', 'e2_dsa', 'e5_isoflop', 'e6_lr')]
    shared = [{json.dumps([run.variant, run.options], sort_keys=True) for run in planner.runs('sweep')} for planner in planners]
    check('the sweeps of e1, e2 and e5 are those of e6', all(one <= shared[3] for one in shared[:3]),
          [list(one - shared[3])[:1] for one in shared])


RESULT = {'val_loss': 1.5, 'val_bpb': 2.25, 'weights_hash': 'w', 'steps': 20, 'tokens': 640, 'seconds': 3.5, 'machine': 'cpu: m',
          'flops_per_token': 10.0, 'validation': [[10, 320, 1.75, 2], [20, 640, 1.5, 3.5]], 'ms': 150.0}
FLAT = {'status': 'done', 'steps': 20, 'tokens': 640, 'lr': 0.004, 'val_loss': 1.5, 'bits_per_byte': 2.25, 'seconds': 3.5, 'flops': 6400.0,
        'weights_hash': 'w', 'commit': 'a24b83046f78', 'dirty': True, 'machine': 'cpu: m', 'command': 'train'}


def lines_of_ledgers(work):
    run = {'key': 'k', 'experiment': 'e2_dsa', 'arm': 'a', 'seed': 1, 'options': {'lr': 0.004}}
    path = work / 'lines.jsonl'
    path.write_text(json.dumps({'event': 'done', 'time': '2026-11-24T01:00:00Z', **run, 'result': RESULT}) + '\n')
    check('an old line has its result when it is read', ledger.Ledger(path).finished['k']['result'] == RESULT)
    fields, rest = ledger.flat('done', run['options'], RESULT)
    book = ledger.Ledger(work / 'new.jsonl')
    book.append('done', **run, **fields, commit='a24b83046f78', dirty=True, command='train', result=rest)
    written = json.loads((work / 'new.jsonl').read_text())
    check('a new one has them in the file, once', {name: written.get(name) for name in FLAT} == FLAT and written['date'] and
          set(written['result']) == {'flops_per_token', 'validation', 'ms'}, written)
    check('and its whole result when it is read', book.finished['k']['result'] == RESULT, book.finished['k'])


def main(here):
    lines_of_ledgers(here)
    phases(here)
    own_of_settings()
    released(here)
    step_times(here)
    (here / 'writes').mkdir()
    session = session_of(here / 'writes')
    planner = writes(session)
    commands(session, planner)
    mixed(session, planner)
    one_round(here)
    classes(here)
    sweeps()
