"""The exact search: what it returns, what its proof consists of, and that a false proof is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from berth.plan.certificate import check
from berth.plan.frontier import fastest_under, frontier
from berth.plan.infeasible import diagnose
from berth.plan.plan import cheapest, with_counts
from berth.plan.problem import SERVED_BYTES, DevicePool, HostPool, make_problem
from berth.plan.search.exact import ProofStep, WarmStart, exact
from berth.plan.search.method import Budget

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from random_problems import naive_best_usd, random_problem, random_world

FREE = random_problem(12, 3, 7)
BOUND = random_problem(12, 3, 7).with_limits({"t0": 12, "t1": 3, "t2": 2}).at(600.0)
BUILT = random_world(6, 2, 3, limit=12, micro=(1, 4))


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
    # All on cores needs 5, all on gpus 3 for the 2.1 s of data. Nothing else has enough devices.
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


def changed(certificate, part, steps):
    """The certificate with other steps in one of its parts."""
    parts = list(certificate.parts)
    parts[part] = replace(parts[part], steps=tuple(steps))
    return replace(certificate, parts=tuple(parts))


@pytest.mark.parametrize("problem", [FREE, BOUND, BUILT], ids=["free", "limits bind", "built"])
class TestProof:
    def test_holds(self, problem):
        outcome = solved(problem)
        assert check(problem, outcome.plan, outcome.certificate) == []

    @pytest.mark.slow
    def test_a_step_left_out_is_noticed(self, problem):
        outcome = solved(problem)
        for at, part in enumerate(outcome.certificate.parts):
            for drop in range(len(part.steps))[::5]:
                steps = list(part.steps)
                steps.pop(drop)
                assert check(problem, outcome.plan, changed(outcome.certificate, at, steps))

    def test_a_part_left_out_is_noticed(self, problem):
        outcome = solved(problem)
        for at in range(len(outcome.certificate.parts)):
            parts = list(outcome.certificate.parts)
            parts.pop(at)
            assert check(problem, outcome.plan, replace(outcome.certificate, parts=tuple(parts)))

    @pytest.mark.slow
    def test_a_bound_claimed_too_high_is_noticed(self, problem):
        outcome = solved(problem)
        for at, part in enumerate(outcome.certificate.parts):
            for row, step in list(enumerate(part.steps))[::5]:
                if step.kind == "work" or step.bound == np.inf:
                    continue
                steps = list(part.steps)
                steps[row] = replace(step, bound=step.bound * 1.5)
                assert check(problem, outcome.plan, changed(outcome.certificate, at, steps))

    def test_a_lower_bound_claimed_too_high_is_noticed(self, problem):
        outcome = solved(problem)
        claimed = replace(outcome.certificate, lower=outcome.certificate.lower * 1.01)
        assert check(problem, outcome.plan, claimed)

    @pytest.mark.parametrize(
        ("step", "wrong"),
        [
            (ProofStep(1e9, 0.0, 0.0, "relaxed"), "it reaches 0"),
            (ProofStep(1e9, 0.0, 1e-9, "priced", (0.0, 0.0, 0.0)), "it reaches 0"),
            (ProofStep(1e9, 0.0, np.inf, "priced", (-1e3, -1e3, -1e3)), "non-negative price"),
            (ProofStep(1e9, 0.0, np.inf, "priced", (np.nan, 0.0, 0.0)), "non-negative price"),
            (ProofStep(1e9, 0.0, np.inf, "labelled", ()), "for each type"),
            (ProofStep(1e9, 0.0, np.inf, "believe me", (0.0, 0.0, 0.0)), "unknown kind"),
            (ProofStep(np.nan, 0.0, np.inf, "relaxed"), "not a number"),
            (ProofStep(np.nan, 0.0, np.inf, "work"), "not a number"),
            (ProofStep(np.inf, 0.0, np.inf, "relaxed"), "not a number"),
            (ProofStep(1e9, np.nan, 1.0, "relaxed"), "not a number"),
            (ProofStep(1e9, 0.0, np.nan, "relaxed"), "not a number"),
            (ProofStep(1e9, 0.0, -np.inf, "relaxed"), "out of range"),
            (ProofStep(1e9, 0.0, -1.0, "relaxed"), "out of range"),
            (ProofStep(1e9, 0.0, 1e9, "work"), "faster plans may cost"),
        ],
    )
    def test_one_step_that_shows_nothing_proves_nothing(self, problem, step, wrong):
        outcome = solved(problem)
        if len(problem.types) != 3 and "prices" not in wrong and len(step.prices) == 3:
            step = replace(step, prices=step.prices[: len(problem.types)])
        found = check(problem, outcome.plan, changed(outcome.certificate, 0, (step,)))
        assert len(found) == 1
        assert wrong in found[0]

    def test_a_lower_bound_that_is_not_a_number_is_refused(self, problem):
        outcome = solved(problem)
        claimed = replace(outcome.certificate, lower=np.nan)
        assert check(problem, outcome.plan, claimed) == ["the claimed lower bound is not a number"]

    def test_another_plan_than_the_one_proven_is_noticed(self, problem):
        outcome = solved(problem)
        more = [stage.replicas + 1 for stage in outcome.plan.stages]
        other = with_counts(problem, outcome.plan.schedule, outcome.plan.cuts, more)
        assert check(problem, other, outcome.certificate)

    def test_an_easier_problem_is_not_proven_by_it(self, problem):
        outcome = solved(problem)
        cheaper = tuple(replace(one, usd_per_hour=one.usd_per_hour / 2) for one in problem.types)
        assert check(replace(problem, types=cheaper), outcome.plan, outcome.certificate)


@pytest.mark.slow
def test_limits_that_few_plans_keep_are_proven():
    """The prices on the limits have to be good for a first plan to be found that is near the optimum."""
    problem = random_problem(64, 8, 3, throughput=600, limit=5).with_limits({"t0": 30})
    free = exact(problem.with_limits({one.name: 10**6 for one in problem.types}), Budget())
    found = exact(problem, Budget(seconds=60))
    assert found.plan.violations() == []
    assert found.plan.cost_usd > free.plan.cost_usd * 1.05
    assert found.lower_bound_usd == pytest.approx(found.plan.cost_usd, rel=1e-8)
    assert check(problem, found.plan, found.certificate) == []


def test_limits_that_bind_are_proven_with_prices_on_them():
    kinds = {step.kind for part in solved(BOUND).certificate.parts for step in part.steps}
    assert kinds & {"priced", "labelled"}


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_fastest_plan_under_a_price_is_on_the_frontier():
    plans = frontier(BOUND)
    for row in (0, len(plans) // 2, len(plans) - 1):
        found = fastest_under(BOUND.at(1e-3), plans[row].cost_usd)
        assert found.plan.throughput == pytest.approx(plans[row].throughput, rel=1e-5)


def test_a_price_below_every_plan_is_noted():
    found = fastest_under(BOUND, 0.01)
    assert "cheapest plan costs" in found.note


class TestInfeasible:
    @pytest.mark.slow
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
    problem = two_types()
    schedule = problem.schedules(0)[0]
    plan = with_counts(problem, schedule, [(0, 0, 0), (1, 1, 1)], [1, 3])
    assert any("3 gpu are used, the limit is 2" in line for line in plan.violations())
    slow = with_counts(problem, schedule, [(0, 1, 0)], [1])
    assert any("below" in line for line in slow.violations())


def test_two_pools_of_one_type_may_be_neighbours():
    """All on one type, in one stage, the serial parts add up to more than there is time for."""
    problem = make_problem(
        batch=1, throughput=1.0, types=(DevicePool("gpu", 1.0),), layers=("a", "b"), oct_s=1.6, odt_s=0,
        alpha=0.5, beta=1,
    )  # fmt: skip
    plan = solved(problem).plan
    assert [stage.type_name for stage in plan.stages] == ["gpu", "gpu"]
    assert cheapest(problem, [0, 0]).cost_usd == pytest.approx(plan.cost_usd)


def test_a_crossing_is_charged_at_every_boundary_whatever_the_types():
    problem = make_problem(
        batch=1, throughput=1.0, types=(DevicePool("gpu", 1.0),), layers=("a", "b"), oct_s=0.1, odt_s=0,
        alpha=1, beta=1, cross_s=[3.0, 9.0],
    )  # fmt: skip
    cut = with_counts(problem, problem.schedules(0)[0], [(0, 0, 0), (1, 1, 0)], [1, 1])
    assert [stage.time_s for stage in cut.stages] == pytest.approx([3.0, 3.0])
    assert len(solved(problem).plan.stages) == 1


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


def cores_outside(throughput: float = 1.0):
    """Two layers of 2.5 s on two scarce types; the tables of the first need 20 cores that no type has."""
    base = make_problem(
        batch=1, throughput=throughput, types=(DevicePool("a", 1.0, 4), DevicePool("b", 1.5, 4)),
        layers=("rows", "dense"), oct_s=2.5, odt_s=0, alpha=1, beta=1,
    )  # fmt: skip
    facts = base.facts.copy()
    facts[:, 0, SERVED_BYTES] = 20.0
    return replace(base, facts=facts, host=HostPool(-1, 1.0, 1.0), stated=None)


def test_cores_outside_the_types_have_no_limit_that_proves_anything():
    """Four of each type and 20 cores cost more than all devices of both types together, and are a plan."""
    outcome = solved(cores_outside())
    assert outcome.plan.usd_per_hour == pytest.approx(4 * 1.0 + 4 * 1.5 + 20 * 1.0)
    assert outcome.plan.cost_usd == pytest.approx(naive_best_usd(cores_outside()))
    assert outcome.lower_bound_usd == pytest.approx(outcome.plan.cost_usd)
    assert check(cores_outside(), outcome.plan, outcome.certificate) == []
    nothing = ProofStep(1e9, 0.0, np.inf, "priced", (0.0, 0.0))
    assert check(cores_outside(), outcome.plan, changed(outcome.certificate, 0, (nothing,)))


@pytest.mark.parametrize("weight", [np.nan, -1.0, 0.0, 0.5, 99.0])
def test_a_proof_under_other_weights_is_refused(weight):
    outcome = solved(BUILT)
    parts = [
        replace(part, schedule=replace(part.schedule, w_sum=weight)) for part in outcome.certificate.parts
    ]
    wrong = check(BUILT, outcome.plan, replace(outcome.certificate, parts=tuple(parts)))
    assert wrong == ["a part of the proof has a schedule that is not one of the problem"]


@pytest.mark.parametrize("price", [0.1, 0.7, 2.0**53])
def test_rounding_does_not_prove_that_nothing_exists(price):
    """Three devices are needed and allowed: their price equals that of all devices, up to the last bit."""
    problem = make_problem(
        batch=1, throughput=3.0, types=(DevicePool("cpu", 1.5, 3),), layers=("only",), oct_s=1.0, odt_s=0,
        alpha=1, beta=1,
    )  # fmt: skip
    outcome = solved(problem)
    step = ProofStep(problem.arrays.slowest, 0.0, np.inf, "priced", (price,))
    forged = replace(changed(outcome.certificate, 0, (step,)), lower=1e9)
    assert check(problem, outcome.plan, forged)


@pytest.mark.slow
def test_a_plan_outside_the_problem_is_not_accepted():
    outcome = solved(BUILT)
    plan, proof = outcome.plan, outcome.certificate
    assert check(BUILT, plan, proof) == []
    assert BUILT.host.readers_s > 0
    for readers in (0, -1000):
        assert f"the plan has {readers} readers" in check(BUILT, replace(plan, readers=readers), proof)
    many = replace(plan, schedule=replace(plan.schedule, micro=3))
    assert "3 micro-batches are not among those of the problem" in check(BUILT, many, proof)
    short = replace(plan, stages=(*plan.stages[:-1], replace(plan.stages[-1], last=len(BUILT.layers) - 2)))
    assert "the stages do not cover every layer once" in check(BUILT, short, proof)
