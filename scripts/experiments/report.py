#!/usr/bin/env python3
"""A report of ledgers: one self-contained HTML file, and its tables as Markdown and CSV.

    report.py                                               # every ledger of results/
    report.py --ledger out/experiments/ledger.jsonl e2_dsa

Writes report.html, report.md, verdicts.csv and results.csv. Exit codes: 0 done, 2 usage, 3 data.
"""
import argparse
import sys
from pathlib import Path

from packages import EXIT_DATA, HERE, ROOT, Refused, guarded   # first: it names packages that are missing
import jinja2

from analysis import Report
from evidence import statements
from page import opening, sections
from plan import SCALES, choose, known_experiments
from shards import write_whole
from tables import as_markdown, run_table, verdict_table


def write(report, folder):
    """Write all files; return the size of the HTML."""
    parts, verdicts, runs = sections(report), verdict_table(report), run_table(report)
    sentences, picture = opening(report)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=jinja2.select_autoescape(['html.j2']),
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters['markdown'] = as_markdown
    render = lambda form: environment.get_template(f'report.{form}.j2').render(
        sections=parts, verdicts=verdicts, sentences=sentences, picture=picture, runs=runs,
        report=report, evidence=statements(report))
    page, text = render('html'), render('md')
    files = {'report.html': page, 'report.md': text, 'verdicts.csv': verdicts.to_csv(index=False),
             'results.csv': runs.to_csv(index=False)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items(): write_whole(folder / name, content.encode())
    except OSError as error:
        raise Refused(f'{folder}: cannot be written ({error.strerror}); give another --out', EXIT_DATA) from error
    return len(page)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('experiments', nargs='*', help='experiments to report (default: all)')
    add('--ledger', nargs='+', help='ledgers (default: all of scripts/experiments/results; at --scale smoke that of out/experiments)')
    add('--scale', help='a single scale')
    add('--out', default='out/experiments', help='folder (default out/experiments)')
    options = parser.parse_args(arguments)
    for name in options.experiments: choose('experiment', name, known_experiments())
    if options.scale: choose('scale', options.scale, SCALES)
    smoke = [str(ROOT / 'out/experiments/ledger.jsonl')] if options.scale == 'smoke' else []
    ledgers = options.ledger or smoke or sorted(map(str, (HERE / 'results').glob('*.jsonl')))
    if not ledgers: raise Refused(f'{HERE / "results"}: has no ledger; run.py makes one, and --ledger names another', EXIT_DATA)
    report = Report(ledgers, options.experiments, options.scale)
    if report.runs.empty:
        raise Refused(f'{", ".join(ledgers)}: no run of a known plan is finished; start run.py or compare.py again, which go on', EXIT_DATA)
    size = write(report, Path(options.out))
    for finding in report.findings: print(finding.line)
    print(f'{options.out}/report.html: {len(report.runs)} runs, {size / 1e3:.0f} kB', file=sys.stderr)
    return 0


if __name__ == '__main__':
    guarded(main)
