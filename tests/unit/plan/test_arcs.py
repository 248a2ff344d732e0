"""Lists of stages that still matter: none is left out that a path below the cutoff could use."""

from __future__ import annotations

import numpy as np
import pytest

from berth.plan.arcs import ArcLists, Arcs, list_arcs, min_rate_over, prune_arcs
from berth.plan.problem import Problem
from berth.plan.search import exact as module
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.shortest_path import min_rate
from berth.testing.problems import naive_stage_s, random_problem

LAYERS, KINDS = 7, 3
Stage = tuple[int, int, int]  # first layer, last layer, type


def rates(of: Problem, tau: float) -> dict[Stage, float]:
    """Dollars per hour of every stage at tau, by trying one unit after the other."""
    found = {}
    for kind, one in enumerate(of.types):
        for last in range(LAYERS):
            for first in range(last + 1):
                counts = range(1, one.limit + 1)
                holds = (n for n in counts if naive_stage_s(of, kind, first, last, n) <= tau * (1 + 1e-9))
                units = next(holds, None)
                if units is not None and of.allowed[first : last + 1, kind].all():
                    found[first, last, kind] = one.usd_per_hour * units
    return found


def through(of: Problem, tau: float) -> dict[Stage, float]:
    """For every stage the least price per hour of a whole path through it."""
    known = rates(of, tau)
    head = {(-1, -1): 0.0}  # (last layer, its type): the cheapest way there
    for last in range(LAYERS):
        for kind in range(KINDS):
            ways = [
                known[first, last, kind] + cost
                for first in range(last + 1)
                if (first, last, kind) in known
                for (end, other), cost in head.items()
                if end == first - 1 and other != kind
            ]
            head[last, kind] = min(ways, default=np.inf)
    tail = {(LAYERS, -1): 0.0}  # (first layer, its type): the cheapest way from there on
    for first in range(LAYERS - 1, -1, -1):
        for kind in range(KINDS):
            ways = [
                known[first, last, kind] + cost
                for last in range(first, LAYERS)
                if (first, last, kind) in known
                for (begin, other), cost in tail.items()
                if begin == last + 1 and other != kind
            ]
            tail[first, kind] = min(ways, default=np.inf)
    return {
        (first, last, kind): cost
        + min(value for (end, other), value in head.items() if end == first - 1 and other != kind)
        + min(value for (begin, other), value in tail.items() if begin == last + 1 and other != kind)
        for (first, last, kind), cost in known.items()
    }


def listed(arcs: Arcs) -> set[Stage]:
    return {
        (int(arcs.first[place]), last, int(arcs.device[place]))
        for last in range(LAYERS)
        for place in range(arcs.begin[last], arcs.begin[last + 1])
    }


def problem(seed: int) -> Problem:
    of = random_problem(LAYERS, KINDS, seed, throughput=500.0, limit=60, serial=0.1)
    return of.pinned("layer2", "t1") if seed % 2 else of


@pytest.mark.parametrize("seed", range(6))
def test_exactly_the_stages_on_paths_below_the_cutoff_are_listed(seed):
    of = problem(seed)
    paths = through(of, of.arrays.slowest)
    least = min(paths.values())
    for factor in (1.001, 1.1, 1.5, 1000.0):
        rate, arcs = list_arcs(of.arrays, of.arrays.slowest, least * factor)
        assert rate == pytest.approx(least)
        assert listed(arcs) == {stage for stage, cost in paths.items() if cost < least * factor}
        again, assignment, used = min_rate_over(of.arrays, arcs, of.arrays.slowest)
        plain = min_rate(of.arrays, of.arrays.slowest)
        assert again == plain[0]
        assert assignment.tolist() == plain[1].tolist()
        assert used.tolist() == plain[2].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_a_list_is_narrowed_to_what_a_faster_stage_time_leaves(seed):
    of = problem(seed)
    least = min(through(of, of.arrays.slowest).values())
    _, wide = list_arcs(of.arrays, of.arrays.slowest, least * 2)
    faster = of.arrays.slowest * 0.9
    paths = through(of, faster)
    for cutoff in (least * 1.15, least * 1.4):
        rate, narrow = prune_arcs(of.arrays, wide, faster, cutoff)
        assert rate == pytest.approx(min(paths.values()))
        assert listed(narrow) == {stage for stage, cost in paths.items() if cost < cutoff}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cutoff_that_nothing_is_below_leaves_no_list(seed):
    of = problem(seed)
    rate, arcs = list_arcs(of.arrays, of.arrays.slowest, 1e9)
    assert len(listed(arcs)) > 0
    for _, nothing in (
        list_arcs(of.arrays, of.arrays.slowest, rate * 0.99),
        prune_arcs(of.arrays, arcs, of.arrays.slowest, rate * 0.99),
    ):
        assert listed(nothing) == set()


def test_more_stages_than_there_was_room_for_are_listed_all_the_same():
    of = random_problem(40, 2, 0, throughput=0.01, serial=0.0)
    _, arcs = list_arcs(of.arrays, of.arrays.slowest, 1e9)
    assert len(arcs.first) == 2 * 40 * 41 / 2 > 16 * 40


@pytest.mark.parametrize("seed", range(4))
def test_falling_stage_times_get_the_least_rate_or_a_bound_below_it(seed):
    of = problem(seed)
    best = exact(of, Budget()).certificate.best
    narrowing, attained = ArcLists(of.arrays), 0
    tau = of.arrays.slowest
    while tau > 0.3 * of.arrays.slowest:
        rate, assignment, _ = narrowing.min_rate(tau, best)
        plain = min_rate(of.arrays, tau)
        if assignment is None:
            assert rate <= plain[0]
            assert tau * (of.fixed_usd_per_hour + rate) >= best * (1 - 1e-9)
        else:
            attained += 1
            assert rate == plain[0]
            assert assignment.tolist() == plain[1].tolist()
        tau *= 0.997
    assert attained > 0


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_and_its_bound_are_the_same_with_lists(seed, monkeypatch):
    of = problem(seed)
    plain = exact(of, Budget())
    monkeypatch.setattr(module, "_MANY", 0)
    found = exact(of, Budget())
    assert found.plan.cost_usd == pytest.approx(plain.plan.cost_usd, rel=1e-9)
    assert found.lower_bound_usd == pytest.approx(plain.lower_bound_usd, rel=1e-8)
