#!/usr/bin/env python3
"""Exports a run's log.jsonl to TensorBoard, Weights & Biases or trackio, after the run or while it trains.

    python3 scripts/export_log.py out/asga/log.jsonl --to tensorboard --follow      # into out/asga/tensorboard
    WANDB_MODE=offline python3 scripts/export_log.py out/asga/log.jsonl --to wandb --project qwen
    python3 scripts/export_log.py out/asga/log.jsonl --to trackio --tag asga --tag fineweb

Numbers of steps and validations become curves over steps; options and the model's shape the run's config; sampled texts notes. --follow
waits for more until the run is done, or for Ctrl-C. Lines of a log that cannot be read are counted and left out.

Exit codes: 0 done, 2 usage or a missing package, 3 the log, 75 Ctrl-C.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

from plot_loss import is_number

PACKAGES = {'tensorboard': 'tensorboardX', 'wandb': 'wandb', 'trackio': 'trackio'}   # what pip calls them
NAMES = {'loss': 'train/loss', 'grad_norm': 'train/grad_norm', 'lr': 'train/lr', 'aux_loss': 'train/aux_loss', 'targets': 'train/targets',
         'ms': 'speed/ms', 'tok_s': 'speed/tokens_per_second', 'mfu': 'speed/mfu', 'tokens': 'train/tokens',
         'val_loss': 'val/loss', 'val_ppl': 'val/perplexity', 'val_bpb': 'val/bits_per_byte'}


def fail(code, message):
    print(f'export_log: {message}', file=sys.stderr)
    sys.exit(code)


class TensorBoard:
    def __init__(self, package, options, name):
        folder = options.log.parent / 'tensorboard'
        if any(folder.glob('events.*')): fail(2, f'{folder}: holds curves already; move it away')
        self.writer = package.SummaryWriter(str(folder), flush_secs=5)
        if options.tag: self.writer.add_text('tags', ', '.join(options.tag))

    def config(self, config):
        self.writer.add_text('config', '\n'.join(f'    {key} = {value}' for key, value in config.items()))

    def numbers(self, step, values):
        for name, value in values.items(): self.writer.add_scalar(name, value, step)

    def text(self, step, text):
        self.writer.add_text('sample', text, step)

    def end(self):
        self.writer.close()


class Runs:
    """wandb and trackio, whose functions have the same names."""

    def __init__(self, package, options, name):
        self.package, where = package, {'tags': options.tag, 'dir': str(options.log.parent)} if package.__name__ == 'wandb' else {}
        self.run = package.init(project=options.project, name=name, **where)
        self.tags = options.tag if package.__name__ != 'wandb' else []   # trackio has none: they go into the config

    def config(self, config):
        changes = {'allow_val_change': True} if self.package.__name__ == 'wandb' else {}   # of a run that was resumed
        self.run.config.update(config | ({'tags': self.tags} if self.tags else {}), **changes)

    def numbers(self, step, values):
        self.package.log(values, step=step)

    def text(self, step, text):
        table = self.package.Table(columns=['step', 'text'], data=[[step, text]]) if self.package.__name__ == 'wandb' else text
        self.package.log({'sample': table}, step=step)

    def end(self):
        self.package.finish()


def config_of(record):
    """A config record's facts, options and the model's shape under one name each."""
    config = {key: value for key, value in record.items() if key not in ('event', 'options', 'model', 'step')}
    for line in record.get('options', '').splitlines():
        key, equals, value = line.partition('=')
        if equals: config[f'options.{key}'] = value.strip('"')
    return config | {f'model.{key}': value for key, value in record.get('model', {}).items()}


def export(record, tracker):
    """Returns whether the record is the run's last."""
    event, step = record.get('event'), record.get('step')
    if event == 'config': tracker.config(config_of(record))
    if event == 'sample': tracker.text(step, record['text'])
    if event == 'evaluation':
        tracker.numbers(step, {f'eval/{record["task"]}/{key}': value for key, value in record.items() if key != 'step' and is_number(value)})
    if event == 'source_validation':
        tracker.numbers(step, {f'{key}/{record["source"]}': record[key] for key in ('source_loss', 'source_bpb') if is_number(record[key])})
    if event is None and is_number(step):
        values = {NAMES[key]: value for key, value in record.items() if key in NAMES and is_number(value)}
        if values: tracker.numbers(step, values)
    return event == 'done'


def records(path, follow):
    """Dictionaries of the log's lines, as they are written; then how many lines were none."""
    broken, rest, last = 0, b'', 0
    file = open(path, 'rb')
    while True:
        more = file.read()
        *lines, rest = (rest + more).split(b'\n')
        for line in lines:
            try:
                record = json.loads(line.decode(errors='replace'))
            except ValueError:
                record = None
            if not isinstance(record, dict): broken += bool(line.strip())
            elif not is_number(record.get('step')) or record['step'] >= last: yield record
            if isinstance(record, dict) and is_number(record.get('step')): last = max(last, record['step'])
        if not follow: break
        if more: continue
        time.sleep(1)
        if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:   # a resumed run writes its log anew
            file.close()
            file, rest = open(path, 'rb'), b''
    file.close()
    broken += bool(rest.strip())
    if broken: print(f'export_log: {path}: {broken} {"line is" if broken == 1 else "lines are"} cut short or no record', file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('log', type=Path, help='log.jsonl of a run')
    parser.add_argument('--to', choices=PACKAGES, required=True, help='tracker to export to')
    parser.add_argument('--follow', action='store_true', help='wait for more lines until the run is done')
    parser.add_argument('--project', default='attention', help='project in wandb or trackio (default attention)')
    parser.add_argument('--name', help='name of the run (default: the folder of the log)')
    parser.add_argument('--tag', action='append', default=[], help='tag of the run; may be repeated')
    options = parser.parse_args()
    try:
        package = __import__(PACKAGES[options.to])
    except ImportError:
        fail(2, f'{PACKAGES[options.to]} is not installed; pip install {PACKAGES[options.to]}')
    if not options.log.is_file(): fail(3, f'{options.log}: is no file')
    tracker = (TensorBoard if options.to == 'tensorboard' else Runs)(package, options, options.name or options.log.resolve().parent.name)
    count = 0
    try:
        for record in records(options.log, options.follow):
            count += 1
            if export(record, tracker) and options.follow: break
    finally:
        tracker.end()
    if not count: fail(3, f'{options.log}: holds no record')
    print(f'{count} records of {options.log} exported to {options.to}')


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(75)
