"""Compares the engine with plain C (tests/reference_qwen.c) over 20 steps from the same weights on the same rows. Part of a lab's copy.

    python3 compare.py causal|asga [OPTION...]

Prints losses and gradient norms of both, the tensors that differ most after the last step, and the greatest relative differences. The
weights are those of --model FOLDER, or of a short training. Options go to both programs, for instance --adam-eps 1: AdamW divides a
gradient by its size, and with so large an eps it does not. Files are in out/compare, or in the folder OUT.
"""
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path(os.environ.get('OUT', 'out/compare'))
SHAPE = {'model_type': 'qwen3', 'vocab_size': 512, 'hidden_size': 40, 'num_hidden_layers': 2, 'num_attention_heads': 4,
         'num_key_value_heads': 2, 'head_dim': 16, 'intermediate_size': 48, 'rms_norm_eps': 1e-5, 'rope_theta': 20000,
         'tie_word_embeddings': True, 'engine_tokenizer': 'bytes'}
QUIET = '--device cpu --threads 1 --val-every 0 --sample-every 0 --plot 0'.split()


def run(program, *options):
    done = subprocess.run([program, *options], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def number(x):
    return math.nan if x is None else float(x)   # what is not finite is null in a log


def finite(difference):
    """The difference; 1 for NaN and infinity."""
    return difference if math.isfinite(difference) else 1.0


variant, *extra = sys.argv[1:] or ['causal']
for folder in (OUT / 'start', OUT / 'run'):
    shutil.rmtree(folder, ignore_errors=True)
OUT.mkdir(parents=True, exist_ok=True)
if '--model' not in extra:
    (OUT / 'config.json').write_text(json.dumps(SHAPE))
    run(f'./train_{variant}', *QUIET, '--model', OUT, '--out', OUT / 'start',
        *'--seq-len 64 --batch-size 8 --steps 40 --lr 4e-3 --checkpoint-every 40'.split())
    extra += ['--model', OUT / 'start/step_00000040']
same = ['--train-data', 'data/bundled/sotu_train_000001.bin',
        *'--seq-len 64 --batch-size 4 --steps 20 --warmup-steps 4 --lr 1e-3'.split(), *extra]
run(f'./train_{variant}', *QUIET, *same, '--shuffle', '0', '--checkpoint-every', '20', '--out', OUT / 'run')
reference = run('build/reference_qwen', *same, '--compare', OUT / 'run/step_00000020')

ours = [(r['step'], number(r['loss']), number(r['grad_norm'])) for r in map(json.loads, open(OUT / 'run/log.jsonl')) if 'grad_norm' in r]
theirs = [(float(loss), float(norm)) for loss, norm in re.findall(r'^step +\d+/.* loss (\S+) \| norm (\S+) ', reference, re.M)]
tensors = {line: finite(float(line.split()[3])) for line in reference.splitlines() if ' differs by ' in line}
if not len(ours) == len(theirs) > 0 or not tensors:
    sys.exit(f'cannot compare: the engine logged {len(ours)} steps, plain C printed {len(theirs)} and {len(tensors)} tensors; '
             'both must show every step, and plain C every tensor')
print('step  loss: engine    plain C    gradient norm: engine    plain C')
losses, norms = [], []
for (step, loss, norm), (c_loss, c_norm) in zip(ours, theirs):
    print(f'{step:4d}       {loss:9.5f}  {c_loss:9.5f}              {norm:9.5f}  {c_norm:9.5f}')
    losses.append(finite(abs(loss / c_loss - 1)))
    norms.append(finite(abs(norm / c_norm - 1)))
bad = sum(not (loss <= 1e-4 and norm <= 1e-3) for loss, norm in zip(losses, norms))
print(f'they differ in {bad} of {len(ours)} steps' if bad else 'they agree')
print(*sorted(tensors, key=tensors.get, reverse=True)[:6], sep='\n')
greatest = [f'{max(of):.1e}' for of in (losses, norms, tensors.values())]
print(f'greatest differences of {len(ours)} steps and {len(tensors)} tensors:', *greatest)
