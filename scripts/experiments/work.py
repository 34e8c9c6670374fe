"""One experiment of a call: its stages, and the choices between them, which the ledger keeps."""
from statistics import mean, median

from jobs import Jobs, has_weights, human_time
from ledger import key_of
from packages import EXIT_FAILED, EXIT_SIGNAL, Refused
from plan import TIMED, Planner


class Work:
    """Plans an experiment within a session, and performs its unfinished runs."""

    def __init__(self, session, experiment, say=print):
        self.session, self.experiment, self.say, o = session, experiment, say, session.options
        self._rates = {}     # best ones, once the sweep is finished
        self.planner = Planner(self.experiment, o.scale, o.arms, o.seeds, self.rate_of, self.steps_of, session.flops)

    def runs(self, stage):
        return [self.session.identify(run) for run in self.planner.runs(stage)]

    # ---- choices

    def choice(self, kind, runs):
        """The name of a choice that depends on these runs: other data or another engine make another choice."""
        keys = key_of(kind, {'keys': sorted(run.key for run in runs)}, '', '')
        return f'{self.experiment.name}/{self.session.options.scale}/{kind}/{keys}'

    def rate_of(self, arm):
        """The best factor of the arm's sweep; 1 without a finished sweep, None where all rates diverged."""
        if not self.planner.rates or 'from' in self.experiment.arms[arm]: return 1.0
        if arm in self._rates: return self._rates[arm]
        runs, ledger = [run for run in self.runs('sweep') if run.arm == arm], self.session.ledger
        name = self.choice(f'rate of {arm}', runs)
        if name not in ledger.fixed and not all(run.key in ledger.finished for run in runs): return 1.0
        self._rates[arm] = ledger.fix(name, lambda: best_rate(runs, ledger) | {'labels': runs[0].labels})['factor']
        return self._rates[arm]

    def steps_of(self, run):
        """Steps of equal seconds: as many as take the baseline's time, by the median ratio of interleaved step times."""
        finished = self.session.ledger.finished
        rounds = [one for one in self.runs('timing') if (one.arm, one.setting) == (run.arm, run.setting)]
        if not all(one.key in finished for one in rounds) or self.session.options.dry_run:
            return round(run.steps / self.planner.relative_seconds(run.arm))
        return self.session.ledger.fix(
            self.choice(f'steps of {run.arm} in equal seconds', rounds),
            lambda: {'steps': max(1, round(run.steps / median(finished[one.key]['result']['ratio'] for one in rounds)))})['steps']

    # ---- the plan in words

    def describe(self):
        """Print runs and hours of every stage, or of --stage, and what is left out; return (runs, hours) that are neither finished nor
        counted by an experiment before. Refuses options that a built trainer does not take, before hours of runs (at scale smoke the
        runs themselves show them as soon)."""
        s, o, total = self.session, self.session.options, [0, 0.0]
        print(f'== {self.experiment.name}, scale {o.scale}: {self.experiment.title}')
        print(f'   arms: {", ".join(self.planner.arms)}; baseline {self.experiment.baseline}')
        for stage in self.planner.stages():
            if o.stage not in (None, stage): continue
            runs = self.asked(stage, self.runs(stage))
            shared = sum(run.key in s.planned for run in runs)
            todo = [run for run in runs if run.key not in s.ledger.finished and run.key not in s.planned]
            s.planned.update(run.key for run in todo)
            for run in todo:
                if run.kind in ('train', 'turns') and o.scale != 'smoke': s.printed(run)
            seconds, measured = sum(run.seconds for run in todo), sum(run.measured for run in todo)
            source = 'all step times measured' if measured == len(todo) else \
                f'step times: {measured} runs measured, {len(todo) - measured} estimated ({self.planner.table["estimate"]})'
            print(f'   {stage}: {len(runs)} runs, {len(runs) - len(todo) - shared} finished'
                  + (f', {shared} shared with what is above' if shared else '') + f'; {seconds / 3600:.2f} hours of runs left, '
                  + f'{human_time(seconds / len(s.at))} at {len(s.at)} at once' + (f'; {source}' if todo else ''))
            total = [total[0] + len(todo), total[1] + seconds / 3600]
        return total

    def asked(self, stage, runs):
        """All runs of a stage, or the one of --run."""
        number = self.session.options.run
        if number is None: return runs
        if not 0 <= number < len(runs): raise Refused(f'--run {number}: stage {stage} has runs 0 to {len(runs) - 1}')
        return [runs[number]]

    # ---- performing it

    def perform(self):
        """Perform stage after stage; return the exit code."""
        o = self.session.options
        for stage in self.planner.stages():
            if o.stage and stage != o.stage: continue
            if stage != 'sweep' and self.planner.rates: self.require_finished('sweep')
            if stage == 'seconds': self.require_finished('timing')
            runs = self.runs(stage)
            self.require_origins(runs)
            runs = self.asked(stage, runs)
            self.label(runs)
            for again in self.lost_origins(runs):
                if code := self.run_all(again, again=True): return code
            if code := self.run_all(runs): return code
            if stage == 'sweep' and o.run is None: self.tell_rates()
        return 0

    def run_all(self, runs, again=False):
        """Perform runs; return the exit code."""
        jobs = Jobs(self.session, self.say, any('after' in table for table in self.experiment.settings.values()), again,
                    alone=any(run.kind in TIMED for run in runs))
        complete = jobs.perform(runs)
        return EXIT_SIGNAL if jobs.stopping else 0 if complete else EXIT_FAILED

    def require_origins(self, runs):
        """Refuse runs that start from unfinished ones."""
        missing = {origin.key for run in runs for origin in run.origins} - set(self.session.ledger.finished)
        if missing:
            raise Refused(f'{self.experiment.name}: {len(missing)} runs whose weights later ones start from are not finished; '
                          'run.py without --stage does them first')

    def require_finished(self, stage):
        """Refuse to go on after an unfinished stage."""
        missing = sum(run.key not in self.session.ledger.finished for run in self.runs(stage))
        if missing:
            raise Refused(f'{self.experiment.name}: stage {stage} has {missing} runs that are not finished; finish them first')

    def lost_origins(self, runs):
        """Finished runs whose weights others start from and this machine lacks, as lists that each depend on those before."""
        finished, levels = self.session.ledger.finished, []
        waiting = [run for run in runs if run.key not in finished]
        while waiting:
            origins = {origin.key: origin for run in waiting for origin in run.origins}
            waiting = [run for run in origins.values() if not has_weights(self.session.out, run)
                       and finished.get(run.key, {}).get('event') == 'done']
            if waiting: levels.insert(0, waiting)
        if levels: self.say(f'   {sum(map(len, levels))} runs are done again for their weights')
        return levels

    def label(self, runs):
        """Record which runs belong to this experiment; others may share them."""
        ledger, names = self.session.ledger, ('key', 'experiment', 'stage', 'scale', 'arm', 'setting')
        known = {tuple(r.get(name) for name in names) for r in ledger.records if r['event'] == 'run'}
        new = [run for run in runs if tuple(getattr(run, name) for name in names) not in known]
        if new: ledger.append_all([('run', {'key': run.key, **run.labels}) for run in new])

    def tell_rates(self):
        for arm in self.planner.arms:
            factor = self.rate_of(arm)
            if factor is None: self.say(f'   {arm}: every rate diverged; it has no further runs')
            elif factor in (min(self.planner.rates), max(self.planner.rates)):
                self.say(f'   {arm}: best at {factor:g} x, AN END POINT of the sweep: its best rate may lie beyond')
            else: self.say(f'   {arm}: best at {factor:g} x the rate')


def best_rate(runs, ledger):
    """The factor with the lowest mean loss over the sweep's seeds, without rates of diverged runs."""
    losses = {}
    for run in runs:
        record = ledger.finished[run.key]
        losses.setdefault(run.factor, []).append(record['result']['val_loss'] if record['event'] == 'done' else None)
    sound = {factor: mean(of) for factor, of in losses.items() if None not in of}
    best = min(sound, key=sound.get) if sound else None
    return {'factor': best, 'end_point': best in (min(losses), max(losses)), 'losses': {f'{f:g}': sound.get(f) for f in losses}}
