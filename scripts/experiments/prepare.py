"""Inputs of runs: the engine's commit, shards and their hashes, models that a plan describes.

OUT/data holds the shards of a run: training shards as they are, and both halves of the validation tokens, so that rates are tuned on
tokens that no result is reported on.
"""
import functools
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import labelled
import shards
from packages import EXIT_DATA, ROOT, Refused
from shards import common_glob, write_whole

SOURCES = ('train_gpt.cu', 'model', 'attention', 'data', 'Makefile', ':!*.md')   # of a trainer
GENERATOR, LABELLED = 1, 2   # parts of hashes: raise them when tasks.py (or labelled.py) write other bytes
HOW_TO_TOKENIZE = ('make shards with ./tokenize --tokenizer TOKENIZER.json --out FOLDER --name text FILES (or scripts/fineweb.py) and '
                   'give the folder with --data FOLDER')
QWEN3 = {'architectures': ['Qwen3ForCausalLM'], 'model_type': 'qwen3', 'hidden_act': 'silu', 'rms_norm_eps': 1e-6, 'rope_theta': 1e6,
         'rope_scaling': None, 'max_position_embeddings': 32768, 'attention_bias': False, 'tie_word_embeddings': True,
         'initializer_range': 0.02, 'use_sliding_window': False, 'torch_dtype': 'float32'}


def git(*arguments):
    """The output of git, '' where this is no checkout."""
    try:
        done = subprocess.run(['git', '-C', str(ROOT), *arguments], capture_output=True)
    except OSError:
        return ''
    return done.stdout.decode(errors='replace').strip() if done.returncode == 0 else ''


def engine_commit():
    """The last commit that changed the trainers' sources, so that a commit of documentation repeats no run; uncommitted changes add
    '+' and a hash. A package of dev/pack.sh has it in a file."""
    commit, packed = git('log', '-1', '--format=%H', '--', *SOURCES)[:12], ROOT / 'ENGINE_COMMIT'
    if not commit: return packed.read_text().strip() if packed.exists() else 'no-git'
    changed = git('diff', 'HEAD', '--', *SOURCES) + git('ls-files', '--others', '--exclude-standard', '--', *SOURCES)
    return commit + ('+' + hashlib.sha256(changed.encode()).hexdigest()[:8] if changed else '')


def task_name(task, *made_of):
    """The folder of a task, or of labelled examples: its kind, and a hash of all that decides its bytes."""
    text = json.dumps([GENERATOR, task, *made_of], sort_keys=True)
    return f'{task["kind"]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}'


def sha256_of(path):
    with open(path, 'rb') as file: return hashlib.file_digest(file, 'sha256').hexdigest()


class Data:
    """Shards for runs, and their hashes. `given` is the folder of --data, for plans that do not read the bundled text."""

    def __init__(self, out, given=None):
        self.out, self.given = Path(out), Path(given).resolve() if given else None

    def hash_of(self, run):
        """Hash of the data of a run: of the bytes of files, or of what a task is generated from; 'unknown' without --data."""
        if run.data == 'task': return 'task-' + task_name(run.task)
        if run.data == 'labelled': return self._labelled_name(run.task)
        if run.data != 'bundled' and self.given is None: return 'unknown'
        if run.released: self.released(run)
        return self._hash(run.data) + (f'+{task_name(run.mixed)}' if run.mixed else '')

    @functools.cache
    def _hash(self, name):
        """sha256 over all files, weights too; cached for each file by size and time of change."""
        cache_path = self.out / 'data' / 'hashes.json'
        try:
            cache = json.loads(cache_path.read_text())
        except (OSError, ValueError):
            cache = {}
        whole = hashlib.sha256()
        for path in [*(p for group in self.globs(name) for p in group), *sorted(self.folder(name).glob('*.safetensors'))]:
            known = f'{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}'
            if known not in cache: cache[known] = sha256_of(path)
            whole.update(cache[known].encode())
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(cache_path, json.dumps(cache).encode())
        return whole.hexdigest()[:12]

    def folder(self, name):
        """The folder of a text's shards. Those in the tokens of a released model stand beside its weights."""
        if name == 'bundled': return ROOT / 'data' / 'bundled'
        return self.given / name if (self.given / name).is_dir() else self.given

    def globs(self, name):
        """(training, validation) shards."""
        folder = self.folder(name)
        found = sorted(folder.glob('*_train_*.bin')), sorted(folder.glob('*_val_*.bin'))
        if not all(found):
            way = 'run make tokenize && make data/bundled/sotu_manifest.json' if name == 'bundled' else HOW_TO_TOKENIZE
            raise Refused(f'{folder}: has no *_{"val" if found[0] else "train"}_*.bin; {way}', EXIT_DATA)
        return found

    def released(self, run):
        """The folder of the released model that a run starts from."""
        folder = self.given / run.released
        if not (folder / 'config.json').exists() or not list(folder.glob('*.safetensors')):
            raise Refused(f'{folder}: has no config.json and *.safetensors of the released {run.released}, with which '
                          f'{run.experiment} at scale {run.scale} begins; put them there, and a text in its tokens', EXIT_DATA)
        return folder

    def options(self, run):
        """Options that name the data of a run, which is made if it is missing."""
        if run.data == 'task': return self._task_options(run.task)
        if run.data == 'labelled': return self._labelled_options(run.task)
        if run.data != 'bundled' and self.given is None:
            raise Refused(f'{run.experiment} at scale {run.scale} reads the text "{run.data}"; {HOW_TO_TOKENIZE}', EXIT_DATA)
        train, _ = self.globs(run.data)
        halves = self._split(run.data)   # runs validate on both; what only reads a text reads the one of results
        validation = f'1 {halves["report"]} 1 {halves["tune"]}' if run.kind == 'train' else str(halves['report'])
        options = {'train-data': str(train[0].parent / common_glob(train)), 'val-data': validation}
        if not run.mixed: return options
        options |= {'train-data': str(self._mixed(run, train))}
        return options | ({'eval-data': self._task_options(run.mixed)['eval-data']} if run.kind == 'evaluate' else {})

    def _split(self, name):
        """Both halves of the validation tokens, as shards."""
        return shards.split_in_halves(self.globs(name)[1], self.out / 'data' / f'{name}-{self._hash(name)}')

    def prompt(self, run):
        """A file for --prompts: ids of a text that no run was trained on."""
        path, count = self._split(run.data)['report'], run.options['prompt']
        tokens = shards.read(path)[2]
        if tokens < count:
            raise Refused(f'{path}: has {tokens} tokens, and the prompt of {run.experiment} at scale {run.scale} {count}', EXIT_DATA)
        prompt = path.parent / f'prompt_{count}.jsonl'
        write_whole(prompt, json.dumps({'prompt_ids': shards.ids(path, count)}).encode())
        return prompt

    def _mixed(self, run, text):
        """A glob of the text's training shards and, as one more, the task's, in a folder of their own."""
        folder = self.out / 'data' / f'{run.data}-{self.hash_of(run)}-hashed'
        task = Path(self._task_options(run.mixed)['train-data'])
        if not folder.exists():
            made = Path(f'{folder}.{os.getpid()}.tmp')
            made.mkdir(parents=True)
            name, number = text[-1].stem.rsplit('_', 1)
            more = f'{name}_{int(number) + 1:06d}.bin'
            for path, link in [*((path, path.name) for path in text), (task, more)]: (made / link).symlink_to(path.resolve())
            shards.copy_manifest(text[0].parent, made)
            for path in made.glob('*_manifest.json'): shards.add_to_manifest(path, more, task.read_bytes())
            try:
                made.rename(folder)
            except OSError:   # another run.py was faster
                shutil.rmtree(made)
        return folder / common_glob(sorted(folder.glob('*_train_*.bin')))

    def _task_options(self, task):
        folder = self.out / 'data' / task_name(task)
        if not (folder / 'items.bin').exists():
            import tasks   # here, because it needs numpy and plans do not
            tasks.write(task, folder)
        return {'train-data': str(folder / 'task_train_000001.bin'), 'val-data': str(folder / 'task_val_000000.bin'),
                'eval-data': str(folder / 'items.bin')}

    def _labelled_name(self, task):
        """Hashes the examples' file too, if it is there; planning works without it."""
        name = labelled.KINDS[task['kind']][1]
        path = self.given / name if name and self.given else None
        tokenizer = [sha256_of(self._tokenizer())] if task.get('tokens') and self.given else []
        return task_name(task, LABELLED, sha256_of(path) if path and path.exists() else name, *tokenizer)

    def _labelled_options(self, task):
        labelled.source_of(task['kind'], self.given)
        folder = self.out / 'data' / self._labelled_name(task)
        if not (folder / 'items.jsonl').exists():
            labelled.write(task, self.given, folder, self._tokenizer() if task.get('tokens') else 'bytes')
        return {'train-data': str(folder / 'training/labelled_train_*.bin'),
                'val-data': str(folder / 'held_out/labelled_train_*.bin'), 'eval-data': str(folder / 'items.jsonl')}

    def _tokenizer(self):
        """The tokenizer.json of the text in the folder of --data."""
        found = sorted(self.given.glob('*_tokenizer.json')) if self.given else []
        if len(found) != 1:
            raise Refused(f'{self.given or "--data"}: has {len(found)} files *_tokenizer.json, expected the one of its text; '
                          f'{HOW_TO_TOKENIZE}', EXIT_DATA)
        return found[0]

    def model(self, run):
        """A folder with the config.json of a model that the plan describes."""
        folder = self.out / 'models' / run.options['model']
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / 'config.json', json.dumps(QWEN3 | run.shape, indent=1).encode())
        return str(folder)
