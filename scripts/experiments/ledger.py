"""What was run and what came out: an append-only file of JSON Lines, and one lock per run.

A run's key is a hash of the program's options, of the engine's commit and of the data; options that do not change a result (where
it is written, threads, whether it is resumed) are left out. Records:

    {"event": "start" | "stopped" | "failed", "key": ...}      attempts
    {"event": "again", "key": ...}                  a finished run, done once more because later ones start from its weights
    {"event": "done" | "diverged", "key": ..., ...}            a finished run with its results: never run again
    {"event": "fixed", "name": ..., "value": ...}              a choice that later runs stand on, such as an arm's best rate

Lines of runs that ended (done, diverged, failed) have flat what every run has: experiment, arm, variant, seed, scale, status (which
of the three), steps, tokens, lr, val_loss, bits_per_byte, seconds, flops, weights_hash, commit, dirty, machine, data_hash, command,
date; `result` is the rest, such as curves. flat() makes such a line, filled() is what reads it, and older ones.

Whatever kills a writer, the lines before stay as they were: a line cut in half is passed over with a sentence, and its run
repeated.
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
        'weights_hash': 'weights_hash', 'machine': 'machine'}   # name in a line: name in a result
WITHOUT_EFFECT = ('out', 'threads', 'resume', 'device', 'plot', 'sample-every', 'checkpoint-every', 'keep-checkpoints')


def key_of(variant, options, commit, data):
    """16 hexadecimal digits that name a run."""
    counted = {name: str(value) for name, value in options.items() if name not in WITHOUT_EFFECT}
    text = json.dumps([variant, counted, commit, data], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flat(status, options, result):
    """What stands flat in the line of a run that ended, and the rest of its result."""
    per_token, tokens = result.get('flops_per_token'), result.get('tokens')
    fields = {'status': status, 'lr': options.get('lr'), 'flops': per_token * tokens if per_token and tokens else None}
    fields |= {name: result.get(inner) for name, inner in FLAT.items()}
    return fields, {name: value for name, value in result.items() if name not in FLAT.values()}


def filled(record, command):
    """The record of a finished run with all flat fields and its whole result. Lines from before 2026-11-26 have the result alone, a
    commit with "+" and a hash behind it where files differed, and the command in the line of the start, given here."""
    result = record.setdefault('result', {})
    if 'status' in record:
        result |= {inner: record.get(name) for name, inner in FLAT.items()}
        return record
    last = (result.get('validation') or [[None, None]])[-1]
    if last[0] == result.get('steps'): result.setdefault('tokens', last[1])
    fields, _ = flat(record['event'], record.get('options', {}), result)
    commit, _, changes = record.get('commit', '').partition('+')
    return record | fields | {'commit': commit, 'dirty': bool(changes), 'command': command, 'date': record.get('time')}


class Ledger:
    """The file's records, read again by refresh(), and what is known of each key."""

    def __init__(self, path):
        self.path = Path(path)
        self.records, self.finished, self.fixed = [], {}, {}
        self.commands = {}   # of the runs that were started, by key
        self._reported = set()
        self.refresh()

    def refresh(self):
        """Reads what this and other processes have appended."""
        try:
            lines = self.path.read_bytes().split(b'\n')
        except FileNotFoundError:
            return
        except OSError as error:
            raise Refused(f'{self.path}: cannot be read ({error.strerror}); give another --ledger', EXIT_DATA) from error
        self.records, self.finished, self.fixed = [], {}, {}
        for number, text in enumerate(lines, 1):
            if text:
                self._take(number, text)

    def _take(self, number, text):
        try:
            record = json.loads(text)
            if not isinstance(record, dict) or 'event' not in record:
                raise ValueError
        except ValueError:
            if number not in self._reported:
                print(f'{self.path}:{number}: is cut short or no record, and passed over; run.py repeats its run', file=sys.stderr)
                self._reported.add(number)
            return
        if record['event'] == 'start': self.commands[record.get('key')] = record.get('command', '')
        if record['event'] in FINISHED and 'key' in record:
            record = filled(record, self.commands.get(record['key'], ''))
            self.finished.setdefault(record['key'], record)
        self.records.append(record)
        if record['event'] == 'fixed' and 'name' in record:
            self.fixed.setdefault(record['name'], record.get('value'))

    def append(self, event, **fields):
        """Adds one line, whole or not at all, behind a complete one."""
        self.append_all([(event, fields)])

    def append_all(self, events):
        """Adds lines (event, fields) in one write."""
        now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
        line = b''.join(json.dumps({'event': event, 'date': now, **fields}, separators=(',', ':'), allow_nan=False).encode() + b'\n'
                        for event, fields in events)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, 'a+b', buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = file.seek(0, os.SEEK_END)
                if size and os.pread(file.fileno(), 1, size - 1) != b'\n':   # a writer was killed in its line
                    line = b'\n' + line
                write_whole(file, line, size)
        except OSError as error:
            raise Refused(f'{self.path}: cannot be written ({error.strerror}); make room or give another --ledger, and start again',
                          EXIT_DATA) from error
        self.refresh()

    def fix(self, name, choose):
        """The value under this name; choose() decides it once and for all calls."""
        self.refresh()
        if name not in self.fixed:
            self.append('fixed', name=name, value=choose())
        return self.fixed[name]


def write_whole(file, line, size):
    """Writes the line at the file's end; what a full disk took of it is taken back."""
    try:
        written = file.write(line)
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


class RunLock:
    """Exclusive while the file is open anywhere: the trainer inherits `descriptor`, so that a run whose run.py was killed stays
    taken until the trainer has ended too."""

    def __init__(self, folder, key):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(folder / f'{key}.lock', os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except BlockingIOError:
            self.release()

    def release(self):
        """Gives the lock up, if it is held."""
        self.held = False
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None


class MachineLock:
    """Shared by all that run on a machine with one OUT; whoever measures times takes it alone."""

    def __init__(self, folder, machine, alone):
        self._path, self._how = Path(folder) / f'machine-{machine}.lock', fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        self._file = None

    def take(self):
        """False while another run.py is at work that cannot bear company, or this one cannot bear it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._file or open(self._path, 'a')
        try:
            fcntl.flock(self._file, self._how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    def release(self):
        if self._file: self._file.close()
        self._file = None
