"""Token shards (data/README.md) and the manifests beside them: reading, writing, hashing. Imports no other module of plans or tasks."""
import json
import os
import struct
from pathlib import Path

from packages import EXIT_DATA, Refused

HEADER, MAGIC_16, MAGIC_32, MAGIC_ITEMS = 1024, 20240520, 20240801, 20240522
HALVES = ('tune', 'report')   # of the validation tokens


def write_whole(path, content):
    """Write to a temporary name and rename, so that readers never see part of a file."""
    temporary = Path(f'{path}.{os.getpid()}.tmp')
    temporary.write_bytes(content)
    os.replace(temporary, path)


def header(magic, version, count):
    """The first 1024 bytes of a file of tokens or of items."""
    return struct.pack('<256i', magic, version, count, *[0] * 253)


def read(path):
    """(magic, version, number of tokens, bytes behind the header)."""
    content = path.read_bytes()
    return *struct.unpack('<3i', content[:12]), content[HEADER:]


def ids(path, count):
    """The first token ids of a shard."""
    magic, _, _, content = read(path)
    return struct.unpack_from(f'<{count}{"H" if magic == MAGIC_16 else "I"}', content)


def copy_manifest(folder, to):
    """Copy the manifest, which names the tokenizer, and the tokenizer."""
    for manifest in folder.glob('*_manifest.json'):
        for path in (manifest, *folder.glob('*_tokenizer.json')): write_whole(to / path.name, path.read_bytes())


def add_to_manifest(path, name, content):
    """List one more shard; trainers mix shards only if one manifest lists them."""
    import xxhash   # here, because plans need no packages
    manifest = json.loads(path.read_text())
    manifest['shards'].append({'file': name, 'tokens': struct.unpack('<3i', content[:12])[2], 'bytes': len(content),
                               'xxh64': xxhash.xxh64(content).hexdigest()})
    write_whole(path, json.dumps(manifest).encode())


def common_glob(paths):
    """One glob for shards NAME_train_000001.bin, ...; refuses shards of two names."""
    names = {path.name.rsplit('_', 1)[0] for path in paths}
    if len(names) > 1:
        raise Refused(f'{paths[0].parent}: has shards of several texts ({", ".join(sorted(names))}); give a folder with one', EXIT_DATA)
    return f'{names.pop()}_*.bin'


def split_in_halves(files, folder):
    """Write both halves of the tokens of these shards, tune.bin and report.bin, unless they exist; {half: path}."""
    halves = {half: folder / f'{half}.bin' for half in HALVES}
    if all(path.exists() for path in halves.values()): return halves
    magic, tokens = None, b''
    for path in files:
        magic, version, _, content = read(path)
        if magic not in (MAGIC_16, MAGIC_32): raise Refused(f'{path}: is no token shard (magic {magic})', EXIT_DATA)
        if version in (2, 8): raise Refused(f'{path}: has a loss mask and cannot be halved; give a text without one', EXIT_DATA)
        tokens += content
    size = 2 if magic == MAGIC_16 else 4
    middle = len(tokens) // size // 2 * size
    folder.mkdir(parents=True, exist_ok=True)
    for half, part in zip(HALVES, (tokens[:middle], tokens[middle:])):
        write_whole(halves[half], header(magic, 1 if size == 2 else 7, len(part) // size) + part)
    copy_manifest(files[0].parent, folder)
    return halves
