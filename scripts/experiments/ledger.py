"""The ledger of runs: an append-only file of JSON Lines, and locks.

A run's key is a hash of the program's options, the engine's commit and the data, without options that change no result (output
folder, threads, resuming). Records:

    {"event": "run", "key": ..., labels}                       a run that an experiment counts as its own
    {"event": "start" | "stopped" | "failed", "key": ...}      attempts
    {"event": "done" | "diverged", "key": ..., ...}            a finished run with its results: never repeated
    {"event": "plan", "experiment": ..., "table", "keys"}      a finished comparison of compare.py and its runs

Older ledgers also have lines "fixed", a choice among finished runs, which nothing reads.

Records of runs that ended (done, diverged, failed) have flat fields: experiment, arm, variant, seed, scale, status (one of the three),
steps, tokens, lr, val_loss, bits_per_byte, seconds, flops, weights_hash, commit, dirty, machine, data_hash, command, date; `result` is
the rest, such as curves, and when it is read the whole. In records from before 2026-11-26 it is the whole in the file.

A killed writer leaves the lines before its own intact. Readers pass over a cut line with a message, and run.py repeats its run.
"""
import errno
import fcntl
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from packages import EXIT_DATA, Refused

FINISHED = ('done', 'diverged')
FLAT = {'steps': 'steps', 'tokens': 'tokens', 'val_loss': 'val_loss', 'bits_per_byte': 'val_bpb', 'seconds': 'seconds',
        'weights_hash': 'weights_hash', 'machine': 'machine'}   # name in a record: name in a result
WITHOUT_EFFECT = ('out', 'threads', 'resume', 'device', 'plot', 'sample-every', 'checkpoint-every', 'keep-checkpoints')


def key_of(variant, options, commit, data):
    """16 hexadecimal digits that name a run."""
    counted = {name: str(value) for name, value in options.items() if name not in WITHOUT_EFFECT}
    text = json.dumps([variant, counted, commit, data], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flat(status, options, result):
    """(flat fields of a run that ended, the rest of its result)."""
    per_token, tokens = result.get('flops_per_token'), result.get('tokens')
    fields = {'status': status, 'lr': options.get('lr'), 'flops': per_token * tokens if per_token and tokens else None}
    fields |= {name: result.get(inner) for name, inner in FLAT.items()}
    return fields, {name: value for name, value in result.items() if name not in FLAT.values()}


class Ledger:
    """Records of a file. `finished` holds runs by key, `commands` those of started runs by key."""

    def __init__(self, path):
        self.path, self._reported = Path(path), set()
        self.records, self.finished, self.commands = [], {}, {}
        self.refresh()

    def refresh(self):
        """Read the file again; other processes append to it too."""
        try:
            lines = self.path.read_bytes().split(b'\n')
        except FileNotFoundError:
            return
        except OSError as error:
            raise Refused(f'{self.path}: cannot be read ({error.strerror}); give another --ledger', EXIT_DATA) from error
        self.records, self.finished = [], {}
        odd = {number for number, text in enumerate(lines, 1) if text and not self._take(text)}
        if len(odd) > max(1, len(self.records)):
            raise Refused(f'{self.path}: is no ledger of this engine, as {len(odd)} of its lines are no records; give one that run.py or '
                          'compare.py wrote', EXIT_DATA)
        for number in sorted(odd - self._reported):
            print(f'{self.path}:{number}: is cut short or no record, and passed over; run.py repeats its run', file=sys.stderr)
        self._reported |= odd

    def _take(self, text):
        """Whether a line is a record, which is kept."""
        try:
            record = json.loads(text)
            event = record['event']
        except (ValueError, TypeError, KeyError):
            return False
        if event == 'start': self.commands[record.get('key')] = record.get('command', '')
        if event in FINISHED and 'key' in record:
            result = record.setdefault('result', {})
            result |= {inner: record[name] for name, inner in FLAT.items() if name in record}
            self.finished.setdefault(record['key'], record)
        self.records.append(record)
        return True

    def append(self, event, **fields):
        """Append one line, whole or not at all, on a line of its own."""
        self.append_all([(event, fields)])

    def append_all(self, events):
        """Append lines (event, fields) in one write."""
        now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
        lines = b''.join(json.dumps({'event': event, 'date': now, **fields}, separators=(',', ':'), allow_nan=False).encode() + b'\n'
                         for event, fields in events)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, 'a+b', buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                append_whole(file, lines)
        except OSError as error:
            raise Refused(f'{self.path}: cannot be written ({error.strerror}); make room or give another --ledger, and start again',
                          EXIT_DATA) from error
        self.refresh()


def append_whole(file, lines):
    """Append to a locked file, or restore its length if the disk is full."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b'\n': lines = b'\n' + lines   # a killed writer left half a line
    try:
        if file.write(lines) != len(lines): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def lock(path, shared=False):
    """An open file with a lock that is held until every process with the file has closed it; None while another one holds it.
    Trainers inherit that of their run, so that the run of a killed run.py stays locked until its trainer has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, 'a')
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
