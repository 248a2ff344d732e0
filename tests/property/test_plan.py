"""Planning against the plainest programs: every unit count, every assignment."""

from __future__ import annotations

from dataclasses import replace

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
from berth.testing.problems import assignments, naive_cost_usd, random_problem

LIMITS = st.integers(0, 120)
LAYERS_FOR = {1: 12, 2: 12, 3: 7, 4: 6}  # types -> layers with at most 4096 assignments


@st.composite
def problems(draw, most_types=4, limits=LIMITS, layers=None) -> Problem:
    types = draw(st.integers(1, most_types))
    problem = random_problem(
        draw(st.integers(1, layers or LAYERS_FOR[types])),
        types,
        draw(st.integers(0, 10**6)),
        throughput=draw(st.sampled_from([50.0, 300.0, 2000.0, 8000.0])),
        serial=draw(st.sampled_from([0.0, 0.001, 0.02, 0.2])),
        fixed=draw(st.sampled_from([0.0, 1.0, 30.0])),
    )
    if draw(st.booleans()):
        problem = problem.with_limits({one.name: draw(limits) for one in problem.types})
    if draw(st.booleans()):
        problem = with_memory(draw, problem)
    if draw(st.booleans()):
        kinds = st.integers(0, types - 1)
        problem = problem.pinned(problem.layers[0], problem.type_names[draw(kinds)])
    return problem


def with_memory(draw, problem: Problem) -> Problem:
    sizes = st.floats(0.0, 10.0)
    memory = draw(st.lists(st.floats(5.0, 60.0), min_size=len(problem.types), max_size=len(problem.types)))
    types = tuple(replace(one, memory_bytes=size) for one, size in zip(problem.types, memory, strict=True))
    count = len(problem.layers)
    held = [np.array(draw(st.lists(sizes, min_size=count, max_size=count))) for _ in range(2)]
    return replace(problem, types=types, replicated_bytes=held[0] / 4, sharded_bytes=held[1])


@given(problems(most_types=3, limits=st.integers(1, 7), layers=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_provisioning_is_as_cheap_as_the_best_of_all_unit_counts(problem, random):
    problem = problem.with_limits({one.name: min(one.limit, 7) for one in problem.types})
    assignment = [random.randrange(len(problem.types)) for _ in problem.layers]
    plan, best = cheapest(problem, assignment), naive_cost_usd(problem, assignment)
    if plan is None:
        assert best == np.inf
    else:
        assert plan.violations() == []
        assert plan.cost_usd == pytest.approx(best, rel=1e-8)


def equals_brute_force(problem: Problem) -> None:
    evaluator = Evaluator(problem)
    evaluator(np.array(list(assignments(problem))))
    outcome = exact(problem, Budget(seconds=60))
    if outcome.plan is None:
        assert evaluator.best is None
    else:
        assert outcome.plan.violations() == []
        assert outcome.plan.cost_usd == pytest.approx(evaluator.best_usd, rel=1e-8)
        assert outcome.lower_bound_usd == pytest.approx(outcome.plan.cost_usd, rel=1e-8)
    assert check(problem, outcome.plan, outcome.certificate) == []


@given(problems())
@settings(max_examples=120, deadline=None)
def test_exact_equals_brute_force_and_its_proof_checks(problem):
    equals_brute_force(problem)


@pytest.mark.soak
@given(problems())
@settings(max_examples=3000, deadline=None)
def test_exact_equals_brute_force_on_many(problem):
    equals_brute_force(problem)


@given(problems(most_types=2, layers=9))
@settings(max_examples=30, deadline=None)
def test_lists_of_stages_change_no_answer(problem):
    from berth.plan.search import exact as module

    whole = exact(problem, Budget())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MANY", 0)
        listed = exact(problem, Budget())
    assert (whole.plan is None) == (listed.plan is None)
    if whole.plan is not None:
        assert listed.plan.cost_usd == pytest.approx(whole.plan.cost_usd, rel=1e-8)
    assert check(problem, listed.plan, listed.certificate) == []
