"""The exact search: what it returns, what its proof consists of, and that a false proof is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from berth.plan.certificate import check
from berth.plan.frontier import fastest_under, frontier
from berth.plan.infeasible import diagnose
from berth.plan.plan import cheapest, with_replicas
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.search.exact import ProofStep, WarmStart, exact, neighbours
from berth.plan.search.method import Budget
from berth.testing.problems import random_problem

FREE = random_problem(12, 3, 7)
BOUND = random_problem(12, 3, 7).with_limits({"t0": 12, "t1": 3, "t2": 2}).at(600.0)


def solved(problem):
    outcome = exact(problem, Budget())
    assert outcome.plan is not None
    return outcome


def two_types(**changes):
    facts = {
        "batch": 1,
        "throughput": 1.0,
        "types": (DevicePool("cpu", 1.0, 4), DevicePool("gpu", 5.0, 2)),
        "layers": ("embedding", "dense"),
        "oct_s": [[0.5, 0.5], [4.0, 0.8]],
        "odt_s": [[0.5, 2.0], [0.1, 0.1]],
        "alpha": 1.0,
        "beta": 1.0,
        "cross_s": [0.1, 0.0],
        "samples": 3600,
    }
    return make_problem(**(facts | changes))


def test_a_toy_by_hand():
    # The embedding on one core (0.5 + crossing 0.1), the dense layer on one gpu: $6/h at 0.8 s an example.
    # All on cores needs 5, all on gpus 3 for the 2.1 s of data. Nothing else has enough units.
    outcome = solved(two_types())
    assert outcome.plan.types_of_layers == ("cpu", "gpu")
    assert [stage.replicas for stage in outcome.plan.stages] == [1, 1]
    assert outcome.plan.throughput == pytest.approx(1 / 0.8)
    assert outcome.plan.cost_usd == pytest.approx(0.8 * 6)
    assert outcome.lower_bound_usd == pytest.approx(outcome.plan.cost_usd)


def test_a_faster_plan_than_wanted_is_taken_when_it_is_cheaper():
    # At a throughput of 1 two units do (0.9 s); three finish in 0.6 s for the same work and less fixed price.
    problem = make_problem(
        batch=1, throughput=1.0, types=(DevicePool("cpu", 1.0, 3),), layers=("only",), oct_s=1.8, odt_s=0,
        alpha=1, beta=1, fixed_usd_per_hour=10.0, samples=3600,
    )  # fmt: skip
    plan = solved(problem).plan
    assert plan.stages[0].replicas == 3
    assert plan.cost_usd == pytest.approx(0.6 * 13)


def test_a_throughput_met_exactly_is_met():
    problem = make_problem(
        batch=1, throughput=3.0, types=(DevicePool("cpu", 1.0, 3),), layers=("only",), oct_s=1.0, odt_s=0,
        alpha=1, beta=1,
    )  # fmt: skip
    assert solved(problem).plan.stages[0].replicas == 3


@pytest.mark.parametrize("problem", [FREE, BOUND], ids=["free", "limits bind"])
class TestProof:
    def test_holds(self, problem):
        outcome = solved(problem)
        assert check(problem, outcome.plan, outcome.certificate) == []

    def test_a_step_left_out_is_noticed(self, problem):
        outcome = solved(problem)
        for drop in range(len(outcome.certificate.steps)):
            steps = list(outcome.certificate.steps)
            steps.pop(drop)
            assert check(problem, outcome.plan, replace(outcome.certificate, steps=tuple(steps)))

    def test_a_bound_claimed_too_high_is_noticed(self, problem):
        outcome = solved(problem)
        for row, step in enumerate(outcome.certificate.steps):
            if step.kind == "work" or step.bound == np.inf:
                continue
            steps = list(outcome.certificate.steps)
            steps[row] = replace(step, bound=step.bound * 1.5)
            assert check(problem, outcome.plan, replace(outcome.certificate, steps=tuple(steps)))

    def test_a_lower_bound_claimed_too_high_is_noticed(self, problem):
        outcome = solved(problem)
        claimed = replace(outcome.certificate, lower=outcome.certificate.lower * 1.01)
        assert check(problem, outcome.plan, claimed)

    @pytest.mark.parametrize(
        ("step", "wrong"),
        [
            (ProofStep(1.0, 0.0, 0.0, "relaxed"), "it reaches 0"),
            (ProofStep(1.0, 0.0, 1e-9, "priced", (0.0, 0.0, 0.0)), "it reaches 0"),
            (ProofStep(1.0, 0.0, np.inf, "priced", (-1e3, -1e3, -1e3)), "non-negative price"),
            (ProofStep(1.0, 0.0, np.inf, "priced", (np.nan, 0.0, 0.0)), "non-negative price"),
            (ProofStep(1.0, 0.0, np.inf, "labelled", ()), "for each type"),
            (ProofStep(1.0, 0.0, np.inf, "believe me", (0.0, 0.0, 0.0)), "unknown kind"),
            (ProofStep(np.nan, 0.0, np.inf, "relaxed"), "not a number"),
            (ProofStep(np.nan, 0.0, np.inf, "work"), "not a number"),
            (ProofStep(np.inf, 0.0, np.inf, "relaxed"), "not a number"),
            (ProofStep(1.0, np.nan, 1.0, "relaxed"), "not a number"),
            (ProofStep(1.0, 0.0, np.nan, "relaxed"), "not a number"),
        ],
    )
    def test_one_step_that_shows_nothing_proves_nothing(self, problem, step, wrong):
        outcome = solved(problem)
        found = check(problem, outcome.plan, replace(outcome.certificate, steps=(step,)))
        assert len(found) == 1
        assert wrong in found[0]

    def test_a_lower_bound_that_is_not_a_number_is_refused(self, problem):
        outcome = solved(problem)
        claimed = replace(outcome.certificate, lower=np.nan)
        assert check(problem, outcome.plan, claimed) == ["the claimed lower bound is not a number"]

    def test_another_plan_than_the_one_proven_is_noticed(self, problem):
        outcome = solved(problem)
        others = neighbours(np.array(outcome.plan.assignment), len(problem.types))
        other = next(plan for plan in (cheapest(problem, row) for row in others) if plan is not None)
        assert check(problem, other, outcome.certificate)

    def test_an_easier_problem_is_not_proven_by_it(self, problem):
        outcome = solved(problem)
        cheaper = tuple(replace(one, usd_per_hour=one.usd_per_hour / 2) for one in problem.types)
        assert check(replace(problem, types=cheaper), outcome.plan, outcome.certificate)


def test_limits_that_bind_are_proven_with_prices_on_them():
    kinds = {step.kind for step in solved(BOUND).certificate.steps}
    assert kinds & {"priced", "labelled"}


def test_what_is_known_from_another_throughput_changes_no_answer():
    known = WarmStart()
    for throughput in (100.0, 300.0, 600.0, 500.0):
        problem = BOUND.at(throughput)
        again, fresh = exact(problem, Budget(), known=known), exact(problem, Budget())
        assert again.plan.cost_usd == pytest.approx(fresh.plan.cost_usd, rel=1e-8)
        assert check(problem, again.plan, again.certificate) == []


def test_the_frontier_is_the_optimum_at_every_throughput():
    plans = frontier(BOUND)
    assert all(a.throughput < b.throughput for a, b in pairwise(plans))
    assert all(a.cost_usd <= b.cost_usd * (1 + 1e-9) for a, b in pairwise(plans))
    for slower, faster in zip(plans[::7], plans[1::7], strict=False):
        between = (slower.throughput + faster.throughput) / 2
        assert solved(BOUND.at(between)).plan.cost_usd == pytest.approx(faster.cost_usd, rel=1e-8)
    assert exact(BOUND.at(plans[-1].throughput * 1.001), Budget()).plan is None


def test_the_fastest_plan_under_a_price_is_on_the_frontier():
    plans = frontier(BOUND)
    for row in (0, len(plans) // 2, len(plans) - 1):
        found = fastest_under(BOUND.at(1e-3), plans[row].cost_usd)
        assert found.plan.throughput == pytest.approx(plans[row].throughput, rel=1e-5)


def test_a_price_exceeded_by_a_hair_takes_few_searches():
    plans = frontier(BOUND)
    top, usd, asked = plans[-1], 2 * plans[-1].cost_usd, []

    class Served(Problem):
        def serving_usd(self, throughput):
            asked.append(throughput)
            assert len(asked) < 2 * len(plans), "the limit hardly falls"
            is_top = throughput > plans[-2].throughput * (1 + 1e-6)
            return (usd - top.cost_usd) * (1 + 1e-6) if is_top else 0.0

    served = Served(**{field.name: getattr(BOUND, field.name) for field in fields(BOUND)})
    found = fastest_under(served.at(1e-3), usd)
    assert found.plan.throughput == pytest.approx(plans[-2].throughput, rel=1e-5)


def test_a_price_below_every_plan_is_noted():
    found = fastest_under(BOUND, 0.01)
    assert "cheapest plan costs" in found.note


class TestInfeasible:
    def test_too_few_devices(self):
        found = diagnose(two_types(throughput=10.0))
        assert found.throughput == pytest.approx(1 / 0.4)  # two gpus on the dense layer, cores for the rest
        assert exact(two_types(throughput=found.throughput * (1 - 1e-6)), Budget()).plan is not None
        assert found.limits == {"cpu": 45, "gpu": 21}  # all 4.5 s of computation, or all 2.1 s of data

    def test_the_limit_that_would_do(self):
        found = diagnose(two_types(throughput=3.0))
        assert set(found.limits) == {"cpu", "gpu"}
        for name, limit in found.limits.items():
            assert exact(two_types(throughput=3.0).with_limits({name: limit}), Budget()).plan is not None
            assert exact(two_types(throughput=3.0).with_limits({name: limit - 1}), Budget()).plan is None

    def test_a_layer_that_does_not_parallelise(self):
        found = diagnose(two_types(throughput=3.0, alpha=[[1.0, 1.0], [0.5, 0.5]]))
        assert found.layer == "dense"
        assert "with any number of replicas" in found.reason
        assert 0 < found.throughput < 3.0

    def test_a_layer_that_may_run_nowhere(self):
        problem = two_types(allowed=[[False, False], [True, True]])
        assert "no type" in diagnose(problem).reason

    def test_a_layer_that_fits_nowhere(self):
        types = (DevicePool("cpu", 1.0, 4, 10.0), DevicePool("gpu", 5.0, 2, 10.0))
        problem = two_types(types=types, replicated_bytes=[1.0, 50.0])
        assert exact(problem, Budget()).plan is None
        assert "memory" in diagnose(problem).reason

    @pytest.mark.parametrize(("sharded", "fits"), [(0.0, True), (1.0, False)])
    def test_a_layer_that_leaves_no_room_for_its_share(self, sharded, fits):
        types = (DevicePool("cpu", 1.0, 4, 10.0), DevicePool("gpu", 5.0, 2, 10.0))
        problem = two_types(types=types, replicated_bytes=[0.0, 10.0], sharded_bytes=[0.0, sharded])
        assert (exact(problem, Budget()).plan is not None) == fits
        assert ("does not fit into the memory" in diagnose(problem).reason) == (not fits)

    def test_nothing_is_proven_infeasible_that_is_not(self):
        outcome = exact(two_types(throughput=10.0), Budget())
        assert outcome.plan is None
        assert check(two_types(throughput=10.0), None, outcome.certificate) == []
        assert check(two_types(throughput=0.1), None, outcome.certificate)


def test_memory_requires_more_replicas():
    types = (DevicePool("cpu", 1.0, 40, 10.0), DevicePool("gpu", 5.0, 2, 10.0))
    plan = solved(two_types(types=types, sharded_bytes=[35.0, 0.0], throughput=0.1)).plan
    assert plan.stages[0].replicas >= 4


def test_replicas_given_by_hand_are_checked():
    plan = with_replicas(two_types(), [0, 1], [1, 3])
    assert any("3 gpu are used, the limit is 2" in line for line in plan.violations())
    assert any("below" in line for line in with_replicas(two_types(), [0, 0], [1]).violations())


def test_a_layer_that_may_run_nowhere_has_no_frontier():
    assert frontier(two_types(allowed=[[False, False], [True, True]])) == []


def test_a_plan_that_its_memory_does_not_hold_is_noticed():
    types = (DevicePool("cpu", 1.0, 40, 10.0), DevicePool("gpu", 5.0, 2, 10.0))
    problem = two_types(types=types, sharded_bytes=[35.0, 0.0], throughput=0.1)
    outcome = solved(problem)
    held = replace(outcome.plan.stages[0], replicas=1, min_replicas=1)
    wrong = check(
        problem, replace(outcome.plan, stages=(held, *outcome.plan.stages[1:])), outcome.certificate
    )
    assert "the memory of 1 cpu does not hold their stage" in wrong
