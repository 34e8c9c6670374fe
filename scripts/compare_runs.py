"""A table of finished runs, one line per variant: the mean over seeds and, behind +-, their sample standard deviation.

    python3 scripts/compare_runs.py out/compare/*/log.jsonl

Runs of one variant that differ in anything but the seed make no mean; they are refused.
"""
import collections
import json
import re
import statistics
import sys


def read(path):
    try:
        with open(path) as file:
            records = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        sys.exit(f'{path}: cannot be read: {error}')
    config = next((r for r in records if r.get('event') == 'config'), None)
    done = next((r for r in records if r.get('event') == 'done'), None)
    if not config or not done:
        sys.exit(f'{path}: the run is not finished')
    steps = [r for r in records if 'tok_s' in r]
    validations = [r for r in records if 'val_loss' in r and 'event' not in r]
    if not validations or validations[-1]['val_loss'] is None:
        sys.exit(f'{path}: has no validation; set --val-every')
    # All options but the seed and the output folder: what runs of one line must share.
    options = re.sub(r'(?m)^(seed|out)=.*\n?', '', config['options'])
    return {
        'variant': config['variant'], 'seed': re.search(r'(?m)^seed=(.*)$', config['options']).group(1), 'parameters': config['parameters'], 'options': options, 'tokens': steps[-1]['tokens'],
        'loss': validations[-1]['val_loss'], 'bpb': validations[-1]['val_bpb'], 'speed': statistics.median(r['tok_s'] for r in steps),
    }


def spread(values, digits):
    if any(value is None for value in values):
        return 'unknown'
    mean = f'{statistics.mean(values):.{digits}f}'
    return f'{mean} +- {statistics.stdev(values):.{digits}f}' if len(values) > 1 else mean


def main(paths):
    runs = collections.defaultdict(list)
    for path in paths:
        run = read(path)
        runs[run['variant']].append(run)
        if run['options'] != runs[run['variant']][0]['options']:
            sys.exit(f"{path}: has other options than the other runs of {run['variant']}; compare what was trained alike")
        if run['seed'] in [other['seed'] for other in runs[run['variant']][:-1]]:
            sys.exit(f"{path}: seed {run['seed']} is there twice")
    tokens = {run['tokens'] for of_variant in runs.values() for run in of_variant}
    if len(tokens) > 1:
        print('warning: runs have seen different numbers of tokens:', *sorted(tokens), file=sys.stderr)
    print('| variant | parameters | seeds | tokens | validation loss | bits per byte | tokens/s |')
    print('| --- | --- | --- | --- | --- | --- | --- |')
    for variant, of_variant in sorted(runs.items(), key=lambda item: statistics.mean(run['loss'] for run in item[1])):
        column = {key: [run[key] for run in of_variant] for key in of_variant[0]}
        print(f"| {variant} | {column['parameters'][0]:,} | {len(of_variant)} | {column['tokens'][0]:,} | {spread(column['loss'], 4)} "
              f"| {spread(column['bpb'], 4)} | {statistics.median(column['speed']):,.0f} |")


if __name__ == '__main__':
    main(sys.argv[1:] or sys.exit(__doc__))
