"""What one stage takes and needs, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from berth.plan.plan import cheapest, plan_at, schedule_for, with_counts
from berth.plan.problem import (
    COMPUTE,
    CURVES,
    EXAMPLE_BYTES,
    EXCHANGE,
    FACTS,
    HAS_TABLES,
    HELD_BYTES,
    IN,
    OPTIMISER_S,
    OUT,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
    Choice,
    DevicePool,
    HostPool,
    Problem,
)
from berth.plan.stage_reasons import limited_by

GRID = np.array([0.0, 10.0, 100.0])


def problem(**changes) -> Problem:
    """Two layers on one type; 100 examples a step. Computing 10 examples takes 2 s, 100 take 11 s, a call 1 s."""
    facts = np.zeros((1, 2, FACTS))
    curves = np.zeros((1, 2, CURVES, 3))
    curves[0, 0, COMPUTE] = [1.0, 2.0, 11.0]
    given = {
        "batch": 100.0,
        "throughput": 1.0,
        "samples": 3600.0,
        "types": (DevicePool("gpu", 2.0, 50),),
        "layers": ("a", "b"),
        "kinds": ("layer", "layer"),
        "allowed": np.ones((2, 1), bool),
        "choices": (Choice(0),),
        "grid": GRID,
        "facts": facts,
        "curves": curves,
        "cross": np.zeros((1, 2, 3)),
        "ring": np.zeros((1, 2, 51)),
        "micro": (1, 2, 5),
    }
    return Problem(**(given | changes))


def step_s(of: Problem, cuts, replicas, micro: int = 1) -> list[float]:
    plan = with_counts(of, schedule_for(of, len(cuts), micro), cuts, replicas)
    return [stage.time_s * of.batch for stage in plan.stages]


def edited(of: Problem, *, facts=(), curves=()) -> Problem:
    """The problem with other facts {(layer, fact): value} and curves {(layer, curve): points}."""
    new_facts, new_curves = of.facts.copy(), of.curves.copy()
    for (layer, fact), value in dict(facts).items():
        new_facts[:, layer, fact] = value
    for (layer, which), points in dict(curves).items():
        new_curves[:, layer, which] = points
    return replace(of, facts=new_facts, curves=new_curves)


def test_a_call_takes_what_the_curve_says_between_and_beyond_its_points():
    of = problem()
    assert step_s(of, [(0, 1, 0)], [1]) == pytest.approx([11.0])  # 100 examples
    assert step_s(of, [(0, 1, 0)], [2]) == pytest.approx([6.0])  # 50: on the line from 10 to 100
    assert step_s(of, [(0, 1, 0)], [20]) == pytest.approx([1.5])  # 5: on the line from 0 to 10
    # beyond, the last slope
    assert step_s(replace(of, batch=200.0), [(0, 1, 0)], [1]) == pytest.approx([21.0])


def test_micro_batches_repeat_what_a_call_costs_and_overlap_what_moves():
    of = edited(problem(), curves={(0, IN): [0.0, 0.5, 5.0], (0, OUT): [0.0, 0.2, 2.0]})
    assert step_s(of, [(0, 1, 0)], [1]) == pytest.approx([11.0 + 5.0 + 2.0])  # one after the other
    # Five calls of 20 examples take 3 s each; the way of one through NIC, device and NIC is 3 + 1 + 0.4.
    assert step_s(of, [(0, 1, 0)], [1], micro=5) == pytest.approx([4 * 3.0 + 4.4])


def test_stages_pay_for_the_way_through_all_of_them_and_for_the_crossings_at_their_boundaries():
    cross = np.zeros((1, 2, 3))
    # Forward, backward and computing, per example, after the first layer; nothing after the last.
    cross[0, 0] = (0.01, 0.02, 0.003)
    cross[0, 1] = 99.0
    of = replace(problem(cross=cross), message=np.array([[0.1, 0.05]]), loop_s=0.5)
    # First stage: 11 s of computing; 2 s of gradients and a message in, 1 s of activations and a message out; it packs
    # and unpacks them in 0.3 s and 0.05 s for the messages.
    first, second = step_s(of, [(0, 0, 0), (1, 1, 0)], [1, 1])
    assert first == pytest.approx(2 * (11.35 + 2.1 + 1.1) + 0.5)
    assert second == pytest.approx(2 * (0.35 + 1.1 + 2.1) + 0.5), "every stage has a loop"


def test_a_device_does_not_send_the_rows_that_it_holds_itself():
    of = edited(problem(micro=(1,)), curves={(0, EXCHANGE): [0.0, 4.0, 40.0]})
    assert step_s(of, [(0, 1, 0)], [1]) == pytest.approx([11.0]), "the only device holds all rows"
    # Two devices: 50 examples, 6 s of computing and 20 s of rows, of which half are on the other device.
    assert step_s(of, [(0, 1, 0)], [2]) == pytest.approx([6.0 + 10.0 + 10.0])
    assert step_s(of, [(0, 1, 0)], [4]) == pytest.approx([3.5 + 2 * 10.0 * 3 / 4])


def test_the_all_reduce_and_the_optimiser_come_once_per_step():
    ring = np.zeros((1, 2, 51))
    ring[0, 0, 2:], ring[0, 1, 2:] = 0.5, 0.25  # seconds per byte, and seconds, from two replicas on
    of = edited(problem(ring=ring), facts={(1, SYNC_BYTES): 4.0, (1, OPTIMISER_S): 0.125})
    assert step_s(of, [(0, 1, 0)], [1], micro=2) == pytest.approx([2 * 6.0 + 0.125])
    assert step_s(of, [(0, 1, 0)], [2], micro=2) == pytest.approx([2 * 3.5 + 0.125 + 2.25])


def test_an_all_reduce_that_grows_with_replicas_is_met_by_the_fewest_that_are_enough():
    ring = np.zeros((1, 2, 51))
    ring[0, 1, 2:] = 0.1 * np.arange(2, 51)
    of = edited(problem(ring=ring, micro=(1,)), facts={(1, SYNC_BYTES): 1.0})

    def taken(count: int) -> float:
        return step_s(of, [(0, 1, 0)], [count])[0]

    for wanted_s in (9.0, 6.5, 4.0, 3.6):
        plan = plan_at(of, of.schedules(1)[0], [(0, 1, 0)], wanted_s)
        count = plan.stages[0].replicas
        assert count == min((k for k in range(1, 51) if taken(k) <= wanted_s), default=0)
    assert min(taken(k) for k in range(1, 51)) > 2.9
    assert len(cheapest(of.at(100 / 2.9), [0, 0]).stages) == 2  # no number is enough for one stage


@pytest.mark.parametrize(
    ("memory", "micro", "wanted"),
    [
        (1000.0, 1, 1),
        (60.0, 1, 12),  # 10 held; 500 of the shards and 100 of the examples are divided
        (60.0, 5, 11),  # a fifth of the examples is there at a time
        (10.0, 1, 10**18),
    ],
)
def test_memory_holds_parameters_shards_and_examples_in_flight(memory, micro, wanted):
    of = problem(types=(DevicePool("gpu", 2.0, 50, memory),))
    of = edited(of, facts={(0, HELD_BYTES): 10.0, (0, SHARDED_BYTES): 500.0, (1, EXAMPLE_BYTES): 1.0})
    plan = with_counts(of, schedule_for(of, 1, micro), [(0, 1, 0)], [50])
    assert plan.stages[0].min_replicas == wanted


def test_servers_are_sized_by_rows_by_their_nic_and_by_memory_and_readers_by_the_step():
    host = HostPool(-1, 0.1, 100.0, 1, readers_s=250.0)
    of = edited(
        problem(host=host),
        facts={(0, HAS_TABLES): 1.0, (0, SERVED_BYTES): 950.0},
        curves={(0, SERVER_CPU): [0.0, 10.0, 30.0], (0, SERVER_NIC): [0.0, 1.0, 60.0]},
    )

    def servers(step: float, micro: int = 1) -> int:
        return plan_at(of, schedule_for(of, 1, micro), [(0, 1, 0)], step).stages[0].servers

    assert servers(50.0) == 10  # memory
    assert servers(4.4) == 12  # three replicas of 33 examples: 3 x 16.3 s of the NIC in 4.4 s
    assert plan_at(of, schedule_for(of, 1, 1), [(0, 1, 0)], 12.0).readers == 21
    few = with_counts(of, schedule_for(of, 1, 1), [(0, 1, 0)], [1], [2], 21)
    assert limited_by(few) == "servers"
    assert few.throughput == pytest.approx(100 / (60.0 / 2))
    assert few.usd_per_hour == pytest.approx(2.0 + 0.1 * (2 + 21))
    assert any("more servers" in line for line in few.violations())


def test_whole_machines_are_paid_for():
    of = problem(types=(DevicePool("gpu", 2.0, 50, None, unit=8),), host=HostPool(-1, 0.1, 1e9, 48, 10.0))
    plan = with_counts(of, schedule_for(of, 1, 1), [(0, 1, 0)], [9], None, 1)
    assert plan.device_counts == {"gpu": 16}
    assert plan.host_cores == 48
    assert plan.usd_per_hour == pytest.approx(32.0 + 4.8)


def test_a_place_with_few_devices_caps_stages_with_tables_only():
    of = problem(choices=(Choice(0, "machine", cap=2),), micro=(1,))
    with_tables = edited(of, facts={(0, HAS_TABLES): 1.0, (0, SHARDED_BYTES): 1.0})
    assert cheapest(of.at(40.0), [0, 0]).stages[0].replicas > 2
    assert cheapest(with_tables.at(40.0), [0, 0]) is None


def test_the_number_of_replicas_of_any_stage_can_be_bounded():
    assert cheapest(problem(max_replicas=3, micro=(1,)).at(100 / 4.4), [0, 0]).stages[0].replicas == 3
    assert cheapest(problem(max_replicas=3, micro=(1,)).at(100 / 4.3), [0, 0]) is None
    assert math.isclose(step_s(problem(), [(0, 1, 0)], [3])[0], 4.0 + 1 / 3)
