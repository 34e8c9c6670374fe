"""Shared by the check_*.py of scripts/experiments, whose modules it makes importable."""
import contextlib
import io
import sys
from argparse import Namespace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'scripts/experiments'))
from checks import check  # noqa: E402, F401
import plan  # noqa: E402
from packages import Refused  # noqa: E402
from work import Session  # noqa: E402


def refused(name, words, call, code=None):
    """Check that call() is refused, or ends the program, with these words (and exit code)."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed): call()
        said, found = 'accepted', 0
    except Refused as error:
        said, found = str(error), error.code
    except SystemExit as error:
        said, found = printed.getvalue() + str(error), error.code
    check(name, words in said and code in (None, found), f'{said} (code {found})')


def printed_by(main, *arguments):
    """Standard output of a program's main(); another exit code than 0 comes behind it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed): code = main(list(map(str, arguments)))
    return printed.getvalue() + (f'ended with {code}' if code else '')


def close(a, b, tolerance=1e-9):
    return abs(a - b) <= tolerance * max(1, abs(b))


def cells(table):
    """(head, rows) of a DataFrame."""
    return list(table), table.values.tolist()


def planted_plan(arms, settings, **of_scale):
    """An experiment with arms (the baseline is a) and settings, at scales smoke and reduced."""
    scale = {'lr': 1e-3, 'seeds': 2, 'seconds_per_step': 1, 'estimate': 'a guess'} | of_scale
    e = plan.Experiment('planted', table={'title': 'x', 'baseline': 'a', 'arms': arms, 'settings': settings,
                                          'scales': {'smoke': scale, 'reduced': scale}})
    e.relative_seconds = dict.fromkeys(arms, 1.0)
    return e


def session_in(work, data=None, programs=None):
    return Session(Namespace(out=str(work / 'out'), ledger=str(work / 'none.jsonl'), data=data and str(data), jobs=1, ranks=1, cpu=True,
                             programs=programs and str(programs), scale='smoke', machine='m'))
