"""What a comparison with published code consists of."""
import importlib
import importlib.metadata
import importlib.util
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable


class Missing(Exception):
    """A package or a clone that is not there, with the line that gets it."""


@dataclass
class Check:
    """`run(a, w)`, or `run(a, w, check)` where there is a clone to import from, computes one layer by the published code: a is
    attention_torch.parts.Inputs, w the variant's tensors by name; it returns (B, NH, T, HS), which torch differentiates."""
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

    def module(self, file):
        """One file of the clone, whatever its package would import."""
        spec = importlib.util.spec_from_file_location(f'published_{Path(file).stem}', self.clone / file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def version(self):
        if not self.repository: return f'{self.package} {importlib.metadata.version(self.package)}'
        done = subprocess.run(['git', '-C', self.clone, 'log', '-1', '--format=%h of %cs'], capture_output=True, text=True)
        return done.stdout.strip() or 'a folder without history'
