"""Logarithm, exponential and power that give the same bits on every x86-64 CPU.

numpy chooses its loops by the CPU's vector extensions, and the C library behind `math` has variants with and
without fused multiply-add: their results differ in the last bit. These functions use only additions, products,
quotients and exact scaling by powers of two, one operation at a time, whose results IEEE 754 defines to the bit. numba
compiles them without contracting products and sums, so interpreted and compiled they agree too. Their relative
error is about 1e-15. workload/reproducible_arrays.py has the same functions for arrays.
"""

from __future__ import annotations

import math
from itertools import accumulate

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.693147180369123816490  # its product with a small whole number is exact
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = 0.7071067811865476
_LOG_SERIES = tuple(2.0 / odd for odd in range(23, 0, -2))
_EXP_SERIES = tuple(accumulate(range(1, 14), lambda factor, degree: factor / degree, initial=1.0))[::-1]
_MOST_EXPONENT = 700.0


def log(value: float) -> float:
    """Natural logarithm of a number above 0."""
    part, power = math.frexp(value)
    if part < _SQRT_HALF:
        part *= 2.0
        power -= 1
    ratio = (part - 1.0) / (part + 1.0)
    square = ratio * ratio
    series = 0.0
    for factor in _LOG_SERIES:
        series = series * square + factor
    return power * _LN2 + ratio * series


def exp(value: float) -> float:
    """e to the power of a number from -700 to 700; beyond that, as at the nearer end."""
    value = min(max(value, -_MOST_EXPONENT), _MOST_EXPONENT)
    power = round(value / _LN2)
    rest = (value - power * _LN2_HIGH) - power * _LN2_LOW
    series = 0.0
    for factor in _EXP_SERIES:
        series = series * rest + factor
    return math.ldexp(series, power)


def power(base: float, exponent: float) -> float:
    """A number above 0 to the power of another."""
    return exp(exponent * log(base))
