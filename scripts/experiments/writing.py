#!/usr/bin/env python3
"""One interleaved round (A/B/A) of ./generate: a baseline before and after another call, on an otherwise idle machine.

    writing.py --log FILE './generate --checkpoint BASE ...' './generate --checkpoint OTHER ...'

Writes a log in the form that results.py reads: milliseconds of a token after the first, time to the first token, their ratios to the
mean of the baseline's two calls, and the bytes of both caches. run.py calls it for settings with `writes`. Exit codes: 0 done, 1 a
program failed or the two wrote on different devices, 2 usage, 75 stopped by a signal.
"""
import argparse
import shlex
import signal

from packages import EXIT_FAILED, EXIT_SIGNAL, Refused, guarded
from turns import load, one_round, records_of, write_records

WHERE = ('device', 'weights')   # equal in both calls
OF_PROGRAM = ('machine', 'commit', 'dirty', 'binary_hash')
KEPT = ('cache_bytes', 'prompt_tokens', 'later_tokens', 'pairs_read', 'mass_kept', *WHERE)


def written_by(command):
    """The record of one call, with its times in milliseconds."""
    record = records_of(command, '--log=FOLDER/log.jsonl')[0]
    if not record['later_tokens']: raise Refused(f'{shlex.join(command)}: wrote one token; --tokens must be 2 or more')
    return record | {'ms': 1e3 * record['writing_seconds'] / record['later_tokens'], 'first_ms': 1e3 * record['reading_seconds']}


def write_log(path, own, base):
    if any(own[key] != base[key] for key in WHERE):
        one, other = (', '.join(of[key] for key in WHERE) for of in (own, base))
        raise Refused(f'one wrote on {one}, the other on {other}; a ratio of times needs one device', EXIT_FAILED)
    measured = {key: own[key] for key in KEPT if key in own} | {'baseline_cache_bytes': base['cache_bytes']}
    for name in ('ms', 'first_ms'): measured |= {name: round(own[name], 4), f'baseline_{name}': round(base[name], 4)}
    measured |= {'ratio': own['ms'] / base['ms'], 'first_ratio': own['first_ms'] / base['first_ms'], 'load': load()}
    write_records(path, {'event': 'config'} | {key: own[key] for key in OF_PROGRAM}, {'event': 'writes', 'step': 0} | measured,
                  {'event': 'done', 'step': 0})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('baseline', metavar='GENERATE', help='baseline call')
    parser.add_argument('other', metavar='GENERATE', help='call to compare')
    parser.add_argument('--log', required=True, metavar='FILE', help='log of the round')
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
