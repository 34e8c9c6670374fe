"""What tests/check_experiments.py, check_phases.py, check_tasks.py, check_cache.py and check_report.py share. Imported first, it
makes the modules of scripts/experiments known."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'scripts/experiments'))
from packages import Refused  # noqa: E402


def check(name, holds, why=''):
    print(f'ok {name}' if holds else f'FAIL {name}: {why or "not true"}')


def refused(what, words, call):
    try:
        call()
        check(what, False, 'accepted')
    except Refused as said:
        check(what, words in str(said), said)
