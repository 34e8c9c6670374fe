#!/usr/bin/env python3
"""A report of ledgers: one self-contained HTML file, and its tables as Markdown and CSV.

    report.py                                               # every ledger of results/
    report.py --ledger out/experiments/ledger.jsonl e2_dsa

Writes report.html, report.md, verdicts.csv and results.csv. Exit codes: 0 done, 2 usage, 3 data.
"""
import argparse
import functools
import re
import sys
from pathlib import Path
from statistics import mean

from packages import EXIT_DATA, HERE, ROOT, Refused, guarded   # first: it names packages that are missing
import jinja2

import figures
from analysis import LEARNT, UNTRAINED, Report, by_length, copied, sweep_means
from claims import EQUIVALENT, IDENTITY, MASS, NATS, OPPOSITE, REPRODUCED, SAME, STRUCK, TRANSIENT
from evidence import statements
from guards import cautions, unigram_loss
from plan import SCALES, TIMED, choose, known_experiments, shape_name
from shards import write_whole
from tables import (arm_table, as_markdown, comparison_table, grid_table, horizon_table, learning_table, run_table, sweep_table, time_table,
                    verdict_table)

SETTINGS_AS_ONE = 4   # with so many settings a table of arms x settings comes first
MOST_INTERVALS = 24   # in a picture
SHORT = 3             # most commits and machines that are named
SERIES = {'entropy of attention, nats': 'entropy', 'mean gate': 'gate'} | MASS   # against optimiser steps
DIFFERENCES = [('training', 'training loss', 'optimiser steps', figures.NEAR), ('by_position', 'loss by position', 'position', 0)]


def span(values, form='{:,}'):
    """'a' or 'a to b' of numbers; '' without any."""
    values = [int(value) if isinstance(value, str) else value for value in values if value]   # compare.py keeps words
    return ' to '.join(dict.fromkeys(form.format(v) for v in (min(values), max(values)))) if values else ''


def named(values):
    """Different words, the first few of them."""
    found = list(dict.fromkeys(value for value in values if value))
    return '; '.join(found[:SHORT]) + (f' and {len(found) - SHORT} more' if len(found) > SHORT else '')


@functools.cache
def bundled_unigram():
    """Loss of a unigram model of the bundled text in bytes; None where it is not tokenized."""
    return unigram_loss(sorted((ROOT / 'data/bundled').glob('*_train_*.bin')))


class Section:
    """The runs of an experiment at a scale, and what a report says of them."""

    def __init__(self, report, name, scale):
        of = lambda runs: runs[(runs.experiment == name) & (runs.scale == scale)]
        self.report, self.name, self.scale, self.experiment = report, name, scale, report.experiments[name]
        self.runs, self.trained, self.timed, self.sweep = map(of, (report.runs, report.trained, report.timed, report.sweep))
        self.comparisons = {setting: c for (e, at, setting), c in report.comparisons.items() if (e, at) == (name, scale)}
        self.learning = {setting: of for (e, at, setting), of in report.learning.items() if (e, at) == (name, scale)}
        self.findings = [one for one in report.findings if (one.claim['experiment'], one.scale) == (name, scale)]
        self.labels = [(arm, table['label']) for arm, table in self.experiment.arms.items() if 'label' in table]
        self.struck = report.struck.get((name, scale))
        with_task = [setting for setting, table in self.experiment.settings.items() if 'task' in table]
        self.asks = self.trained.accuracy.notna() & self.trained.setting.isin(with_task)
        self.tables, self.folded = self._tables()

    def reading(self):
        """The first sentences of README.md on these runs, which are those of results/, behind their place in brackets."""
        form = rf'^\*\*{self.name}\*\*{", medium" if self.scale == "medium" else "(?!, medium)"}.*?(?=^\*\*\w|^##|^Engines:|\Z)'
        found = re.search(form, (HERE / 'README.md').read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL)
        if not found or not self.report.committed or self.scale not in ('reduced', 'medium'): return ''
        words = ' '.join(found[0].split()).partition('): ')[2]
        sentences = re.split(r'(?<=[a-z)\d]\.) (?=[A-Za-z])', words)
        return ' '.join(sentences[:3])

    def setup(self):
        """[(what, words)] of the runs. A model that is no preset is described by its shape."""
        e = self.experiment
        shape = '{num_hidden_layers} layers of {hidden_size}, {num_attention_heads} heads, {num_key_value_heads} of keys and values'
        shapes = {shape_name(of['model']): of['model'] for of in [e.scales[self.scale], *e.settings.values()] if 'model' in of}
        reported = self.runs[~self.runs.stage.isin(['sweep', *UNTRAINED])]
        final = self.runs if reported.empty else reported
        results = [record['result'] for record in final.record]
        option = lambda name, of=final: {record.get('options', {}).get(name) for record in of.record} - {None}
        swept, until = option('lr', self.sweep), span(option('dense-until'))
        found = {
            'model': named(shape.format(**shapes[name]) if name in shapes else name for name in sorted(option('model'))),
            'parameters': span(r.get('parameters') for r in results),
            'tokens of a run': span(r['validation'][-1][1] for r in results if r.get('validation')),
            'optimiser steps': span(r.get('steps') for r in results),
            'T': span(option('seq-len')),
            'window': span(option('window')) + (f', dense until row {until}' if until else ''),
            'learning rate': span(option('lr'), '{:g}')
            + (f', of {span(swept, "{:g}")} in the sweep' if swept and not reported.empty else ''),
            'data': named([e.scales[self.scale].get('data', 'bundled'),
                           *sorted({record.get('data_hash', '') for record in final.record})]),
            'rounds' if self.runs.stage.isin(TIMED).all() else 'seeds': span(set(final.seed)),
            'machines': named(r.get('machine', '') for r in results),
            'commits': named(record.get('commit', '') for record in final.record)}
        return [(what, words) for what, words in found.items() if words]

    def warnings(self):
        """Sentences on the limits of the numbers."""
        found = [*self.cautions(), *(f'{arm}: the best rate of the sweep is its end point, x {best:g}; a better one may lie beyond.'
                 for arm, losses in sweep_means(self.sweep).items() if losses.notna().any() and len(losses) > 1
                 and (best := losses.idxmin()) in (losses.index.min(), losses.index.max()))]
        if self.struck: found = [f'Struck, without a verdict: {self.struck}.', *found]
        reads = [setting for setting, table in self.experiment.settings.items() if table.get('evaluate')]
        seeded = self.trained[~self.trained.setting.isin(reads)]
        alone = seeded.groupby(['setting', 'arm']).filter(lambda own: len(own) == 1)
        if alone.empty: return found
        which = 'One run of each arm' if len(alone) == len(seeded) else f'One run of each of {alone.arm.nunique()} arms'
        if self.trained.accuracy.isna().all(): return [*found, f'{which}: differences have no interval.']
        return [*found, f'{which}: a number says that it has learnt its task ({LEARNT:.0%} of the items right or more) or has not, '
                'and nothing of how far two arms that have learnt it, or have not, are apart.']

    def cautions(self):
        """What guards.py finds in the settings that train on a text, each sentence once."""
        found, e = [], self.experiment
        unigram = bundled_unigram() if e.scales[self.scale].get('data', 'bundled') == 'bundled' else None
        for setting, of in self.trained.groupby('setting', sort=False):
            if e.settings[setting].keys() & {'task', 'labelled', 'evaluate'}: continue
            found += cautions(of, e.baseline, self.comparisons[setting], self.report.runs, unigram)
        return list(dict.fromkeys(found))

    def _tables(self):
        """(tables, tables to fold away), each (title, DataFrame)."""
        e, title = self.experiment, f'{self.name}, scale {self.scale}'
        named = lambda setting: title + (f': {e.label(setting)}' if e.label(setting) else '')
        by_arm = [(named(setting), arm_table(of, self.comparisons[setting], e.baseline))
                  for setting, of in self.trained.groupby('setting', sort=False)]
        shown, folded = by_arm, []
        if self.asks.any(): shown, folded = [(f'{title}: accuracy', grid_table(e, self.trained[self.asks], 'accuracy'))], by_arm
        elif len(by_arm) >= SETTINGS_AS_ONE:
            shown, folded = [(f'{title}: mean validation loss, and runs that diverged', grid_table(e, self.trained))], by_arm
        if self.learning:
            shown = [(f'{title}: steps until {LEARNT:.0%} of the items are right', learning_table(e, self.learning)), *shown]
        if len(horizons := self.horizons()) > 2:
            shown = [(f'{title}: differences against the length of a run', horizon_table(horizons, e.baseline)), *shown]
        for setting, comparisons in self.comparisons.items():
            other = comparison_table(comparisons, e.baseline)
            if len(other): shown = [*shown, (f'{named(setting)}: other comparisons', other)]
        if len(self.sweep):
            caption = f'{title}: the sweep; sensitivity is the mean over rates of what they lose to the best (arXiv 2309.14322)'
            (folded if by_arm else shown).append((caption, sweep_table(self.sweep, e.scales[self.scale]['lr'])))
        shown += [(f'{named(s)}: interleaved times', time_table(of)) for s, of in self.timed.groupby('setting', sort=False)]
        return shown, folded

    def horizons(self):
        """{tokens of a run of the baseline: comparisons}, of settings that train on the text for so long."""
        e, lengths = self.experiment, {}
        for setting, own in self.trained[self.trained.arm == e.baseline].groupby('setting', sort=False):
            trains = not e.settings[setting].keys() & {'task', 'labelled', 'evaluate'}
            if trains and (tokens := own.record.iloc[0]['result'].get('tokens')): lengths[tokens] = self.comparisons[setting]
        there = {tokens: {arm for (arm, _), c in of.items() if c.pairs} for tokens, of in lengths.items()}
        lacking = [(arm, tokens) for tokens, arms in there.items() for arm in sorted(set().union(*there.values()) - arms)]
        if len(lengths) > 2 and lacking:
            arm, tokens = lacking[0]
            raise Refused(f'{self.name}, scale {self.scale}: {arm} has no runs of {tokens:,} tokens, where others have; run.py {self.name} '
                          f'--scale {self.scale} --arms {arm} makes them', EXIT_DATA)
        return dict(sorted(lengths.items()))

    def compared(self):
        """[(name, comparison, published number)] of claims in nats; without any those against the baseline, and None."""
        in_nats = [one for one in self.findings if one.claim['unit'] == NATS and one.found.pairs and not self.struck]
        if not in_nats and not self.struck:
            return [(', '.join(filter(None, (arm, self.experiment.label(setting)))), c, None)
                    for setting, of in self.comparisons.items() for (arm, against), c in of.items()
                    if against == self.experiment.baseline and c.pairs][:MOST_INTERVALS]
        return [(', '.join(filter(None, (one.name, one.where))), one.found, one.claim['number']) for one in in_nats]

    def costs(self):
        """[(title, {arm: {length: value}}, logarithmic or not)] where texts were written: what arms are worth, and what they cost."""
        writes, arms = self.timed[self.timed.stage == 'writes'], self.experiment.arms
        if writes.empty: return []
        once = lambda of: {arm: {None: value} for arm, value in of.items() if arm in arms}
        speed = lambda column: {arm: {length: 1 / ratio for length, ratio in of.items()} for arm, of in by_length(writes, column).items()}
        base, longest = writes[writes.arm == self.experiment.baseline], writes.length.max()
        rate = 1e3 / base[base.length == longest].ms.median()
        return [('validation loss, nats', once(self.trained.groupby('arm').loss.mean().dropna()), False),
                ('copies, share right (e7_recall)',
                 once({arm: mean(of) for arm, of in copied(self.report.trained, self.scale).items()}), False),
                ('KV cache, KiB', by_length(writes.assign(kib=writes.cache_bytes / 2**10), 'kib'), True),
                (f'tokens/s written, 1: {rate:,.0f} at {longest:,.0f}', speed('ratio'), True),
                ('tokens/s read, of the baseline\'s', speed('first_ratio'), True),
                ('time of a step, of the baseline\'s', by_length(self.timed, 'step_ratio'), True)]

    def pictures(self):
        """[(caption, svg)]."""
        e, found = self.experiment, []
        if lines := self.compared():
            found.append((f'Differences by seed with 95% intervals{", and the published numbers" if lines[0][2] is not None else ""}',
                          figures.draw_forest([(name, (c.low, c.mean, c.high), number, False) for name, c, number in lines])))
        found.append(('Worth and cost of every arm; a dash: not measured', figures.draw_costs(e, self.costs())))
        lr, means = e.scales[self.scale]['lr'], sweep_means(self.sweep)
        lines = {arm: [(factor * lr, loss) for factor, loss in of.dropna().items()] for arm, of in means.items()}
        found.append(('The sweep, on the tuning half of the validation tokens',
                      figures.draw_panels(e, {'': lines}, 'learning rate', 'validation loss (tuning half), nats', log_x=True)))
        if any(table.get('equal') in ('flops', 'seconds') for table in e.settings.values()):
            found.append(('Loss against FLOPs and seconds', figures.draw_pareto(e, self.trained, self.timed)))
        for key, what, x, near in DIFFERENCES:
            words = f'{what} minus that of {e.baseline}, nats'
            found.append((f'{words[0].upper()}{words[1:]}, mean over seeds' + (f', from {near:.0%} of a run on' if near else ''),
                          figures.draw_series(e, self.trained, key, words, x, near, e.baseline)))
        if len(horizons := self.horizons()) > 2:
            lines = {arm: [(tokens, of[arm, e.baseline].mean) for tokens, of in horizons.items() if (arm, e.baseline) in of]
                     for arm in e.arms}
            found.append(('Differences against the length of a run', figures.draw_panels(
                e, {'': lines}, 'tokens of a run', f'difference to {e.baseline}, nats', log_x=True)))
        found += [(f'{label[0].upper()}{label[1:]}, against the optimiser steps, mean over seeds',
                   figures.draw_series(e, self.trained, key, label, 'optimiser steps')) for label, key in SERIES.items()]
        return [(caption, svg) for caption, svg in found if svg]


def sections(report):
    """A section for each experiment and scale that has runs."""
    there = set(zip(report.runs.experiment, report.runs.scale))
    return [Section(report, name, scale) for name in report.experiments for scale in SCALES if (name, scale) in there]


def opening(report):
    """Five sentences on all claims, none without any, and the picture of those that are multiples of a published difference."""
    runs, of_word = report.runs, lambda *words: [one for one in report.findings if one.verdict.word in words]
    if not report.findings: return [], ''
    held, other, shrinks, none = of_word(SAME, REPRODUCED), of_word(OPPOSITE), of_word(TRANSIENT), of_word(EQUIVALENT, IDENTITY)
    names = lambda found: '; '.join(dict.fromkeys(one.name for one in found)) or 'none'
    ran, paper = len({one.claim['id'] for one in report.findings}), (runs.scale == 'paper').sum()
    lengths = [of[-1][1] for record in report.trained.record if (of := record['result'].get('validation'))]
    sentences = [
        f'{len(runs)} runs of {span(runs.parameters.dropna().astype(int))} parameters and {span(lengths)} tokens test {ran} of '
        f'{len(report.claims) + len(report.not_run)} published numbers; {(runs.event == "diverged").sum()} runs diverged.',
        f'{paper or "No"} runs are at the papers\' scale, which alone gives verdicts in the papers\' sense.',
        f'The documents\' numbers alone give {len(report.statements)} statements, such as: {report.statements[1]["title"]}.',
        f'With the published sign, and not shrinking: {names(held)}. With the opposite one: {names(other)}.',
        f'Nothing follows from {len(shrinks)} differences that still shrink when a run ends; {len(none)} are equivalent to 0 or an '
        'identity.']
    shown = [(f'{one.name}, {one.scale}', one.multiple, 1, one.verdict.word == TRANSIENT)
             for one in report.findings if one.multiple and one.verdict.word != STRUCK]
    return sentences, figures.draw_forest(shown, multiples=True) if shown else ''


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
