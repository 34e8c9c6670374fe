"""Compares what ./train_causal --evaluate says of a checkpoint with what Hugging Face transformers says of the same folder: the
log-likelihood of every answer of a file of items, the answers that follow from them, and the loss over a text (run from the
repository's root, after `make train_causal tokenize`).

    python3 tests/check_evaluation.py out/causal/step_00000100 items.jsonl [--items 1000] [--text text.txt]
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def encode_pair(tokenizer, context, answer):
    """As lm-evaluation-harness: white space that ends the context belongs to the answer; the two are tokenized together."""
    tail = answer if not context or context[-1].isspace() else ' ' + answer
    stripped = context.rstrip()
    tail, context = context[len(stripped):] + tail, stripped
    both = tokenizer(context + tail, add_special_tokens=False)['input_ids']
    before = tokenizer(context, add_special_tokens=False)['input_ids']
    return both, len(before)


def pairs(row):
    if 'context_options' in row:
        return [(context, row['continuation']) for context in row['context_options']]
    return [(row['query'], choice) for choice in row['choices']]


@torch.no_grad()
def log_likelihoods(model, encoded):
    """Sums over the answers' tokens, one batch per item."""
    longest = max(len(ids) for ids, _ in encoded)
    rows = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in encoded])
    logs = model(rows).logits.double().log_softmax(-1)
    return [sum(logs[n, t - 1, ids[t]].item() for t in range(begin, len(ids))) for n, (ids, begin) in enumerate(encoded)]


def ours(folder, arguments):
    command = ['./train_causal', '--device', 'cpu', '--evaluate', '--checkpoint', folder, '--batch-size', '8', '--seq-len', '1024', *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare_items(folder, model, tokenizer, path, count):
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()][:count]
    with tempfile.TemporaryDirectory() as work:
        out = pathlib.Path(work) / 'items.jsonl'
        said = ours(folder, ['--val-batches', '0', '--eval-data', str(path), '--eval-items', str(count), '--eval-out', str(out)])
        items = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(items) == len(rows), f'{path}: {len(items)} items of {len(rows)}'
    worst, same, right = 0, 0, 0
    for item, row in zip(items, rows):
        theirs = log_likelihoods(model, [encode_pair(tokenizer, *pair) for pair in pairs(row)])
        worst = max(worst, *(abs(a - b) / max(1, abs(b)) for a, b in zip(item['log_likelihoods'], theirs)))
        choice = max(range(len(theirs)), key=theirs.__getitem__)
        same += choice == item['chosen']
        right += choice == row['gold']
    print(said.splitlines()[-1])
    print(f'{path.name}: transformers answers {right} of {len(rows)} right and {same} as the engine; log-likelihoods differ by at most {worst:.1e} relative')
    assert same == len(rows) and worst < 1e-4


@torch.no_grad()
def compare_loss(folder, model, path, T=1024):
    name = json.loads((pathlib.Path(folder) / 'config.json').read_text())['engine_tokenizer']
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(['./tokenize', '--tokenizer', 'bytes' if name == 'bytes' else folder, '--out', work, '--name', 'text', '--val-fraction', '0.5', str(path)], check=True, capture_output=True)
        said = ours(folder, ['--val-data', f'{work}/text_val_*.bin', '--val-batches', '2'])
        shard = sorted(pathlib.Path(work).glob('text_val_*.bin'))[0].read_bytes()
    width = 2 if int.from_bytes(shard[:4], 'little') == 20240520 else 4
    starts = range(1024, 1024 + width * (16 * T + 1), width)
    tokens = torch.tensor([int.from_bytes(shard[n:n + width], 'little') for n in starts])
    logits = model(tokens[:-1].view(16, T)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), tokens[1:]).item()
    line = next(line for line in said.splitlines() if line.startswith('validation:'))
    print(f'{line}; transformers: loss {loss:.4f}, perplexity {math.exp(loss):.2f}')
    assert f'loss {loss:.4f}' in line


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder')
    parser.add_argument('data', type=pathlib.Path)
    parser.add_argument('--items', type=int, default=1000)
    parser.add_argument('--text', type=pathlib.Path)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    compare_items(options.folder, model, tokenizer, options.data, options.items)
    if options.text:
        compare_loss(options.folder, model, options.text)
