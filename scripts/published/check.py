"""What a comparison with published code consists of."""
import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Callable


class Missing(Exception):
    """A package or a clone that is not there, with the line that gets it."""


class AnyName(type):
    def __getattr__(cls, name):
        if name.startswith('__'): raise AttributeError(name)
        return StandIn


class StandIn(metaclass=AnyName):
    """What a name of a module that is not there may have to be: a base class, a decorator with arguments, a function that says no."""
    def __init__(self, *_, **__): pass
    def __call__(self, decorated=None): return decorated
    def __bool__(self): return False


@contextmanager
def stand_ins(names):
    """Answers imports of modules that attention does not need."""
    before = {name: sys.modules.pop(name, None) for name in names}
    for name in names:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = []
        sys.modules[name].__getattr__ = lambda _: StandIn
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update((name, module) for name, module in before.items() if module)


@dataclass
class Check:
    """`run(a, w)`, or `run(a, w, check)` where there is a clone to import from, computes one layer by the published code: a is
    attention_torch.parts.Inputs, w the variant's tensors by name; it returns (B, NH, T, HS), which torch differentiates, or that and
    the mechanism's own loss."""
    variant: str
    source: str                   # whose code, and what of it
    run: Callable
    settings: dict = field(default_factory=dict)
    sizes: tuple = ((2, 70, 4, 2), (1, 133, 4, 4), (1, 65, 4, 1))      # (B, T, NH, NKV)
    HS: int = 16
    package: str = 'torch'        # the distribution whose version counts
    imports: tuple = ()           # modules that must be there
    repository: str = ''          # owner/name of a clone in --code's folder, in place of a package
    prepare: Callable = lambda inputs, tensors: None       # may change what was drawn
    gradients: bool = True
    rotates: bool = True          # whether q and k get RoPE
    in_float: bool = False        # whether the published code computes in float32 whatever it is given
    remark: str = ''              # how it was called, and what differs from our reading

    clone: Path | None = None

    @property
    def name(self):
        return f'{self.variant}, {self.source}'

    def load(self, code):
        """Missing where it cannot run here."""
        if self.repository:
            self.clone = code and code / self.repository.split('/')[1]
            if not self.clone or not self.clone.is_dir():
                raise Missing(f'git clone https://github.com/{self.repository} into a folder, and give that with --code')
        for module in self.imports:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise Missing(f'{error}; pip install {self.package}') from error

    def module(self, file, without=()):
        """One file of the clone, in a package that has nothing else in it but what the file imports by relative names; `without`
        are modules that it imports and does not need."""
        path = self.clone / file
        package = 'published_' + '_'.join(Path(file).parent.parts + (self.clone.name.replace('-', '_'),))
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [str(path.parent)]
        with stand_ins(without):
            return importlib.import_module(f'{package}.{path.stem}')

    def version(self):
        if not self.repository: return f'{self.package} {importlib.metadata.version(self.package)}'
        done = subprocess.run(['git', '-C', self.clone, 'log', '-1', '--format=%h of %cs'], capture_output=True, text=True)
        return done.stdout.strip() or 'a folder without history'
