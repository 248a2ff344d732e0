"""Every plan that is recommended holds its throughput in the event simulation."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from berth.errors import InputError
from berth.plan.infeasible import highest_throughput
from berth.plan.objective.simulate import holds, simulated_throughput
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.solve import SearchOptions, find_plan, solve
from berth.plan.world import MODES, WorldOptions

CLUSTERS = ("cloud-mix", "dgx-a100-pod", "hgx-h100-pod")
MODELS = ("ctrdnn", "ctrdnn-8", "ctrdnn-12", "ctrdnn-20", "matchnet", "2emb", "nce", "transformer", "cnn")


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
        with pytest.raises(InputError):
            find_plan(request)
        return False
    found = find_plan(request)
    assert found.plan is not None
    reached = simulated_throughput(found.plan)
    assert holds(problem, reached), (request, reached, found.note)
    assert found.plan.problem.throughput >= request.throughput
    # A plan without a margin is the formula's own; one with a margin says so.
    plain = exact(problem, Budget()).plan
    assert plain is not None
    assert ("sized for" in found.note) == (not holds(problem, simulated_throughput(plain)))
    return True


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["ctrdnn-8", "nce", "transformer", "cnn"])
def test_every_recommended_plan_holds_its_throughput_in_the_simulation(model: str, mode: str) -> None:
    asked = requests(model, "cloud-mix", mode, [0.02, 0.1, 0.25, 0.4, 0.6, 0.8])
    assert sum(map(recommended, asked)) >= len(asked) - 1


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_plans_of_all_models_and_clusters_hold(model: str, cluster: str, mode: str) -> None:
    shares = [0.9 * 10 ** (-step / 5) for step in range(16)]
    asked = requests(model, cluster, mode, shares)
    assert sum(map(recommended, asked)) >= len(asked) - 2
