"""Plans: from an experiment's TOML file to runs, arms x settings x seeds at one scale, in stages.

    sweep     every arm at every rate, as long as its runs; the best is chosen on the first half of the validation tokens
    seeds     every arm at its best rate and every seed, reported on the second half; the sweep has had the first of them
    timing    for settings with equal = "seconds": step times of every arm, interleaved with the baseline's, alone on the machine
    seconds   these settings, with as many steps as take the baseline's time
    phase2    settings that come after one of `seeds`: runs that start from its weights and train on, or only read a text
    phase3    settings that come after one of phase2; and so on
    turns     settings with `turns`: step times as in `timing`, in so many rounds of so many steps
    writes    settings with `writes`: interleaved times of ./generate with the weights of an earlier setting, and bytes of its cache

Settings with equal = "flops" get as many steps as the baseline's FLOPs pay for, "layers" as many layers. README.md describes the keys.
"""
import functools
import hashlib
import json
import re
import tomllib
from copy import deepcopy
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from packages import HERE, ROOT, Refused

SCALES = ('smoke', 'reduced', 'medium', 'paper')
EQUAL = ('tokens', 'flops', 'seconds', 'layers')
TIMED = ('turns', 'writes')   # kinds of runs that have the machine to themselves
TURN_STEPS = 9            # of a program in its turn, unless a setting says otherwise
TIMING_ROUNDS = 3         # 1 at scale smoke
DEFAULTS = {'question': '', 'options': {}, 'settings': {'': {}}, 'sweep': {}, 'left_open': []}
INNER = ('each', 'options', 'arm_options', 'model', 'mixed', 'relative_seconds', 'turns', 'writes')   # tables of arms, settings and scales
KEYS = {   # of each kind of table: those that it must have, and others
    'experiment': ({'title', 'baseline', 'arms', 'scales'}, set(DEFAULTS)),
    'arm': (set(), {'variant', 'label', 'options', 'ignore', 'from'}),
    'setting': (set(), {'label', 'options', 'equal', 'arms', 'scales', 'task', 'labelled', 'model', 'seconds_per_step', 'after',
                        'resumes_at', 'evaluate', 'turns', 'writes', 'seeds', 'rates', 'relative_seconds', 'released'}),
    'turns': ({'rounds'}, {'steps'}),
    'writes': ({'rounds', 'prompt', 'tokens'}, set()),
    'sweep': (set(), {'rates', 'seeds', 'like', 'setting'}),
    'scale': ({'lr', 'seeds', 'seconds_per_step', 'estimate'},
              {'data', 'model', 'options', 'arms', 'rates', 'arm_options', 'mixed', 'released'}),
}

# Options without effect on reading a text, and those that ./generate takes: the variant's settings are in the checkpoint.
OF_TRAINING = ('steps', 'lr', 'schedule', 'cooldown-frac', 'warmup-steps', 'min-lr-frac', 'weight-decay', 'beta1', 'beta2',
               'val-every', 'checkpoint-every', 'keep-checkpoints', 'sample-every', 'monitor-every', 'plot', 'total-batch-tokens',
               'shuffle', 'eval-every')
OF_WRITING = ('seed', 'device', 'weights', 'set', 'attention', 'psa-eps', 'psa-block', 'psa-bound', 'adaspa-sparsity', 'adaspa-block')


@dataclass(eq=False)
class Run:
    """One call of a program. `options` decide the result; work.py adds those that depend on the machine."""
    experiment: str
    scale: str
    stage: str
    arm: str
    setting: str
    seed: int
    variant: str
    factor: float                 # of the scale's learning rate
    options: dict
    data: str                     # name of a text, or bundled, task, labelled
    task: dict = field(default_factory=dict)
    shape: dict = field(default_factory=dict)    # of a model without a preset: keys of config.json
    mixed: dict = field(default_factory=dict)    # a task whose rows stand among those of the text
    released: str = ''            # a published model; its folder in that of --data has its weights and a text in its tokens
    key: str = ''
    seconds: float = 0.0          # expected
    kind: str = 'train'           # or evaluate, which only reads the validation tokens; turns, writes: interleaved times
    origin: 'Run | None' = None   # the run whose weights it starts from, or with resumes_at whose checkpoint it resumes
    resumes_at: int = 0           # step of that checkpoint
    against: 'Run | None' = None  # the baseline's, which it is interleaved with

    @property
    def labels(self):
        """Its place in the ledger."""
        return {name: getattr(self, name) for name in ('experiment', 'scale', 'stage', 'arm', 'setting', 'seed', 'factor')}

    @property
    def name(self):
        """For lines of progress."""
        setting = f', {self.setting}' if self.setting else ''
        return f'{self.experiment} {self.arm}{setting}, rate x {self.factor:g}, seed {self.seed}'

    @property
    def steps(self):
        return int(self.options.get('steps', 1))

    @property
    def origins(self):
        """Runs whose weights it needs."""
        return [run for run in (self.origin, self.against and self.against.origin) if run]


@functools.cache
def cards():
    """{GPU: (date, {variant: time of a whole step against causal's})} from the files of dev/gpu/results.py; {} in a package without."""
    found = [json.loads(path.read_text(encoding='utf-8')) for path in sorted((ROOT / 'dev/gpu').glob('*.json'))]
    return {card['gpu']: (base['date'], {variant: base['is'] / of['is'] for variant, of in card['whole_steps'].items()})
            for card in found if (base := card.get('whole_steps', {}).get('causal'))}


def known_experiments(folder=HERE):
    """Names of the TOML files e1_..., e2_..., by number."""
    return sorted((path.stem for path in Path(folder).glob('e*_*.toml')), key=lambda name: (int(re.match(r'e(\d+)', name)[1]), name))


def choose(kind, name, known):
    """Refuse a name that is not among the known ones."""
    if name not in known: raise Refused(f'unknown {kind} {name}; there are: {", ".join(map(str, known))}')
    return name


def read_toml(path):
    try:
        return tomllib.loads(path.read_text(encoding='utf-8'))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Refused(f'{path}: cannot be read: {error}') from error


def with_common(path):
    """The table of a plan's file: its arms and scales have what they share with others from common.toml, and an arm or a setting with
    `each` is several."""
    table, common = read_toml(path), read_toml(HERE / 'common.toml')
    for of in ('arms', 'settings', 'scales'):
        check_tables(f'{path}: {of}', table.setdefault(of, deepcopy(DEFAULTS.get(of, {}))))
        table[of] = for_each(table[of])
    arms = dict.fromkeys(table.pop('variants', []), {}) | table['arms']
    return table | {
        'arms': {name: common['arms'].get(name, {}) | own for name, own in arms.items()},
        'scales': {name: own if own.pop('alone', False) else scale_with(common['scales'].get(name, {}), own)
                   for name, own in table['scales'].items()}}


def check_tables(where, tables):
    """Refuse arms, settings or scales that are no tables, or have something else where a table belongs."""
    for name, table in tables.items():
        inner = {f'{name}.{key}': table[key] for key in INNER if key in table} if isinstance(table, dict) else {}
        for path, value in ({name: table} | inner).items():
            if not isinstance(value, dict): raise Refused(f'{where}.{path} is no table')


def scale_with(shared, own):
    """A scale's table with what it shares with other plans, but for the options that it is to `ignore`."""
    ignored = own.pop('ignore', [])
    options = {option: value for option, value in shared.get('options', {}).items() if option not in ignored}
    return shared | own | {'options': options | own.get('options', {})}


def for_each(tables):
    """Arms or settings, in which a table with `each` is one for each of the values that it gives to names in braces."""
    found = {}
    for name, table in tables.items():
        each = table.pop('each', None)
        if each is None:
            found[name] = table
            continue
        try:
            rows = [dict(zip(each, values)) for values in zip(*each.values(), strict=True)]
            if not rows: raise ValueError('it has no values')
            for words in rows:
                key = name.format(**words)
                if key in found: raise ValueError(f'"{key}" is there twice')
                found[key] = filled(table, words)
        except (LookupError, TypeError, ValueError) as error:
            raise Refused(f'"{name}": its `each` does not fill its words in braces: {error}') from error
    return found


def filled(value, words):
    """A value of TOML with {words} replaced; a string that is one word becomes the word's value."""
    if isinstance(value, dict): return {key: filled(inner, words) for key, inner in value.items()}
    if isinstance(value, list): return [filled(inner, words) for inner in value]
    if not isinstance(value, str): return value
    word = value[1:-1]
    return words[word] if word in words and value == f'{{{word}}}' else value.format(**words)


class Experiment:
    """A TOML file, or `table` in its place, with every key checked."""

    def __init__(self, name, folder=HERE, table=None):
        self.name, self.path = name, Path(folder) / f'{name}.toml'
        if table is None:
            choose('experiment', name, known_experiments(folder))
            table = with_common(self.path)
        self._check_keys('experiment', '', table)
        vars(self).update(deepcopy(DEFAULTS) | table)   # the keys of the table are attributes
        self.relative_seconds = {}   # arm -> step time against the baseline's, where it is not that of cards()
        for kind, tables in (('arm', self.arms), ('setting', self.settings), ('scale', self.scales)):
            for of, inner in tables.items(): self._check_keys(kind, f'{kind}s.{of}', inner)
        self._check_keys('sweep', 'sweep', self.sweep)
        self._check_names()
        self._check_order()

    def _check_keys(self, kind, where, table):
        """Refuse unknown and missing keys."""
        (needed, others), place = KEYS[kind], f' in [{where}]' if where else ''
        if not isinstance(table, dict): raise Refused(f'{self.path}: {where} is no table')
        if unknown := set(table) - needed - others:
            raise Refused(f'{self.path}: unknown key {min(unknown)}{place}; there are: {", ".join(sorted(needed | others))}')
        if missing := needed - set(table): raise Refused(f'{self.path}: lacks the key {min(missing)}{place}')

    def _check_names(self):
        """Refuse names of arms, scales and settings that do not exist."""
        tables = [*self.arms.values(), *self.settings.values(), *self.scales.values()]
        arms = [self.baseline, *(arm for pair in self.sweep.get('like', {}).items() for arm in pair)]
        arms += [arm for table in tables for key in ('arms', 'arm_options', 'relative_seconds') for arm in table.get(key, [])]
        arms += [table['from'] for table in tables if 'from' in table]
        for arm in arms: choose('arm', arm, self.arms)
        for scale in [*self.scales, *(scale for table in self.settings.values() for scale in table.get('scales', []))]:
            choose('scale', scale, SCALES)
        for table in self.settings.values():
            choose('equal', table.get('equal', 'tokens'), EQUAL)
            if 'after' in table: choose('setting', table['after'], self.settings)
            if self.settings.get(table.get('after'), {}).get('rates'):
                raise Refused(f'{self.path}: [settings.{table["after"]}] has `rates`, so that there is no one run to start from; name '
                              'another setting as `after`')
            if 'resumes_at' in table and 'after' not in table:
                raise Refused(f'{self.path}: resumes_at is a step of the setting that this one is `after`; name it')
            if table.get('resumes_at', 1) < 1 or 'resumes_at' in table and table.get('evaluate'):
                raise Refused(f'{self.path}: resumes_at is a step, from 1, of settings that train')

    def _check_order(self):
        """Refuse settings that come after each other in a circle, and writing without weights."""
        try:
            TopologicalSorter({name: [table['after']] for name, table in self.settings.items() if 'after' in table}).prepare()
        except CycleError as error:
            raise Refused(f'{self.path}: settings come after each other in a circle: {", ".join(error.args[1])}') from error
        for name, table in self.settings.items():
            for kind in table.keys() & set(TIMED): self._check_keys(kind, f'settings.{name}.{kind}', table[kind])
            if 'writes' in table and 'after' not in table:
                raise Refused(f'{self.path}: [settings.{name}] writes with the weights of no setting; give it an `after`')

    def label(self, setting):
        """The name of a setting for readers."""
        return self.settings.get(setting, {}).get('label', setting)

    def depth(self, setting):
        """The number of settings that come before it."""
        after = self.settings[setting].get('after')
        return 0 if after is None else 1 + self.depth(after)

    def arms_of(self, setting):
        """Names of the arms of a setting: those that it names, or all. Arms that start `from` another have no first phase."""
        table = self.settings[setting]
        return table.get('arms') or [arm for arm, of in self.arms.items() if 'after' in table or 'from' not in of]

    def origin(self, setting, arm):
        """(setting, arm) of the weights that an arm starts from in a setting that comes after another: its own there, or those of the
        arm that it is `from`, or, where neither is in that setting, of the one before."""
        first = setting
        while 'after' in self.settings[setting]:
            setting = self.settings[setting]['after']
            for name in (arm, self.arms[arm].get('from')):
                if name in self.arms_of(setting): return setting, name
        raise Refused(f'{self.path}: the arm {arm} has no weights to start from in the setting {first}; give it a `from`')

    def scale(self, name):
        """The scale's table; refuses one that the experiment lacks."""
        if name not in self.scales:
            raise Refused(f'{self.name} has no scale {choose("scale", name, SCALES)}; it has: {", ".join(self.scales)}')
        return self.scales[name]

    def chosen_arms(self, scale, asked=None):
        """The arms of a scale, or those asked for, those that they start from and the baseline."""
        there = self.scales[scale].get('arms') or list(self.arms)
        if not asked: return there
        for arm in asked:
            choose('arm', arm, self.arms)
            if arm not in there: raise Refused(f'{self.name} at scale {scale} has no arm {arm}; it has: {", ".join(there)}')
        begins = [self.arms[arm].get('from') or self.sweep.get('like', {}).get(arm) for arm in asked]
        return [arm for arm in there if arm in [*asked, *begins, self.baseline]]


class Planner:
    """The runs of one experiment at one scale. Optional functions give what only a session knows: `rate_of(arm)` the best factor of the
    scale's rate, `steps_of(run)` its steps for equal seconds, `flops(run)` the FLOPs of a token, None where the trainer is not built."""

    def __init__(self, experiment, scale, arms=None, seeds=None, rate_of=lambda arm: 1.0, steps_of=lambda run: run.steps,
                 flops=lambda run: None, settings=None):
        self.experiment, self.scale, self.table = experiment, scale, experiment.scale(scale)
        self.arms = experiment.chosen_arms(scale, arms)
        for name in settings or []: choose('setting', name, experiment.settings)
        self.only = settings or experiment.settings
        self.asked, self.seeds = seeds, self.table['seeds'] if seeds is None else seeds
        self.rates = self.table.get('rates') or experiment.sweep.get('rates', [])
        self.rate_of, self.steps_of, self.flops = rate_of, steps_of, flops

    def relative_seconds(self, arm, setting=None):
        """Expected time of a step against the baseline's."""
        e = self.experiment
        known = e.relative_seconds | e.settings.get(setting, {}).get('relative_seconds', {})
        _, of_card = next(iter(cards().values()), ('', {}))
        return known[arm] if arm in known else of_card.get(e.arms[arm].get('variant', arm), 1.0)

    def stage_of(self, setting):
        table, depth = self.experiment.settings[setting], self.experiment.depth(setting)
        if kind := next((kind for kind in TIMED if kind in table), None): return kind
        if depth: return f'phase{depth + 1}'
        return 'seconds' if table.get('equal') == 'seconds' else 'seeds'

    def settings(self, stage):
        """The settings of a stage at this scale."""
        return {name: table for name, table in self.experiment.settings.items()
                if name in self.only and self.stage_of(name) == ('seconds' if stage == 'timing' else stage)
                and self.scale in table.get('scales', SCALES)}

    def stages(self):
        """The stages of this plan, in order."""
        deepest = max(map(self.experiment.depth, self.experiment.settings))
        names = ['seeds', 'timing', 'seconds', *(f'phase{depth + 1}' for depth in range(1, deepest + 1)), *TIMED]
        return (['sweep'] if self.rates else []) + [stage for stage in names if self.seeds and self.settings(stage)]

    def runs(self, stage):
        """The runs of a stage, seed by seed, so that pairs are complete early."""
        if stage == 'sweep':
            settings = self.settings('seeds')
            first = self.experiment.sweep.get('setting')
            if first not in settings: first = next(iter(settings), '')
            seeds = range(1, self.experiment.sweep.get('seeds', 1) + 1)
            like = self.experiment.sweep.get('like', {})   # arms with the rate of another one
            arms = [arm for arm in self.arms if 'from' not in self.experiment.arms[arm] and arm not in like]
            return [self._run(stage, arm, first, seed, factor) for seed in seeds for factor in self.rates for arm in arms]
        settings, timed = self.settings(stage), 1 if self.scale == 'smoke' else TIMING_ROUNDS
        rounds = {name: rounds_of(table) or (timed if stage == 'timing' else self.seeds_of(table)) for name, table in settings.items()}
        return [self._run(stage, arm, setting, seed, factor)
                for seed in range(1, max(rounds.values(), default=0) + 1) for setting, table in settings.items() for arm in self.arms
                if seed <= rounds[setting] and arm in self.experiment.arms_of(setting) and self._can_start(setting, arm)
                for factor in table.get('rates') or [self.rate_of(arm)]]

    def seeds_of(self, setting):
        """The number of seeds of a setting: its own, or the scale's; no more than were asked for."""
        own = setting.get('seeds', self.seeds)
        return own if self.asked is None else min(own, self.asked)

    def _can_start(self, setting, arm):
        """False where all rates of the sweep diverged, of this arm or of one that it starts from."""
        if self.rate_of(arm) is None: return False
        return not self.experiment.depth(setting) or self._can_start(*self.experiment.origin(setting, arm))

    def _run(self, stage, arm, setting, seed, factor):
        """A run with the changes of its stage and setting."""
        e, table = self.experiment, self.experiment.settings[setting]
        run = self._plain(stage, arm, setting, seed, factor)
        if stage == 'writes': return self._writing(run, table['writes'])
        if 'after' in table:
            of, name = e.origin(setting, arm)
            run.origin = self._run(self.stage_of(of), name, of, seed, self.rate_of(name))
            run.resumes_at = table.get('resumes_at', 0)
            if run.resumes_at >= run.steps or run.resumes_at > run.origin.steps:
                raise Refused(f'{e.path}: [settings.{setting}] resumes at step {run.resumes_at} of {run.origin.steps}, and ends at '
                              f'{run.steps}')
        if table.get('evaluate'):
            run.kind = 'evaluate'
            for option in OF_TRAINING: run.options.pop(option, None)
        elif stage in ('timing', 'turns'):
            run.kind, run.against = 'turns', self._plain(stage, e.baseline, setting, seed, factor)
            steps = table.get('turns', {}).get('steps', TURN_STEPS)
            for one in (run, run.against): one.options['steps'] = steps
            run.seconds = steps * (2 * run.against.seconds + run.seconds)
            return run
        elif stage == 'seeds' and table.get('equal') == 'flops' and arm != e.baseline:
            base, own = self.flops(self._plain(stage, e.baseline, setting, seed, factor)), self.flops(run)
            if base and own: run.options['steps'] = max(1, round(run.steps * base / own))
        elif stage == 'seeds' and table.get('equal') == 'layers' and arm != e.baseline:
            run = self._deepened(run, self.flops(self._plain(stage, e.baseline, setting, seed, factor)))
        elif stage == 'seconds' and arm != e.baseline:
            run.options['steps'] = max(1, self.steps_of(run))
        run.seconds *= run.steps - run.resumes_at
        return run

    def _deepened(self, run, budget):
        """The run with as many layers as `budget` FLOPs of a token pay for."""
        if not run.shape: raise Refused(f'{self.experiment.path}: [settings.{run.setting}] is for equal layers; give it a `model`')
        layers = run.shape['num_hidden_layers']
        own, more = self.flops(run), self.flops(with_layers(run, layers + 1))
        return with_layers(run, max(1, layers + round((budget - own) / (more - own)))) if budget and own and more else run

    def _writing(self, run, how):
        """A round of ./generate with an arm's weights, interleaved with the baseline's on the same device. All rounds take the weights
        of the first seed."""
        run.against = self._plain(run.stage, self.experiment.baseline, run.setting, run.seed, run.factor)
        for one in (run, run.against):
            of, name = self.experiment.origin(one.setting, one.arm)
            one.kind, one.origin = 'writes', self._run(self.stage_of(of), name, of, 1, self.rate_of(name))
            one.options = {key: value for key, value in one.options.items() if key in OF_WRITING}
            one.options |= {'prompt': how['prompt'], 'tokens': how['tokens']}
        if 'device' in run.options: run.against.options['device'] = run.options['device']
        run.seconds += 2 * run.against.seconds
        return run

    def _plain(self, stage, arm, setting, seed, factor):
        """A run from the tables alone. Its `seconds` are those of a step, or of reading the whole text."""
        e, scale = self.experiment, self.table
        of_setting, of_arm = e.settings[setting], e.arms[arm]
        options = {'sample-every': 0, 'plot': 0, 'keep-checkpoints': 1, 'model': 'qwen-2m'} | e.options | scale.get('options', {})
        options |= of_setting.get('options', {}) | of_arm.get('options', {}) | scale.get('arm_options', {}).get(arm, {})
        for option in of_arm.get('ignore', []): options.pop(option, None)   # without effect: settings that differ in it share runs
        multiple = options.pop('lr-times', 1)          # a setting's own factor, as in e10
        options |= {'lr': float(f'{scale["lr"] * factor * multiple:.6g}'), 'seed': seed}
        released = of_setting.get('released') or scale.get('released', '')
        made = next((kind for kind in ('labelled', 'task') if kind in of_setting), None)
        data = released or made or scale.get('data', 'bundled')
        run = Run(e.name, self.scale, stage, arm, setting, seed, of_arm.get('variant', arm), factor, options, data,
                  of_setting.get('labelled') or of_setting.get('task', {}), of_setting.get('model') or scale.get('model', {}),
                  scale.get('mixed', {}), released)
        if run.shape: options['model'] = shape_name(run.shape)
        run.seconds = of_setting.get('seconds_per_step', scale['seconds_per_step']) * self.relative_seconds(arm, setting)
        return run


def rounds_of(setting):
    """The rounds of a setting with interleaved runs; None for others."""
    return next((setting[kind]['rounds'] for kind in TIMED if kind in setting), None)


def with_layers(run, layers):
    """The run with another number of layers."""
    shape = run.shape | {'num_hidden_layers': layers}
    return replace(run, shape=shape, options=run.options | {'model': shape_name(shape)},
                   seconds=run.seconds * layers / run.shape['num_hidden_layers'])


def shape_name(shape):
    """The name of a model of these keys of config.json."""
    return 'shape-' + hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
