#!/usr/bin/env python3
"""Benchmarks of the Hugging Face hub as multiple-choice items for --eval-data.

    python3 scripts/evaluation_items.py hellaswag piqa --out out/items
    python3 scripts/evaluation_items.py hellaswag --from rows.parquet --out out/items
    ./train_causal --evaluate --checkpoint out/causal/step_00001000 --eval-data 'out/items/*.jsonl'

The tasks have the names and the text of lm-evaluation-harness (0.4.13, without examples in front): what stands in an item is what
the harness would give a model for that row. Each becomes a file in the folder --out, named after task and split, such as
hellaswag_val.jsonl, which gets its name when it is complete. data/README.md describes the items and where the rows come from.

--from takes files that are here, .parquet or .jsonl (a row a line), with the columns that the hub's have. Needs huggingface_hub for
the hub and pyarrow for parquet. Stopped at any time, the same command goes on with downloads where they were.

Exit codes: 0 done, 2 usage, 3 data or a missing package, 75 stopped.
"""
import argparse
import json
import re
import sys
from pathlib import Path
from typing import Callable, NamedTuple

from fineweb import Problem, bring_from_hub, columns_of, open_table, read_group, run


class Row:
    """A row of a benchmark, whose fields are what they have to be, or else a Problem that says where."""

    def __init__(self, where, fields, part_of=''):
        self.where, self.fields, self.part_of = where, fields, part_of

    def problem(self, key, what):
        return Problem(f'{self.where}: "{self.part_of}{key}" {what}')

    def field(self, key, kind, what):
        if key not in self.fields:
            raise self.problem(key, f'is missing; the row has {", ".join(map(json.dumps, self.fields)) or "no fields"}')
        if not isinstance(self.fields[key], kind):
            raise self.problem(key, f'is no {what}')
        return self.fields[key]

    def part(self, key):
        return Row(self.where, self.field(key, dict, 'object'), f'{key}.')

    def text(self, key):
        return self.field(key, str, 'string')

    def texts(self, key):
        texts = self.field(key, list, 'list of strings')
        if not all(isinstance(text, str) for text in texts):
            raise self.problem(key, 'is no list of strings')
        return texts

    def gold(self, key, names):
        """Which of the names is the right answer's, from 0. Some rows have 1 where others have "1"."""
        name = str(self.field(key, (str, int), 'name of an answer'))
        if name not in names:
            raise self.problem(key, f'is "{name}", expected one of {", ".join(names)}; '
                               'a split whose answers are kept secret cannot be scored')
        return names.index(name)


# -------------------------------------------------------------------------------------------------- rows as the harness words them

def context(text):
    """Between context and answer the harness always puts a space, the engine none where the context ends in white space."""
    return text + ' ' if text.endswith((' ', '\t', '\n', '\v', '\f', '\r')) else text


def without_marks(text):
    """HellaSwag's articles have marks in brackets, [header] or [step]. An answer that begins with one begins with a space then: the
    harness scores it so."""
    text = re.sub(r'\[.*?\]', '', text.strip().replace(' [title]', '. '))
    return text.replace('  ', ' ')


def hellaswag(row):
    said = f'{row.text("activity_label")}: {row.text("ctx_a")} {row.text("ctx_b").capitalize()}'
    endings = row.texts('endings')
    return {'query': context(without_marks(said)), 'choices': [without_marks(ending) for ending in endings],
            'gold': row.gold('label', [str(n) for n in range(len(endings))])}


def arc(row):
    choices = row.part('choices')   # most have the names A to D, some 1 to 4, and a few are three or five
    return {'query': f'Question: {row.text("question")}\nAnswer:', 'choices': choices.texts('text'),
            'gold': row.gold('answerKey', choices.texts('label'))}


def piqa(row):
    return {'query': f'Question: {row.text("goal")}\nAnswer:', 'choices': [row.text('sol1'), row.text('sol2')],
            'gold': row.gold('label', ['0', '1'])}


def winogrande(row):
    """The option goes into the context; what is scored is the text behind it, the same for both options."""
    before, blank, behind = row.text('sentence').partition('_')
    if not blank:
        raise row.problem('sentence', 'has no _ where the options go')
    return {'context_options': [context(before + row.text(option)) for option in ('option1', 'option2')],
            'continuation': behind.strip(), 'gold': row.gold('answer', ['1', '2'])}


class Task(NamedTuple):
    repository: str
    files: str       # how their names begin there
    split: str       # in the name of the file that is written
    rows: int        # of the whole split
    columns: tuple   # that are read
    item: Callable


ARC = ('question', 'choices', 'answerKey')
TASKS = {
    'hellaswag': Task('Rowan/hellaswag', 'data/validation-', 'val', 10042,
                      ('activity_label', 'ctx_a', 'ctx_b', 'endings', 'label'), hellaswag),
    'arc_easy': Task('allenai/ai2_arc', 'ARC-Easy/test-', 'test', 2376, ARC, arc),
    'arc_challenge': Task('allenai/ai2_arc', 'ARC-Challenge/test-', 'test', 1172, ARC, arc),
    'piqa': Task('baber/piqa', 'piqa_validation', 'val', 1838, ('goal', 'sol1', 'sol2', 'label'), piqa),
    'winogrande': Task('allenai/winogrande', 'winogrande_xl/validation-', 'val', 1267,
                       ('sentence', 'option1', 'option2', 'answer'), winogrande),
}


# ----------------------------------------------------------------------------------------------------------- from rows to a file

def rows_of_json_lines(path):
    try:
        with open(path, 'rb') as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f'{path}:{number}', json.loads(line)
    except OSError as error:
        raise Problem(f'{path}: cannot be read: {error.strerror}') from error
    except (ValueError, RecursionError) as error:   # no JSON, or no UTF-8
        raise Problem(f'{path}:{number}: is not JSON: {error}') from error


def rows_of_parquet(path, columns):
    file = open_table(path)
    for column in columns:
        if column not in file.schema_arrow.names:
            raise Problem(f'{path}: has no column "{column}"; its columns are: {columns_of(file)}')
    for group in range(file.num_row_groups):
        lists = read_group(file, path, group, list(columns))
        for number, row in enumerate(zip(*(lists[column] for column in columns))):
            yield f'{path}: row {number} of group {group}', dict(zip(columns, row))


def line_of(item, where):
    """As JSON, once the engine will take it."""
    texts = item['choices'] if 'choices' in item else [*item['context_options'], item['continuation']]
    if len(texts) < 2 or not all(texts) or item['gold'] >= len(texts):
        raise Problem(f'{where}: makes no item: there have to be two answers or more, none empty, the right one among them')
    try:
        return json.dumps(item, ensure_ascii=False).encode() + b'\n'
    except UnicodeEncodeError:
        raise Problem(f'{where}: has half of a surrogate pair (\\ud800 to \\udfff), which is no character') from None


def items_of(task, paths):
    lines = []
    for path in paths:
        rows = rows_of_json_lines(path) if path.endswith('.jsonl') else rows_of_parquet(path, task.columns)
        for where, fields in rows:
            if not isinstance(fields, dict):
                raise Problem(f'{where}: is no JSON object')
            lines.append(line_of(task.item(Row(where, fields)), where))
    return lines


def write_whole(path, lines):
    """Under another name first, so that what has the name is complete."""
    temporary = path.with_name(path.name + '.tmp')
    try:
        temporary.write_bytes(b''.join(lines))
        temporary.replace(path)
    except OSError as error:
        raise Problem(f'{path}: cannot be written: {error.strerror}') from error
    finally:
        temporary.unlink(missing_ok=True)


def make(name, files, folder):
    task = TASKS[name]
    paths = files or bring_from_hub(task.repository, lambda path: path.startswith(task.files) and path.endswith('.parquet'))
    lines = items_of(task, paths)
    if not files and len(lines) != task.rows:
        raise Problem(f'{task.repository}: {" ".join(paths)} have {len(lines)} rows, expected {task.rows}: the files there have '
                      'changed; give the right ones with --from')
    if not lines:
        raise Problem(f'{" ".join(files)}: no rows')
    path = folder / f'{name}_{task.split}.jsonl'
    write_whole(path, lines)
    print(f'{path}: {len(lines)} items' + (f' of {task.rows}' if len(lines) != task.rows else ''))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument('tasks', nargs='+', choices=TASKS, metavar='TASK', help=', '.join(TASKS))
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
        make(name, arguments.files, arguments.out)


if __name__ == '__main__':
    run('evaluation_items', main)
