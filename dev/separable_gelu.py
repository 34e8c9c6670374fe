#!/usr/bin/env python3
"""The numbers of attention/kernel/separable_gelu.h: GELU of a sum as a sum of products, for each reach.

    separable_gelu.py            # prints the table and the largest errors of value and slope

GELU(x) - x/2 is even. Three cosines, a square and a constant approximate it on |x| <= R:
    GELU(x) = x/2 + c0 + c x^2 + s_1 cos(w_1 x) + s_2 cos(w_2 x) + s_3 cos(w_3 x)
Each term of x = a + b is a sum of products of a function of a and one of b:
    cos(w (a + b)) = cos(wa) cos(wb) - sin(wa) sin(wb)      (a + b)^2 = a^2 + 2 a b + b^2
so sixteen hidden units are one inner product of 16 x 8 numbers per pair of tokens. Frequencies are free, not multiples of one: at
R = 6 that is three times as exact. For given frequencies the best amplitudes are a linear problem; weights that grow where the error
is large (Lawson) turn its least squares into the least maximum. A slope counts 0.3 of a value.
"""
import argparse

import numpy as np
from scipy.optimize import minimize

SLOPE = 0.3


def gelu(x):
    """GELU in its tanh form, and its derivative."""
    y = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    tanh = np.tanh(y)
    return x * (1 + tanh) / 2, (1 + tanh) / 2 + x / 2 * (1 - tanh**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


def terms(x, frequencies):
    """Columns 1, x^2 and the cosines, and their derivatives."""
    angles = np.outer(x, frequencies)
    return (np.column_stack([np.ones_like(x), x**2, np.cos(angles)]),
            np.column_stack([np.zeros_like(x), 2 * x, -frequencies * np.sin(angles)]))


def fit(reach, frequencies, rounds, points=401):
    """Coefficients [c0, c, s_1, s_2, s_3] and the largest errors of value and slope on [0, reach]."""
    x = reach * np.cos(np.pi * (np.arange(points) + 0.5) / points / 2)
    values, slopes = terms(x, np.asarray(frequencies))
    value, slope = gelu(x)
    value, slope = value - x / 2, slope - 0.5
    weight = np.ones(points)
    for _ in range(rounds):
        rows = np.concatenate([values * weight[:, None], SLOPE * slopes * weight[:, None]])
        found = np.linalg.lstsq(rows, np.concatenate([value * weight, SLOPE * slope * weight]), rcond=None)[0]
        off, off_slope = np.abs(values @ found - value), np.abs(slopes @ found - slope)
        error = np.maximum(off, SLOPE * off_slope)
        weight *= (error / error.max() + 0.02)**0.15
        weight /= weight.mean()
    return found, off.max(), off_slope.max()


def best(reach):
    """Frequencies with the smallest error, from a start near multiples of one."""
    def badness(frequencies):
        _, off, off_slope = fit(reach, np.abs(frequencies), 40)
        return np.log(max(off, SLOPE * off_slope))
    starts = [np.array(start) / reach for start in ([3.6, 7.3, 11.4], [4.7, 9.2, 13.7], [5.7, 11.0, 16.2])]
    found = min((minimize(badness, start, method='Nelder-Mead', options={'maxiter': 400}) for start in starts), key=lambda one: one.fun)
    return np.sort(np.abs(found.x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('reaches', nargs='*', type=float, default=range(3, 9), help='R of each line (default 3 to 8)')
    for reach in parser.parse_args().reaches:
        frequencies = best(reach)
        (constant, square, *amplitudes), off, off_slope = fit(reach, frequencies, 400)
        numbers = ', '.join(f'{number:.8g}f' for number in (*frequencies, *amplitudes, square, constant))
        print(f'{reach:g}: {numbers}   // off by {off:.1e}, slope by {off_slope:.1e}', flush=True)


if __name__ == '__main__':
    main()
