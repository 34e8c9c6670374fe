"""The packages that these programs stand on, or one sentence with the line that installs them."""
import importlib
import os
import sys

EXIT_USAGE, EXIT_DATA, EXIT_FAILED, EXIT_SIGNAL = 2, 3, 1, 75
INSTALL = 'python3 -m venv --system-site-packages build/python && build/python/bin/pip install numpy scipy matplotlib jinja2 xxhash'


class Refused(Exception):
    """What the caller asked for makes no sense; the message is a sentence with the way out. `code` is what the program ends
    with."""

    def __init__(self, message, code=EXIT_USAGE):
        super().__init__(message)
        self.code = code


def require(*names):
    """Imports packages by name and returns the first; one that is missing ends the program with the line that installs it."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError:
            print(f"{name} is missing from {sys.executable}: {INSTALL}, and start with PYTHON=build/python/bin/python3",
                  file=sys.stderr)
            sys.exit(EXIT_USAGE)
    return found[0]


def before_and_behind_dashes(arguments):
    """The words of a command line before `--`, and those behind it, which are for other programs; None: this program's own."""
    words = sys.argv[1:] if arguments is None else arguments
    return (words[:words.index('--')], words[words.index('--') + 1:]) if '--' in words else (words, [])


def guarded(main):
    """Runs main() and turns a refusal, or a file or disk that fails, into its sentence and exit code."""
    try:
        code = main()
        sys.stdout.flush()   # here, where a full disk can still be told
        sys.exit(code)
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(refused.code)
    except KeyboardInterrupt:   # where nothing runs that would have to be saved
        sys.exit(EXIT_SIGNAL)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())   # else the interpreter writes what is left at its end
        if isinstance(error, BrokenPipeError): sys.exit(EXIT_FAILED)     # as of | head: nobody reads on
        print(f'{error.filename or "standard output"}: {error.strerror}', file=sys.stderr)
        sys.exit(EXIT_DATA)
