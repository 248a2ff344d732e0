"""Plans under limits: the cheapest that keeps all of them, down to the last unit, against trying all."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from berth.plan.limits import FOUND, NONE, labelled
from berth.plan.problem import Problem, UnitType, make_problem

LAYERS, KINDS = 4, 3
PRICES = (0.5, 1.7, 3.1)
TAU = 1 / 10_000.0  # seconds for an example


def problem(seed: int, limits: tuple[int, ...]) -> Problem:
    random = np.random.default_rng(seed)
    shape = (LAYERS, KINDS)
    return make_problem(
        batch=4096,
        throughput=1 / TAU,
        types=tuple(UnitType(f"t{k}", PRICES[k], limits[k]) for k in range(KINDS)),
        layers=tuple("abcd"),
        oct_s=random.uniform(0.3, 2.0, shape) / [1.0, 3.0, 6.0],
        odt_s=random.uniform(0.1, 1.0, shape),
        alpha=random.uniform(0.97, 1.0, shape),
        beta=random.uniform(0.97, 1.0, shape),
        cross_s=0.2,
    )


def units_of(of: Problem, assignment: tuple[int, ...]) -> list[float]:
    """Units of every type at TAU; infinite where none are enough."""
    used = [0.0] * KINDS
    for kind, group in itertools.groupby(range(LAYERS), assignment.__getitem__):
        layers = list(group)
        crossed = sum(of.cross_s[at] for at in (layers[0] - 1, layers[-1]) if 0 <= at < LAYERS - 1)
        needs = [1.0]
        for whole_s, share, more_s in ((of.oct_s, of.alpha, 0.0), (of.odt_s, of.beta, crossed)):
            serial = sum(whole_s[at, kind] * (1 - share[at, kind]) for at in layers) / of.batch
            shared = (sum(whole_s[at, kind] * share[at, kind] for at in layers) + more_s) / of.batch
            needs.append(math.ceil(shared / (TAU - serial) * (1 - 1e-9)) if serial < TAU else math.inf)
        used[kind] += max(needs)
    return used


def cheapest(of: Problem) -> tuple[float, list[float]]:
    """By trying all assignments: dollars per hour, and the units of each type."""
    best: tuple[float, list[float]] = (math.inf, [])
    for assignment in itertools.product(range(KINDS), repeat=LAYERS):
        used = units_of(of, assignment)
        if all(count <= one.limit for count, one in zip(used, of.types, strict=True)):
            best = min(best, (float(np.dot(used, PRICES)), used))
    return best


def asked(of: Problem, cutoff: float) -> tuple[int, float, list[int]]:
    status, rate, assignment = labelled(of.tables, TAU, np.zeros(KINDS), cutoff, 4000, 1_000_000, 0)
    return status, rate, assignment.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_plan_under_limits_is_found_even_if_it_uses_all_there_is(seed):
    free = problem(seed, (1000, 1000, 1000))
    rate, used = cheapest(free)
    limits = [1000, 1000, 1000]
    for _ in range(
        4
    ):  # each time the type that the best plan uses most of becomes one unit too scarce for it
        most = int(np.argmax(used))
        limits[most] = int(used[most])
        for spared in (0, 1):
            limits[most] -= spared
            of = problem(seed, tuple(limits))
            rate, used = cheapest(of)
            if rate == math.inf:
                assert asked(of, 1e6)[0] == NONE
                return
            status, found, assignment = asked(of, 1e6)
            assert status == FOUND
            assert found == pytest.approx(rate)
            assert units_of(of, tuple(assignment)) == pytest.approx(used)


def test_a_plan_as_dear_as_the_cutoff_is_not_below_it():
    of = problem(1, (1000, 1000, 1000))
    rate, _ = cheapest(of)
    assert asked(of, rate)[0] == NONE
    assert asked(of, rate * 1.001)[0] == FOUND
