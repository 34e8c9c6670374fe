"""Errors planted in the plain kernel, each of which the arbiter has to name, in a case that can show it."""
from dataclasses import dataclass, replace
from typing import Callable

import torch

from .cases import Case
from .judge import plain


@dataclass
class Planted:
    name: str
    case: Case
    compute: Callable          # numbers, case -> {name: tensor}
    verdict: str               # how what is said of it begins
    repeatable: bool = True


def looks_ahead(numbers, case):
    return plain(numbers, replace(case, ahead=1))


def longer_window(numbers, case):
    return plain(numbers, replace(case, window=case.window + 1))


def without_documents(numbers, case):
    return plain(numbers, replace(case, documents=()))


def without_scale(numbers, case):
    q, *others = numbers
    found = plain((q * case.HS ** 0.5, *others), case)       # exact where HS is a power of 4
    return found | {'dq': found['dq'] * case.HS ** 0.5}


def without_head_in_dk(numbers, case):
    """dk of a group as if the gradient of its second head's result were zero."""
    q, k, v, dout = numbers
    less = dout.clone()
    less[:, 1] = 0
    return plain(numbers, case) | {'dk': plain((q, k, v, less), case)['dk']}


def one_element(name):
    """Always the same one, 1% too large."""
    def compute(numbers, case):
        found = plain(numbers, case)
        flat = found[name].flatten().clone()
        flat[flat.numel() // 2 + 40 * case.HS + 5] *= 1.01
        return found | {name: flat.view_as(found[name])}
    return compute


def noise(name):
    """Another number in each run is one bit off, as where atomic additions come in any order."""
    runs = 0

    def compute(numbers, case):
        nonlocal runs
        found, runs = plain(numbers, case), runs + 1
        flat = found[name].flatten().clone()
        at = runs * 97 % flat.numel()
        flat[at] = torch.nextafter(flat[at], torch.full_like(flat[at], 1e4))
        return found | {name: flat.view_as(found[name])}
    return compute


GROUPS, WINDOW = Case(2, 65, 4, 2, 32), Case(1, 127, 4, 1, 64, window=20)
PLANTED = [
    Planted('mask: sees one key ahead', GROUPS, looks_ahead, 'looks one key ahead'),
    Planted('mask: a window of one key more', WINDOW, longer_window, 'window one key too long'),
    Planted('mask: documents not kept apart', Case(1, 100, 2, 2, 64, documents=(1, 40, 64)), without_documents, 'plain causal mask'),
    Planted('scores not scaled', WINDOW, without_scale, 'scores without 1/sqrt(HS)'),
    Planted('dk without one head of a group', GROUPS, without_head_in_dk, 'dk lacks query head 1'),
    *(Planted(f'{name}: one number 1% too large', GROUPS, one_element(name), f'{name}: one number')
      for name in ('out', 'dq', 'dk', 'dv')),
    *(Planted(f'{name}: one bit of noise', GROUPS, noise(name), '', repeatable=False) for name in ('out', 'dq', 'dk', 'dv')),
]
