"""scripts/experiments: interleaved times of ./generate, the bytes of its cache, texts with rows of a task among them, the table of
e9_cache."""

import json
import re
import struct
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from experiment_checks import ROOT, cells, check, refused
import analysis
import jobs
import ledger
import plan
import results
import tables
import xxhash
from shards import header, ids
from session import Session


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


def planned(**settings):
    """An experiment of the text "own" with arms a (the baseline), b and sparse, which reads the weights of a on the CPU."""
    scale = {'lr': 1e-3, 'seeds': 2, 'seconds_per_step': 1, 'estimate': 'a guess', 'data': 'own', 'mixed': COPY,
             'options': {'steps': 10, 'window': 4}}
    arms = {'a': {'variant': 'causal'}, 'b': {'variant': 'dsa'},
            'sparse': {'variant': 'causal', 'from': 'a', 'options': {'attention': 'psa', 'device': 'cpu'}}}
    every = {'trained': {}, 'read': {'after': 'trained', 'evaluate': True}, 'bytes': BYTES} | settings
    return plan.Experiment('planted', table={'title': 'x', 'baseline': 'a', 'arms': arms, 'settings': every, 'scales': {'smoke': scale}})


def session_of(work):
    """With a text of 100 tokens, 20 of which validate, and programs that are only there."""
    for name, tokens in (('text_train_000001', range(80)), ('text_val_000000', range(100, 120))):
        words = struct.pack(f'<{len(tokens)}H', *tokens)
        (work / f'{name}.bin').write_bytes(header(20240520, 1, len(tokens)) + words)
    (work / 'text_manifest.json').write_text('{"shards": []}')
    for name in ('train_causal', 'train_dsa', 'generate'): (work / name).touch()
    return Session(Namespace(out=str(work / 'out'), ledger=str(work / 'none.jsonl'), data=str(work), programs=str(work), jobs=1,
                             ranks=1, cpu=True, scale='smoke', machine='m'))


def plans(session):
    planner = plan.Planner(planned(), 'smoke')
    check('writing comes after all that reads', planner.stages() == ['seeds', 'phase2', 'writes'], planner.stages())
    runs = [session.identify(run) for run in planner.runs('writes')]
    check('so many rounds of every arm', [run.arm for run in runs] == ['a', 'b', 'sparse'] * 3 and len({run.key for run in runs}) == 9)
    check('each with the weights of the first seed, its own or those that it is from, interleaved with the baseline\'s',
          {(run.arm, *((of.arm, of.seed) for of in run.origins)) for run in runs} ==
          {('a', ('a', 1), ('a', 1)), ('b', ('b', 1), ('a', 1)), ('sparse', ('a', 1), ('a', 1))})
    check('with the options of ./generate alone', runs[2].options == {'seed': 1, 'attention': 'psa', 'device': 'cpu', 'prompt': 5,
                                                                      'tokens': 7} and runs[2].seconds == 6, runs[2].options)
    other = plan.Planner(planned(trained={'options': {'steps': 11}}), 'smoke').runs('writes')
    check('keys stand on the weights', session.identify(other[1]).key != runs[1].key)
    other = planner.runs('writes')[1]
    other.against.origin.options['steps'] = 11
    check('and on the baseline\'s', session.identify(other).key != runs[1].key)
    refused('writing with the weights of nothing', 'give it an `after`', lambda: planned(bytes={'writes': BYTES['writes']}))
    refused('a round of unknown length', 'lacks the key tokens', lambda: planned(bytes=BYTES | {'writes': {'rounds': 1, 'prompt': 2}}))
    refused('and with a key that there is not', 'unknown key batch', lambda: planned(bytes=BYTES | {'writes': {'batch': 2}}))
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
    shards = [path.read_bytes() for path in sorted(glob.parent.glob(glob.name))]
    check('rows of the task stand beside the text', [struct.unpack('<3i', shard[:12])[1:] for shard in shards] == [(1, 80), (2, 256)] and
          'text_train_000002.bin' in (glob.parent / 'text_manifest.json').read_text())
    listed = {shard['file']: shard for shard in json.loads((glob.parent / 'text_manifest.json').read_text())['shards']}
    check('with the hash of its bytes', listed['text_train_000002.bin']['xxh64'] == xxhash.xxh64(shards[1]).hexdigest(), listed)
    bundled = {shard['file']: shard for shard in json.loads((ROOT / 'data/bundled/sotu_manifest.json').read_text())['shards']}
    check('which is the one that ./tokenize writes', bundled['sotu_val_000000.bin']['xxh64'] ==
          xxhash.xxh64((ROOT / 'data/bundled/sotu_val_000000.bin').read_bytes()).hexdigest())
    check('items count what is copied where a text is only read', 'eval-data' not in options and
          Path(reading['eval-data']).exists() and reading['train-data'] == options['train-data'], reading)
    read, validation = reading['val-data'], options['val-data']
    check('a run validates on both halves of the validation tokens, and a reading run on that of results',
          validation == f'1 {read} 1 {read.replace("report", "tune")}' and
          [ids(Path(half), 10) for half in validation.split()[1::2]] == [tuple(range(110, 120)), tuple(range(100, 110))], validation)
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


def report(work):
    """The table of a planted ledger: sinks keep a quarter and write in 2/3 of the time, seer keeps nothing."""
    book = ledger.Ledger(work / 'ledger.jsonl')
    place = {'experiment': 'e9_cache', 'scale': 'smoke', 'factor': 1}
    def enter(key, labels, result):
        book.append_all([('run', {'key': key, **labels}), ('done', {'key': key, **labels, 'result': result})])
    for arm, kept, ms, loss, right in (('causal', 4096, 30, 1.5, 0.9), ('sinks', 1024, 20, 1.6, 0.1), ('seer', 0, 90, 1.7, 0.8)):
        for n in (1, 2, 3):
            enter(f'{arm}{n}', place | {'stage': 'writes', 'arm': arm, 'setting': 'bytes_tiny', 'seed': n},
                  {'val_loss': None, 'ms': ms, 'ratio': ms / 30, 'first_ms': 2 * ms, 'first_ratio': 1.0, 'cache_bytes': kept,
                   'baseline_cache_bytes': 4096, 'device': 'cpu', 'weights': 'fp32', 'steps': 0, 'seconds': 1.0})
        enter(arm, place | {'stage': 'phase2', 'arm': arm, 'setting': 'read', 'seed': 1},
              {'val_loss': loss, 'accuracy': {'items': right}, 'validation': [[0, None, loss, None]], 'steps': 0, 'seconds': 1.0})
    of = analysis.Report([work / 'ledger.jsonl'])
    rows = {row[0]: row for row in cells(tables.time_table(of.timed))[1]}
    cheap = ['sinks', 'cpu', '3', '20.00', '0.667', '0.667', '0.667', '75%', '40.00', '1.000', '1.0', '0.250']
    check('bytes and milliseconds of a token', rows['sinks'] == cheap, rows['sinks'])
    check('what keeps nothing has no ratio of bytes', rows['seer'][-2:] == ['0.0', '-'], rows['seer'])


def main(here):
    session = session_of(here)
    planner = plans(session)
    commands(session, planner)
    mixed(session, planner)
    one_round(here)
    report(here)
