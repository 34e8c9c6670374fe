"""Flips one bit of every copy of a tensor in the memory of a rank that trains with a learning rate of 0: memory holds the numbers of the
checkpoints, which is how they are found. Needs Linux.

    python3 tests/flip_bit.py PROCESS OUT TENSOR BYTE       PROCESS: the rank's number; BYTE: which of the tensor's
"""
import errno
import json
import re
import struct
import sys
from pathlib import Path


def numbers_of(checkpoint, tensor):
    content = (checkpoint / 'model.safetensors').read_bytes()
    length = struct.unpack_from('<Q', content)[0]
    begin, end = json.loads(content[8:8 + length])[tensor]['data_offsets']
    return content[8 + length + begin:8 + length + end]


def writable_ranges(process):
    for line in Path(f'/proc/{process}/maps').read_text().splitlines():
        if match := re.match(r'([0-9a-f]+)-([0-9a-f]+) rw-p .* 0 ', line):
            yield (int(n, 16) for n in match.groups())


def main(process, out, tensor, byte):
    numbers = numbers_of(sorted(Path(out).glob('step_*[0-9]'))[-1], tensor)
    with open(f'/proc/{process}/mem', 'r+b', buffering=0) as memory:
        for begin, end in writable_ranges(process):
            memory.seek(begin)
            try:
                content = memory.read(end - begin)
            except OSError as error:
                if error.errno != errno.EIO: raise
                continue   # the process has unmapped the range since its maps were read
            for match in re.finditer(re.escape(numbers), content):
                at = match.start() + int(byte)
                memory.seek(begin + at)
                memory.write(bytes([numbers[int(byte)] ^ 16]))


main(*sys.argv[1:])
