"""Functions with the same bits everywhere: right, and never moved."""

from __future__ import annotations

import hashlib
from statistics import NormalDist

import numpy as np
import pytest

from berth.workload import reproducible_arrays as arrays

SPREAD = np.concatenate(
    [np.linspace(1e-9, 1 - 1e-9, 2001), 2.0 ** -np.arange(1, 54), 1 - 2.0 ** -np.arange(2, 54)]
)


def test_the_logarithm_is_right_to_the_last_digits():
    values = np.concatenate([SPREAD, np.logspace(-300, 300, 1001), [1.0, 2.0, 0.5]])
    assert arrays.log(values) == pytest.approx(np.log(values), rel=4e-15, abs=1e-18)


def test_the_exponential_is_right_to_the_last_digits():
    values = np.linspace(-700, 700, 5001)
    assert arrays.exp(values) == pytest.approx(np.exp(values), rel=4e-15)


def test_the_normal_quantile_is_the_standard_librarys():
    expected = [NormalDist().inv_cdf(probability) for probability in SPREAD]
    assert arrays.normal_quantile(SPREAD) == pytest.approx(expected, rel=1e-13, abs=1e-15)


@pytest.mark.parametrize(
    ("known", "values"),
    [([0.0, 0.3, 1.0], [5.0, -1.0, 7.0]), ([0.0], [4.0]), ([0.0, 0.5, 0.5, 1.0], [0.0, 1.0, 2.0, 3.0])],
)
def test_interpolation_joins_points_by_lines(known, values):
    at = np.asarray([-1.0, 0.0, 0.1, 0.3, 0.49, 0.7, 1.0, 2.0])
    got = arrays.interpolate(at, np.asarray(known), np.asarray(values))
    assert got == pytest.approx(np.interp(at, known, values))


@pytest.mark.parametrize(
    ("function", "digest"),
    [
        (arrays.log, "50140a81c779cea0"),
        (arrays.exp, "a733b284772cf5aa"),
        (arrays.normal_quantile, "63d78d0d405934d9"),
    ],
)
def test_the_bits_never_change(function, digest):
    assert hashlib.sha256(function(SPREAD).astype("<f8").tobytes()).hexdigest()[:16] == digest
