#!/usr/bin/env python3
"""Text that a checkpoint writes, against references: BLEU (sacrebleu) and ROUGE (rouge-score).

    make generate && pip install sacrebleu rouge-score
    python3 scripts/score_generation.py items.jsonl --checkpoint out/causal/step_00001000 --tokens 60 --out scored.jsonl
    python3 scripts/score_generation.py items.jsonl --checkpoint out/causal/step_00001000 -- --temperature 0.8 --seed 3
    python3 scripts/score_generation.py items.jsonl --texts finished.jsonl

items.jsonl has {"prompt", "reference"} in each line (with --texts the reference alone will do), finished.jsonl {"text"}, line by
line for the same items; the file of --out can be given as one. What stands behind -- goes to ./generate, which is greedy unless
that says otherwise, and gets all prompts at once. A text ends at an end of text or after --tokens tokens; --stop cuts it where the
given characters appear first.

Prints BLEU of all texts together, in percent with sacrebleu's signature, which belongs to every figure that is passed on, and the
means over items of the F1 of ROUGE-1, ROUGE-2 and ROUGE-L (no stemming), in percent with standard errors. White space around texts
and references does not count. Exit codes: 0 done, 2 usage or a missing package, 3 data, 7 the checkpoint; others as ./generate.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

GENERATE = Path(__file__).resolve().parent.parent / 'generate'
ROUGE = {'rouge1': 'ROUGE-1', 'rouge2': 'ROUGE-2', 'rougeL': 'ROUGE-L'}


def fail(code, message):
    print(f'score_generation: {message}', file=sys.stderr)
    sys.exit(code)


def load_scorers():
    try:
        import sacrebleu
        from rouge_score import rouge_scorer
    except ImportError as error:
        fail(2, f'the Python package {error.name} is missing: pip install sacrebleu rouge-score')
    return sacrebleu.metrics.BLEU(), rouge_scorer.RougeScorer(list(ROUGE))


def read_items(path, keys):
    """The objects of a JSON Lines file, each of which has strings under all keys; blank lines are passed over."""
    items = []
    try:
        lines = path.read_text(encoding='utf-8').split('\n')
    except (OSError, UnicodeDecodeError) as error:
        fail(3, f'{path}: {error}')
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            fail(3, f'{path}:{number}: is not JSON: {error}')
        for key in keys:
            if not isinstance(item, dict) or not isinstance(item.get(key), str):
                fail(3, f'{path}:{number}: has no string under "{key}"')
        items.append(item)
    if not items:
        fail(3, f'{path}: holds no items')
    return items


def generate(options, prompts):
    """What the checkpoint writes behind each of the prompts."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / 'prompts.jsonl', Path(folder) / 'texts.jsonl'
        before.write_text(''.join(json.dumps({'prompt': prompt}) + '\n' for prompt in prompts), encoding='utf-8')
        command = [GENERATE, '--checkpoint', options.checkpoint, '--prompts', before, '--out', after, '--tokens', str(options.tokens),
                   '--temperature', '0', *options.generate_options]
        try:
            done = subprocess.run(command, check=False)   # its progress and errors are on stderr
        except (OSError, ValueError) as error:
            fail(2, f'{GENERATE} cannot be started (`make generate` builds it): {error}')
        if done.returncode:
            fail(done.returncode if done.returncode > 0 else 1, f'{GENERATE} failed')
        return [item['text'] for item in read_items(after, ['text'])]


def all_texts(options, items):
    if not options.texts:
        return generate(options, [item['prompt'] for item in items])
    texts = [item['text'] for item in read_items(options.texts, ['text'])]
    if len(texts) != len(items):
        fail(3, f'{options.texts}: has {len(texts)} texts, and {options.items} has {len(items)} items')
    return texts


def parse():
    usage = '%(prog)s ITEMS (--checkpoint FOLDER | --texts TEXTS) [OPTIONS] [-- OPTIONS OF ./generate]'
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('items', type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument('--checkpoint', help='write the texts with this checkpoint')
    source.add_argument('--texts', type=Path, help='score these')
    parser.add_argument('--tokens', type=int, default=100, help='to write per prompt')
    parser.add_argument('--stop', help='cut each text where these characters appear first; \\n is the end of a line')
    parser.add_argument('--out', type=Path, help='JSON Lines with each text and its ROUGE')
    end = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    options.generate_options = sys.argv[end + 1:]
    if options.texts and options.generate_options:
        parser.error(f'{options.generate_options[0]}: the texts of --texts are finished, there is nothing to generate')
    if options.out and not options.out.parent.is_dir():
        parser.error(f'--out {options.out}: its folder does not exist')
    if options.stop:
        options.stop = options.stop.replace('\\n', '\n')
    return options


def main():
    options = parse()
    bleu, rouge = load_scorers()
    items = read_items(options.items, ['reference'] if options.texts else ['prompt', 'reference'])
    texts = all_texts(options, items)
    if options.stop:
        texts = [text.split(options.stop, 1)[0] for text in texts]
    references = [item['reference'].strip() for item in items]
    scores = [rouge.score(reference, text) for text, reference in zip(texts, references)]
    f1 = [{key: one[key].fmeasure for key in ROUGE} for one in scores]

    print(f'{len(items)} items')
    print(f'BLEU {bleu.corpus_score([text.strip() for text in texts], [references]).score:.2f}  ({bleu.get_signature()})')
    for key, name in ROUGE.items():
        values = [100 * one[key] for one in f1]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        print(f'{name} F1 {mean(values):.2f} +- {error:.2f}')
    if options.out:
        lines = [json.dumps({**item, 'text': text, **one}, ensure_ascii=False) for item, text, one in zip(items, texts, f1)]
        options.out.write_text('\n'.join(lines) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
