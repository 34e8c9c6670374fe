"""Opens checkpoints of every attention variant in Hugging Face transformers, with the Python files that they carry, and compares logits
with those of build/dev/logits: of every fixture's form and weights (scripts/fixture_forms.py) after two steps of ./train_VARIANT, and of
forms that no fixture has. Then what a folder that does not fit is refused with. From the repository's root, after
`make all build/dev/logits`:

    python3 tests/check_modeling.py [NAME ...]
"""
import array
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

work = Path(tempfile.mkdtemp())
os.environ |= {'HF_MODULES_CACHE': str(work / 'modules'), 'HF_HUB_OFFLINE': '1', 'OMP_NUM_THREADS': '2'}
import torch                                                           # noqa: E402
import transformers                                                    # noqa: E402
from transformers import AutoModelForCausalLM                          # noqa: E402

sys.path.insert(0, 'scripts')
from attention_torch import qwen                                       # noqa: E402
from attention_torch.variants import TABLE                             # noqa: E402
from checks import check                                               # noqa: E402
from fixture_forms import FORMS                                        # noqa: E402

LENGTHS = (1, 9, 70, 200)
# What fixtures leave out: (name, fixture to start from or keys of a config.json, the trainer's variant, its options)
FRESH = {'vocab_size': 96, 'hidden_size': 32, 'num_hidden_layers': 3, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 16,
         'intermediate_size': 64, 'rope_theta': 1e4, 'initializer_range': 0.3, 'tie_word_embeddings': False}
LLAMA, QWEN2, QWEN3 = ({'architectures': [f'{name}ForCausalLM']} | FRESH for name in ('Llama', 'Qwen2', 'Qwen3'))
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 50, 'truncate': False, 'attention_factor': 1.3}
LLAMA3 = {'rope_type': 'llama3', 'factor': 8.0, 'original_max_position_embeddings': 50, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0}
FURTHER = (
    ('Llama 3\'s RoPE', LLAMA | {'rope_scaling': LLAMA3}, 'causal', ''),
    ('YaRN with an attention factor of its own', QWEN3 | {'rope_scaling': YARN}, 'causal', ''),
    *((f'{variant} with YaRN', QWEN3 | {'rope_scaling': YARN}, variant, '') for variant in ('deepseek_sparse', 'nsa', 'sinks_cache')),
    ('seer with Llama 3\'s RoPE', QWEN2 | {'rope_scaling': LLAMA3}, 'seer', ''),
    ('adaptive_sparse, threshold and sink', 'adaptive_sparse', 'adaptive_sparse',
     '--adaptive-sparse-threshold 0.3 --adaptive-sparse-sink 1 --adaptive-sparse-mask 1 --adaptive-sparse-dense-heads -1'),
    ('adaptive_sparse, gate alone', QWEN3, 'adaptive_sparse', '--adaptive-sparse-distil 2 --adaptive-sparse-head-threshold -1'),
    ('seer, threshold and sink', 'seer', 'seer', '--seer-threshold 0.4 --seer-sink 1'),
    ('asga_no_geometry, scale', 'asga_no_geometry', 'asga_no_geometry', '--asga-scale 3'),
    ('mosa, sigma_reparam', QWEN3, 'mosa', '--sigma-reparam 1'),
    ('causal, sigma_reparam', QWEN2, 'causal', '--sigma-reparam 1'),
    ('ppa in Llama\'s form', LLAMA, 'ppa', ''),
    ('sliding windows in Llama\'s form', LLAMA, 'sliding_window', '--window 9'),
    ('windows that differ', QWEN3, 'sliding_window', '--layers sliding_window:window=5,sliding_window:window=19,causal'),
    ('hybrid of dsa and causal', QWEN2, 'dsa', '--layers dsa:window=3,causal,dsa --window 11 --dense-until 8'),
    ('hybrid of asga and causal', QWEN3, 'asga', '--layers causal,asga:asga-hidden=3,asga'),
    ('mosa, all heads dense', QWEN3, 'mosa', '--mosa-dense-heads 4'),
    ('routing, all heads local', QWEN3, 'routing', '--routing-local-heads 4 --window 9'),
    ('moh, no shared heads', QWEN3, 'moh', '--moh-shared 0'),
    *((f'{variant}, default settings', QWEN3, variant, '') for variant in TABLE),
)


def shard(path):
    """480 tokens below 64."""
    ids = array.array('H', [(7 * n * n + n // 3) % 64 for n in range(480)])
    path.write_bytes(array.array('i', [20240520, 1, len(ids)] + [0] * 253).tobytes() + ids.tobytes())


def origin(start, folder):
    """A folder to start training from: a fixture, for texts as long as LENGTHS, or a config.json without weights."""
    folder.mkdir()
    config = start
    if isinstance(start, str):
        for file in Path('tests/fixtures', start).glob('model*'):
            shutil.copy(file, folder)
        config = json.loads(Path('tests/fixtures', start, 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | {'max_position_embeddings': 512}))
    return folder


def checkpoint(start, variant, options, folder):
    """What ./train_VARIANT saves after two steps."""
    command = [f'./train_{variant}', '--device', 'cpu', '--model', origin(start, folder.with_suffix('.origin')), '--out', folder,
               '--train-data', work / 'shard.bin', '--batch-size', '1', '--seq-len', '40', '--steps', '2', '--checkpoint-every', '2',
               '--val-every', '0', '--sample-every', '0', '--plot', '0', '--threads', '1', *options.split()]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / 'step_00000002'


def random_ids(model, folder, T):
    """On which no choice of a mechanism is so near to another one that rounding may make it; margins are those of the double model."""
    plain = not hasattr(model, 'form')
    weights = {} if plain else {name: w.double() for name, w in model.named_parameters()}
    for seed in range(200):
        ids = torch.randint(model.config.vocab_size, (1, T), generator=torch.Generator().manual_seed(seed))
        if plain or qwen.forward(model.form, weights, ids)[1].margin > 2e-5:
            return ids
    raise AssertionError(f'{folder}: every text has a choice that is nearly undecided')


def engine_logits(folder, ids):
    done = subprocess.run(['build/dev/logits', folder], input=array.array('i', ids[0].tolist()).tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(ids.shape[1], -1)


@torch.no_grad()
def compare(name, folder):
    config = json.loads((folder / 'config.json').read_text())
    plain = 'auto_map' not in config
    text_of = {file.name: file.read_bytes() for file in Path('scripts/attention_torch').glob('*.py') if file.name != '__init__.py'}
    carried = {file.name: file.read_bytes() for file in folder.glob('*.py')}
    assert carried == ({} if plain else text_of), f'{folder}: the *.py files are not those of scripts/attention_torch; make all'
    model, info = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=None if plain else True, output_loading_info=True)
    misfits = [info[kind] for kind in ('missing_keys', 'unexpected_keys', 'mismatched_keys')]
    assert not any(misfits), f'{folder}: {misfits}'
    model.eval()
    differences = []
    for T in LENGTHS:
        ids = random_ids(model, folder, T)
        theirs, ours = model(ids).logits[0], engine_logits(folder, ids)
        assert ours.std() > 0.1, f"{folder}: logits are nearly the same"
        differences.append((theirs - ours).abs().max().item())
    how = type(model).__name__ if plain else 'with its own files'
    check(f'modeling: {name} in transformers, {how}: logits differ by at most {max(differences):.1e}', max(differences) < 1e-4)
    return folder, model


def said_of(folder, trust=True):
    """What transformers refuses a folder with, by whatever exception."""
    try:
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    except Exception as error:
        return str(error)
    return 'nothing'


def refused(name, folder, words, change=None, remove=None):
    """A copy of the folder whose config.json has other keys."""
    copy = Path(tempfile.mkdtemp(dir=work)) / folder.name
    shutil.copytree(folder, copy)
    config = json.loads((copy / 'config.json').read_text()) | (change or {})
    config.pop(remove, None)
    (copy / 'config.json').write_text(json.dumps(config))
    said = said_of(copy)
    check(f'modeling: refused, {name}', all(word in said for word in words) and '\n' not in said, said)


def check_refusals(dsa, sinks):
    away = ('copy config.json from the checkpoint',)
    refused('a variant that the files do not know', sinks, ('"sinkholes"', 'copy them from a checkpoint'),
            {'attention_variant': 'sinkholes', 'layer_types': ['sinkholes'] * 2})
    refused('a setting that is missing', sinks, ('"sinks_tokens"', *away), remove='sinks_tokens')
    refused('a setting that the files do not know', sinks, ('"sinks_decay"', 'another version'), {'sinks_decay': 3})
    refused('a list of layers that is too short', sinks, ('1 layers', *away), {'layer_types': ['sinks']})
    refused('heads that cannot share keys', sinks, ('num_attention_heads (4)', 'num_key_value_heads (3)'), {'num_key_value_heads': 3})
    refused('RoPE of another type', sinks, ('"rope_type" is "longrope"', 'copy them from a checkpoint'),
            {'rope_scaling': None, 'rope_parameters': {'rope_type': 'longrope', 'rope_theta': 1e4}})
    refused('another activation', sinks, ('hidden_act',), {'hidden_act': 'gelu'})
    refused('a variant whose tensors are missing', sinks, ('lacks 4 tensors', 'ppa.rho', 'from one checkpoint'),
            {'attention_variant': 'ppa', 'layer_types': ['ppa'] * 2})
    refused('tensors of another variant', dsa, ('does not ask for', 'dsa.gate'),
            {'attention_variant': 'dsa_no_gate', 'layer_types': ['dsa_no_gate'] * 2})
    refused('tensors of a different shape', dsa, ('another shape', 'mlp'), {'intermediate_size': 60})
    check_old_transformers(sinks)
    said = said_of(sinks, None)
    check('modeling: without trust_remote_code transformers does not compute plain attention instead', 'layer_types' in said, said)


def check_old_transformers(folder):
    """A version before the oldest is refused in a sentence, and what version 4 copies of a folder is enough."""
    text = (folder / 'modeling_attention_variants.py').read_text()
    named = {f'{name}.py' for name in re.findall(r'^from \.(\w+) import', text, re.MULTILINE)}
    check('modeling: the file that is loaded names all the others, which transformers 4 asks for',
          named | {'modeling_attention_variants.py'} == {file.name for file in folder.glob('*.py')})
    copy = work / 'old_transformers'      # whose files nobody has imported yet
    shutil.copytree(folder, copy)
    (copy / 'parts.py').write_text((copy / 'parts.py').read_text() + '# another hash\n')
    of_today = sys.modules['transformers']      # which transformers itself has exchanged by now
    version = of_today.__version__
    of_today.__version__ = '4.40.2'
    said = said_of(copy)
    of_today.__version__ = version
    words = 'needs transformers 4.46 or newer, and this is 4.40.2: pip install --upgrade transformers'
    check('modeling: refused, old transformers', words in said and '\n' not in said, said)


@torch.no_grad()
def check_use(model, folder):
    """Losses, text, padding, half precision, saving."""
    ids = random_ids(model, folder, 40)
    logits = model(ids).logits
    expected = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    labels = ids.clone()
    good = abs(model(ids, labels=labels).loss - expected) < 1e-6
    labels[0, 5:] = -100
    good &= abs(model(ids, labels=labels).loss - torch.nn.functional.cross_entropy(logits[0, :4], ids[0, 1:5])) < 1e-6
    check('modeling: the loss of labels', good)

    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    steps = ids
    for _ in range(5):
        steps = torch.cat((steps, model(steps).logits[:, -1:].argmax(-1)), 1)
    check(f'modeling: generate() is greedy without a cache: {text[0, 40:].tolist()}', torch.equal(text, steps))

    mask = torch.ones_like(ids)
    mask[0, 30:] = 0
    good = torch.equal(model(ids, attention_mask=mask).logits[0, :30], logits[0, :30])
    try:
        model(ids, attention_mask=mask.flip(1))
        good = False
    except ValueError as error:
        good &= 'pad on the right' in str(error)
    check('modeling: padding behind a text counts for nothing, before it it is refused', good)

    half = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
    difference = (half(ids).logits - logits).abs().max()
    check(f'modeling: bfloat16 weights are computed with in float32 (differs by {difference:.1e})',
          half(ids).logits.dtype == torch.float32 and 0 < difference < 0.1 * logits.abs().max())

    model.save_pretrained(folder.parent / 'saved')
    again = AutoModelForCausalLM.from_pretrained(folder.parent / 'saved', trust_remote_code=True)
    good = torch.equal(again(ids).logits, logits)
    good &= json.loads((folder.parent / 'saved/config.json').read_text())['model_type'] == again.config.form == 'qwen3'
    good &= bool((engine_logits(folder.parent / 'saved', ids) - logits[0]).abs().max() < 1e-4)
    check('modeling: what transformers saves is a checkpoint, for it and for the engine', good)


def main(names):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    shard(work / 'shard.bin')
    made = {}
    cases = [(name, name, form.variant, '') for name, form in FORMS.items()] + list(FURTHER)
    for name, start, variant, options in cases:
        if names and name not in names:
            continue
        folder = work / re.sub(r'\W+', '_', name)
        made[name] = compare(name, checkpoint(start, variant, options, folder))
    if 'dsa' in made and 'sinks' in made:
        check_refusals(made['dsa'][0], made['sinks'][0])
        check_use(made['dsa'][1], made['dsa'][0])


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    finally:
        shutil.rmtree(work, ignore_errors=True)
