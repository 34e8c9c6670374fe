#!/usr/bin/env python3
"""Step times of training programs by turns, so that a machine whose speed drifts favours none. It should have nothing else to do.

    turns.py old/train_causal ./train_causal                            # two builds: the second against the first
    turns.py --rounds 5 ./train_causal ./train_asga './train_dsa --window 128' -- --model qwen-7m --seq-len 2048

Each argument is a program with options of its own; those behind `--` are for all. In a round the first program, the baseline, runs
before and after every other one, nine steps each, three of them to warm up. A ratio is the other's median step to the mean of the
baseline's two. Printed for each other program: median over the rounds of its step and of the ratio, with an interval for the latter
(of order statistics, at least 95% where there are six rounds or more).

Exit codes: 0 done, 1 a program failed, 2 usage, 75 stopped by a signal.
"""
import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

from packages import EXIT_FAILED, EXIT_SIGNAL, Refused, before_and_behind_dashes, guarded
from results import read_log

STEPS, TO_WARM_UP = 9, 3
QUIET = {'val-every': 0, 'sample-every': 0, 'checkpoint-every': 0, 'plot': 0}


def steps_of(command, steps=STEPS):
    """What a run of `steps` steps measured: median milliseconds of a step, peak bytes, and the log's first record."""
    with tempfile.TemporaryDirectory() as out:
        own = [f'--{name}={value}' for name, value in (QUIET | {'steps': steps, 'out': out}).items()]
        try:
            done = subprocess.run([*command, *own], capture_output=True, text=True)
        except OSError as error:
            raise Refused(f'{command[0]}: {error.strerror}; make builds it', EXIT_FAILED) from error
        if done.returncode:
            raise Refused(f'{shlex.join(command)}: ended with code {done.returncode}: {done.stderr.strip()}', EXIT_FAILED)
        records = read_log(Path(out) / 'log.jsonl')
    times = [r['ms'] for r in records if 'grad_norm' in r]
    end = next(r for r in records if r.get('event') == 'done')
    return {'ms': median(times[min(TO_WARM_UP, len(times) - 1):]), 'peak_bytes': end.get('peak_bytes'), 'config': records[0]}


def one_round(baseline, others, measure=steps_of):
    """[(of the other, of the baseline: times are means of before and after)], with the baseline's run between two others shared.
    `measure` runs a command; its times are called ms and first_ms."""
    found, before = [], measure(baseline)
    for other in others:
        own, after = measure(other), measure(baseline)
        times = {name: mean([before[name], after[name]]) for name in ('ms', 'first_ms') if name in after}
        found.append((own, after | times))
        before = after
    return found


def median_interval(values, level=0.95):
    """(median, low, high, coverage) of the distribution that values come from: the closest pair of order statistics, as many from
    either end, that covers the median with at least this probability, or the outermost, whose coverage is 1 - 2^(1 - n)."""
    ordered, n = sorted(values), len(values)
    coverage = lambda k: 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n      # of the k-th from either end
    k = max((k for k in range(1, n // 2 + 1) if coverage(k) >= level), default=1)
    return median(ordered), ordered[k - 1], ordered[-k], max(0.0, coverage(k))


def write_log(path, own, base):
    """A run's log of one round, as results.py reads it."""
    records = [
        own['config'],
        {'event': 'turns', 'step': 0, 'ms': round(own['ms'], 4), 'baseline_ms': round(base['ms'], 4),
         'ratio': own['ms'] / base['ms'], 'baseline_peak_bytes': base['peak_bytes'], 'load': round(os.getloadavg()[0], 2)},
        {'event': 'done', 'step': 0, 'peak_bytes': own['peak_bytes']},
    ]
    Path(path).write_text(''.join(json.dumps(record) + '\n' for record in records))


def main(arguments=None):
    words, shared = before_and_behind_dashes(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('baseline', metavar='PROGRAM')
    parser.add_argument('others', nargs='+', metavar='OTHER')
    parser.add_argument('--rounds', type=int, default=6, help='default 6')
    parser.add_argument('--log', help='write a round of one OTHER there, and print nothing')
    options = parser.parse_args(words)
    if options.rounds < 1 or (options.log and len(options.others) > 1):
        parser.error('--rounds is at least 1, and --log is for one OTHER')
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    baseline, *others = [shlex.split(command) + shared for command in [options.baseline, *options.others]]
    try:
        if options.log:
            write_log(options.log, *one_round(baseline, others)[0])
            return 0
        rounds = [one_round(baseline, others) for _ in range(options.rounds)]
    except KeyboardInterrupt:
        return EXIT_SIGNAL
    for name, turns in zip(options.others, zip(*rounds)):
        ratio, low, high, coverage = median_interval([own['ms'] / base['ms'] for own, base in turns])
        own, base = (median(one['ms'] for one in of) for of in zip(*turns))
        print(f'{name} {own:.2f} ms, {options.baseline} {base:.2f} ms: {ratio:.3f}, from {low:.3f} to {high:.3f} '
              f'({100 * coverage:.0f}%)')
    return 0


if __name__ == '__main__':
    guarded(main)
