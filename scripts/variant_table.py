#!/usr/bin/env python3
"""The table of variants in attention/README.md, from what the programs say about themselves (make all first).

    scripts/variant_table.py                    # rewrites the table; step times stay as they stand there
    scripts/variant_table.py --time             # measures them anew, on the device that the programs choose
    scripts/variant_table.py --print            # to standard output instead
    scripts/variant_table.py --print --variants causal dsa     # these rows alone

Pairs and tiles are shares of dense causal attention's, per sequence, as --dry-run prints them: what masks allow, or what a variant
that selects by the data expects to visit. Exit codes: 0 done, 1 a program is missing or failed, 2 usage.
"""
import argparse
import datetime
import functools
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'scripts/experiments'))
from packages import guarded                                          # noqa: E402
from turns import STEPS, TO_WARM_UP, one_round                        # noqa: E402
README = ROOT / 'attention' / 'README.md'
BEGIN, END = '<!-- made by scripts/variant_table.py -->', '<!-- end of the table -->'
LENGTHS = (2048, 32768)
UNKNOWN = 'not measured'


# Published forms that look into the future, below the variant's own row.
FUTURE = {'mosa': ('--mosa-choice', 1), 'routing': ('--routing-balanced', 1), 'seer': ('--seer-query', 2)}
UNTRAINED = FUTURE['seer']   # the program refuses to train through it: no step to time


def rows(variants):
    """Of these variants (name, options), or of every one, and of every form."""
    names = sorted(path.stem for path in (ROOT / 'attention').glob('*.cuh') if not variants or path.stem in variants)
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


@functools.cache
def facts(variant, form, model):
    """parameters, causal or not, {T: (pairs, tiles)} in percent of causal."""
    shares = {}
    for T in LENGTHS:
        said = run(variant, *form, '--device', 'cpu', '--model', model, '--seq-len', T, '--batch-size', 1, '--val-every', 0,
                   '--dry-run')
        said_of = dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', said, re.MULTILINE))
        counted = (said_of['visible pairs per sequence'], said_of['visited tiles per sequence'])
        shares[T] = [float(re.search(r'([0-9.]+)% of causal', count)[1]) for count in counted]
    return int(said_of['parameters']), said_of['causal and prefix-consistent'] == 'yes', shares


def device(options):
    said = run('causal', '--model', options.model, '--dry-run')
    return re.search(r'^\| device +\| (.+?) +\|$', said, re.MULTILINE)[1]


def times_in(table):
    """Row's title -> step time, and the line below the table, as they stand in an earlier table."""
    times = {row[0]: row[1] for row in re.findall(r'^\| (train_[^|]+) \|.*\| ([^|]+) \|$', table, re.MULTILINE)}
    note = re.search(r'^Step times: .*?\.$', table, re.MULTILINE | re.DOTALL)
    return times, note[0] if note else ''


def measured(options):
    """Row's title -> step time against causal's, interleaved with it (scripts/experiments/turns.py)."""
    trained = [row for row in rows(options.variants) if row[1] != UNTRAINED and row != ('causal', ())]
    shared = ['--model', options.model, '--seq-len', str(options.seq_len), '--batch-size', str(options.batch_size)]
    command = lambda variant, form: [str(ROOT / f'train_{variant}'), *map(str, form), *shared]
    ratios = {title(*row): [] for row in trained}
    for _ in range(options.rounds):
        for row, (own, causal) in zip(trained, one_round(command('causal', ()), [command(*row) for row in trained])):
            ratios[title(*row)].append(own['ms'] / causal['ms'])
    note = (f'Step times: {options.model}, {options.batch_size} x {options.seq_len} tokens, median of {STEPS - TO_WARM_UP} steps '
            f'against\ntrain_causal before and after, median of {options.rounds} such rounds, {device(options)}, '
            f'{datetime.date.today()}.')
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
    for variant, form in rows(options.variants):
        parameters, causal, shares = facts(variant, form, options.model)
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


def place(text):
    """Where the table stands in the text of README: its first and behind its last character."""
    begin, end = text.find(BEGIN), text.find(END)
    if not 0 <= begin < end:
        sys.exit(f'{README}: lacks the lines "{BEGIN}" and "{END}"')
    return begin + len(BEGIN) + 1, end - 1


def write_table(options=argparse.Namespace(variants=None, model='qwen-7m', time=False)):
    """Rewrite the table in attention/README.md."""
    text = README.read_text(encoding='utf-8')
    begin, end = place(text)
    README.write_text(text[:begin] + table(options, text[begin:end]) + text[end:], encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--time', action='store_true', help='measure step times')
    parser.add_argument('--print', action='store_true', help='leave attention/README.md as it is')
    parser.add_argument('--variants', nargs='+', help='rows of the table, with --print')
    parser.add_argument('--model', default='qwen-7m', help='preset (default qwen-7m)')
    parser.add_argument('--seq-len', type=int, default=2048, help='of the measured steps (default 2048)')
    parser.add_argument('--batch-size', type=int, default=1, help='of the measured steps (default 1)')
    parser.add_argument('--rounds', type=int, default=3, help='number of interleaved rounds (default 3)')
    options = parser.parse_args()
    if options.rounds < 1 or (options.variants and not options.print):
        parser.error('--rounds must be at least 1, and --variants needs --print')
    if options.print:
        text = README.read_text(encoding='utf-8')
        print(table(options, text[slice(*place(text))]))
    else: write_table(options)


if __name__ == '__main__':
    guarded(main)
