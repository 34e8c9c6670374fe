"""Shared by all of these programs: the tree's root, errors with an exit code, Python packages."""
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_SIGNAL = 1, 2, 3, 75
INSTALL = ('python3 -m venv --system-site-packages build/python && '
           'build/python/bin/pip install numpy scipy statsmodels pandas matplotlib jinja2 xxhash')


class Refused(Exception):
    """A request that cannot be met. The message is one sentence with the way out; `code` is the program's exit code."""

    def __init__(self, message, code=EXIT_USAGE):
        super().__init__(message)
        self.code = code


def name_missing(kind, error, traceback):
    """An exception that nothing has caught: a missing package ends the program with the line that installs it."""
    if not issubclass(kind, ImportError): return sys.__excepthook__(kind, error, traceback)
    print(f'{sys.executable}: {error}: {INSTALL}, and start with PYTHON=build/python/bin/python3', file=sys.stderr)
    sys.exit(EXIT_USAGE)


sys.excepthook = name_missing


def split_at_dashes(arguments):
    """The words of a command line before `--` and those behind it, which other programs get; None stands for sys.argv."""
    words = sys.argv[1:] if arguments is None else arguments
    return (words[:words.index('--')], words[words.index('--') + 1:]) if '--' in words else (words, [])


def guarded(main):
    """Run main() and exit with its code; a refusal, or a file or disk that fails, becomes one sentence and an exit code."""
    try:
        code = main()
        sys.stdout.flush()   # a full disk shows here
        sys.exit(code)
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(refused.code)
    except KeyboardInterrupt:
        sys.exit(EXIT_SIGNAL)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())   # else the interpreter writes the rest when it ends
        if isinstance(error, BrokenPipeError): sys.exit(EXIT_FAILED)     # as of | head
        print(f'{error.filename or "standard output"}: {error.strerror}', file=sys.stderr)
        sys.exit(EXIT_DATA)
