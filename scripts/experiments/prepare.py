"""What runs stand on: the engine's commit, token shards and their hashes, models described in a plan.

Shards of a run lie under OUT/data: the training shards as they are, and both halves of the validation tokens as files of their own,
so that rates are tuned on tokens that no result is reported on.
"""
import functools
import hashlib
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

from packages import EXIT_DATA, Refused, require

QWEN3 = {
    'architectures': ['Qwen3ForCausalLM'],
    'model_type': 'qwen3',
    'hidden_act': 'silu',
    'rms_norm_eps': 1e-6,
    'rope_theta': 1e6,
    'rope_scaling': None,
    'max_position_embeddings': 32768,
    'attention_bias': False,
    'tie_word_embeddings': True,
    'initializer_range': 0.02,
    'use_sliding_window': False,
    'torch_dtype': 'float32',
}
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ('train_gpt.cu', 'model', 'attention', 'data', 'Makefile', ':!*.md')   # what a trainer is made of
GENERATOR = 1   # of tasks.py and labelled.py: raise it when the bytes of a task change, as it is part of their hash
HEADER, MAGIC_16, MAGIC_32 = 1024, 20240520, 20240801
HOW_TO_TOKENIZE = (
    "make shards with ./tokenize --tokenizer TOKENIZER.json --out FOLDER --name text FILES (or scripts/fineweb.py) and "
    "give the folder with --data FOLDER"
)


def git(*arguments):
    """What git prints, '' where this is no checkout."""
    try:
        done = subprocess.run(['git', '-C', str(ROOT), *arguments], capture_output=True)
    except OSError:
        return ''
    return done.stdout.decode(errors='replace').strip() if done.returncode == 0 else ''


def engine_commit():
    """The last commit that changed the programs' sources, so that one of the documentation repeats no run; with a hash of what
    is not committed behind it. A package of dev/pack.sh has it in a file."""
    commit, packed = git('log', '-1', '--format=%H', '--', *SOURCES)[:12], ROOT / 'ENGINE_COMMIT'
    if not commit:
        return packed.read_text().strip() if packed.exists() else 'no-git'
    changed = git('diff', 'HEAD', '--', *SOURCES) + git('ls-files', '--others', '--exclude-standard', '--', *SOURCES)
    return commit + ('+' + hashlib.sha256(changed.encode()).hexdigest()[:8] if changed else '')


class Data:
    """Shards for runs, and their hashes. `given` is the folder of --data, for plans that do not read the bundled text."""

    def __init__(self, out, given=None):
        self.out, self.given = Path(out), Path(given).resolve() if given else None

    def there(self, run):
        """Whether the data of a run is on this machine."""
        return run.data in ('bundled', 'task', 'labelled') or self.given is not None

    def hash_of(self, run):
        """Of the data of a run: files by their bytes, generated tasks by what they are generated from."""
        if run.data == 'task':
            return 'task-' + task_name(run.task)
        if run.data == 'labelled':
            return self._labelled_name(run.task)
        if not self.there(run):
            return 'unknown'
        if run.released: self.released(run)
        return self._hash(run.data) + (f'+{task_name(run.mixed)}' if run.mixed else '')

    def folder(self, name):
        """Where the shards of a text are. Those in the tokens of a released model stand beside its weights."""
        if name == 'bundled': return ROOT / 'data' / 'bundled'
        return self.given / name if (self.given / name).is_dir() else self.given

    def released(self, run):
        """The folder of the released model that a run begins with."""
        folder = self.given / run.released
        if not (folder / 'config.json').exists() or not list(folder.glob('*.safetensors')):
            raise Refused(f'{folder}: has no config.json and *.safetensors of the released {run.released}, with which '
                          f'{run.experiment} at scale {run.scale} begins; put them there, and a text in its tokens', EXIT_DATA)
        return folder

    def globs(self, name):
        """(training, validation) shards."""
        folder = self.folder(name)
        found = sorted(folder.glob('*_train_*.bin')), sorted(folder.glob('*_val_*.bin'))
        if not all(found):
            way = 'run make tokenize && make data/bundled/sotu_manifest.json' if name == 'bundled' else HOW_TO_TOKENIZE
            raise Refused(f'{folder}: has no *_{"val" if found[0] else "train"}_*.bin; {way}', EXIT_DATA)
        return found

    @functools.cache
    def _hash(self, name):
        """sha256 over all files, those of weights too; a file's own is remembered under its size and time of change."""
        cache_path = self.out / 'data' / 'hashes.json'
        try:
            cache = json.loads(cache_path.read_text())
        except (OSError, ValueError):
            cache = {}
        whole = hashlib.sha256()
        for path in [*(p for group in self.globs(name) for p in group), *sorted(self.folder(name).glob('*.safetensors'))]:
            status = path.stat()
            known = f'{path.resolve()} {status.st_size} {status.st_mtime_ns}'
            if known not in cache:
                with open(path, 'rb') as file:
                    cache[known] = hashlib.file_digest(file, 'sha256').hexdigest()
            whole.update(cache[known].encode())
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(cache_path, json.dumps(cache).encode())
        return whole.hexdigest()[:12]

    def options(self, run):
        """Options that say where the data of a run is, made if it is not there."""
        if run.data == 'task':
            return self._task_options(run.task)
        if run.data == 'labelled':
            return self._labelled_options(run.task)
        if not self.there(run):
            raise Refused(f'{run.experiment} at scale {run.scale} reads the text "{run.data}"; {HOW_TO_TOKENIZE}', EXIT_DATA)
        train, _ = self.globs(run.data)
        options = {'train-data': str(train[0].parent / common_glob(train)), 'val-data': str(self._split(run.data)[run.half])}
        if not run.mixed: return options
        options |= {'train-data': str(self._mixed(run, train))}
        return options | ({'eval-data': self._task_options(run.mixed)['eval-data']} if run.kind == 'evaluate' else {})

    def _mixed(self, run, text):
        """A glob of the text's training shards and, as one more of them, the task's, in a folder of their own."""
        folder = self.out / 'data' / f'{run.data}-{self.hash_of(run)}-hashed'   # those of before lack a hash in the manifest
        task = Path(self._task_options(run.mixed)['train-data'])
        if not folder.exists():
            made = Path(f'{folder}.{os.getpid()}.tmp')
            made.mkdir(parents=True)
            name, number = text[-1].stem.rsplit('_', 1)
            more = f'{name}_{int(number) + 1:06d}.bin'
            for shard in text: (made / shard.name).symlink_to(shard.resolve())
            (made / more).symlink_to(task.resolve())
            copy_manifest(text[0].parent, made)
            for path in made.glob('*_manifest.json'):   # trainers mix shards of one tokenizer alone
                manifest = json.loads(path.read_text())
                manifest['shards'].append({'file': more, 'tokens': struct.unpack('<3i', task.read_bytes()[:12])[2],
                                           'bytes': task.stat().st_size, 'xxh64': xxh64(task.read_bytes())})
                write_whole(path, json.dumps(manifest).encode())
            try:
                made.rename(folder)
            except OSError:   # another run.py was faster
                shutil.rmtree(made)
        return folder / common_glob(sorted(folder.glob('*_train_*.bin')))

    def prompt(self, run):
        """A file for --prompts: so many tokens of a text that no run was trained on, its ids alone."""
        path, count = self._split(run.data)[run.half], run.options['prompt']
        content = path.read_bytes()
        magic, _, tokens = struct.unpack('<3i', content[:12])
        if tokens < count:
            raise Refused(f'{path}: has {tokens} tokens, and the prompt of {run.experiment} at scale {run.scale} {count}', EXIT_DATA)
        ids = struct.unpack_from(f'<{count}{"H" if magic == MAGIC_16 else "I"}', content, HEADER)
        prompt = path.parent / f'prompt_{count}.jsonl'
        write_whole(prompt, json.dumps({'prompt_ids': ids}).encode())
        return prompt

    @functools.cache
    def _split(self, name):
        """Both halves of the validation tokens, as shards."""
        folder = self.out / 'data' / f'{name}-{self._hash(name)}'
        halves = {half: folder / f'{half}.bin' for half in ('tune', 'report')}
        if all(path.exists() for path in halves.values()):
            return halves
        files, magic, tokens = self.globs(name)[1], None, b''
        for path in files:
            content = path.read_bytes()
            magic = struct.unpack('<i', content[:4])[0]
            if magic not in (MAGIC_16, MAGIC_32): raise Refused(f'{path}: is no token shard (magic {magic})', EXIT_DATA)
            version = struct.unpack('<i', content[4:8])[0]
            if version in (2, 8):
                raise Refused(f'{path}: has a loss mask, and is not divided into halves; give a text without one', EXIT_DATA)
            tokens += content[HEADER:]
        size = 2 if magic == MAGIC_16 else 4
        middle = len(tokens) // size // 2 * size
        folder.mkdir(parents=True, exist_ok=True)
        for half, part in (('tune', tokens[:middle]), ('report', tokens[middle:])):
            write_whole(halves[half], shard_header(magic, 1 if size == 2 else 7, len(part) // size) + part)
        copy_manifest(files[0].parent, folder)
        return halves

    def _task_options(self, task):
        folder = self.out / 'data' / task_name(task)
        if not (folder / 'items.bin').exists():
            import tasks
            tasks.write(task, folder)
        return {'train-data': str(folder / 'task_train_000001.bin'), 'val-data': str(folder / 'task_val_000000.bin'),
                'eval-data': str(folder / 'items.bin')}

    def _labelled_name(self, task):
        """Of examples and the file that they are made of; a plan is a plan without the file too."""
        import labelled
        name = labelled.KINDS[task['kind']][1]
        path = self.given / name if name and self.given else None
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path and path.exists() else name
        tokenizer = self._tokenizer() if task.get('tokens') and self.given else None
        told = [hashlib.sha256(tokenizer.read_bytes()).hexdigest()] if tokenizer else []
        text = json.dumps([GENERATOR, task, content, *told], sort_keys=True)
        return f'{task["kind"]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}'

    def _labelled_options(self, task):
        import labelled
        labelled.source_of(task['kind'], self.given)
        folder = self.out / 'data' / self._labelled_name(task)
        if not (folder / 'items.jsonl').exists():
            labelled.write(task, self.given, folder, self._tokenizer() if task.get('tokens') else None)
        if task.get('tokens'):
            train, val = (str(folder / part / 'labelled_train_*.bin') for part in ('training', 'held_out'))
            return {'train-data': train, 'val-data': val, 'eval-data': str(folder / 'items.jsonl')}
        return {'train-data': str(folder / 'labelled_train_*.bin'), 'val-data': str(folder / 'labelled_val_*.bin'),
                'eval-data': str(folder / 'items.jsonl')}

    def _tokenizer(self):
        """The tokenizer.json of the text in the folder of --data."""
        found = sorted(self.given.glob('*_tokenizer.json')) if self.given else []
        if len(found) != 1:
            raise Refused(f'{self.given or "--data"}: has {len(found)} files *_tokenizer.json, expected the one of its text; '
                          f'{HOW_TO_TOKENIZE}', EXIT_DATA)
        return found[0]

    def model(self, run):
        """A folder with the config.json of a model that is described in the plan."""
        folder = self.out / 'models' / run.options['model']
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / 'config.json', json.dumps(QWEN3 | run.shape, indent=1).encode())
        return str(folder)


def task_name(task):
    """A generated task's folder: its kind, and a hash of all that decides its bytes."""
    text = json.dumps([GENERATOR, task], sort_keys=True)
    return f'{task["kind"]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}'


def xxh64(data):
    """The hash that a manifest has of each shard."""
    return require('xxhash').xxh64(data).hexdigest()


def copy_manifest(folder, to):
    """What stands beside shards: the manifest, which names the tokenizer, and the tokenizer."""
    for manifest in folder.glob('*_manifest.json'):
        for path in (manifest, *folder.glob('*_tokenizer.json')): write_whole(to / path.name, path.read_bytes())


def shard_header(magic, version, count):
    """The first 1024 bytes of a file of tokens or of items, as data/README.md says."""
    return struct.pack('<256i', magic, version, count, *[0] * 253)


def common_glob(paths):
    """One glob for shards NAME_train_000001.bin, ...; refuses shards of two names."""
    names = {path.name.rsplit('_', 1)[0] for path in paths}
    if len(names) > 1:
        raise Refused(
            f'{paths[0].parent}: has shards of several texts ({", ".join(sorted(names))}); give a folder with one', EXIT_DATA
        )
    return f'{names.pop()}_*.bin'


def write_whole(path, content):
    """Writes a file under another name first, so that nobody reads half of it."""
    unnamed = Path(f'{path}.{os.getpid()}.tmp')
    unnamed.write_bytes(content)
    os.replace(unnamed, path)
