"""Functions with the same bits on every CPU: right, never moved, and the same as those for arrays."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from berth import reproducible
from berth.schedule.policies.tiresias import index_table
from berth.workload import reproducible_arrays as arrays

SPREAD = [*np.linspace(1e-9, 3.0, 1999).tolist(), *(2.0**power for power in range(-300, 300, 7))]
EXPONENTS = np.linspace(-690.0, 690.0, 2003).tolist()


def test_logarithm_exponential_and_power_are_right_to_the_last_digits():
    assert [reproducible.log(x) for x in SPREAD] == pytest.approx(
        [math.log(x) for x in SPREAD], rel=4e-15, abs=1e-18
    )
    assert [reproducible.exp(x) for x in EXPONENTS] == pytest.approx(
        [math.exp(x) for x in EXPONENTS], rel=4e-15
    )
    bases = SPREAD[1:2000:17]
    assert [reproducible.power(x, 2.7) for x in bases] == pytest.approx([x**2.7 for x in bases], rel=2e-14)


def test_one_number_and_an_array_give_the_same_bits():
    assert [reproducible.log(x) for x in SPREAD] == arrays.log(np.asarray(SPREAD)).tolist()
    assert [reproducible.exp(x) for x in EXPONENTS] == arrays.exp(np.asarray(EXPONENTS)).tolist()


@pytest.mark.slow
def test_compiled_they_give_the_same_bits():
    numba = pytest.importorskip("numba")
    log, exp = numba.njit(reproducible.log), numba.njit(reproducible.exp)
    assert [log(x) for x in SPREAD] == [reproducible.log(x) for x in SPREAD]
    assert [exp(x) for x in EXPONENTS] == [reproducible.exp(x) for x in EXPONENTS]


def test_the_ends_of_the_exponential_are_finite():
    assert 0.0 < reproducible.exp(-1e9) < 1e-300
    assert 1e300 < reproducible.exp(1e9) < math.inf


def test_the_sine_is_right_and_its_zeros_are_exact():
    turns = np.linspace(-1.5, 1.5, 1201)
    assert arrays.sin_of_turns(turns) == pytest.approx(np.sin(2 * np.pi * turns), abs=2e-15)
    assert arrays.sin_of_turns(np.asarray([0.0, 0.5, 1.0, -0.5])).tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("function", "digest"),
    [(reproducible.log, "1dabce60473f530e"), (lambda x: reproducible.power(x, 0.37), "1683398ea70611d9")],
)
def test_the_bits_never_change(function, digest):
    bits = np.asarray([function(x) for x in SPREAD]).astype("<f8").tobytes()
    assert hashlib.sha256(bits).hexdigest()[:16] == digest


def test_the_table_of_gittins_indices_has_the_same_bits_everywhere():
    services = [100.0 * (number * number % 977) + 1.0 for number in range(977)]
    bits = np.asarray(index_table(services, 3250.0)).astype("<f8").tobytes()
    assert hashlib.sha256(bits).hexdigest()[:16] == "f778d6f892613797"
