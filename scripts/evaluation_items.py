#!/usr/bin/env python3
"""Multiple-choice tasks of lm-evaluation-harness as items for --eval-data.

    python3 scripts/evaluation_items.py hellaswag piqa --out out/items
    python3 scripts/evaluation_items.py hellaswag --from rows.parquet --out out/items
    ./train_causal --evaluate --checkpoint out/causal/step_00001000 --eval-data 'out/items/*.jsonl'

An item has the text and the right answer that the harness (lm_eval 0.4.13 or newer) would give a model for that row, without examples
in front. Each task becomes a file TASK.jsonl in the folder --out, which gets its name when it is complete. data/README.md describes
the items. The harness downloads the rows; --from takes files of them, .parquet or .jsonl (a row a line), with the same columns.

Exit codes: 0 done, 2 usage, 3 data or a missing package, 75 stopped.
"""
import argparse
import json
import sys
import tempfile
from pathlib import Path

from fineweb import Problem, needed, run, write_whole

WHITE_SPACE = (' ', '\t', '\n', '\v', '\f', '\r')


def load_task(name, files, folder):
    """The harness's task, over the rows of its own repository or those of the files. `folder` is for temporary files."""
    manager = needed('lm_eval.tasks').TaskManager()
    if name not in manager.all_subtasks:
        raise Problem(f'{name}: is no task of lm-evaluation-harness; {sys.executable} -m lm_eval ls tasks lists them')
    config = {'include': str(manager.task_index[name].yaml_path), 'task': f'{name}_items'}
    if files:
        kind = 'parquet' if files[0].endswith('.parquet') else 'json'
        config |= {'dataset_path': kind, 'dataset_name': None, 'training_split': None, 'validation_split': 'rows', 'test_split': None,
                   'fewshot_split': None, 'dataset_kwargs': {'data_files': {'rows': files}, 'cache_dir': f'{folder}/cache'}}
    path = Path(folder, 'task.yaml')   # JSON is YAML
    path.write_text(json.dumps(config))
    try:
        task = manager.load(str(path))['tasks'][f'{name}_items']
    except Exception as error:   # whatever the harness or its data sets raise
        raise Problem(f'{" ".join(files) or name}: cannot be read as rows of {name}: {error!r}') from error
    if task.OUTPUT_TYPE != 'multiple_choice':
        raise Problem(f'{name}: is no multiple choice; scripts/harness.py scores a checkpoint on it')
    return task


def split_request(context, answer):
    """Context and answer as the engine joins them: with a space between, or with nothing behind white space."""
    if answer.startswith(' '):
        return context + ' ' if context.endswith(WHITE_SPACE) else context, answer[1:]
    if context.endswith(WHITE_SPACE):
        return context, answer
    raise ValueError('no white space stands before an answer')


def item_of(task, doc):
    choices = task.doc_to_choice(doc)
    requests = task.construct_requests(doc, task.fewshot_context(doc, 0))[:len(choices)]
    contexts, answers = map(list, zip(*(split_request(*request.args) for request in requests)))
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    gold = choices.index(gold) if isinstance(gold, str) else int(gold)
    if len(set(answers if task.multiple_input else contexts)) > 1:
        raise ValueError('its contexts differ in their last white space' if not task.multiple_input else 'its endings differ')
    if len(answers) < 2 or not all(answers) or not 0 <= gold < len(answers):
        raise ValueError('there have to be two answers or more, none empty, the right one among them')
    if task.multiple_input:
        return {'context_options': contexts, 'continuation': answers[0], 'gold': gold}
    return {'query': contexts[0], 'choices': answers, 'gold': gold}


def items_of(name, files):
    """Lines of JSON."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        task = load_task(name, files, folder)
        for number, doc in enumerate(task.eval_docs):
            try:
                if missing := [key for key, value in doc.items() if files and value is None]:   # but in other rows of the files
                    raise ValueError(f'"{missing[0]}" is missing')
                lines.append(json.dumps(item_of(task, doc), ensure_ascii=False).encode() + b'\n')
            except Exception as error:
                raise Problem(f'{" ".join(files) or name}: row {number} makes no item of {name}: {error!r}') from error
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument('tasks', nargs='+', metavar='TASK', help='names in lm-evaluation-harness, such as hellaswag')
    parser.add_argument('--from', nargs='+', default=[], metavar='FILE', dest='files', help="one task's rows, .parquet or .jsonl")
    parser.add_argument('--out', type=Path, required=True, help='folder for the files of items')
    arguments = parser.parse_args()
    if arguments.files and len(arguments.tasks) > 1:
        parser.error(f'--from has the rows of one task, not of {" and ".join(arguments.tasks)}')
    for path in arguments.files:
        if not path.endswith(('.parquet', '.jsonl')):
            parser.error(f'{path}: rows are in .parquet or .jsonl files')
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)   # before the downloads, not behind them
    except OSError as error:
        raise Problem(f'{arguments.out}: cannot be made a folder: {error.strerror}') from error
    for name in arguments.tasks:
        lines, path = items_of(name, arguments.files), arguments.out / f'{name}.jsonl'
        write_whole(path, b''.join(lines))
        print(f'{path}: {len(lines)} items')


if __name__ == '__main__':
    run('evaluation_items', main)
