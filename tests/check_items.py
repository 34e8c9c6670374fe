"""Compares the items that scripts/evaluation_items.py made of a benchmark's rows with what lm-evaluation-harness makes of the same
rows: every context, every answer behind it, and which is right (needs the package lm_eval; no model, no network).

    python3 tests/check_items.py hellaswag rows.jsonl items.jsonl       rows also as .parquet
"""
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ['HF_HUB_OFFLINE'] = '1'
import lm_eval.tasks

OF_HARNESS = {'hellaswag': 'hellaswag/hellaswag', 'arc_easy': 'arc/arc_easy', 'arc_challenge': 'arc/arc_challenge',
              'piqa': 'piqa/piqa', 'winogrande': 'winogrande/default'}


def harness_task(name, rows, folder):
    """The harness's task, over rows that are here."""
    original = Path(lm_eval.tasks.__file__).parent / f'{OF_HARNESS[name]}.yaml'
    split = 'test' if name.startswith('arc') else 'validation'
    source = {'dataset_path': 'parquet' if rows.endswith('.parquet') else 'json', 'dataset_name': None, 'training_split': None,
              'validation_split': None, f'{split}_split': split,
              'dataset_kwargs': {'data_files': {split: rows}, 'cache_dir': folder}}
    config = Path(folder) / 'task.yaml'   # JSON is YAML
    config.write_text(json.dumps({'include': str(original), 'task': f'own_{name}', **source}))
    return lm_eval.tasks.TaskManager(include_defaults=False).load(str(config))['tasks'][f'own_{name}']


def scored(context, behind):
    """Text that is read and text that is scored: white space between them is scored by both."""
    kept = context.rstrip()
    return kept, context[len(kept):] + behind


def theirs(task, doc):
    requests = task.construct_requests(doc, task.fewshot_context(doc, 0))
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    return [scored(*request.args) for request in requests], int(gold)


def ours(item):
    pairs = ([(context, item['continuation']) for context in item['context_options']] if 'context_options' in item else
             [(item['query'], choice) for choice in item['choices']])
    return [scored(context, choice if context[-1].isspace() else ' ' + choice) for context, choice in pairs], item['gold']


if __name__ == '__main__':
    name, rows, path = sys.argv[1:]
    items = [json.loads(line) for line in open(path, encoding='utf-8')]
    with tempfile.TemporaryDirectory() as folder:
        task = harness_task(name, rows, folder)
        docs = list(task.eval_docs)
    assert len(docs) == len(items), f'{len(docs)} rows, {len(items)} items'
    for number, (doc, item) in enumerate(zip(docs, items)):
        assert theirs(task, doc) == ours(item), f'row {number}: {theirs(task, doc)}, and here {ours(item)}'
    print(f'{name}: {len(items)} items are those of lm-evaluation-harness {lm_eval.__version__}')
