"""Calls of other people's code, one file per source, for scripts/check_published.py. Each has a list CHECKS."""
import importlib
from pathlib import Path

from .check import Check, Missing

CHECKS = [check for path in sorted(Path(__file__).parent.glob('[a-z]*.py')) if path.stem != 'check'
          for check in importlib.import_module(f'published.{path.stem}').CHECKS]
