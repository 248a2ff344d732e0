"""Plans under limits: the cheapest that keeps all of them, down to the last unit, against trying all."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.optimize import linprog

from berth.plan.limits import FOUND, NONE, TOO_MANY, labelled, priced
from berth.plan.problem import DevicePool, Problem, make_problem

LAYERS, KINDS = 4, 3
PRICES = (0.5, 1.7, 3.1)
TAU = 1 / 10_000.0  # seconds for an example
PLENTY = (1000, 1000, 1000)


def problem(seed: int, limits: tuple[int, ...], memory: float | None = None) -> Problem:
    random = np.random.default_rng(seed)
    shape = (LAYERS, KINDS)
    return make_problem(
        batch=4096,
        throughput=1 / TAU,
        types=tuple(DevicePool(f"t{k}", PRICES[k], limits[k], memory) for k in range(KINDS)),
        layers=tuple("abcd"),
        oct_s=random.uniform(0.3, 2.0, shape) / [1.0, 3.0, 6.0],
        odt_s=random.uniform(0.1, 1.0, shape),
        alpha=random.uniform(0.97, 1.0, shape),
        beta=random.uniform(0.97, 1.0, shape),
        cross_s=[0.2, 0.4, 0.1, 9.0],
        replicated_bytes=[1.0, 2.0, 0.5, 1.0],
        sharded_bytes=[40.0, 0.0, 9.0, 0.0],
    )


def stage_units(of: Problem, kind: int, layers: list[int]) -> float:
    """Units that one stage needs at TAU; infinite where none are enough."""
    crossed = sum(of.cross_s[at] for at in (layers[0] - 1, layers[-1]) if 0 <= at < LAYERS - 1)
    needs = [1.0]
    for whole_s, share, more_s in ((of.oct_s, of.alpha, 0.0), (of.odt_s, of.beta, crossed)):
        serial = sum(whole_s[at, kind] * (1 - share[at, kind]) for at in layers) / of.batch
        shared = (sum(whole_s[at, kind] * share[at, kind] for at in layers) + more_s) / of.batch
        needs.append(math.ceil(shared / (TAU - serial) * (1 - 1e-9)) if serial < TAU else math.inf)
    memory = of.types[kind].memory_bytes or math.inf
    held, spread = (sum(column[at] for at in layers) for column in (of.replicated_bytes, of.sharded_bytes))
    if held + spread > memory:
        needs.append(math.ceil(spread / (memory - held)) if held < memory else math.inf)
    return max(needs)


def units_of(of: Problem, assignment: tuple[int, ...]) -> list[float]:
    """Units of every type; infinite where a stage alone breaks a limit."""
    used = [0.0] * KINDS
    for kind, group in itertools.groupby(range(LAYERS), assignment.__getitem__):
        units = stage_units(of, kind, list(group))
        used[kind] += units if units <= of.types[kind].limit else math.inf
    return used


@cache
def ways(of: Problem) -> np.ndarray:
    """[assignment, type]: units of all assignments whose stages keep the limits one by one."""
    used = (units_of(of, assignment) for assignment in itertools.product(range(KINDS), repeat=LAYERS))
    return np.array([row for row in used if math.isfinite(sum(row))])


def cheapest(of: Problem) -> tuple[float, list[float]]:
    """By trying all assignments: dollars per hour, and the units of each type."""
    limits = [one.limit for one in of.types]
    kept = [(float(np.dot(used, PRICES)), used.tolist()) for used in ways(of) if (used <= limits).all()]
    return min(kept, default=(math.inf, []))


def asked(of: Problem, cutoff: float, prices: np.ndarray | None = None) -> tuple[int, float, list[int]]:
    given = np.zeros(KINDS) if prices is None else prices
    status, rate, assignment = labelled(of.arrays, TAU, given, cutoff, 4000, 1_000_000, 0)
    return status, rate, assignment.tolist()


@cache
def scarce(seed: int, memory: float | None = None) -> list[Problem]:
    """Ever tighter limits: each time the type that the best plan uses most of gets as scarce, then scarcer."""
    limits, found = list(PLENTY), []
    _, used = cheapest(problem(seed, PLENTY, memory))
    for _ in range(4):
        most = int(np.argmax(used))
        limits[most] = int(used[most])
        for spared in (0, 1):
            limits[most] -= spared
            found.append(problem(seed, tuple(limits), memory))
            rate, used = cheapest(found[-1])
            if rate == math.inf:
                return found
    return found


@pytest.mark.parametrize("memory", [None, 12.0, 3.6], ids=["any", "some memory", "little memory"])
@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_plan_under_limits_is_found_even_if_it_uses_all_there_is(seed, memory):
    prices = np.random.default_rng(seed).uniform(0, 1, KINDS)
    for of in scarce(seed, memory):
        rate, _ = cheapest(of)
        for given in (np.zeros(KINDS), prices):  # whatever the prices on limits are
            status, found, assignment = asked(of, 1e6, given)
            assert status == (NONE if rate == math.inf else FOUND)
            assert found == pytest.approx(rate)
            if status == FOUND:
                assert np.dot(units_of(of, tuple(assignment)), PRICES) == pytest.approx(rate)


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_that_costs_as_much_as_the_cutoff_is_not_below_it(seed):
    for of in scarce(seed)[:-1]:
        rate, _ = cheapest(of)
        _, sought, _, _ = priced(of.arrays, TAU, np.zeros(KINDS), 1e6, 60)
        for prices in (np.zeros(KINDS), np.array([0.3, 0.0, 0.9]), sought):
            assert asked(of, rate, prices)[0] == NONE
            assert asked(of, rate * (1 + 1e-6), prices)[:2] == (FOUND, pytest.approx(rate))


def labels_needed(of: Problem, cutoff: float, prices: np.ndarray) -> int:
    """The fewest labels with which the search comes to its end."""
    ends = (n for n in range(1, 4000) if labelled(of.arrays, TAU, prices, cutoff, n, 10**6, 0)[0] != TOO_MANY)
    return next(ends)


@pytest.mark.parametrize("seed", range(6))
def test_what_can_not_stay_below_the_cutoff_is_not_followed(seed):
    of = scarce(seed)[1]
    rate, _ = cheapest(of)
    _, sought, _, _ = priced(of.arrays, TAU, np.zeros(KINDS), 1e6, 60)
    for prices in (np.zeros(KINDS), sought):
        assert labels_needed(of, rate, prices) < labels_needed(of, 1e6, prices) / 2


@pytest.mark.parametrize("seed", range(6))
def test_a_beam_finds_a_plan_that_keeps_the_limits_and_a_wide_one_the_best(seed):
    for of in scarce(seed)[:-1]:
        rate, _ = cheapest(of)
        limits = [one.limit for one in of.types]
        for beam in (1, 3, 100):
            status, found, assignment = labelled(of.arrays, TAU, np.zeros(KINDS), 1e6, 4000, 10**6, beam)
            if status == FOUND:
                used = units_of(of, tuple(assignment))
                assert np.dot(used, PRICES) == pytest.approx(found)
                assert (np.array(used) <= limits).all()
            assert beam < 100 or found == pytest.approx(rate)


def test_a_beam_of_one_keeps_a_path_for_every_end_of_a_stage():
    of = problem(1, PLENTY)
    kept = 1 + LAYERS * KINDS  # the empty path, and one for each last layer and type
    for most, status in ((kept, FOUND), (kept - 1, TOO_MANY)):
        assert labelled(of.arrays, TAU, np.zeros(KINDS), 1e6, most, 10**6, 1)[0] == status


def test_labels_beyond_what_is_allowed_end_the_search_without_an_answer():
    of = problem(1, PLENTY)
    enough = next(
        n for n in range(1, 4000) if labelled(of.arrays, TAU, np.zeros(KINDS), 1e6, n, 10**6, 0)[0] == FOUND
    )
    assert enough > 1 + LAYERS * KINDS
    for most in range(1, enough, 7):
        assert labelled(of.arrays, TAU, np.zeros(KINDS), 1e6, most, 10**6, 0)[0] == TOO_MANY
    patient = next(
        n for n in range(4000) if labelled(of.arrays, TAU, np.zeros(KINDS), 1e6, 4000, n, 0)[0] == FOUND
    )
    looked = sum(  # each path to an end of a stage is looked at once for each stage of another type behind it
        (LAYERS - 1 - last) * (KINDS - 1) * kept for last, kept in enumerate(paths_kept(of))
    )
    assert patient == looked


def paths_kept(of: Problem) -> list[int]:
    """By the last layer of their last stage: paths that no other of the same end undercuts."""
    kept: list[list[list[tuple[float, ...]]]] = []
    for last in range(LAYERS):
        ends = []
        for kind in range(KINDS):
            paths = []
            for first in range(last + 1):
                before = (
                    [(0.0,) * KINDS]
                    if first == 0
                    else [used for other in range(KINDS) if other != kind for used in kept[first - 1][other]]
                )
                units = stage_units(of, kind, list(range(first, last + 1)))
                paths += [tuple(n + units * (k == kind) for k, n in enumerate(used)) for used in before]
            ends.append(undominated(paths))
        kept.append(ends)
    return [sum(map(len, ends)) for ends in kept]


def undominated(paths: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """In units of every type; equal ones count once."""
    return [
        one
        for one in set(paths)
        if not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in paths)
    ]


# --- prices on the limits ---


def best_bound(of: Problem) -> float:
    """The highest bound that any prices give: a linear program over all assignments."""
    used, limits = ways(of), np.array([one.limit for one in of.types], float)
    # Highest rate - prices . limits such that no assignment is cheaper than the rate at prices and own prices.
    found = linprog(
        [-1.0, *limits],
        A_ub=np.column_stack([np.ones(len(used)), -used]),
        b_ub=used @ np.array(PRICES),
        bounds=[(None, None), *[(0, None)] * KINDS],
    )
    return -float(found.fun) if found.status == 0 else math.inf


def bound_at(of: Problem, prices: np.ndarray) -> float:
    """What prices on the limits prove, by trying all assignments."""
    return float((ways(of) @ (np.array(PRICES) + prices)).min() - prices @ [one.limit for one in of.types])


@pytest.mark.parametrize("memory", [None, 12.0], ids=["any", "some memory"])
@pytest.mark.parametrize("seed", range(6))
def test_prices_on_limits_give_valid_bounds(seed, memory):
    for of in scarce(seed, memory):
        rate, _ = cheapest(of)
        limits = [one.limit for one in of.types]
        for steps in (1, 3, 10, 60):
            bound, prices, kept_rate, kept = priced(of.arrays, TAU, np.zeros(KINDS), 1e6, steps)
            assert (prices >= 0).all()
            if len(ways(of)):
                assert bound == pytest.approx(bound_at(of, prices))
                assert bound <= best_bound(of) * (1 + 1e-9)
            assert bound <= rate * (1 + 1e-9)
            if kept_rate < math.inf:
                used = units_of(of, tuple(kept.tolist()))
                assert np.dot(used, PRICES) == pytest.approx(kept_rate)
                assert (np.array(used) <= limits).all()
                assert kept_rate >= rate * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_prices_on_limits_come_near_the_best_that_prices_can_prove(seed):
    for of in scarce(seed)[:-1]:
        free = bound_at(of, np.zeros(KINDS))
        bound, prices, _, _ = priced(of.arrays, TAU, np.zeros(KINDS), 1e6, 200)
        assert bound >= free
        assert bound >= best_bound(of) * (1 - 2e-3)
        again, *_ = priced(of.arrays, TAU, prices, 1e6, 1)
        assert again == pytest.approx(bound)  # they are given back as they can be used again


def test_limits_that_do_not_bind_have_no_price():
    of = problem(1, PLENTY)
    rate, used = cheapest(of)
    bound, prices, kept_rate, kept = priced(of.arrays, TAU, np.zeros(KINDS), 1e6, 60)
    assert bound == kept_rate == pytest.approx(rate)
    assert prices.tolist() == [0.0] * KINDS
    assert units_of(of, tuple(kept.tolist())) == used
    just = problem(1, tuple(max(1, int(units)) for units in used))  # all that there is, and no more
    assert priced(just.arrays, TAU, np.zeros(KINDS), 1e6, 60)[2] == pytest.approx(rate)


def test_limits_that_no_plan_keeps_are_shown_by_a_bound_above_everything_there_is():
    of = problem(5, (3, 3, 3))
    assert len(ways(of)) > 0  # every stage of some plans keeps the limits by itself
    assert cheapest(of)[0] == best_bound(of) == math.inf
    bound, *_ = priced(of.arrays, TAU, np.zeros(KINDS), math.inf, 400)
    assert sum(one.usd_per_hour * one.limit for one in of.types) < bound < math.inf


def test_prices_are_not_sought_beyond_the_target():
    of = next(one for one in scarce(2) if best_bound(one) > bound_at(one, np.zeros(KINDS)) * 1.01)
    free, best = bound_at(of, np.zeros(KINDS)), best_bound(of)
    half = (free + best) / 2
    bounds = [priced(of.arrays, TAU, np.zeros(KINDS), half, steps)[0] for steps in range(1, 60)]
    reached = next(bound for bound in bounds if bound >= half)
    assert reached < max(priced(of.arrays, TAU, np.zeros(KINDS), best, steps)[0] for steps in (50, 200))
    assert bounds[-1] == reached  # and not a step farther
    assert priced(of.arrays, TAU, np.zeros(KINDS), free, 200)[0] == pytest.approx(free)
