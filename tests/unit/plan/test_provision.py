"""The replicas of a plan: never fewer than the throughput and the memory need, never cheaper ones left aside."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from berth.plan import plan as plans
from berth.plan.evaluate import Evaluator
from berth.plan.problem import DevicePool, Problem, make_problem

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from random_problems import naive_best_usd

CPU, GPU = 0, 1


def problem(seed: int = 0, **given: object) -> Problem:
    """Six layers of random times, on processors that are slow and cheap and accelerators that are not."""
    random = np.random.default_rng(seed)
    values = {
        "batch": 4096,
        "throughput": 20_000.0,
        "types": (DevicePool("cpu", 0.04, 500), DevicePool("gpu", 2.4, 64)),
        "layers": tuple("abcdef"),
        "oct_s": random.uniform(0.05, 1.0, (6, 2)) * [1.0, 0.1],
        "odt_s": random.uniform(0.01, 0.2, (6, 2)),
        "alpha": random.uniform(0.8, 0.999, (6, 2)),
        "beta": random.uniform(0.8, 0.999, (6, 2)),
        "cross_s": 0.01,
        "fixed_usd_per_hour": 2.0,
    }
    return make_problem(**(values | given))


def one_layer(**given: object) -> Problem:
    """A layer that takes a second for a batch of a thousand on one unit, and is wanted at 4,000 examples a second."""
    values = {
        "batch": 1000,
        "throughput": 4000.0,
        "types": (DevicePool("gpu", 3.6, 100),),
        "layers": ("a",),
        "oct_s": 1.0,
        "odt_s": 0.0,
        "alpha": 1.0,
        "beta": 1.0,
        "samples": 1e6,
    }
    return make_problem(**(values | given))


def replicas(of: Problem) -> list[int]:
    found = plans.cheapest(of, [0] * len(of.layers))
    return [stage.replicas for stage in found.stages] if found else [0]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, 4),
        ({"throughput": 4001.0}, 5),
        ({"throughput": 1.0}, 1),
        ({"alpha": 0.9}, 6),  # 0.1 + 0.9 / k <= 0.25 s
        ({"odt_s": 2.0}, 8),
        ({"odt_s": 2.0, "beta": 0.9}, 36),  # 0.2 + 1.8 / k <= 0.25 s
        ({"sharded_bytes": 45.0}, 5),
        ({"sharded_bytes": 40.0}, 4),
        ({"sharded_bytes": 40.0, "replicated_bytes": 2.0}, 5),
    ],
)
def test_a_stage_gets_the_fewest_replicas_that_hold_it_and_keep_up(given, wanted):
    limited = (DevicePool("gpu", 3.6, 100, 10.0),)
    of = one_layer(types=limited, **given)
    assert replicas(of) == [wanted]
    batch_s = max(
        of.stated.oct_s[0, 0] * (1 - of.stated.alpha[0, 0] + of.stated.alpha[0, 0] / wanted),
        of.stated.odt_s[0, 0] * (1 - of.stated.beta[0, 0] + of.stated.beta[0, 0] / wanted),
    )
    dollars = of.samples * batch_s / of.batch / 3600 * 3.6 * wanted
    assert Evaluator(of)(np.zeros((1, 1))).cost_usd[0] == pytest.approx(dollars)


@pytest.mark.parametrize(
    "given",
    [
        {"throughput": 500_000.0},
        {"alpha": 0.7},  # the serial part alone takes 0.3 s
        {"types": (DevicePool("gpu", 3.6, 3),)},
        {"types": (DevicePool("gpu", 3.6, 100, 10.0),), "replicated_bytes": 10.0, "sharded_bytes": 1.0},
        {"allowed": False},
    ],
    ids=["too many devices", "never quick enough", "too few devices", "never fits", "forbidden"],
)
def test_what_can_not_be_held_costs_infinitely_much_and_says_so(given):
    found = Evaluator(one_layer(**given))(np.zeros((1, 1)))
    assert found.cost_usd[0] == np.inf
    assert found.shortfall[0] > 0
    assert replicas(one_layer(**given)) == [0]


def cheapest(of: Problem, assignment: tuple[int, ...]) -> float:
    """By trying all cuts and all numbers of replicas of every stage."""
    allowed = np.zeros_like(of.allowed)
    allowed[np.arange(len(assignment)), list(assignment)] = True
    return naive_best_usd(of.allowing(allowed))


@pytest.mark.parametrize("assignment", [(CPU, GPU), (GPU, GPU), (CPU, CPU), (GPU, CPU)])
@pytest.mark.parametrize("fixed", [0.0, 5.0, 100.0])
def test_no_other_numbers_of_replicas_are_cheaper(assignment, fixed):
    for seed in range(3):
        random = np.random.default_rng(seed)
        of = problem(
            layers=("a", "b"),
            types=(DevicePool("cpu", 0.5, 14), DevicePool("gpu", 2.4, 12)),
            throughput=5_000.0,
            oct_s=random.uniform(0.5, 2.0, (2, 2)),
            odt_s=random.uniform(0.1, 2.0, (2, 2)),
            alpha=random.uniform(0.9, 0.999, (2, 2)),
            beta=random.uniform(0.9, 0.999, (2, 2)),
            cross_s=0.3,
            fixed_usd_per_hour=fixed,
        )
        found, best = Evaluator(of)(np.array([assignment])).cost_usd[0], cheapest(of, assignment)
        if assignment[0] != assignment[1]:
            assert found == pytest.approx(best)
        else:  # two pools of one type share its limit: the evaluator tries a few ways to share it, not all
            assert best * (1 - 1e-9) <= found <= best * 1.1


@pytest.mark.parametrize(
    "given",
    [
        {"oct_s": 1e13, "throughput": 1e12},  # 1e22 replicas for the throughput, which no integer counts
        {"types": (DevicePool("gpu", 3.6, 100, 2.0),), "replicated_bytes": 2 - 1e-9, "sharded_bytes": 1e18},
    ],
    ids=["throughput", "memory"],
)
def test_more_replicas_than_a_machine_word_counts_are_too_many(given):
    found = Evaluator(one_layer(**given))(np.zeros((1, 1), np.int64))
    assert found.cost_usd[0] == np.inf
    assert found.shortfall[0] > 10


def test_a_plan_that_is_further_from_the_throughput_falls_further_short():
    def short(**given: object) -> float:
        return float(Evaluator(one_layer(**given))(np.zeros((1, 1), np.int64)).shortfall[0])

    three = (DevicePool("gpu", 3.6, 3),)
    rates = [short(throughput=rate, types=three) for rate in (4e3, 1e4, 1e5, 4e6)]
    assert rates[0] > 0
    assert rates == sorted(rates)
    assert short(throughput=3e6, alpha=0.5) > short(throughput=3e3, alpha=0.5) > 0
    assert short(allowed=False) > rates[-1]


def test_a_stage_pays_for_the_crossings_at_its_own_edges_alone():
    of = problem(
        layers=tuple("abcd"),
        types=(DevicePool("cpu", 1.0, 10**6), DevicePool("gpu", 1.0, 10**6)),
        throughput=1.0,
        batch=1,
        oct_s=1e-6,
        odt_s=0.0,
        alpha=1.0,
        beta=1.0,
        cross_s=[10.0, 200.0, 3000.0, 40_000.0],
        fixed_usd_per_hour=0.0,
    )

    def found(*cuts: plans.Cut) -> list[int]:
        plan = plans.plan_at(of, of.schedules(0)[0], cuts, 1.0)
        return [stage.replicas for stage in plan.stages]

    assert found((0, 1, CPU), (2, 3, GPU)) == [200, 200]
    assert found((0, 0, CPU), (1, 2, GPU), (3, 3, CPU)) == [10, 3010, 3000]
    assert found((0, 0, GPU), (1, 1, GPU), (2, 2, GPU), (3, 3, CPU)) == [10, 210, 3200, 3000]
    assert found((0, 3, GPU)) == [1]


def test_an_evaluator_counts_and_keeps_the_best_it_has_seen():
    of, rows = problem(3), np.random.default_rng(3).integers(0, 2, (30, 6))
    evaluator = Evaluator(of)
    whole = Evaluator(of)(rows).cost_usd
    found = [float(evaluator(row).cost_usd[0]) for row in rows[:20]]
    assert found == whole[:20].tolist()
    assert evaluator.evaluations == 20
    assert evaluator.best_usd == whole[:20].min()
    assert (evaluator.best == rows[int(np.argmin(whole[:20]))]).all()
    better = [count for count in range(1, 21) if whole[count - 1] < min(whole[: count - 1], default=np.inf)]
    assert evaluator.curve == [(count, whole[count - 1]) for count in better]
    at_once = Evaluator(of)
    at_once(rows)
    assert at_once.best_usd == whole.min()
    assert (at_once.best == rows[int(np.argmin(whole))]).all()
    evaluator(rows[20:])
    assert evaluator.evaluations == 30
    assert evaluator.best_usd == whole.min()
    assert evaluator(rows[:0]).cost_usd.tolist() == []
    assert evaluator.evaluations == 30


def test_of_two_plans_that_cost_the_same_the_first_stays_the_best():
    of = problem(
        types=(DevicePool("cpu", 1.0, 500), DevicePool("gpu", 1.0, 500)), oct_s=1.0, odt_s=0.1, alpha=0.99
    )
    evaluator = Evaluator(of)
    evaluator(np.zeros(6, np.int64))
    evaluator(np.ones(6, np.int64))
    assert evaluator.best.tolist() == [0] * 6
    assert len(evaluator.curve) == 1


def test_the_serial_part_may_take_exactly_as_long_as_there_is():
    assert replicas(one_layer(alpha=0.0, throughput=1000.0)) == [1]
    assert replicas(one_layer(alpha=0.0, throughput=1000.0 / (1 + 5e-10))) == [1]
    assert replicas(one_layer(alpha=0.0, throughput=1000.0 * (1 + 5e-10))) == [1]  # nine digits are equal
    assert replicas(one_layer(alpha=0.0, throughput=1000.0 * (1 + 2e-9))) == [0]
    # no number of replicas makes the rest vanish
    assert replicas(one_layer(alpha=0.5, throughput=2000.0)) == [0]


def test_a_layer_that_fills_the_memory_to_the_last_byte_fits():
    assert replicas(one_layer(types=(DevicePool("gpu", 3.6, 100, 10.0),), replicated_bytes=10.0)) == [4]
    assert replicas(one_layer(types=(DevicePool("gpu", 3.6, 100, 10.0),), replicated_bytes=10.1)) == [0]


@pytest.mark.parametrize("dollar", [1e-5, 1e5])
def test_another_currency_changes_no_replicas(dollar):
    more = 0
    for seed in range(4):
        of = problem(seed, throughput=3000.0)
        types = tuple(DevicePool(one.name, one.usd_per_hour * dollar, one.limit) for one in of.types)
        other = problem(seed, throughput=3000.0, types=types, fixed_usd_per_hour=2.0 * dollar)
        for row in np.random.default_rng(seed).integers(0, 2, (8, 6)):
            plan, again = plans.cheapest(of, row), plans.cheapest(other, row)
            assert again.cuts == plan.cuts
            assert [stage.replicas for stage in again.stages] == [stage.replicas for stage in plan.stages]
            assert again.cost_usd == pytest.approx(plan.cost_usd * dollar)
            more += bool(plan.throughput > of.throughput / 0.9)
    assert more > 10  # plans that are faster than wanted, because that is cheaper
