"""Logarithm, exponential, sine, normal quantile and interpolation that give the same bits on every machine.

The C library's versions differ in the last bit between platforms, and even between processors of one
platform; over a million jobs that would shift some submission by a millisecond. These use only additions,
products, quotients and square roots, one array operation each, whose results IEEE 754 defines to the bit.
Their relative error is about 1e-15.
"""

from __future__ import annotations

import math

import numpy as np

from berth.arrays import FloatArray

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.693147180369123816490  # its product with a small whole number is exact
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = 0.7071067811865476
_FULL_TURN = 6.283185307179586
_SINE = tuple((-1) ** (odd // 2) / math.factorial(odd) for odd in range(23, 0, -2))

# Rational approximations of the normal quantile (Wichura 1988, AS 241): the middle, the flanks, the tails.
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_FLANKS = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_TAILS = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def log(values: FloatArray) -> FloatArray:
    """Natural logarithm of numbers above 0."""
    part, power = np.frexp(values)
    low = part < _SQRT_HALF
    part = np.where(low, 2 * part, part)
    power = power - low
    ratio = (part - 1) / (part + 1)
    series = _polynomial(ratio * ratio, [2 / odd for odd in range(23, 0, -2)])
    return np.asarray(power * _LN2 + ratio * series, dtype=np.float64)


def exp(values: FloatArray) -> FloatArray:
    """e to the power of each number."""
    power = np.rint(values / _LN2)
    rest = (values - power * _LN2_HIGH) - power * _LN2_LOW
    factors = [1.0]
    for degree in range(1, 14):
        factors.append(factors[-1] / degree)
    return np.asarray(np.ldexp(_polynomial(rest, factors[::-1]), power.astype(np.int32)), dtype=np.float64)


def sin_of_turns(turns: FloatArray) -> FloatArray:
    """The sine of angles given in full turns."""
    part = turns - np.rint(turns)
    part = np.where(part > 0.25, 0.5 - part, np.where(part < -0.25, -0.5 - part, part))
    angle = part * _FULL_TURN
    return np.asarray(angle * _polynomial(angle * angle, _SINE), dtype=np.float64)


def normal_quantile(probabilities: FloatArray) -> FloatArray:
    """The number of standard deviations below which such a share of a normal distribution lies."""
    centred = probabilities - 0.5
    middle = centred * _quotient(0.180625 - centred * centred, _MIDDLE)
    edge = np.minimum(probabilities, 1 - probabilities)
    far = np.sqrt(-log(np.maximum(edge, 2.0**-1000)))
    outside = np.where(far <= 5, _quotient(far - 1.6, _FLANKS), _quotient(far - 5, _TAILS))
    return np.where(np.abs(centred) <= 0.425, middle, np.where(centred < 0, -outside, outside))


def interpolate(at: FloatArray, known: FloatArray, values: FloatArray) -> FloatArray:
    """Values between known points by straight lines; the end values beyond the ends."""
    if len(known) == 1:
        return np.full(len(at), values[0])
    left = np.clip(np.searchsorted(known, at, side="right") - 1, 0, len(known) - 2)
    width = known[left + 1] - known[left]
    share = np.where(width > 0, (at - known[left]) / np.where(width > 0, width, 1.0), 1.0)
    share = np.clip(share, 0.0, 1.0)
    return np.asarray(values[left] * (1 - share) + values[left + 1] * share, dtype=np.float64)


def _polynomial(at: FloatArray, factors: list[float] | tuple[float, ...]) -> FloatArray:
    """Horner's rule, highest power first."""
    result = np.full(at.shape, factors[0])
    for factor in factors[1:]:
        result = result * at
        result = result + factor
    return result


def _quotient(at: FloatArray, factors: tuple[tuple[float, ...], tuple[float, ...]]) -> FloatArray:
    return _polynomial(at, factors[0]) / _polynomial(at, factors[1])
