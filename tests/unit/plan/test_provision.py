"""The units of a plan: never fewer than the throughput and the memory need, never cheaper ones left aside."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from berth.plan.evaluate import Evaluator, provisioned
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.provision import LAST

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


def units(of: Problem) -> list[int]:
    return provisioned(np.zeros(len(of.layers), np.int64), of.arrays)[3].astype(int).tolist()


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
    assert units(of) == [wanted]
    batch_s = max(
        of.oct_s[0, 0] * (1 - of.alpha[0, 0] + of.alpha[0, 0] / wanted),
        of.odt_s[0, 0] * (1 - of.beta[0, 0] + of.beta[0, 0] / wanted),
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
    ids=["too many units", "never quick enough", "too few units", "never fits", "forbidden"],
)
def test_what_can_not_be_held_costs_infinitely_much_and_says_so(given):
    found = Evaluator(one_layer(**given))(np.zeros((1, 1)))
    assert found.cost_usd[0] == np.inf
    assert found.shortfall[0] > 0
    assert units(one_layer(**given)) == [0]


def cheapest(of: Problem, assignment: tuple[int, ...], most: int) -> float:
    """By trying all numbers of units of every stage."""
    stages = [list(group) for _, group in itertools.groupby(range(len(assignment)), assignment.__getitem__)]
    best = np.inf
    for counts in itertools.product(range(1, most + 1), repeat=len(stages)):
        times, rate, used = [], 0.0, [0, 0]
        for layers, count in zip(stages, counts, strict=True):
            kind = assignment[layers[0]]
            crossed = [of.cross_s[at] for at in (layers[0] - 1, layers[-1]) if 0 <= at < len(assignment) - 1]
            shares = [1 - of.alpha[at, kind] + of.alpha[at, kind] / count for at in layers]
            computing = sum(of.oct_s[at, kind] * share for at, share in zip(layers, shares, strict=True))
            shares = [1 - of.beta[at, kind] + of.beta[at, kind] / count for at in layers]
            moving = sum(of.odt_s[at, kind] * share for at, share in zip(layers, shares, strict=True))
            times.append(max(computing, moving + sum(crossed) / count) / of.batch)
            rate += of.types[kind].usd_per_hour * count
            used[kind] += count
        within = all(count <= kind.limit for count, kind in zip(used, of.types, strict=True))
        if within and max(times) * of.throughput <= 1 + 1e-9:
            hours = of.epochs * of.samples * max(times) / 3600
            best = min(best, hours * (of.fixed_usd_per_hour + rate))
    return best


@pytest.mark.parametrize("assignment", [(CPU, GPU), (GPU, GPU), (CPU, CPU), (GPU, CPU)])
@pytest.mark.parametrize("fixed", [0.0, 5.0, 100.0])
def test_no_other_numbers_of_replicas_are_cheaper(assignment, fixed):
    for seed in range(3):
        random = np.random.default_rng(seed)
        of = problem(
            layers=("a", "b"),
            types=(DevicePool("cpu", 0.5, 30), DevicePool("gpu", 2.4, 12)),
            throughput=10_000.0,
            oct_s=random.uniform(0.5, 2.0, (2, 2)),
            odt_s=random.uniform(0.1, 2.0, (2, 2)),
            alpha=random.uniform(0.9, 0.999, (2, 2)),
            beta=random.uniform(0.9, 0.999, (2, 2)),
            cross_s=0.3,
            fixed_usd_per_hour=fixed,
        )
        found = Evaluator(of)(np.array([assignment])).cost_usd[0]
        assert found == pytest.approx(cheapest(of, assignment, 30))


@pytest.mark.parametrize(
    "given",
    [
        {"oct_s": 1e13, "throughput": 1e12},  # 1e22 units for the throughput, which no integer counts
        {"types": (DevicePool("gpu", 3.6, 100, 2.0),), "replicated_bytes": 2 - 1e-9, "sharded_bytes": 1e18},
    ],
    ids=["throughput", "memory"],
)
def test_more_replicas_than_a_machine_word_counts_are_too_many(given):
    found = Evaluator(one_layer(**given))(np.zeros((1, 1), np.int64))
    assert found.cost_usd[0] == np.inf
    assert found.shortfall[0] > 10


def test_how_far_a_plan_falls_short_is_counted_in_logarithms():
    def short(**given: object) -> float:
        return float(Evaluator(one_layer(**given))(np.zeros((1, 1), np.int64)).shortfall[0])

    three = (DevicePool("gpu", 3.6, 3),)
    assert short(types=three) == pytest.approx(np.log(5 / 4))  # four units of three, and one for both
    assert short(throughput=4e6, types=three) == pytest.approx(np.log(4001 / 4))
    assert short(throughput=3e6, alpha=0.5) == pytest.approx(1 + np.log(0.5e-3 * 3e6))
    assert short(throughput=3e6, odt_s=2.0, beta=0.25) == pytest.approx(1 + np.log(1.5e-3 * 3e6))
    assert short(allowed=False) == 2.0
    held = {"types": (DevicePool("gpu", 3.6, 100, 10.0),), "replicated_bytes": 10.0, "sharded_bytes": 1.0}
    assert short(**held) == 1.0  # time has nothing to do with it
    assert short(**held, allowed=False) == 3.0


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

    def found(*kinds: int) -> tuple[list[int], list[int]]:
        _, _, stages, counts = provisioned(np.array(kinds), of.arrays)
        return counts.astype(int).tolist(), stages[:, LAST].astype(int).tolist()

    assert found(CPU, CPU, GPU, GPU) == ([200, 200], [1, 3])
    assert found(CPU, GPU, GPU, CPU) == ([10, 3010, 3000], [0, 2, 3])
    assert found(GPU, CPU, GPU, CPU) == ([10, 210, 3200, 3000], [0, 1, 2, 3])
    assert found(GPU, GPU, GPU, GPU) == ([1], [3])


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
    assert units(one_layer(alpha=0.0, throughput=1000.0)) == [1]
    assert units(one_layer(alpha=0.0, throughput=1000.0 / (1 + 5e-10))) == [1]
    assert units(one_layer(alpha=0.0, throughput=1000.0 * (1 + 5e-10))) == [1]  # nine digits are equal
    assert units(one_layer(alpha=0.0, throughput=1000.0 * (1 + 2e-9))) == [0]
    assert units(one_layer(alpha=0.5, throughput=2000.0)) == [0]  # no number of units makes the rest vanish


def test_a_layer_that_fills_the_memory_to_the_last_byte_fits():
    assert units(one_layer(types=(DevicePool("gpu", 3.6, 100, 10.0),), replicated_bytes=10.0)) == [4]
    assert units(one_layer(types=(DevicePool("gpu", 3.6, 100, 10.0),), replicated_bytes=10.1)) == [0]


@pytest.mark.parametrize("dollar", [1e-5, 1e5])
def test_another_currency_changes_no_replicas(dollar):
    more = 0
    for seed in range(4):
        of = problem(seed, throughput=3000.0)
        types = tuple(DevicePool(one.name, one.usd_per_hour * dollar, one.limit) for one in of.types)
        other = problem(seed, throughput=3000.0, types=types, fixed_usd_per_hour=2.0 * dollar)
        for row in np.random.default_rng(seed).integers(0, 2, (8, 6)):
            cost, stage_s, _, counts = provisioned(row, of.arrays)
            again = provisioned(row, other.arrays)
            assert again[3].tolist() == counts.tolist()
            assert again[0] == pytest.approx(cost * dollar)
            more += bool(stage_s < 0.9 * of.arrays.slowest)
    assert more > 10  # plans that are faster than wanted, because that is cheaper
