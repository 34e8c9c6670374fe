#!/usr/bin/env python3
"""scripts/evaluation_items.py, export_gguf.py, export_log.py, fineweb.py and train_tokenizer.py in this process: what they make and what they
refuse; and scripts/first_hour.ipynb, run by nbconvert. Prints `ok NAME`, `FAIL NAME: why` or, for a Python package that is missing,
`skip NAME: why`. tests/data_scripts.sh runs it.

    python3 tests/check_data_scripts.py FOLDER      with shards, a text and a checkpoint of that script
"""
import filecmp
import gzip
import hashlib
import importlib.util
import json
import lzma
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from checks import check

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(sys.argv[1])
TEXT = ROOT / 'data/bundled/sotu.jsonl'
sys.path.insert(0, str(ROOT / 'scripts'))
os.environ['HF_HUB_OFFLINE'] = '1'   # no test may need the hub
import evaluation_items   # noqa: E402
import export_gguf   # noqa: E402
import export_log   # noqa: E402
import fineweb   # noqa: E402
import train_tokenizer   # noqa: E402

printed = ''   # by the last call, on standard output and standard error


def has(package):
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None   # a folder of that name, as scripts/lm_eval, has none


def without(*packages):
    """As where these are not installed."""
    return mock.patch.dict(sys.modules, dict.fromkeys(packages))


def expect(name, code, word, module, *arguments):
    """Calls the script's main(): it ends with the code, and the word is in its output, or in that of a program that it starts."""
    global printed
    sys.argv = [module.__name__, *map(str, arguments)]
    sys.stdout.flush()
    before = [os.dup(1), os.dup(2)]
    with open(WORK / 'printed', 'w+', errors='replace') as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        try:
            fineweb.run(module.__name__, module.main)
        except SystemExit as exit:
            ended = exit.code or 0
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os.dup2(before[0], 1), os.dup2(before[1], 2)
            list(map(os.close, before))
    printed = (WORK / 'printed').read_text(errors='replace')
    check(name, ended == code and word in printed, f'exit code {ended}, and not {code} with {word!r}: {printed[-300:]!r}')


def file(name, contents):
    path = WORK / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents) if isinstance(contents, bytes) else path.write_text(contents, encoding='utf-8')
    return path


def lines(name, objects):
    return file(name, ''.join(json.dumps(one) + '\n' for one in objects))


def objects_in(path):
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def same_folders(one, other):
    names = names_in(one)
    return names == names_in(other) != [] and filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


# ------------------------------------------------------------------------------------------------ evaluation_items: rows and their items

ARC_ROWS = [{'id': 'a', 'question': 'Which of these floats?', 'choices': {'text': ['lead', 'cork', 'gold'], 'label': ['A', 'B', 'C']}, 'answerKey': 'B'},
            {'id': 'b', 'question': 'What is\nwarm?', 'choices': {'text': ['ice', 'snow', 'the sun', 'space'], 'label': ['1', '2', '3', '4']}, 'answerKey': '3'}]
ARC_ITEMS = [{'query': 'Question: Which of these floats?\nAnswer:', 'choices': ['lead', 'cork', 'gold'], 'gold': 1},
             {'query': 'Question: What is\nwarm?\nAnswer:', 'choices': ['ice', 'snow', 'the sun', 'space'], 'gold': 2}]
ITEMS = {
    'hellaswag': ([
        {'ind': 1, 'activity_label': 'Baking bread', 'ctx_a': 'A woman kneads dough.', 'ctx_b': 'the Woman',
         'endings': ['bakes it.', 'flies off.', 'is "Käthe".', 'sings.'], 'label': '2'},
        {'ind': 2, 'activity_label': 'Garden', 'ctx_a': '[header] How to water a fern [title] Use a can. [step] Fill it.', 'ctx_b': '',
         'endings': ['[substeps] Pour slowly.', 'It  rains [step] outside.', 'No.', 'Stop [title] Look up.'], 'label': '0'},
        {'ind': 3, 'activity_label': 'Pots', 'ctx_a': 'Take a pot. [step]', 'ctx_b': '', 'endings': ['Fill it.', 'Break it.', ' Sell it. ', 'Open [it.'],
         'label': '3'}], [
        {'query': 'Baking bread: A woman kneads dough. The woman', 'choices': ['bakes it.', 'flies off.', 'is "Käthe".', 'sings.'], 'gold': 2},
        {'query': 'Garden: How to water a fern. Use a can. Fill it.', 'choices': [' Pour slowly.', 'It rains outside.', 'No.', 'Stop. Look up.'], 'gold': 0},
        {'query': 'Pots: Take a pot.  ', 'choices': ['Fill it.', 'Break it.', 'Sell it.', 'Open [it.'], 'gold': 3}]),
    'arc_easy': (ARC_ROWS, ARC_ITEMS), 'arc_challenge': (ARC_ROWS, ARC_ITEMS),
    'piqa': ([
        {'goal': 'Dry a shoe.', 'sol1': 'Stuff it with paper.', 'sol2': 'Fill it with  water', 'label': 0},
        {'goal': 'how do I cut a pear?\n', 'sol1': "with 'a' spoon", 'sol2': 'with "a" knife ', 'label': 1}], [
        {'query': 'Question: Dry a shoe.\nAnswer:', 'choices': ['Stuff it with paper.', 'Fill it with  water'], 'gold': 0},
        {'query': 'Question: how do I cut a pear?\n\nAnswer:', 'choices': ["with 'a' spoon", 'with "a" knife '], 'gold': 1}]),
    'winogrande': ([
        {'sentence': 'The cup is not in the bag because _ is too small.', 'option1': 'the cup', 'option2': 'the bag', 'answer': '2'},
        {'sentence': "Ann met Eve, and _ 's cat_dog  ran. ", 'option1': 'Ann', 'option2': 'Eve ', 'answer': '1'}], [
        {'context_options': ['The cup is not in the bag because the cup', 'The cup is not in the bag because the bag'],
         'continuation': 'is too small.', 'gold': 1},
        {'context_options': ['Ann met Eve, and Ann', 'Ann met Eve, and Eve  '], 'continuation': "'s cat_dog  ran.", 'gold': 0}]),
}
GOOD = ITEMS['piqa'][0][0]
BAD_ROWS = [   # name, task, words, rows or bytes
    ('a row without a field', 'piqa', 'bad.jsonl: cannot be read as rows of piqa', [{'goal': 'a', 'sol1': 'b', 'label': 0}]),
    ('a field that the row before has', 'piqa', 'row 1 makes no item of piqa: ValueError(\'"sol2" is missing\')',
     [GOOD, {key: value for key, value in GOOD.items() if key != 'sol2'}]),
    ('an answer that does not exist', 'piqa', 'row 1 makes no item of piqa', [GOOD, GOOD | {'label': 2}]),
    ('a blank with nothing behind it', 'winogrande', 'row 0 makes no item', [ITEMS['winogrande'][0][0] | {'sentence': 'a _'}]),
    ('a file that ends early', 'piqa', 'cannot be read as rows of piqa', b'{"goal": "a", "so'),
]


def check_evaluation_items():
    out, piqa = WORK / 'items', WORK / 'rows/piqa.jsonl'
    with without('lm_eval', 'lm_eval.tasks'):
        expect('items: without the package', 3, 'pip install lm_eval', evaluation_items, 'piqa', '--out', out)
    if not has('lm_eval'):
        print(f'skip items of lm-evaluation-harness: {sys.executable} has no lm_eval')
        return
    for name, task, words, rows in BAD_ROWS:
        bad = file('bad.jsonl', rows) if isinstance(rows, bytes) else lines('bad.jsonl', rows)
        expect(f'items: {name}', 3, words, evaluation_items, task, '--from', bad, '--out', out)
    check('items: nothing was written', not names_in(out))
    for task, (rows, items) in ITEMS.items():
        expect(f'items: {task} from JSON Lines', 0, f'{len(items)} items', evaluation_items, task, '--from', lines(f'rows/{task}.jsonl', rows), '--out', out)
        check('gives its items', objects_in(out / f'{task}.jsonl') == items, objects_in(out / f'{task}.jsonl'))
    expect('two files of rows', 0, '', evaluation_items, 'piqa', '--from', piqa, piqa, '--out', WORK / 'twice')
    check('become one of items', objects_in(WORK / 'twice/piqa.jsonl') == 2 * ITEMS['piqa'][1])
    (WORK / 'taken/piqa.jsonl').mkdir(parents=True)
    file('taken_file', '')
    for name, code, words, arguments in [
            ('a folder under the file\'s name', 3, 'piqa.jsonl: cannot be written', ['piqa', '--from', piqa, '--out', WORK / 'taken']),
            ('a file under the folder\'s name', 3, 'cannot be made a folder', ['piqa', '--from', piqa, '--out', WORK / 'taken_file']),
            ('an unknown task', 3, 'no_task: is no task of lm-evaluation-harness', ['no_task', '--out', out]),
            ('a task that generates text', 3, 'gsm8k: ', ['gsm8k', '--from', piqa, '--out', out]),
            ('one file for two tasks', 2, '--from has the rows of one task, not of piqa and winogrande', ['piqa', 'winogrande', '--from', piqa, '--out', WORK / 'none']),
            ('rows in another kind of file', 2, 'rows are in .parquet or .jsonl files', ['piqa', '--from', 'rows.csv', '--out', WORK / 'none'])]:
        expect(f'items: {name}', code, words, evaluation_items, *arguments)
    check('make no folder, and nothing beside what is there', not (WORK / 'none').exists() and names_in(WORK / 'taken') == ['piqa.jsonl'])


# ----------------------------------------------------------------------------------------------- fineweb: parquet as token shards

def stand_in_for_hub(files):
    """In place of huggingface_hub, a dataset with these files: the package, and what it lists."""
    listed = [SimpleNamespace(path=name, size=1, lfs=SimpleNamespace(sha256=hashlib.sha256(path.read_bytes()).hexdigest()))
              for name, path in files.items()]
    download = lambda repository, name, *, repo_type, local_dir: str(
        file(f'{local_dir}/{name}', files[name].read_bytes()) if local_dir else files[name])
    hub = sys.modules['huggingface_hub'] = mock.MagicMock(hf_hub_download=download)
    hub.HfApi().list_repo_tree.return_value = [SimpleNamespace(path='sample'), *listed[::-1]]
    return hub, listed


def check_fineweb():
    import pyarrow as pa
    from pyarrow import parquet
    texts = [one['text'] for one in objects_in(TEXT)][:100] + ['', ' "quoted" \\ \n\t\x01 ', 'déjà 漢字 👍 \u2028', '{"text": 1}']
    out, split = WORK / 'fineweb', ['--name', 'x', '--val-tokens', '100000', '--shard-tokens', '1000000']

    def table(name, columns, **options):
        parquet.write_table(pa.table(columns), WORK / name, row_group_size=20, **options)
        return WORK / name

    rows = len(texts)
    columns = {'text': texts, 'id': [str(i) for i in range(rows)], 'token_count': list(range(rows))}
    a = table('a.parquet', {key: values[:70] for key, values in columns.items()})
    b = table('b.parquet', {key: values[70:] for key, values in columns.items()}, compression='zstd')
    expect('fineweb: two parquet files', 0, '', fineweb, a, b, '--out', out, *split)
    subprocess.run([ROOT / 'tokenize', '--out', WORK / 'same', *split, lines('x.jsonl', [{'text': text} for text in texts])], check=True,
                   stdout=subprocess.DEVNULL)
    check('give the shards of the same texts as JSON Lines', same_folders(out, WORK / 'same'))
    plain = pa.array(texts)
    plain_table = pa.table({'text': plain})
    kinds = {'large': plain.cast(pa.large_string()), 'categories': plain.dictionary_encode(), 'bytes': plain.cast(pa.binary())}
    if hasattr(pa, 'string_view'):
        kinds['view'] = pa.array(texts, pa.string_view())
    for kind, column in kinds.items():
        expect(f'fineweb: strings as {kind}', 0, '', fineweb, table(f'{kind}.parquet', {'text': column}), '--out', WORK / kind, *split)
        check('give the same shards', same_folders(WORK / kind, WORK / 'same'))
    damaged = bytearray(b.read_bytes())
    damaged[len(damaged) // 2:len(damaged) // 2 + 1000] = bytes(1000)
    for name, writer in [('texts.feather', pa.ipc.new_file), ('texts.arrow', pa.ipc.new_stream)]:
        with writer(str(WORK / name), plain_table.schema) as to: to.write_table(plain_table, max_chunksize=20)
        expect(f'fineweb: {name}', 0, '', fineweb, WORK / name, '--out', WORK / f'of_{name}', *split)
        check('gives the same shards', same_folders(WORK / f'of_{name}', WORK / 'same'))
    other = table('content.parquet', {'content': ['a'], 'n': [1]})
    for name, code, words, arguments in [
            ('bytes that are no text', 3, 'row 1 has bytes in column "text" that are not UTF-8', [table('no_text.parquet', {'text': [b'a', b'\xff']})]),
            ('categories that are numbers', 3, 'has no column "text" of strings', [table('numbers.parquet', {'text': pa.array([1]).dictionary_encode()})]),
            ('another schema', 3, 'content.parquet: has no column "text" of strings', [a, other]),
            ('and its columns', 3, 'Its columns are: content (string), n (int64)', [other]),
            ('another column', 0, '', [other, '--column', 'content']),
            ('a row without a text', 3, 'row 1 has no text', [table('null.parquet', {'text': ['a', None]})]),
            ('a file that is no Arrow file', 3, 'no.arrow: is no Arrow file', [file('no.arrow', 'text')]),
            ('a file that is no parquet', 3, 'no.parquet: is no parquet file', [file('no.parquet', 'text')]),
            ('a damaged group of rows', 3, 'damaged.parquet: cannot be read from row ', [file('damaged.parquet', bytes(damaged)), '--name', 'y']),
            ('options of ./tokenize', 2, '--shard-tokens', [a, '--shard-tokens', 0]),
            ('no data', 2, 'give one of', [])]:
        expect(f'fineweb: {name}', code, words, fineweb, *arguments, '--out', WORK / 'refused', '--val-fraction', 0)
    check('leave no shards', not any(name.startswith('y') and name.endswith('bin') for name in names_in(WORK / 'refused')))
    hub, listed = stand_in_for_hub({'sample/10BT/000_00000.parquet': a, 'sample/10BT/001_00000.parquet': b} | dict.fromkeys(
        [f'fineweb_{name}.bin' for name in ('val_000000', 'train_000001', 'train_000002')], WORK / 'same/x_train_000001.bin'))
    expect('fineweb: a dataset by its name', 0, '', fineweb, '--dataset', 'sample-10BT', '--out', WORK / 'named', *split)
    check('gives the same shards', same_folders(WORK / 'named', WORK / 'same') and
          hub.HfApi().list_repo_tree.call_args == mock.call('HuggingFaceFW/fineweb', recursive=True, repo_type='dataset'))
    expect('a dataset that is not there', 3, 'holds no such files', fineweb, '--dataset', 'tinystories', '--out', out)
    expect('ready-made shards', 0, '/fineweb_train_*.bin', fineweb, '--shards', 1, '--out', WORK / 'ready')
    check('no more than asked for', names_in(WORK / 'ready') == ['fineweb_train_000001.bin', 'fineweb_val_000000.bin'])
    listed[0].lfs.sha256 = '0123'
    expect('a damaged download', 3, 'SHA-256', fineweb, '--dataset', 'sample-10BT', '--out', out)


# ------------------------------------------------------------------------------------------------------------- train_tokenizer

def check_train_tokenizer():
    out, text = WORK / 'tokenizer', file('texts.jsonl', b''.join(TEXT.read_bytes().splitlines(True)[:40]))
    trainer = [train_tokenizer, '--vocab-size', 600, '--out', out / 'tokenizer.json']
    for name, words, arguments in [
            ('an option that does not exist', 'unrecognized arguments: --size', [text, '--size', 600]), ('no text', 'INPUT', []),
            ('a kind of file that is not read', 'are .txt or .jsonl', ['book.pdf']), ('fewer tokens than bytes', 'expected 257', [text, '--vocab-size', 256]),
            ('an output that is no .json', '--out', [text, '--out', out]), ('an unknown way of cutting words', 'choose from', [text, '--like', 'llama'])]:
        expect(f'train_tokenizer: {name}', 2, words, *trainer, *arguments)
    with without('tokenizers'):
        expect('train_tokenizer: without the package', 3, 'pip install tokenizers', *trainer, text)
    if not has('tokenizers'):
        print(f'skip train_tokenizer: {sys.executable} has no tokenizers')
        return
    for name, words, arguments in [
            ('a file that is not there', 'none.txt: cannot be read: No such file', ['none.txt']),
            ('a broken line', 'broken.jsonl:2: is not JSON', [file('broken.jsonl', '{"text": "a"}\n{"text": "abc')]),
            ('a line without a text', 'other.jsonl:1: has no string under "text"; --text-field', [lines('other.jsonl', [{'content': 'abc'}])]),
            ('half of a surrogate pair', 'half.jsonl:1', [lines('half.jsonl', [{'text': 'a\ud800'}])]),
            ('a compressed file that ends early', 'short.jsonl.gz: cannot be read', [file('short.jsonl.gz', gzip.compress(text.read_bytes())[:100000])]),
            ('a text too short for so many tokens', 'give more text, or --vocab-size 257', [file('short.txt', 'a short text')])]:
        expect(f'train_tokenizer: {name}', 3, words, *trainer, *arguments)
    check('nothing was written', not names_in(out))
    (WORK / 'folder/tokenizer.json').mkdir(parents=True)
    expect('train_tokenizer: a folder under the file\'s name', 3, 'tokenizer.json: cannot be written', *trainer, text, '--out', WORK / 'folder/tokenizer.json')
    expect('a folder that cannot be made', 3, 'short.txt', *trainer, text, '--out', WORK / 'short.txt/tokenizer.json')
    expect('train_tokenizer: 600 tokens', 0, '600 tokens', *trainer, text)
    check('under their name alone', names_in(out) == ['tokenizer.json'] and names_in(WORK / 'folder') == ['tokenizer.json'])
    expect('and GPT-2\'s way', 0, '', *trainer, text, '--out', WORK / 'gpt2/tokenizer.json', '--like', 'gpt2')
    os.environ['RAYON_NUM_THREADS'] = '1'
    for again in (file('again.jsonl.gz', gzip.compress(text.read_bytes())), file('again.jsonl.xz', lzma.compress(text.read_bytes()))):
        done = subprocess.run([sys.executable, ROOT / 'scripts/train_tokenizer.py', again, '--vocab-size', '600', '--out', WORK / 'again.json'],
                              stdout=subprocess.DEVNULL)
        check(f'once more, on one thread, from {again.suffix}: the same file', done.returncode == 0 and filecmp.cmp(WORK / 'again.json', out / 'tokenizer.json', False))
    del os.environ['RAYON_NUM_THREADS']
    expect('a text that is not all UTF-8', 0, '', *trainer, file('damaged.txt', b'na\xc3\xafve \xff\n'), '--vocab-size', 257, '--out', WORK / 'bytes.json')
    for made in (out, WORK / 'gpt2'):
        done = subprocess.run([sys.executable, 'tests/check_tokenizer.py', made / 'tokenizer.json', text, '--random', '1000'], cwd=ROOT,
                              stdout=subprocess.PIPE, text=True)
        check(f'the engine\'s ids of {made.name} are the library\'s', done.returncode == 0 and '40 texts equal' in done.stdout, done.stdout[-300:])


def check_llama_cpp(name, folder, made):
    """llama.cpp's logits are the engine's, with a KV cache in float32 as here."""
    import llama_cpp
    import numpy
    llama = llama_cpp.Llama(str(made), n_ctx=64, logits_all=True, verbose=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
    ids = llama.tokenize(b'We the People of the United States', add_bos=False)
    llama.eval(ids)
    done = subprocess.run([ROOT / 'build/dev/logits', folder], input=numpy.array(ids, numpy.int32).tobytes(), capture_output=True)
    ours = numpy.frombuffer(done.stdout, numpy.float32).reshape(len(ids), -1)
    apart = numpy.abs(ours - llama.scores[:len(ids)]).max()
    check(f'llama.cpp computes the same logits: {name}', apart < 1e-4, f'they differ by up to {apart}')


def gguf_of(name, folder, kind):
    """A checkpoint as a GGUF file, opened by the package's reader: (its fields, {tensor: numbers as stored})."""
    import gguf
    made = WORK / f'{folder.parent.name}.gguf'
    expect(f'export_gguf: {name}', 0, f'{made}: qwen3, {kind}', export_gguf, folder, made, '--type', kind)
    if kind == 'f32' and has('llama_cpp'): check_llama_cpp(name, folder, made)
    reader = gguf.GGUFReader(made)
    return {key: field.contents() for key, field in reader.fields.items()}, {tensor.name: tensor.data for tensor in reader.tensors}


def check_gguf_of_scaled_rope(run):
    """llama.cpp's keys of every "rope_scaling" that it computes as transformers does; the others are refused."""
    folder = WORK / 'scaled/step_00000001'
    shutil.copytree(run, folder)
    (folder / 'manifest.json').unlink()   # the engine would miss the config.json that it wrote
    config = json.loads((folder / 'config.json').read_text())
    config.pop('rope_parameters')   # which would have to say the same

    def keys_of(name, **scaling):
        (folder / 'config.json').write_text(json.dumps(config | {'rope_scaling': scaling}))
        fields, _ = gguf_of(name, folder, 'f32')
        return {key.removeprefix('qwen3.rope.scaling.'): value for key, value in fields.items() if '.rope.scaling.' in key}

    yarn = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
    check('export_gguf: linear RoPE scaling', keys_of('linear', rope_type='linear', factor=4.0) == {'type': 'linear', 'factor': 4})
    expected = {'type': 'yarn', 'factor': 4, 'original_context_length': 32}
    check('export_gguf: YaRN', keys_of('yarn', **yarn) == expected)
    ratio = keys_of('yarn', **yarn, attention_factor=1.5).pop('attn_factor')
    check('export_gguf: its attention factor, by the default one', abs(ratio * (0.1 * math.log(4) + 1) - 1.5) < 1e-6, ratio)
    for name, scaling in {'type llama3': dict(rope_type='llama3', factor=8.0), '"truncate"': yarn | {'truncate': False},
                          '"beta_fast"': yarn | {'beta_fast': 16.0}}.items():
        (folder / 'config.json').write_text(json.dumps(config | {'rope_scaling': scaling}))
        expect(f'export_gguf: refused, {name}', 3, name, export_gguf, folder, WORK / 'x.gguf')


def check_export_gguf():
    import numpy
    trained = {name: WORK / name / 'step_00000001' for name in ('run', 'asga', 'bpe')}
    shutil.copytree(trained['run'], trained['bpe'])
    expect('a tokenizer of 512 tokens', 0, '', train_tokenizer, WORK / 'text.txt', '--vocab-size', 512, '--out', trained['bpe'] / 'tokenizer.json')
    fields, tensors = gguf_of('single bytes', trained['run'], 'f32')
    words = fields['tokenizer.ggml.tokens']
    check('its tokens are the bytes as GPT-2 writes them, then the end of a text', len(words) == 512 and words[ord('A')] == 'A'
          and words[ord(' ')] == '\u0120' and words[256] == '<|endoftext|>' == words[fields['tokenizer.ggml.eos_token_id']])
    check('llama.cpp finds a list of merges', len(fields['tokenizer.ggml.merges']) == 1)
    expected = dict(export_gguf.tensors_of(trained['run'] / 'model.safetensors'))
    pairs = [('token_embd.weight', 'model.embed_tokens.weight'), ('blk.1.attn_q_norm.weight', 'model.layers.1.self_attn.q_norm.weight'),
             ('blk.0.ffn_down.weight', 'model.layers.0.mlp.down_proj.weight'), ('output_norm.weight', 'model.norm.weight')]
    check('every tensor is there, with its numbers', len(tensors) == len(expected)
          and all(numpy.array_equal(tensors[to], expected[name]) for to, name in pairs), sorted(tensors))
    check('and the shape', fields['qwen3.attention.key_length'] == 32 and fields['qwen3.block_count'] == 2, fields)
    fields, tensors = gguf_of('a trained tokenizer, bf16', trained['bpe'], 'bf16')
    merges = json.loads((trained['bpe'] / 'tokenizer.json').read_text())['model']['merges']
    check('has its merges in order', [m.split(' ') for m in fields['tokenizer.ggml.merges']] ==
          [m.split(' ') if isinstance(m, str) else m for m in merges] and fields['tokenizer.ggml.pre'] == 'qwen2')
    check('matrices take two bytes a number', tensors['blk.0.attn_q.weight'].nbytes == 2 * 64 * 32, tensors['blk.0.attn_q.weight'].nbytes)
    check_gguf_of_scaled_rope(trained['run'])
    if not has('llama_cpp'): print(f'skip logits of llama.cpp: {sys.executable} has no llama_cpp')
    expect('export_gguf: another mechanism', 3, 'has asga attention, which llama.cpp cannot compute', export_gguf, trained['asga'], WORK / 'x.gguf')
    expect('export_gguf: no checkpoint', 3, 'config.json', export_gguf, WORK / 'nothing', WORK / 'x.gguf')
    expect('export_gguf: no such folder for the file', 3, 'No such file', export_gguf, trained['run'], WORK / 'none/x.gguf')
    check('export_gguf: nothing else was written', names_in(WORK).count('x.gguf') == 0 and not list(WORK.glob('*.part')))
    with without('gguf'):
        expect('export_gguf: without the package', 2, 'pip install gguf', export_gguf, trained['run'], WORK / 'x.gguf')


def check_export_log():
    log = WORK / 'run/log.jsonl'
    trackio = sys.modules['trackio'] = mock.MagicMock(__name__='trackio')
    torn = file('torn/log.jsonl', log.read_text() + '{"event":"sample","step":1,"text":"We the"}\n{"step":2,"loss":1.5,"gra')
    expect('export_log: a log that is cut short', 0, '1 line is cut short or no record', export_log, torn, '--to', 'trackio', '--tag', 'x')
    calls, logged = trackio.mock_calls, trackio.log.call_args_list
    config = trackio.init.return_value.config.update.call_args.args[0]
    check('the config has options, shape and tags', calls[0] == mock.call.init(project='attention', name='torn')
          and config['options.steps'] == '1' and config['model.hidden_size'] == 32 and config['tags'] == ['x']
          and config['variant'] == 'causal', calls[:2])
    step = next(json.loads(line) for line in log.read_text().splitlines() if '"loss"' in line and '"event"' not in line)
    check('steps are curves over steps', logged[0].kwargs == {'step': 1} and logged[0].args[0]['train/loss'] == step['loss']
          and logged[0].args[0]['train/lr'] == step['lr'], logged)
    check('and a sampled text is with its step', mock.call({'sample': 'We the'}, step=1) in logged
          and calls[-1] == mock.call.finish(), calls[-2:])
    expect('export_log: --follow ends with the run', 0, 'exported to trackio', export_log, log, '--to', 'trackio', '--follow')
    expect('export_log: no log', 3, 'nothing.jsonl: is no file', export_log, WORK / 'nothing.jsonl', '--to', 'trackio')
    expect('export_log: a log without a record', 3, 'holds no record', export_log, file('empty/log.jsonl', ''), '--to', 'trackio')
    with without('wandb'):
        expect('export_log: a tracker that is not installed', 2, 'pip install wandb', export_log, log, '--to', 'wandb')


def run_notebook(steps):
    """Runs scripts/first_hour.ipynb with short runs; returns what nbconvert prints, and the outputs of all cells."""
    out = WORK / f'first_hour_{steps}'
    done = subprocess.run([sys.executable, '-m', 'nbconvert', '--to', 'notebook', '--execute', '--output-dir', out, ROOT / 'scripts/first_hour.ipynb'],
                          capture_output=True, text=True, env=os.environ | {'STEPS': str(steps), 'OUT': str(out), 'OMP_NUM_THREADS': '1',
                          'IPYTHONDIR': str(WORK / 'ipython'), 'JUPYTER_RUNTIME_DIR': str(WORK / 'jupyter')})
    if done.returncode:
        return done.stderr, []
    cells = json.loads((out / 'first_hour.ipynb').read_text())['cells']
    return done.stderr, [output for cell in cells for output in cell.get('outputs', [])]


def check_first_hour():
    stripped = json.loads((ROOT / 'scripts/first_hour.ipynb').read_text())['cells']
    check('first_hour: git has no outputs', not any(cell.get('outputs') or cell.get('execution_count') for cell in stripped))
    printed, outputs = run_notebook(4)
    check('first_hour: runs', bool(outputs), printed[-300:])
    text = ''.join(''.join(output.get('text', '')) for output in outputs)
    data = [output.get('data', {}) for output in outputs]
    tables = ''.join(''.join(one.get('text/html', '')) for one in data)
    logs = {variant: objects_in(WORK / f'first_hour_4/{variant}/log.jsonl') for variant in ('causal', 'asga')}
    done = {variant: log[-1] for variant, log in logs.items()}
    check('prints the end of both runs', all(one['weights_hash'] in text for one in done.values()), text)
    causal, asga = (done[variant]['val_loss'] for variant in ('causal', 'asga'))
    check('compares the last validation losses of the logs', f'step 4: causal {causal:.4f}, asga {asga:.4f}, difference {asga - causal:+.4f}' in text, text)
    losses = [one['val_loss'] for log in logs.values() for one in log if 'val_ppl' in one]
    check('has each validation in a table', len(losses) == 8 and all(f'{loss:.6f}' in tables for loss in losses), losses)
    check('draws losses, attention, a mask and the comparison', sum('image/png' in one for one in data) == 4, [list(one) for one in data])
    check('first_hour: a trainer that refuses stops it', 'train_asga exits with code 2' in run_notebook(-1)[0])


for check_script, packages in (
        (check_evaluation_items, ''), (check_export_log, ''), (check_first_hour, 'nbconvert ipykernel pandas matplotlib'),
        (check_fineweb, 'pyarrow'), (check_train_tokenizer, ''), (check_export_gguf, 'gguf tokenizers')):
    lacking = [package for package in packages.split() if not has(package)]
    if lacking: print(f'skip {check_script.__name__.removeprefix("check_")}: {sys.executable} lacks {", ".join(lacking)}')
    else: check_script()
