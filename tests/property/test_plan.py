"""Planning against the plainest program: every cut, every choice, every count."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from berth.plan.certificate import check
from berth.plan.evaluate import Evaluator
from berth.plan.plan import cheapest
from berth.plan.problem import Problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from random_problems import assignments, naive_best_usd, random_problem, random_world

pytestmark = pytest.mark.slow
SEEDS = st.integers(0, 10**6)


@st.composite
def stated(draw, serial=(0.0, 0.02, 0.2)) -> Problem:
    """Problems as JSON states them, with few devices; `serial` is the share that replicas do not divide."""
    types = draw(st.integers(1, 3))
    problem = random_problem(
        draw(st.integers(1, 3)),
        types,
        draw(SEEDS),
        throughput=draw(st.sampled_from([50.0, 300.0, 1000.0])),
        serial=draw(st.sampled_from(serial)),
        fixed=draw(st.sampled_from([0.0, 1.0, 30.0])),
    )
    problem = problem.with_limits({one.name: draw(st.integers(0, 7)) for one in problem.types})
    if draw(st.booleans()):
        kinds = st.integers(0, types - 1)
        problem = problem.pinned(problem.layers[0], problem.type_names[draw(kinds)])
    return problem


@st.composite
def built(draw) -> Problem:
    """Problems as a model and a cluster give them, with few devices."""
    problem = random_world(
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(SEEDS),
        limit=draw(st.integers(2, 4)),
        micro=draw(st.sampled_from([(), (1,), (1, 4), (2, 8)])),
    )
    problem = problem.at(problem.throughput * draw(st.sampled_from([0.1, 0.5, 1.0, 2.0])))
    if draw(st.booleans()):
        problem = replace(problem, host=replace(problem.host, device=-1))
    return problem


def equals_brute_force(problem: Problem) -> None:
    best = naive_best_usd(problem)
    outcome = exact(problem, Budget(seconds=60))
    if outcome.plan is None:
        assert best == np.inf
    else:
        assert outcome.plan.violations() == []
        assert outcome.plan.cost_usd == pytest.approx(best, rel=1e-7)
        assert outcome.lower_bound_usd == pytest.approx(outcome.plan.cost_usd, rel=1e-7)
    assert check(problem, outcome.plan, outcome.certificate) == []


@given(stated() | built())
@settings(max_examples=120, deadline=None)
def test_exact_equals_brute_force_and_its_proof_checks(problem):
    equals_brute_force(problem)


@pytest.mark.soak
@given(stated() | built())
@settings(max_examples=3000, deadline=None)
def test_exact_equals_brute_force_on_many(problem):
    equals_brute_force(problem)


@given(stated() | built())
@settings(max_examples=60, deadline=None)
def test_no_assignment_is_cheaper_than_the_optimum_and_each_is_a_plan(problem):
    evaluator = Evaluator(problem)
    every = np.array(list(assignments(problem)))
    found = evaluator(every)
    optimum = exact(problem, Budget()).plan
    for row, cost in zip(every, found.cost_usd, strict=True):
        plan = cheapest(problem, row)
        assert (plan is None) == (not np.isfinite(cost))
        if plan is not None:
            assert plan.violations() == []
            assert plan.assignment == tuple(row)
            assert plan.cost_usd == pytest.approx(cost, rel=1e-8)
            assert optimum.cost_usd <= cost * (1 + 1e-8)
    assert (found.shortfall > 0).tolist() == (~np.isfinite(found.cost_usd)).tolist()


@given(stated(serial=(0.02, 0.2)) | built(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_types_entered_twice_or_in_another_order_change_no_optimum(problem, random):
    """Without limits a second name for a type is of no use; with limits the order of the types is of none either."""
    free = problem.with_limits({one.name: 10**9 for one in problem.types})
    same_optimum(exact(free, Budget()), exact(doubled(free), Budget()))
    order = list(range(len(problem.types)))
    random.shuffle(order)
    same_optimum(exact(problem, Budget()), exact(reordered(problem, order), Budget()))


def same_optimum(one, other) -> None:
    """Both are proven, and cost the same."""
    assert (one.plan is None) == (other.plan is None)
    if one.plan is not None:
        assert one.lower_bound_usd == pytest.approx(one.plan.cost_usd, rel=1e-7)
        assert other.lower_bound_usd == pytest.approx(other.plan.cost_usd, rel=1e-7)
        assert one.plan.cost_usd == pytest.approx(other.plan.cost_usd, rel=1e-7)


@given(stated(serial=(0.0,)))
@settings(max_examples=15, deadline=None)
def test_where_a_billion_devices_would_be_best_the_gap_is_stated_and_small(problem):
    """Replicas divide all work and fixed prices count: more devices always pay, and no proof is exact."""
    free = problem.with_limits({one.name: 10**9 for one in problem.types})
    # The gap is allowed after half of the time, which some of these would spend in full.
    one, other = (exact(given, Budget(seconds=2.0)) for given in (free, doubled(free)))
    assert check(free, one.plan, one.certificate) == []
    assert (one.plan is None) == (other.plan is None)
    if one.plan is not None:
        assert one.lower_bound_usd >= 0.99 * one.plan.cost_usd
        assert one.lower_bound_usd <= other.plan.cost_usd * (1 + 1e-8)
        assert other.lower_bound_usd <= one.plan.cost_usd * (1 + 1e-8)


def doubled(problem: Problem) -> Problem:
    """Every type twice, under two names."""
    count = len(problem.types)
    again = tuple(replace(one, name=f"{one.name} again") for one in problem.types)
    choices = tuple(replace(choice, device=choice.device + count) for choice in problem.choices)
    return replace(
        problem,
        types=problem.types + again,
        choices=problem.choices + choices,
        allowed=np.concatenate([problem.allowed] * 2, axis=1),
        **{
            name: np.concatenate([getattr(problem, name)] * 2)
            for name in ("facts", "curves", "cross", "ring", "message")
            if getattr(problem, name) is not None
        },
    )


def reordered(problem: Problem, order: list[int]) -> Problem:
    """The types in another order."""
    rows = [at for device in order for at, one in enumerate(problem.choices) if one.device == device]
    place = {device: at for at, device in enumerate(order)}
    host = problem.host
    return replace(
        problem,
        types=tuple(problem.types[device] for device in order),
        choices=tuple(replace(problem.choices[at], device=place[problem.choices[at].device]) for at in rows),
        allowed=problem.allowed[:, order],
        ring=problem.ring[order],
        host=replace(host, device=place[host.device]) if host.device >= 0 else host,
        **{
            name: getattr(problem, name)[rows]
            for name in ("facts", "curves", "cross", "message")
            if getattr(problem, name) is not None
        },
    )
