"""What a kernel is asked: sizes and a mask, and numbers for them."""
import zlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    B: int
    T: int
    NH: int
    NKV: int
    HS: int
    window: int = 0             # row i sees keys i - window .. i; 0: all before it
    documents: tuple = ()       # first tokens of all documents but the first: rows see their own document
    ahead: int = 0              # how many keys behind its own a row sees, which only planted errors change

    @property
    def causal(self):
        return not (self.window or self.documents or self.ahead)

    def __str__(self):
        mask = f', window {self.window}' if self.window else ', documents' if self.documents else ''
        return f'{self.B}x{self.T}x{self.NH}/{self.NKV}x{self.HS}{mask}'

    def sees(self, i, j):
        """For tensors of positions."""
        seen = j <= i + self.ahead
        if self.window: seen = seen & (i - j <= self.window)
        for start in self.documents: seen = seen & ((i >= start) == (j >= start))
        return seen

    def visible(self, device):
        """(T, T)."""
        position = torch.arange(self.T, device=device)
        return self.sees(position[:, None], position[None, :])

    def numbers(self, dtype, device, draw=0):
        """q, k, v and the gradient of the result, (B, heads, T, HS), which do not depend on the device."""
        generator = torch.Generator().manual_seed(zlib.crc32(f'{self} {draw}'.encode()))
        draw = lambda heads: torch.randn(self.B, heads, self.T, self.HS, generator=generator).to(dtype).to(device)
        return draw(self.NH), draw(self.NKV), draw(self.NKV), draw(self.NH)


# Beside and across the tiles of 64 and 128 that kernels have; groups of query heads of 1, 2 and 4.
QUICK = [
    Case(1, 1, 2, 2, 64), Case(2, 65, 4, 2, 32), Case(1, 127, 4, 1, 64, window=20), Case(1, 100, 2, 2, 64, documents=(1, 40, 64)),
]
ALL = QUICK + [
    Case(2, 63, 4, 4, 64), Case(1, 127, 4, 2, 128), Case(2, 65, 2, 1, 96), Case(1, 1000, 4, 2, 64), Case(1, 1000, 2, 1, 128),
    Case(1, 65, 4, 2, 128, window=64), Case(1, 1000, 2, 2, 64, window=127), Case(1, 1000, 4, 1, 32, window=1),
    Case(2, 1000, 4, 2, 64, documents=(1, 65, 128, 999)), Case(1, 63, 2, 2, 128, documents=(62,)),
]
