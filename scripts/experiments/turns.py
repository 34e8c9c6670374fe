#!/usr/bin/env python3
"""Interleaved step times (A/B/A) of training programs, which cancel the drift of a machine's speed. Run it on an idle machine.

    turns.py old/train_causal ./train_causal                            # two builds: the second against the first
    turns.py --rounds 5 ./train_causal ./train_asga './train_dsa --window 128' -- --model qwen-7m --seq-len 2048

Each argument is a program with options of its own; those behind `--` are for all. In a round the first program, the baseline, runs
before and after every other one, nine steps each (--steps), up to three of them to warm up. A ratio is the other's median step to
the mean of the baseline's two. Printed for each other program: median over the rounds of its step and of the ratio, with an
interval for the latter (of order statistics, at least 95% where there are six rounds or more).

With --generate the arguments are calls of ./generate, whose time is that of a token after the first. run.py calls it for settings with
`writes`, where --log also keeps the time to the first token and the bytes of both caches.

Exit codes: 0 done, 1 a program failed or two calls wrote on different devices, 2 usage, 75 stopped by a signal.
"""
import argparse
import functools
import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path
from statistics import mean, median

from packages import EXIT_FAILED, EXIT_SIGNAL, Refused, guarded, split_at_dashes
from results import read_log

STEPS, TO_WARM_UP = 9, 3
WHERE = ('device', 'weights')   # equal in both calls of ./generate
OF_WRITING = ('cache_bytes', 'prompt_tokens', 'later_tokens', 'pairs_read', 'mass_kept', *WHERE)
QUIET = ('--val-every=0', '--sample-every=0', '--checkpoint-every=0', '--plot=0')


def records_of(command, *own):
    """event -> records of the log.jsonl that a command with our `own` options writes into a temporary folder, FOLDER in them."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([*command, *(word.replace('FOLDER', folder) for word in own)], capture_output=True, text=True)
        except OSError as error:
            raise Refused(f'{command[0]}: {error.strerror}; make builds it', EXIT_FAILED) from error
        if done.returncode:
            raise Refused(f'{shlex.join(command)}: ended with code {done.returncode}: {done.stderr.strip()}', EXIT_FAILED)
        return read_log(Path(folder) / 'log.jsonl')


def steps_of(command, steps=STEPS):
    """Measurements of a short training run: median milliseconds of a step, and peak bytes."""
    events = records_of(command, *QUIET, f'--steps={steps}', '--out=FOLDER')
    times = [r['ms'] for r in events[None] if 'grad_norm' in r]
    return {'ms': median(times[min(TO_WARM_UP, (len(times) - 1) // 2):]), 'peak_bytes': events['done'][0].get('peak_bytes'),
            'config': events['config'][0]}


def writing_of(command):
    """Measurements of a call of ./generate: milliseconds of a token after the first and until the first, and bytes of the cache."""
    record = records_of(command, '--log=FOLDER/log.jsonl')['writing'][0]
    if not record['later_tokens']: raise Refused(f'{shlex.join(command)}: wrote one token; --tokens must be 2 or more')
    return {'ms': 1e3 * record['writing_seconds'] / record['later_tokens'], 'first_ms': 1e3 * record['reading_seconds'],
            'config': {'event': 'config'} | {key: record[key] for key in ('machine', 'commit', 'dirty', 'binary_hash')},
            **{key: record[key] for key in OF_WRITING if key in record}}


def one_round(baseline, others, measure=steps_of):
    """[(measurements of the other, of the baseline)], one baseline run between each two others. `measure` runs a command; its times,
    ms and first_ms, are means of before and after for the baseline."""
    found, before = [], measure(baseline)
    for other in others:
        own, after = measure(other), measure(baseline)
        found.append((own, after | {name: mean([before[name], after[name]]) for name in ('ms', 'first_ms') if name in after}))
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
    """Write the log of one round in the form that results.py reads."""
    if any(own.get(key) != base.get(key) for key in WHERE):
        one, other = (', '.join(of[key] for key in WHERE) for of in (own, base))
        raise Refused(f'one wrote on {one}, the other on {other}; a ratio of times needs one device', EXIT_FAILED)
    measured = {key: own[key] for key in OF_WRITING if key in own}
    for name, ratio in (('ms', 'ratio'), ('first_ms', 'first_ratio')):
        if name in own: measured |= {name: round(own[name], 4), f'baseline_{name}': round(base[name], 4), ratio: own[name] / base[name]}
    measured |= {f'baseline_{size}': base[size] for size in ('peak_bytes', 'cache_bytes') if size in base}
    measured |= {'step': 0, 'load': round(os.getloadavg()[0], 2)}
    records = [own['config'], {'event': 'writes' if 'first_ms' in own else 'turns', **measured},
               {'event': 'done', 'step': 0, 'peak_bytes': own.get('peak_bytes')}]
    Path(path).write_text(''.join(json.dumps(record) + '\n' for record in records))


def main(arguments=None):
    words, shared = split_at_dashes(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('baseline', metavar='PROGRAM', help='baseline, with options of its own')
    parser.add_argument('others', nargs='+', metavar='OTHER', help='program to compare, with options of its own')
    parser.add_argument('--rounds', type=int, default=6, help='number of rounds (default 6)')
    parser.add_argument('--steps', type=int, default=STEPS, help=f'steps of a program in its turn (default {STEPS})')
    parser.add_argument('--log', help='file for one round of one OTHER; prints nothing')
    parser.add_argument('--generate', action='store_true', help='measure calls of ./generate')
    options = parser.parse_args(words)
    if min(options.rounds, options.steps) < 1 or (options.log and len(options.others) > 1):
        parser.error('--rounds and --steps are at least 1, and --log is for one OTHER')
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    baseline, *others = [shlex.split(command) + shared for command in [options.baseline, *options.others]]
    try:
        measure = writing_of if options.generate else functools.partial(steps_of, steps=options.steps)
        rounds = [one_round(baseline, others, measure) for _ in range(1 if options.log else options.rounds)]
    except KeyboardInterrupt:
        return EXIT_SIGNAL
    if options.log:
        write_log(options.log, *rounds[0][0])
        return 0
    for name, turns in zip(options.others, zip(*rounds)):
        ratio, low, high, coverage = median_interval([own['ms'] / base['ms'] for own, base in turns])
        own, base = (median(one['ms'] for one in of) for of in zip(*turns))
        print(f'{name} {own:.2f} ms, {options.baseline} {base:.2f} ms: {ratio:.3f}, from {low:.3f} to {high:.3f} ({100 * coverage:.0f}%)')
    return 0


if __name__ == '__main__':
    guarded(main)
