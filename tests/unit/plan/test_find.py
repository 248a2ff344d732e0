"""The plan for names and figures, from Python."""

from __future__ import annotations

import pytest

from berth.errors import InputError, UnknownNameError
from berth.plan import PlanRequest, SearchOptions, find_plan
from berth.plan.request import build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome
from berth.plan.solve import no_plan_error, no_plan_reason

MODEL = {"model": "ctrdnn-8", "cluster": "cloud-mix"}


def test_the_cheapest_plan_holds_what_is_wanted_and_is_proven():
    found = find_plan(PlanRequest(**MODEL, throughput=500_000))
    assert found.plan is not None
    assert found.plan.throughput >= 500_000
    assert found.plan.violations() == []
    assert found.lower_bound_usd == pytest.approx(found.plan.cost_usd)


def test_another_method_is_never_cheaper_than_the_proven_plan():
    exact, greedy = (
        find_plan(PlanRequest(**MODEL, throughput=500_000), SearchOptions(method=method))
        for method in ("exact", "greedy")
    )
    assert greedy.method == "greedy"
    assert greedy.plan.cost_usd >= exact.plan.cost_usd * (1 - 1e-9)


def test_what_no_plan_can_hold_is_an_error_that_names_the_nearest():
    with pytest.raises(InputError, match="no plan holds") as refused:
        find_plan(PlanRequest(**MODEL, throughput=1e12))
    assert "the highest throughput with a plan" in str(refused.value)


def test_under_a_price_it_is_the_fastest_plan():
    cheapest = find_plan(PlanRequest(**MODEL, throughput=500_000))
    price = 2 * cheapest.plan.cost_usd
    fastest = find_plan(PlanRequest(**MODEL, throughput=1.0, max_usd=price), SearchOptions())
    assert fastest.plan.cost_usd <= price * (1 + 1e-9)
    assert fastest.plan.throughput > cheapest.plan.throughput


@pytest.mark.parametrize("most", [0.6, 0.75, 1.5])
def test_a_price_covers_readers_and_servers_too_and_the_next_faster_plan_is_above_it(most):
    request = PlanRequest(**MODEL, throughput=1.0, max_usd=most)
    problem = build_problem(request)
    plan = find_plan(request).plan
    assert problem.source.serving_cores(plan.throughput).reader_cores > 0
    assert plan.cost_usd + problem.serving_usd(plan.throughput) <= most * (1 + 1e-9)
    faster = exact(problem.at(plan.throughput * (1 + 1e-6)), Budget()).plan
    assert faster.cost_usd + problem.serving_usd(faster.throughput) > most


def test_a_price_that_pays_for_devices_but_not_for_readers_is_refused_with_the_sum():
    cheapest = find_plan(PlanRequest(**MODEL, throughput=1.0)).plan
    with pytest.raises(InputError, match="reading and serving"):
        find_plan(PlanRequest(**MODEL, throughput=1.0, max_usd=cheapest.cost_usd * 1.01))


def test_exact_that_ran_out_of_time_does_not_say_that_there_is_no_plan():
    problem = build_problem(PlanRequest(**MODEL, throughput=500_000))
    late = Outcome("exact", None, 7, 1.0, lower_bound_usd=0.0, note="no plan was found in the time allowed")
    assert "in the time allowed" in no_plan_reason(problem, late).reason
    said = str(no_plan_error(problem, late, no_plan_reason(problem, late)))
    assert "no plan holds" not in said
    assert "--cpu-time" in said


def test_a_price_is_a_limit():
    free = find_plan(PlanRequest(**MODEL, throughput=1.0)).plan
    most = 4 * free.cost_usd
    plan = find_plan(PlanRequest(**MODEL, throughput=1.0, max_usd=most)).plan
    assert plan.throughput > free.throughput
    assert free.cost_usd < plan.cost_usd <= most


def test_another_objective_refines_the_plan_of_the_formula():
    request = PlanRequest(**MODEL, throughput=10_000)
    found = find_plan(request, SearchOptions(objective="simulate", budget=Budget(evaluations=30)))
    assert found.plan is not None
    assert "modelled" in found.note


@pytest.mark.parametrize("wrong", [{"method": "exat"}, {"objective": "simulat:lanes=2"}])
def test_search_options_refuse_unknown_names(wrong):
    with pytest.raises(UnknownNameError):
        SearchOptions(**wrong)
