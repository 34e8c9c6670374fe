"""Prints whether a tokenizer gives back the text that it was given: round_trip.py TOKENIZER FILE. Part of a lab's copy.

`make USE_CUDA=0 build/dev/token_ids` comes first.
"""
import struct
import subprocess
import sys

text = open(sys.argv[2], 'rb').read()
record = struct.pack('<I', len(text)) + text
if subprocess.run(['build/dev/token_ids', sys.argv[1], '--round-trip'], input=record, stdout=subprocess.DEVNULL).returncode == 0:
    print('the text comes back')
