#!/usr/bin/env python3
"""Text of the Hugging Face hub, or of parquet and Arrow files that are here, as token shards.

    python3 scripts/fineweb.py --dataset sample-10BT --out data/fineweb10B --tokenizer FOLDER
    python3 scripts/fineweb.py a.parquet b.parquet --out data/mine --tokenizer bytes --val-tokens 1000000
    python3 scripts/fineweb.py --shards 10 --out data/fineweb10B-gpt2

The first brings a dataset by its name, the second reads files with a column of texts; both stream the texts into ./tokenize, which
gets every option that is not listed below. Stopped at any time, the same command goes on: downloads where they were, ./tokenize
with the first shard that is not finished. The third brings ready-made shards of GPT-2 tokens, which training reads as they are.

Needs pyarrow for files of tables and huggingface_hub for the hub. Exit codes: those of ./tokenize (3: data).
"""
import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKENIZE = ROOT / 'tokenize'

TABLES = ('.parquet', '.arrow', '.feather')

# name: repository, files that begin with, how validation is split off where no option says so
DATASETS = {
    'sample-10BT': ('HuggingFaceFW/fineweb', 'sample/10BT/', ['--val-tokens', '100000000']),
    'sample-100BT': ('HuggingFaceFW/fineweb', 'sample/100BT/', ['--val-tokens', '100000000']),
    'edu-10BT': ('HuggingFaceFW/fineweb-edu', 'sample/10BT/', ['--val-tokens', '100000000']),
    'tinystories': ('roneneldan/TinyStories', 'data/train-', ['--val-tokens', '5000000']),
}
READY_MADE = 'kjj0/fineweb10B-gpt2'


class Problem(Exception):
    """A sentence for the user; ends the program with exit code 3."""


def needed(name):
    """The Python module of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition('.')[0]
        raise Problem(f'the Python package {package} is needed: python3 -m pip install {package}') from None


def check_hash(path, sha256):
    with open(path, 'rb') as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise Problem(f'{path}: is damaged, its SHA-256 is {digest.hexdigest()}, expected {sha256}; remove it and start again')


def bring_from_hub(repository, wanted, folder=None):
    """Paths of the files of a dataset whose names `wanted` accepts, in order. Downloads what is not there yet: huggingface_hub goes
    on with files that were begun and shows its progress. Into its cache, or into `folder`."""
    hub = needed('huggingface_hub')
    try:
        tree = hub.HfApi().list_repo_tree(repository, recursive=True, repo_type='dataset')
        files = sorted((file for file in tree if hasattr(file, 'size') and wanted(file.path)), key=lambda file: file.path)
        paths = []
        for file in files:
            path = hub.hf_hub_download(repository, file.path, repo_type='dataset', local_dir=folder)
            if file.lfs:
                check_hash(path, file.lfs.sha256)
            paths.append(path)
    except Problem:
        raise
    except Exception as error:   # what the network raises depends on the version of the package
        raise Problem(f'{repository}: cannot be brought from the Hugging Face hub: {error}') from error
    if not paths:
        raise Problem(f'{repository}: holds no such files')
    return paths


def open_texts(path, column):
    """How many rows a parquet or Arrow file has, and its column of texts in batches."""
    kind = 'parquet' if str(path).endswith('.parquet') else 'Arrow'
    pyarrow, parquet = needed('pyarrow'), needed('pyarrow.parquet')
    try:
        if kind == 'parquet':
            file = parquet.ParquetFile(path)
            schema, rows, batches = file.schema_arrow, file.metadata.num_rows, lambda: file.iter_batches(columns=[column])
        else:
            table = read_arrow(path)
            schema, rows, batches = table.schema, table.num_rows, lambda: table.select([column]).to_batches()
    except (OSError, pyarrow.ArrowException) as error:
        raise Problem(f'{path}: is no {kind} file that can be read: {error}') from error
    if column not in schema.names or not holds_strings(schema.field(column).type):
        columns = ', '.join(f'{field.name} ({field.type})' for field in schema)
        raise Problem(f'{path}: has no column "{column}" of strings; --column names the one to take. Its columns are: {columns}')
    return rows, batches


def read_arrow(path):
    """The table in a file (Feather) or stream (the cache of `datasets`) of Arrow's IPC format, which stays on the disk until it is used."""
    from pyarrow import ArrowInvalid, ipc, memory_map
    source = memory_map(str(path))
    try:
        return ipc.open_file(source).read_all()
    except ArrowInvalid:   # no footer
        source.seek(0)
        return ipc.open_stream(source).read_all()


def holds_strings(kind):
    """Whether an Arrow type is one of strings: plain ones, views, or a dictionary of them, which is how pandas stores categories.
    Bytes that are not marked as text, as old programs write it, are strings if they are UTF-8."""
    from pyarrow import types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return str(kind) in ('string', 'large_string', 'string_view', 'binary', 'large_binary', 'binary_view')


def write_texts(path, batches, column, out):
    """The texts of a table as JSON Lines, a batch in memory at a time."""
    row = 0
    try:
        for batch in batches():
            lines = []
            for text in batch.column(0).to_pylist():
                if text is None:
                    raise Problem(f'{path}: row {row} has no text in column "{column}"')
                try:
                    text = text.decode() if isinstance(text, bytes) else text
                except UnicodeDecodeError as error:
                    raise Problem(f'{path}: row {row} has bytes in column "{column}" that are not UTF-8: {error}') from error
                lines.append('{"text":' + json.dumps(text, ensure_ascii=False) + '}\n')
                row += 1
            out.write(''.join(lines).encode())
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:   # of pyarrow, whose exceptions are ValueErrors
        raise Problem(f'{path}: cannot be read from row {row} on: {error}') from error


def tokenize(paths, column, options):
    """Streams the files into ./tokenize and returns its exit code."""
    files = [open_texts(path, column) for path in paths]   # every one is looked at before work begins
    # The number of documents tells ./tokenize the end of the data from the end of a program that died.
    documents = sum(rows for rows, _ in files)
    command = [str(TOKENIZE), '--format', 'jsonl', '--documents', str(documents), *options, '-']
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        for (_, batches), path in zip(files, paths):
            write_texts(path, batches, column, process.stdin)
        process.stdin.close()
    except BrokenPipeError:   # it ended early and has said why
        pass
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.wait()


def write_whole(path, data):
    """Under another name first, so that what has the name is complete."""
    temporary = path.with_name(path.name + '.tmp')
    try:
        with open(temporary, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise Problem(f'{path}: cannot be written: {error.strerror}') from error
    finally:
        temporary.unlink(missing_ok=True)


def has(options, *names):
    return any(option.split('=')[0] in names for option in options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument('--dataset', choices=DATASETS, help='what to bring')
    parser.add_argument('--shards', type=int, metavar='N',
                        help=f'bring the validation shard and the first N training shards of {READY_MADE}')
    parser.add_argument('--column', default='text', help='column of the texts in parquet and Arrow files (default: text)')
    parser.add_argument('--out', required=True, help='folder for the shards')
    arguments, rest = parser.parse_known_args()
    files = [option for option in rest if option.endswith(TABLES)]
    options = ['--out', arguments.out, *(option for option in rest if option not in files)]
    if bool(arguments.dataset) + bool(files) + (arguments.shards is not None) != 1:
        parser.error('give one of --dataset, --shards and files (' + ', '.join(TABLES) + ')')

    if arguments.shards is not None:
        names = {'fineweb_val_000000.bin', *(f'fineweb_train_{i:06d}.bin' for i in range(1, arguments.shards + 1))}
        bring_from_hub(READY_MADE, names.__contains__, arguments.out)
        print(f"--train-data '{arguments.out}/fineweb_train_*.bin' --val-data '{arguments.out}/fineweb_val_*.bin'")
        return 0
    if not TOKENIZE.exists():
        raise Problem(f'{TOKENIZE} is not there: make tokenize')
    if arguments.dataset:
        repository, prefix, split = DATASETS[arguments.dataset]
        files = bring_from_hub(repository, lambda path: path.startswith(prefix) and path.endswith('.parquet'))
        if not has(options, '--val-tokens', '--val-fraction'):
            options += split
    if not has(options, '--name'):
        options += ['--name', arguments.dataset or Path(files[0]).stem]
    return tokenize(files, arguments.column, options)


def run(name, main):
    """Ends the program of that name with what main() returns, or with the exit code of its problem."""
    try:
        sys.exit(main())
    except Problem as problem:
        print(f'{name}: error: {problem}', file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        print(f'{name}: stopped; the same command goes on', file=sys.stderr)
        sys.exit(75)


if __name__ == '__main__':
    run('fineweb', main)
