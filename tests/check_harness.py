"""Scores checkpoints of every attention variant with lm-evaluation-harness, through transformers and the Python files that they carry, and
with ./train_VARIANT --evaluate, on the same items, and compares all log-likelihoods and accuracies. The settings are those of the
fixtures (scripts/fixture_forms.py), by which contexts of up to 330 tokens have something to leave out. Runs two of RULER's tasks through
scripts/harness.py's model, with stand-ins for ./generate and with itself. No network. From the repository's root, after `make all`:

    python3 tests/check_harness.py [VARIANT ...]
"""
import importlib.util
import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

temporary = tempfile.TemporaryDirectory()   # goes when the program ends
work = Path(temporary.name)
os.environ |= {'HF_MODULES_CACHE': str(work / 'modules'), 'HF_HOME': str(work / 'home'), 'HF_HUB_OFFLINE': '1', 'OMP_NUM_THREADS': '2',
               'TOKENIZERS_PARALLELISM': 'false'}
import lm_eval                                                         # noqa: E402
from lm_eval.models.huggingface import HFLM                            # noqa: E402
from lm_eval.tasks import TaskManager                                  # noqa: E402

sys.path.insert(0, 'scripts')
import harness                                                         # noqa: E402
from attention_torch.variants import TABLE                             # noqa: E402
from checks import check                                               # noqa: E402
from fixture_forms import FORMS                                        # noqa: E402

WORDS = ('the people of this nation have made their choice and the union is strong in every state so that we may go on with the work '
         'that our fathers began and leave to those who come after us a country of free men').split()
SHAPE = {'architectures': ['Qwen3ForCausalLM'], 'vocab_size': 512, 'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4,
         'num_key_value_heads': 2, 'head_dim': 16, 'intermediate_size': 64, 'rope_theta': 1e4, 'tie_word_embeddings': True,
         'max_position_embeddings': 512, 'initializer_range': 0.3}
ITEMS = 24


def items():
    """Three answers of two to four words behind 4 to 60 words."""
    for n in range(ITEMS):
        turn = WORDS[5 * n % len(WORDS):] + WORDS[:5 * n % len(WORDS)]
        query = (turn * 2)[:4 + n * 56 // (ITEMS - 1)]
        yield {'query': ' '.join(query), 'choices': [' '.join(turn[k:k + 2 + k % 3]) for k in (5, 8, 11)], 'gold': n % 3}


def run(variant, *options):
    command = [f'./train_{variant}', '--device', 'cpu', '--threads', '1', *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, f'{" ".join(map(str, command))}: {done.stderr}'
    return done.stdout


def checkpoint(variant):
    """What ./train_VARIANT saves after 40 steps on the bundled text."""
    form = FORMS['qwen3_gqa_tied' if variant == 'causal' else variant]
    origin, out = work / f'{variant}.origin', work / variant
    origin.mkdir()
    (origin / 'config.json').write_text(json.dumps(SHAPE | {'attention_variant': variant} | form.settings))
    run(variant, '--model', origin, '--out', out, '--batch-size', 2, '--seq-len', 128, '--steps', 40, '--checkpoint-every', 40, '--lr', '3e-3',
        '--val-every', 0, '--sample-every', 0, '--plot', 0)
    return out / 'step_00000040'


def ours(variant, folder, path):
    """Log-likelihoods of all answers, and the accuracies by sum and by character mean."""
    scores, log = work / f'{variant}.scores', work / f'{variant}.log'
    run(variant, '--evaluate', '--checkpoint', folder, '--val-batches', 0, '--eval-data', path, '--eval-out', scores, '--eval-log', log,
        '--batch-size', 4, '--seq-len', 512)
    found = next(record for record in map(json.loads, open(log)) if record['event'] == 'evaluation')
    return [json.loads(line)['log_likelihoods'] for line in open(scores)], [found['acc_sum'], found['acc_character_mean']]


def theirs(folder, tasks):
    """The same, of the only task."""
    trust = bool(harness.trust_of(folder))
    model = HFLM(pretrained=str(folder), tokenizer=str(harness.tokenizer_of(folder, folder / 'tokenizer')), dtype='float32', device='cpu',
                 batch_size=1, trust_remote_code=trust)
    done = lm_eval.simple_evaluate(model=model, tasks=tasks.all_tasks, task_manager=tasks, log_samples=True, bootstrap_iters=0)
    (samples,), (found,) = done['samples'].values(), done['results'].values()
    rows = {row['doc_id']: [float(answer[0]) for answer in row['filtered_resps']] for row in samples}
    return [rows[n] for n in range(len(rows))], [found['acc,none'], found['acc_norm,none']]


def worst_difference(ours, theirs):
    """Of log-likelihoods, relative where they are above 1."""
    return max(abs(a - b) / max(1, abs(b)) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))


def compare(variant, path, tasks):
    folder = checkpoint(variant)
    (mine, accuracies), (other, their_accuracies) = ours(variant, folder, path), theirs(folder, tasks)
    worst, spread = worst_difference(mine, other), max(max(row) - min(row) for row in mine)
    same_accuracies = all(math.isclose(a, b, rel_tol=0, abs_tol=1e-9) for a, b in zip(accuracies, their_accuracies, strict=True))
    as_words = [', '.join(f'{100 * accuracy:.2f}%' for accuracy in pair) for pair in (accuracies, their_accuracies)]
    check(f'modeling: {variant}, scored by lm-evaluation-harness: acc and acc_norm {as_words[1]}, by --evaluate {as_words[0]}, '
          f'log-likelihoods to {worst:.1e}', len(mine) == ITEMS and worst < 1e-4 and spread > 0.5 and same_accuracies)


def check_control(folder, path, tasks):
    """That scores tell of the mechanism at all: a window one token longer has others."""
    config = json.loads((folder / 'config.json').read_text())
    before = ours('sinks', folder, path)[0]
    (folder / 'config.json').write_text(json.dumps(config | {'attention_window': config['attention_window'] + 1}))
    worst = worst_difference(before, theirs(folder, tasks)[0])
    check(f'modeling: lm-evaluation-harness notices a window that is one token longer, by {worst:.1e}', worst > 1e-3)


# In place of ./generate: writes the value of the key that a prompt ends with, plus OFFSET; without such a key, --tokens and the prompt.
STAND_IN = r'''#!PYTHON
import json, re, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(options["--out"], "w") as out:
    for prompt in [json.loads(line)["prompt"] for line in open(options["--prompts"])]:
        key = re.search(r".*magic number for (.+) mentioned in the provided text is$", prompt)
        value = key and int(re.search(rf"for {re.escape(key[1])} is: (\d+)\.", prompt)[1]) + OFFSET
        print(json.dumps({"text": f" {value}." if key else f"{options['--tokens']} {prompt}"}), file=out)
'''


def stand_in(offset):
    path = work / f'generate_{offset}'
    path.write_text(STAND_IN.replace('PYTHON', sys.executable).replace('OFFSET', str(offset)))
    path.chmod(0o755)
    return path


def ruler(engine, tokenizer, limit=None):
    """Results of two tasks at two lengths: the scores by task and length, and the samples of each task."""
    tasks = TaskManager(include_path=str(Path(lm_eval.__file__).parent / 'tasks/ruler'), include_defaults=False,
                        metadata={'max_seq_lengths': [512, 1024], 'tokenizer': str(tokenizer)})
    found = lm_eval.simple_evaluate(model=engine, tasks=['niah_single_1', 'niah_multikey_2'], task_manager=tasks, limit=limit)
    scores = {task: [result.get(f'{length},none') for length in (512, 1024)] for task, result in found['results'].items()}
    return scores, found['samples']


def check_ruler(folder):
    """RULER's scores follow from the texts that ./generate writes."""
    engine = harness.register_engine()
    for name, offset, expected in (('right', 0, 1), ('wrong', 1, 0)):
        scores, samples = ruler(engine(folder, generate=stand_in(offset)), folder)
        check(f'modeling: RULER with {name} answers', scores == dict.fromkeys(scores, [expected, expected]) and len(scores) == 2
              and all(len(rows) > 800 for rows in samples.values()), scores)
    scores, samples = ruler(engine(folder, generate='./generate'), folder, 2)
    rows = [row for rows in samples.values() for row in rows]
    asked, written = [row['arguments'][0][0] for row in rows], [row['resps'][0][0] for row in rows]
    alone = [subprocess.run(['./generate', '--checkpoint', folder, '--prompt', prompt, '--tokens', '128', '--temperature', '0'],
                            capture_output=True).stdout.decode(errors='replace') for prompt in asked]
    check('modeling: RULER has the texts that ./generate writes', len(rows) == 4 and all(written) and
          all(text.strip() in one for text, one in zip(written, alone, strict=True)), (written[:1], alone[:1]))
    requests = [SimpleNamespace(args=('a##b c', {'max_gen_toks': tokens, 'until': ends})) for tokens, ends in ((5, [' c', '##']), (7, []), (5, ['b']))]
    check('modeling: texts end before "until", each with its own number of tokens',
          engine(folder, generate=stand_in(0)).generate_until(requests) == ['5 a', '7 a##b c', '5 a##'])
    for name, code, words, tasks in (('tasks of two kinds', 2, 'run apart', ['niah_single_1', 'piqa']),
                                     ('no checkpoint', 7, 'holds no tokenizer.json', ['niah_single_1'])):
        done = subprocess.run([sys.executable, 'scripts/harness.py', str(work / 'nothing'), *tasks], capture_output=True, text=True)
        check(f'modeling: harness.py refuses {name}', done.returncode == code and words in done.stderr, done.stderr[-200:])


def main():
    variants = sys.argv[1:] or sorted(TABLE)
    logging.disable(logging.WARNING)
    path = work / 'own.jsonl'
    path.write_text(''.join(json.dumps(item) + '\n' for item in items()))
    harness.task_of(path, 0, work)
    tasks = TaskManager(include_path=str(work), include_defaults=False)
    for variant in variants: compare(variant, path, tasks)
    if 'sinks' in variants: check_control(work / 'sinks/step_00000040', path, tasks)
    if 'asga' in variants:
        command = [sys.executable, 'scripts/harness.py', work / 'asga/step_00000040', path, *'-- --batch_size 1 --device cpu'.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        check('modeling: scripts/harness.py prints the accuracy of a checkpoint',
              re.search(r'^\|own_0_own *\|.*\| *acc +\|', done.stdout, re.M), done.stderr[-300:])
    if 'causal' in variants and all(map(importlib.util.find_spec, ('nltk', 'scipy', 'wonderwords'))):
        check_ruler(work / 'causal/step_00000040')
    elif 'causal' in variants:
        print(f'skip modeling: RULER: {sys.executable} lacks lm_eval[ruler]')


main()
