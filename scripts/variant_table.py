#!/usr/bin/env python3
"""The table of variants in attention/README.md, from what the programs say about themselves (make all first).

    scripts/variant_table.py                       # rewrites the table
    scripts/variant_table.py --print causal dsa    # prints these rows

Pairs and tiles are shares of dense causal attention's, per sequence, as --dry-run prints them: what masks allow, or what a variant
that selects by the data expects to visit. Exit codes: 0 done, 1 a program is missing or failed, 2 usage.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / 'attention' / 'README.md'
BEGIN, END = '<!-- made by scripts/variant_table.py -->', '<!-- end of the table -->'
MODEL, LENGTHS = 'qwen-7m', (2048, 32768)


# Published forms that look into the future, below the variant's own row.
FUTURE = {'mosa': ('--mosa-choice', 1), 'routing': ('--routing-balanced', 1), 'seer': ('--seer-query', 2)}


def rows(variants):
    """Of these variants (name, options), or of every one, and of every form."""
    names = sorted(path.stem for path in (ROOT / 'attention').glob('*.cuh') if not variants or path.stem in variants)
    made = []
    for name in ['causal'] + [name for name in names if name != 'causal']:
        made.append((name, ()))
        if name in FUTURE:
            made.append((name, FUTURE[name]))
    return made


def source(variant):
    """The first sentence of the comment at the top of the variant's file."""
    lines = []
    for line in (ROOT / f'attention/{variant}.cuh').read_text(encoding='utf-8').splitlines():
        if not line.startswith('// ') or line.startswith('//   '):       # code, or a formula
            break
        lines.append(line[3:].strip())
    return re.split(r'(?<=\.)\s+(?=[A-Z"])|\.$', ' '.join(lines))[0].rstrip('.:')


def run(variant, *options):
    return run_program(f'train_{variant}', *options)


def run_program(name, *options):
    program = ROOT / name
    try:
        done = subprocess.run([program, *map(str, options)], capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f'{program}: {error.strerror}; make all first')
    if done.returncode:
        sys.exit(f'{program} {" ".join(map(str, options))}\n{done.stderr}')
    return done.stdout


def facts(variant, form):
    """parameters, causal or not, {T: (pairs, tiles)} in percent of causal."""
    shares = {}
    for T in LENGTHS:
        said = run(variant, *form, '--device', 'cpu', '--model', MODEL, '--seq-len', T, '--batch-size', 1, '--val-every', 0,
                   '--dry-run')
        said_of = dict(re.findall(r'^\| (.+?) +\| (.+?) +\|$', said, re.MULTILINE))
        counted = (said_of['visible pairs per sequence'], said_of['visited tiles per sequence'])
        shares[T] = [float(re.search(r'([0-9.]+)% of causal', count)[1]) for count in counted]
    return int(said_of['parameters']), said_of['causal and prefix-consistent'] == 'yes', shares


def percent(share):
    return f'{share:.0f}%' if share >= 10 else f'{share:.1f}%'


def table(variants=None):
    """Of these variants, or of every one."""
    at = ', '.join(map(str, LENGTHS))
    lines = [f'| program | mechanism and source | parameters added | pairs at {at} | tiles at {at} | causal, prefix-consistent |',
             '| --- | --- | --- | --- | --- | --- |']
    baseline = facts('causal', ())[0]
    for variant, form in rows(variants):
        parameters, causal, shares = facts(variant, form)
        pairs, tiles = (', '.join(percent(shares[T][n]) for T in LENGTHS) for n in (0, 1))
        what = 'the published form of it' if form else source(variant).replace('|', '/')
        lines.append(f'| {" ".join(map(str, (f"train_{variant}", *form)))} | {what} | {parameters - baseline:,} | {pairs} | {tiles} | '
                     f'{"yes" if causal else "**no**"} |')
    return '\n'.join([*lines, '', 'Pairs and tiles of a sequence against dense causal attention; parameters added to the '
                      f'{baseline:,} of {MODEL}; every', 'other setting at its default. Causal and prefix-consistent: no output '
                      'depends on a later token, nor on whether there is one.'])


def write_table():
    """Rewrite the table in attention/README.md."""
    text = README.read_text(encoding='utf-8')
    begin, end = text.find(BEGIN), text.find(END)
    if not 0 <= begin < end: sys.exit(f'{README}: lacks the lines "{BEGIN}" and "{END}"')
    README.write_text(f'{text[:begin]}{BEGIN}\n{table()}\n{text[end:]}', encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--print', nargs='+', metavar='VARIANT', choices=[name for name, _ in rows(None)],
                        help='rows to print; attention/README.md stays as it is')
    options = parser.parse_args()
    if options.print: print(table(options.print))
    else: write_table()


if __name__ == '__main__':
    main()
