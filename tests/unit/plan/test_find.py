"""The plan for names and figures, from Python."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from berth.errors import InputError, UnknownNameError
from berth.plan import PlanRequest, SearchOptions, find_plan
from berth.plan.objective.simulate import SimulatedObjective
from berth.plan.profile import load_layer_profile, write_profile
from berth.plan.rental import rented_pools
from berth.plan.request import ANY_RATE, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome
from berth.plan.solve import no_plan_error, no_plan_reason, search, solve
from berth.plan.world import WorldOptions

MODEL = {"model": "ctrdnn-8", "cluster": "cloud-mix"}


def test_the_cheapest_plan_holds_what_is_wanted_and_is_proven():
    found = find_plan(PlanRequest(**MODEL, throughput=500_000))
    assert found.plan is not None
    assert found.plan.throughput >= 500_000
    assert found.plan.violations() == []
    assert found.lower_bound_usd == pytest.approx(found.plan.cost_usd)


@pytest.mark.slow
def test_another_method_is_never_cheaper_than_the_proven_plan():
    exact, greedy = (
        find_plan(PlanRequest(**MODEL, throughput=500_000), SearchOptions(method=method))
        for method in ("exact", "greedy")
    )
    assert greedy.method == "greedy"
    assert greedy.plan.cost_usd >= exact.plan.cost_usd * (1 - 1e-9)


@pytest.mark.slow
def test_what_no_plan_can_hold_is_an_error_that_names_the_nearest():
    with pytest.raises(InputError, match="no plan holds") as refused:
        find_plan(PlanRequest(**MODEL, throughput=1e12))
    assert "the highest throughput with a plan" in str(refused.value)


@pytest.mark.slow
def test_under_a_price_it_is_the_fastest_plan():
    cheapest = find_plan(PlanRequest(**MODEL, throughput=500_000))
    price = 2 * cheapest.plan.cost_usd
    fastest = find_plan(PlanRequest(**MODEL, throughput=1.0, max_usd=price), SearchOptions())
    assert fastest.plan.cost_usd <= price * (1 + 1e-9)
    assert fastest.plan.throughput > cheapest.plan.throughput


@pytest.mark.slow
def test_a_price_holds_in_the_simulation_too():
    request = PlanRequest(1.0, model="ctrdnn", cluster="cloud-mix", world=WorldOptions(tables=("servers",)))
    problem = build_problem(request)

    def simulated_usd(plan, reached):
        return plan.cost_usd * plan.throughput / reached

    by_formula = search(problem, SearchOptions(), 2.0).plan
    reached = SimulatedObjective(problem).throughput_of(by_formula)
    assert by_formula.cost_usd <= 2.0 < simulated_usd(by_formula, reached) / 1.01
    solution = solve(replace(request, max_usd=2.0), problem, SearchOptions(), lambda _: nullcontext())
    assert simulated_usd(solution.outcome.plan, solution.simulated_throughput) <= 2.0 * 1.001
    assert solution.error is None
    assert "a plan for $2.00 costs more in the event simulation" in solution.outcome.note


@pytest.mark.slow
def test_a_price_below_that_of_every_plan_in_the_simulation_is_an_error():
    request = PlanRequest(1.0, model="ctrdnn", cluster="cloud-mix", world=WorldOptions(tables=("servers",)))
    least = exact(build_problem(request), Budget()).plan.cost_usd
    with pytest.raises(InputError, match=r"no plan was found that costs at most .* in the event simulation"):
        find_plan(replace(request, max_usd=least * 1.0001))


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.01, 1.05, 1.1])
def test_a_price_pays_for_servers_and_readers_too_and_the_next_faster_plan_is_above_it(share):
    cheapest = find_plan(PlanRequest(**MODEL, throughput=1.0)).plan
    most = share * cheapest.cost_usd
    request = PlanRequest(**MODEL, throughput=1.0, max_usd=most)
    problem = build_problem(request)
    plan = search(problem, SearchOptions(), most).plan  # by the formula; the simulation may need more
    assert plan.readers > 0
    assert sum(pool.usd_per_hour for pool in rented_pools(plan)) * plan.hours == pytest.approx(plan.cost_usd)
    assert plan.cost_usd <= most * (1 + 1e-9)
    faster = exact(problem.at(plan.throughput * (1 + 1e-6)), Budget()).plan
    assert faster.cost_usd > most


def test_the_tables_of_a_shipped_model_have_a_billion_rows_unless_it_is_said():
    assert build_problem(PlanRequest(**MODEL, throughput=1.0)).source.rows == 1e9
    few = build_problem(PlanRequest(**MODEL, throughput=1.0, world=WorldOptions(rows=1e6)))
    assert few.source.rows == 1e6


def test_a_profile_file_has_the_rows_that_were_profiled(tmp_path):
    profile = load_layer_profile("ctrdnn-8")
    write_profile(profile, tmp_path / "own.yaml")
    request = PlanRequest(model=str(tmp_path / "own.yaml"), cluster="cloud-mix", throughput=1.0)
    own = sum(layer.sparse_bytes / layer.row_bytes for layer in profile.layers)
    assert build_problem(request).source.rows == (profile.rows or own)


# --- weak scaling ---


def scaled(each, most=None, throughput=3e6):
    world = WorldOptions(batch=most, batch_per_replica=each, tables=("servers",))
    devices = ("cpu-core", "T4")
    return PlanRequest(model="ctrdnn-8", devices=devices, throughput=throughput, world=world)


@pytest.mark.slow
def test_the_batch_is_the_smallest_at_which_every_replica_has_its_examples():
    problem = build_problem(scaled(4096))
    plan = exact(problem, Budget()).plan
    replicas = max(stage.replicas for stage in plan.stages)
    assert problem.batch >= 4096 * replicas
    doublings = problem.batch / 4096
    assert doublings == 2 ** round(np.log2(doublings))
    half = build_problem(
        replace(scaled(4096), world=WorldOptions(batch=int(problem.batch // 2), tables=("servers",)))
    )
    found = exact(half, Budget()).plan
    assert found is None or max(stage.replicas for stage in found.stages) * 4096 > half.batch


@pytest.mark.slow
def test_a_batch_that_may_not_grow_so_far_is_an_error_with_what_it_gives():
    with pytest.raises(InputError, match="no batch up to 8,192 gives every replica 4,096 examples at 3M/s"):
        build_problem(scaled(4096, most=8192))


def test_weak_scaling_needs_a_throughput():
    with pytest.raises(InputError, match="needs a throughput"):
        build_problem(scaled(4096, throughput=ANY_RATE))


def test_each_replica_has_its_own_batch_in_async():
    world = WorldOptions(mode="async", batch_per_replica=512, staleness=9)
    problem = build_problem(PlanRequest(**MODEL, throughput=1e5, world=world))
    assert (problem.batch, problem.micro) == (512, ())
    assert problem.max_replicas == 10
    plan = exact(problem, Budget()).plan
    assert max(stage.replicas for stage in plan.stages) <= 10


def test_exact_that_ran_out_of_time_does_not_say_that_there_is_no_plan():
    problem = build_problem(PlanRequest(**MODEL, throughput=500_000))
    late = Outcome("exact", None, 7, 1.0, lower_bound_usd=0.0, note="no plan was found in the time allowed")
    assert "in the time allowed" in no_plan_reason(problem, late).reason
    said = str(no_plan_error(problem, late, no_plan_reason(problem, late)))
    assert "no plan holds" not in said
    assert "--cpu-time" in said


@pytest.mark.slow
def test_a_price_is_a_limit():
    free = find_plan(PlanRequest(**MODEL, throughput=1.0)).plan
    most = 4 * free.cost_usd
    plan = find_plan(PlanRequest(**MODEL, throughput=1.0, max_usd=most)).plan
    assert plan.throughput > free.throughput
    assert free.cost_usd < plan.cost_usd <= most


@pytest.mark.slow
def test_another_objective_refines_the_plan_of_the_formula():
    request = PlanRequest(**MODEL, throughput=10_000)
    found = find_plan(request, SearchOptions(objective="simulate", budget=Budget(evaluations=30)))
    assert found.plan is not None
    assert "modelled" in found.note


@pytest.mark.parametrize("wrong", [{"method": "exat"}, {"objective": "simulat:lanes=2"}])
def test_search_options_refuse_unknown_names(wrong):
    with pytest.raises(UnknownNameError):
        SearchOptions(**wrong)
