"""Compares what ./train_causal --evaluate says of a folder with what Hugging Face transformers says of it: the log-likelihood of
every answer of a file of items, the answers that follow from them, and the loss over a text (run from the repository's root, after
`make train_causal tokenize`). The folder is a checkpoint of ours, or a Qwen2 or Qwen3 that transformers wrote, with its
tokenizer.json; where none is at hand, random weights do:

    python3 tests/check_evaluation.py out/causal/step_00000100 items.jsonl [--items 1000] [--text text.txt]
    python3 tests/random_model.py qwen3 tokenizer.json out/random && python3 tests/check_evaluation.py out/random items.jsonl
"""
import argparse
import json
import math
import pathlib
import re
import subprocess
import tempfile

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

B, T = 8, 1024   # --batch-size and --seq-len


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
    made_here = (pathlib.Path(folder) / 'manifest.json').exists()   # else other programs' weights
    command = ['./train_causal', '--device', 'cpu', '--evaluate', '--checkpoint' if made_here else '--model', folder,
               '--batch-size', str(B), '--seq-len', str(T), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


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


def cross_entropy(logits, targets):
    """The sum, 64 tokens at a time: over a large vocabulary all logits as doubles would be gigabytes."""
    parts = zip(logits.split(64), targets.split(64))
    return sum(torch.nn.functional.cross_entropy(x.double(), y, reduction='sum').item() for x, y in parts)


@torch.no_grad()
def compare_loss(folder, model, tokenizer, path, batches=8):
    """Over the first batches of the text, which ./tokenize turns into tokens for the engine and the folder's tokenizer for
    transformers. Mean over all tokens, nats."""
    name = json.loads((pathlib.Path(folder) / 'config.json').read_text()).get('engine_tokenizer')
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(['./tokenize', '--tokenizer', 'bytes' if name == 'bytes' else folder, '--out', work, '--name', 'text',
                        '--val-fraction', '0', str(path)], check=True, capture_output=True)
        said = ours(folder, ['--val-data', f'{work}/text_train_*.bin', '--val-batches', str(batches)])
    tokens = torch.tensor([tokenizer.eos_token_id] + tokenizer(path.read_text(), add_special_tokens=False)['input_ids'])
    rows = min(batches * B, (len(tokens) - 1) // T)
    inputs, targets = tokens[:rows * T].view(rows, T), tokens[1:rows * T + 1].view(rows, T)
    theirs = sum(cross_entropy(model(x[None]).logits[0], y) for x, y in zip(inputs, targets)) / (rows * T)
    line = next(line for line in said.splitlines() if line.startswith('validation:'))
    own = float(re.search(r'loss ([0-9.]+)', line)[1])
    print(f'{path.name}, {rows * T} tokens: {line}; transformers: loss {theirs:.6f}, perplexity {math.exp(theirs):.2f}')
    assert abs(own - theirs) < 1e-5


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder')
    parser.add_argument('data', type=pathlib.Path)
    parser.add_argument('--items', type=int, default=1000)
    parser.add_argument('--text', type=pathlib.Path)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    # AutoTokenizer of transformers 5 splits words as Qwen2 does in every folder of a Qwen2, whatever tokenizer.json says.
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f'{options.folder}/tokenizer.json', eos_token='<|endoftext|>')
    compare_items(options.folder, model, tokenizer, options.data, options.items)
    if options.text:
        compare_loss(options.folder, model, tokenizer, options.text)
