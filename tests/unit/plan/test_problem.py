"""Problems: what is refused, what is assumed, and how one becomes another."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from berth.errors import InputError, UnknownNameError
from berth.plan.plan import schedule_for, with_counts
from berth.plan.problem import (
    FACTS,
    LARGEST,
    SHARDED_BYTES,
    SMALLEST,
    UNLIMITED,
    DevicePool,
    Problem,
    make_problem,
)

TYPES = (DevicePool("cpu", 0.5, 30), DevicePool("gpu", 2.5))


def problem(**given: object) -> Problem:
    values = {
        "batch": 10,
        "throughput": 100.0,
        "types": TYPES,
        "layers": ("a", "b", "c"),
        "oct_s": 1.0,
        "odt_s": 0.5,
        "alpha": 0.9,
        "beta": 0.8,
    }
    return make_problem(**(values | given))


def test_what_is_left_out_does_not_matter():
    of = problem()
    assert (of.samples, of.epochs, of.fixed_usd_per_hour) == (1e9, 1.0, 0.0)
    assert of.kinds == ("layer",) * 3
    assert of.allowed.all()
    assert not of.stated.cross_s.any()
    assert not of.stated.replicated_bytes.any()
    assert not of.stated.sharded_bytes.any()
    assert (TYPES[1].limit, TYPES[1].memory_bytes, UNLIMITED) == (UNLIMITED, None, 1_000_000_000)
    assert Problem.__dataclass_fields__["fixed_usd_per_hour"].default == 0.0


def test_what_is_missing_is_zero_and_what_is_given_stays():
    of = problem(cross_s=[1.0, 2.0, 3.0], replicated_bytes=4.0, sharded_bytes=[5.0, 6.0, 7.0])
    assert of.stated.cross_s.tolist() == [1.0, 2.0, 3.0]
    assert of.stated.replicated_bytes.tolist() == [4.0] * 3
    assert of.stated.sharded_bytes.tolist() == [5.0, 6.0, 7.0]


def second(value: float) -> np.ndarray:
    """A number for each layer and type, one of them odd."""
    return np.array([[0.5, 0.5], [0.5, value], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": ()}, "has no layers"),
        ({"types": ()}, "there is no device type"),
        ({"layers": ("a", "b", "a")}, "two layers are called 'a'"),
        ({"types": (DevicePool("x", 1.0), DevicePool("x", 2.0))}, "two device types are called 'x'"),
        ({"batch": 0}, "batch is 0\n  a number above 0 is expected"),
        ({"batch": float("inf")}, "batch is inf"),
        ({"throughput": 0}, "throughput is 0\n  a number above 0"),
        ({"throughput": -1.0}, "throughput is -1"),
        ({"throughput": 2e18}, "throughput is 2e+18\n  berth plans with 1e-18 to 1e+18"),
        ({"throughput": 5e-19}, "throughput is 5e-19\n  berth plans with"),
        ({"samples": 0}, "samples is 0\n  a number above 0"),
        ({"samples": float("nan")}, "samples is nan"),
        ({"epochs": 0}, "epochs is 0\n  a number above 0"),
        ({"fixed_usd_per_hour": -0.5}, "fixed price is -0.5\n  a number not below 0"),
        ({"types": (DevicePool("x", 0.0),)}, "price of x is 0\n  a number above 0"),
        ({"types": (DevicePool("x", 1.0, -1),)}, "limit of x is -1\n  a number not below 0"),
        ({"types": (DevicePool("x", 1.0, 1, 0.0),)}, "memory of x is 0\n  a number above 0"),
        ({"types": (DevicePool("x", 1.0, 1, float("nan")),)}, "memory of x is nan"),
        ({"oct_s": second(0.0)}, "computation time (oct) of layer 'b' on gpu is 0\n  a number above 0"),
        ({"oct_s": second(1e-19)}, "layer 'b' on gpu is 1e-19\n  berth plans with"),
        ({"oct_s": second(float("inf"))}, "layer 'b' on gpu is inf"),
        ({"odt_s": second(-0.1)}, "communication time (odt) of layer 'b' on gpu is -0.1\n  a number not below 0"),
        ({"odt_s": second(1e19)}, "layer 'b' on gpu is 1e+19\n  berth plans with"),
        ({"alpha": second(1.5)}, "alpha of layer 'b' on gpu is 1.5\n  a number from 0 to 1 is expected"),
        ({"beta": second(1.5)}, "beta of layer 'b' on gpu is 1.5\n  a number from 0 to 1 is expected"),
        ({"beta": second(-0.5)}, "beta of layer 'b' on gpu is -0.5"),
        ({"cross_s": [0.0, -1.0, 0.0]}, "crossing time of b is -1"),
        ({"replicated_bytes": [0.0, -1.0, 0.0]}, "replicated bytes of b is -1"),
        ({"sharded_bytes": [0.0, 0.0, 2e18]}, "sharded bytes of c is 2e+18"),
    ],
)  # fmt: skip
def test_invalid_numbers_are_refused_with_their_name(given, said):
    with pytest.raises(InputError, match=re.escape(said)):
        problem(**given)


def test_the_ends_of_what_is_allowed_are_allowed():
    problem(batch=SMALLEST, throughput=LARGEST, samples=LARGEST, epochs=SMALLEST)
    problem(oct_s=second(SMALLEST), odt_s=second(0.0), alpha=second(1.0), beta=second(0.0))
    problem(oct_s=second(LARGEST), odt_s=second(LARGEST), cross_s=LARGEST, replicated_bytes=LARGEST)
    problem(types=(DevicePool("x", SMALLEST, 0, SMALLEST), DevicePool("y", LARGEST, 1, 0.5)))


def test_a_pin_leaves_what_was_allowed_there_and_nothing_else():
    of = problem(allowed=[[True, True], [True, False], [True, True]])
    assert of.pinned("a", "gpu").allowed.tolist() == [[False, True], [True, False], [True, True]]
    assert of.pinned("b", "gpu").allowed.tolist() == [[True, True], [False, False], [True, True]]
    assert of.without("cpu").allowed.tolist() == [[False, True], [False, False], [False, True]]
    assert of.allowed.sum() == 5  # itself unchanged


def test_other_limits_and_throughputs_change_nothing_else():
    of = problem().with_limits({"gpu": 3}).at(7.0)
    assert [one.limit for one in of.types] == [30, 3]
    assert of.throughput == 7.0
    assert of.arrays.slowest == pytest.approx(of.batch / 7)
    assert of.arrays.limit.tolist() == [30.0, 3.0]


def test_names_that_nothing_answers_to_are_refused():
    with pytest.raises(UnknownNameError, match="layer"):
        problem().layer_index("d")
    with pytest.raises(UnknownNameError, match="device type"):
        problem().type_index("tpu")


def test_arrays_are_sums_over_layers_with_the_serial_part_at_the_empty_call():
    of = problem(oct_s=2.0, odt_s=4.0, cross_s=[5.0, 6.0, 0.0], sharded_bytes=[7.0, 8.0, 9.0])
    arrays = of.arrays
    batch = of.batch
    assert arrays.grid.tolist() == [0.0, batch]
    assert arrays.running[1, 2, FACTS : FACTS + 2] == pytest.approx([0.4, 4.0])  # two layers: serial, whole
    assert arrays.running[1, :, SHARDED_BYTES].tolist() == [0.0, 7.0, 15.0, 24.0]
    assert arrays.cross[0, :, 0].tolist() == [5.0 / batch, 6.0 / batch, 0.0]
    assert arrays.memory.tolist() == [np.inf, np.inf]


def test_the_guide_states_the_formula_that_plans_are_judged_by():
    guide = (Path(__file__).parents[3] / "docs/guides/planning.md").read_text()
    assert "(cross of the layer before it + cross of its last layer) / k" in guide
    of = problem(oct_s=0.01, odt_s=[[1.0], [2.0], [4.0]], cross_s=[8.0, 16.0, 32.0], fixed_usd_per_hour=0.25)
    cuts, replicas = [(0, 0, 0), (1, 1, 1), (2, 2, 0)], [2, 3, 4]
    plan = with_counts(of, schedule_for(of, 3, 1), cuts, replicas)
    before, after = [0.0, 8.0, 16.0], [8.0, 16.0, 0.0]
    steps = [
        odt * (1 - 0.8 + 0.8 / k) + (first + last) / k
        for odt, k, first, last in zip([1.0, 2.0, 4.0], replicas, before, after, strict=True)
    ]
    assert [stage.time_s * of.batch for stage in plan.stages] == pytest.approx(steps)
    usd_per_hour = 0.25 + 2 * 0.5 + 3 * 2.5 + 4 * 0.5
    assert plan.usd_per_hour == pytest.approx(usd_per_hour)
    assert plan.cost_usd == pytest.approx(usd_per_hour * 1e9 / (10 / max(steps)) / 3600)
