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
import json
import subprocess
import sys
import urllib.request
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
SHAKESPEARE = ('https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt',
               '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed')


class Problem(Exception):
    """A sentence for the user; ends the program with exit code 3."""


def needed(package):
    return Problem(f'the Python package {package} is needed: python3 -m pip install {package}')


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
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError:
        raise needed('huggingface_hub') from None
    try:
        tree = HfApi().list_repo_tree(repository, recursive=True, repo_type='dataset')
        files = sorted((file for file in tree if hasattr(file, 'size') and wanted(file.path)), key=lambda file: file.path)
        paths = []
        for file in files:
            path = hf_hub_download(repository, file.path, repo_type='dataset', local_dir=folder)
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


def bring_shakespeare(folder):
    url, sha256 = SHAKESPEARE
    path = Path(folder) / 'tinyshakespeare.txt'
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix('.partial')
        try:
            urllib.request.urlretrieve(url, partial)
        except OSError as error:
            raise Problem(f'{url}: cannot be brought: {error}') from error
        partial.rename(path)
    check_hash(path, sha256)
    return str(path)


class ArrowTable:
    """A file (Feather) or stream (the cache of `datasets`) of Arrow's IPC format, read as a ParquetFile is: a batch is a group of rows."""

    def __init__(self, path):
        from pyarrow import ArrowInvalid, Table, ipc, memory_map
        source = memory_map(str(path))
        try:
            file = ipc.open_file(source)
            self.batches = [file.get_batch(n) for n in range(file.num_record_batches)]
        except ArrowInvalid:   # no footer
            source.seek(0)
            file = ipc.open_stream(source)
            self.batches = list(file)
        self.schema_arrow, self.num_row_groups = file.schema, len(self.batches)
        self.metadata = Table.from_batches(self.batches, file.schema)

    def read_row_group(self, group, columns):
        return self.batches[group].select(columns)


def open_table(path):
    """A parquet or Arrow file, by the ending of its name."""
    kind = 'parquet' if str(path).endswith('.parquet') else 'Arrow'
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise needed('pyarrow') from None
    try:
        return parquet.ParquetFile(path) if kind == 'parquet' else ArrowTable(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise Problem(f'{path}: is no {kind} file that can be read: {error}') from error


def columns_of(file):
    """Names and types of a table's columns, for messages."""
    return ', '.join(f'{field.name} ({field.type})' for field in file.schema_arrow)


def read_group(file, path, group, columns):
    """The columns of one group of rows, each a list under its name."""
    import pyarrow
    try:
        return file.read_row_group(group, columns=columns).to_pydict()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise Problem(f'{path}: group of rows {group} cannot be read: {error}') from error


def holds_strings(kind):
    """Whether an Arrow type is one of strings: plain ones, views, or a dictionary of them, which is how pandas stores categories.
    Bytes that are not marked as text, as old programs write it, are strings if they are UTF-8."""
    from pyarrow import types
    if types.is_dictionary(kind):
        return holds_strings(kind.value_type)
    names = ('is_string', 'is_large_string', 'is_string_view', 'is_binary', 'is_large_binary', 'is_binary_view')
    return any(getattr(types, name)(kind) for name in names if hasattr(types, name))   # old versions have no views


def as_text(value):
    return value.decode() if isinstance(value, bytes) else value


def open_texts(path, column):
    """A table whose column holds strings."""
    file = open_table(path)
    kinds = {field.name: field.type for field in file.schema_arrow}
    if column not in kinds or not holds_strings(kinds[column]):
        raise Problem(f'{path}: has no column "{column}" of strings; --column names the one to take. '
                      f'Its columns are: {columns_of(file)}')
    return file


def write_texts(file, path, column, out):
    """The texts of a table as JSON Lines: one group of rows in memory at a time."""
    for group in range(file.num_row_groups):
        texts = read_group(file, path, group, [column])[column]
        for row, text in enumerate(texts):
            if text is None:
                raise Problem(f'{path}: row {row} of group {group} has no text in column "{column}"')
            try:
                texts[row] = as_text(text)
            except UnicodeDecodeError as error:
                raise Problem(f'{path}: row {row} of group {group} has bytes in column "{column}" that are not UTF-8: {error}') from error
        out.write(''.join('{"text":' + json.dumps(text, ensure_ascii=False) + '}\n' for text in texts).encode())


def tokenize(paths, column, options):
    """Streams the files into ./tokenize and returns its exit code."""
    files = [open_texts(path, column) for path in paths]   # every one is looked at before work begins
    # The number of documents tells ./tokenize the end of the data from the end of a program that died.
    documents = sum(file.metadata.num_rows for file in files)
    command = [str(TOKENIZE), '--format', 'jsonl', '--documents', str(documents), *options, '-']
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        for file, path in zip(files, paths):
            write_texts(file, path, column, process.stdin)
        process.stdin.close()
    except BrokenPipeError:   # it ended early and has said why
        pass
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.wait()


def has(options, *names):
    return any(option.split('=')[0] in names for option in options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument('--dataset', choices=[*DATASETS, 'tinyshakespeare'], help='what to bring')
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
    if arguments.dataset == 'tinyshakespeare':
        return subprocess.run([TOKENIZE, *options, bring_shakespeare(arguments.out)]).returncode
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
