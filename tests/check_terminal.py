"""A user at a terminal: runs a program on a pseudo-terminal, presses Ctrl-C once enough has appeared, and says what was seen.

    check_terminal.py ENOUGH PROGRAM OPTIONS...

ENOUGH is a regular expression that the output has to match before the key is pressed. Printed are the exit code, the number of pieces in
which the output came, and behind them the output itself. Standard library only.
"""
import os
import pty
import re
import select
import sys
import time

LIMIT = 60   # seconds


def main():
    enough, command = re.compile(sys.argv[1].encode(), re.DOTALL), sys.argv[2:]
    child, terminal = pty.fork()
    if child == 0: os.execvp(command[0], command)
    seen, pieces, pressed, end = b'', 0, False, time.time() + LIMIT
    while time.time() < end and select.select([terminal], [], [], end - time.time())[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:   # the program has closed its side
            break
        if not piece: break
        seen, pieces = seen + piece, pieces + 1
        if not pressed and enough.search(seen):
            os.write(terminal, b'\x03')
            pressed = True
    else:
        os.kill(child, 9)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.buffer.write(f'exit {status}, {pieces} pieces\n'.encode() + seen)


main()
