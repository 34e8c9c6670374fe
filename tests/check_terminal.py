"""A user at a terminal: runs a program on a pseudo-terminal, presses Ctrl-C once enough has appeared, and says what was seen.

    check_terminal.py ENOUGH PROGRAM OPTIONS...

ENOUGH is a regular expression that the output has to match before the key is pressed. Printed are the output itself and, in a line behind
it, the exit code. Standard library only.
"""
import os
import pty
import re
import sys

enough = re.compile(sys.argv[1].encode(), re.DOTALL)
seen, pressed = b'', False


def read(terminal):
    global seen, pressed
    piece = os.read(terminal, 4096)
    seen += piece
    if not pressed and enough.search(seen):
        os.write(terminal, b'\x03')
        pressed = True
    return piece


status = pty.spawn(sys.argv[2:], read)
print(f'\nexit {os.waitstatus_to_exitcode(status)}')
