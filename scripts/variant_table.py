#!/usr/bin/env python3
"""The table of variants in attention/README.md, from what the programs say about themselves (make all first).

    scripts/variant_table.py                    # rewrites the table; step times stay as they stand there
    scripts/variant_table.py --time             # measures them anew, on the device that the programs choose
    scripts/variant_table.py --print            # to standard output instead

Pairs and tiles are shares of dense causal attention's, per sequence, as --dry-run prints them: what masks allow, or what a variant
that selects by the data expects to visit. Exit codes: 0 done, 1 a program is missing or failed, 2 usage.
"""
import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / 'attention' / 'README.md'
BEGIN, END = '<!-- made by scripts/variant_table.py -->', '<!-- end of the table -->'
LENGTHS = (2048, 32768)
UNKNOWN = 'not measured'


# Published forms that look into the future, below the variant's own row.
FUTURE = {'mosa': ('--mosa-choice', 1), 'routing': ('--routing-balanced', 1), 'seer': ('--seer-query', 2)}
UNTRAINED = FUTURE['seer']   # the program refuses to train through it: no step to time


def rows():
    """Of every variant (name, options), and of every form."""
    names = sorted(path.stem for path in (ROOT / 'attention').glob('*.cuh'))
    made = []
    for name in ['causal'] + [name for name in names if name != 'causal']:
        made.append((name, ()))
        if name in FUTURE:
            made.append((name, FUTURE[name]))
    return made


def title(variant, form):
    return ' '.join(map(str, (f'train_{variant}', *form)))


def source(variant):
    """The first sentence of the comment at the top of the variant's file."""
    lines = []
    for line in (ROOT / f'attention/{variant}.cuh').read_text(encoding='utf-8').splitlines():
        if not line.startswith('// ') or line.startswith('//   '):       # code, or a formula
            break
        lines.append(line[3:].strip())
    return re.split(r'(?<=\.)\s+(?=[A-Z"])|\.$', ' '.join(lines))[0].rstrip('.:')


def run(variant, *options):
    program = ROOT / f'train_{variant}'
    try:
        done = subprocess.run([program, *map(str, options)], capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f'{program}: {error.strerror}; make all first')
    if done.returncode:
        sys.exit(f'{program} {" ".join(map(str, options))}\n{done.stderr}')
    return done.stdout


def facts(variant, form, options):
    """parameters, causal or not, {T: (pairs, tiles)} in percent of causal."""
    shares = {}
    for T in LENGTHS:
        said = run(variant, *form, '--device', 'cpu', '--model', options.model, '--seq-len', T, '--batch-size', 1, '--val-every', 0,
                   '--dry-run')
        said_of = dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', said, re.MULTILINE))
        counted = (said_of['visible pairs per sequence'], said_of['visited tiles per sequence'])
        shares[T] = [float(re.search(r'([0-9.]+)% of causal', count)[1]) for count in counted]
    return int(said_of['parameters']), said_of['causal and prefix-consistent'] == 'yes', shares


def milliseconds(variant, form, options):
    """Median step time; the first steps warm up."""
    with tempfile.TemporaryDirectory() as out:
        run(variant, *form, '--model', options.model, '--seq-len', options.seq_len, '--batch-size', options.batch_size,
            '--steps', options.steps + 3, '--val-every', 0, '--sample-every', 0, '--checkpoint-every', 0, '--plot', 0, '--out', out)
        records = [json.loads(line) for line in (Path(out) / 'log.jsonl').read_text().splitlines()]
    return median([record['ms'] for record in records if 'ms' in record][3:])


def device(options):
    said = run('causal', '--model', options.model, '--dry-run')
    return re.search(r'^\| device +\| (.+?) +\|$', said, re.MULTILINE)[1]


def times_in(table):
    """Row's title -> step time, and the line below the table, as they stand in an earlier table."""
    times = {row[0]: row[1] for row in re.findall(r'^\| (train_[^|]+) \|.*\| ([^|]+) \|$', table, re.MULTILINE)}
    note = re.search(r'^Step times: .*?\.$', table, re.MULTILINE | re.DOTALL)
    return times, note[0] if note else ''


def measured(options):
    """Row's title -> step time against causal's. Causal runs before and after every row, and the ratio is to the mean of the two: the
    speed of a machine that is shared drifts by more than variants differ."""
    trained = [row for row in rows() if row[1] != UNTRAINED and row != ('causal', ())]
    ratios = {title(*row): [] for row in trained}
    for _ in range(options.rounds):
        before = milliseconds('causal', (), options)
        for row in trained:
            own, after = milliseconds(*row, options), milliseconds('causal', (), options)
            ratios[title(*row)].append(2 * own / (before + after))
            before = after
    note = (f'Step times: {options.model}, {options.batch_size} x {options.seq_len} tokens, median of {options.steps} steps against '
            f'train_causal\nbefore and after, median of {options.rounds} such rounds, {device(options)}, {datetime.date.today()}.')
    return {'train_causal': '1.00'} | {name: f'{median(of_rounds):.2f}' for name, of_rounds in ratios.items()}, note


def percent(share):
    return f'{share:.0f}%' if share >= 10 else f'{share:.1f}%'


def table(options, before):
    times, note = measured(options) if options.time else times_in(before)
    at = ', '.join(map(str, LENGTHS))
    lines = [f'| program | mechanism and source | parameters added | pairs at {at} | tiles at {at} | causal, prefix-consistent | '
             'step time |',
             '| --- | --- | --- | --- | --- | --- | --- |']
    baseline = None
    for variant, form in rows():
        parameters, causal, shares = facts(variant, form, options)
        baseline = baseline or parameters
        pairs, tiles = (', '.join(percent(shares[T][n]) for T in LENGTHS) for n in (0, 1))
        time = 'not trained' if form == UNTRAINED else times.get(title(variant, form), UNKNOWN)
        what = 'the published form of it' if form else source(variant).replace('|', '/')
        lines.append(f'| {title(variant, form)} | {what} | {parameters - baseline:,} | {pairs} | {tiles} | '
                     f'{"yes" if causal else "**no**"} | {time} |')
    lines += ['', 'Pairs and tiles of a sequence against dense causal attention; parameters added to the '
              f'{baseline:,} of {options.model}; every',
              'other setting at its default. Causal and prefix-consistent: no output depends on a later token, nor on whether there is one.',
              'Step time against train_causal; train_asga_neither computes the same, so that its distance from 1 is the noise.']
    return '\n'.join(lines + ([note] if note else []))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--time', action='store_true', help='measure step times')
    parser.add_argument('--print', action='store_true', help='leave attention/README.md as it is')
    parser.add_argument('--model', default='qwen-7m', help='preset (default qwen-7m)')
    parser.add_argument('--seq-len', type=int, default=2048, help='of the measured steps (default 2048)')
    parser.add_argument('--batch-size', type=int, default=1, help='of the measured steps (default 1)')
    parser.add_argument('--steps', type=int, default=5, help='measured after three to warm up (default 5)')
    parser.add_argument('--rounds', type=int, default=3, help='of all programs by turns (default 3)')
    options = parser.parse_args()
    if min(options.steps, options.rounds) < 1:
        parser.error('--steps and --rounds must be at least 1')
    text = README.read_text(encoding='utf-8')
    begin, end = text.find(BEGIN), text.find(END)
    if not 0 <= begin < end:
        sys.exit(f'{README}: lacks the lines "{BEGIN}" and "{END}"')
    begin += len(BEGIN)
    made = table(options, text[begin:end])
    if options.print:
        print(made)
    else:
        README.write_text(text[:begin] + '\n' + made + '\n' + text[end:], encoding='utf-8')


if __name__ == '__main__':
    main()
