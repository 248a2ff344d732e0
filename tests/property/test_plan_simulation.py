"""Every plan that is recommended holds its throughput in the event simulation."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from berth.plan.infeasible import highest_throughput
from berth.plan.objective.simulate import holds, simulated_throughput
from berth.plan.profile import shipped_profiles
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.solve import SearchOptions, solve
from berth.plan.world import MODES, SYNC, WorldOptions

CLUSTERS = ("cloud-mix", "dgx-a100-pod", "hgx-h100-pod")  # presets whose prices are known
MODELS = shipped_profiles()
LARGE = ("2emb", "ctrdnn", "ctrdnn-12", "ctrdnn-20", "matchnet")  # more than a second of CPU time
NEAR_THE_HIGHEST = (
    0.5  # above this share of the highest throughput by the formula, there may be no plan that holds
)


def requests(model: str, cluster: str, mode: str, shares: list[float]) -> list[PlanRequest]:
    """Requests for shares of the highest throughput by the formula."""
    world = WorldOptions(mode=mode)
    highest = highest_throughput(build_problem(PlanRequest(1.0, model=model, cluster=cluster, world=world)))
    return [PlanRequest(highest * share, model=model, cluster=cluster, world=world) for share in shares]


def recommended(request: PlanRequest) -> bool:
    """Check the plan of a request; return whether there is one."""
    problem = build_problem(request)
    solution = solve(request, problem, SearchOptions(), lambda phase: nullcontext(None))
    if solution.error is not None:
        assert "in the event simulation" in str(solution.error)
        return False
    found = solution.final
    assert found.plan is not None
    reached = simulated_throughput(found.plan)
    assert holds(problem, reached), (request, reached, found.note)
    assert found.plan.problem.throughput >= request.throughput
    # A plan without a margin is the formula's own; one with a margin says so.
    plain = exact(problem, Budget()).plan
    assert plain is not None
    assert ("sized for" in found.note) == (not holds(problem, simulated_throughput(plain)))
    return True


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=pytest.mark.slow if model in LARGE else ()) for model in MODELS]
)
def test_every_recommended_plan_holds_its_throughput_in_the_simulation(model: str, mode: str) -> None:
    assert all(map(recommended, requests(model, "cloud-mix", mode, [0.05, NEAR_THE_HIGHEST])))


@pytest.mark.slow
def test_a_plan_of_the_formula_that_does_not_hold_gets_a_margin() -> None:
    """The property would be empty if every plan of the formula held."""
    asked = requests("cnn", "cloud-mix", SYNC, [0.9 * 10 ** (-step / 5) for step in range(1, 6)])
    broken = [request for request in asked if not formula_holds(request)]
    assert broken
    assert all(map(recommended, broken))


def formula_holds(request: PlanRequest) -> bool:
    """Return whether the optimum of the formula holds as it is."""
    problem = build_problem(request)
    plan = exact(problem, Budget()).plan
    assert plan is not None
    return holds(problem, simulated_throughput(plan))


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_plans_of_all_models_and_clusters_hold(model: str, cluster: str, mode: str) -> None:
    shares = [0.9 * 10 ** (-step / 5) for step in range(16)]
    for share, request in zip(shares, requests(model, cluster, mode, shares), strict=True):
        assert recommended(request) or share > NEAR_THE_HIGHEST, request
