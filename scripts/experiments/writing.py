#!/usr/bin/env python3
"""A round of writing by turns: ./generate as a baseline before and after another call of it, on a machine that should have nothing
else to do.

    writing.py --log FILE './generate --checkpoint BASE ...' './generate --checkpoint OTHER ...'

Writes a log as results.py reads it: milliseconds of a token behind the first and until the first, their ratios to the mean of the
baseline's two calls, and the bytes that each keeps of the text. run.py calls it for settings with `writes`. Exit codes: 0 done,
1 a program failed or the two wrote on different devices, 2 usage, 75 stopped by a signal.
"""
import argparse
import json
import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

from packages import EXIT_FAILED, EXIT_SIGNAL, Refused, guarded
from results import read_log
from turns import one_round

WHERE = ('device', 'weights')   # what two calls must have in common
OF_PROGRAM = ('machine', 'commit', 'dirty', 'binary_hash')


def written_by(command):
    """The record of one call, with its times in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / 'log.jsonl'
        try:
            done = subprocess.run([*command, f'--log={log}'], capture_output=True, text=True)
        except OSError as error:
            raise Refused(f'{command[0]}: {error.strerror}; make builds it', EXIT_FAILED) from error
        if done.returncode:
            raise Refused(f'{shlex.join(command)}: ended with code {done.returncode}: {done.stderr.strip()}', EXIT_FAILED)
        record = read_log(log)[0]
    if not record['later_tokens']: raise Refused(f'{shlex.join(command)}: wrote one token; --tokens must be 2 or more')
    return record | {'ms': 1e3 * record['writing_seconds'] / record['later_tokens'], 'first_ms': 1e3 * record['reading_seconds']}


def write_log(path, own, base):
    """Of one round."""
    if any(own[key] != base[key] for key in WHERE):
        one, other = (', '.join(of[key] for key in WHERE) for of in (own, base))
        raise Refused(f'one wrote on {one}, the other on {other}: a ratio of their times would say nothing', EXIT_FAILED)
    kept = ('cache_bytes', 'prompt_tokens', 'later_tokens', 'pairs_read', 'mass_kept', *WHERE)
    measured = {key: own[key] for key in kept if key in own} | {'baseline_cache_bytes': base['cache_bytes']}
    for name in ('ms', 'first_ms'):
        measured |= {name: round(own[name], 4), f'baseline_{name}': round(base[name], 4)}
    measured |= {'ratio': own['ms'] / base['ms'], 'first_ratio': own['first_ms'] / base['first_ms'], 'load': round(os.getloadavg()[0], 2)}
    records = [{'event': 'config'} | {key: own[key] for key in OF_PROGRAM}, {'event': 'writes', 'step': 0} | measured,
               {'event': 'done', 'step': 0}]
    Path(path).write_text(''.join(json.dumps(record) + '\n' for record in records))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('baseline', metavar='GENERATE')
    parser.add_argument('other', metavar='GENERATE')
    parser.add_argument('--log', required=True, metavar='FILE')
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        [(own, base)] = one_round(shlex.split(options.baseline), [shlex.split(options.other)], written_by)
    except KeyboardInterrupt:
        return EXIT_SIGNAL
    write_log(options.log, own, base)
    return 0


if __name__ == '__main__':
    guarded(main)
