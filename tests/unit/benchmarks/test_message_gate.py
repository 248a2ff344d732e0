"""All-reduces message by message: two jobs by hand, placements, and the gates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import message_gate  # noqa: E402
from message_gate import GATES, Cluster, Cost, Job, adaptive, place  # noqa: E402

# Three machines of two: the first gang of three takes m0 and a device of m1, the second m2 and the other of m1.
LARGE, SMALL = Job(3, 0.0, 1.0, 4.0, 1), Job(3, 0.0, 2.0, 1.0, 1)
LONG = Job(3, 0.0, 1.0, 4.0, 1)


def ends(gate, jobs, e=0.0, a=0.0):
    cluster = Cluster(jobs, GATES[gate], Cost(a, 1.0, e), machines=3, gpus=2)
    return cluster.run()


@pytest.mark.parametrize(
    ("gate", "e", "expected"),
    [
        ("SRSF(1)", 0.0, [5.0, 6.0]),  # the small one waits for the large one's end
        # at 2 s both send at half the rate; the large one has 3 bytes left then
        ("SRSF(2)", 0.0, [6.0, 4.0]),
        ("SRSF(n)", 0.0, [6.0, 4.0]),
        ("Ada-SRSF", 0.0, [6.0, 4.0]),  # a quarter is below one half
        ("SRSF(2)", 1.0, [7.0, 5.0]),  # 2 b + e: three seconds per byte beside each other
        ("Ada-SRSF", 1.0, [5.0, 6.0]),  # a quarter is not below b / (2 (b + e)) = a quarter
    ],
)
def test_a_small_message_becomes_ready_while_a_large_one_is_sent(gate, e, expected):
    assert ends(gate, [LARGE, SMALL], e) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [("SRSF(1)", [5.0, 9.0]), ("SRSF(2)", [9.0, 9.0]), ("Ada-SRSF", [5.0, 9.0])],
)
def test_equal_messages_gain_by_turns(gate, expected):
    assert ends(gate, [LARGE, LONG]) == pytest.approx(expected)


def test_latency_is_paid_once_per_message_and_iteration():
    assert ends("SRSF(1)", [Job(3, 2.0, 1.0, 4.0, 2)], a=0.5) == pytest.approx([11.0])


def test_a_job_on_one_machine_sends_nothing():
    assert ends("SRSF(1)", [Job(2, 0.0, 1.0, 4.0, 3)]) == pytest.approx([3.0])


def test_a_job_waits_for_devices_and_shorter_service_goes_first():
    jobs = [Job(6, 0.0, 1.0, 0.0, 10), Job(6, 1.0, 1.0, 0.0, 10), Job(6, 2.0, 1.0, 0.0, 1)]
    assert ends("SRSF(1)", jobs) == pytest.approx([10.0, 20.0, 9.0])


def test_a_third_message_never_joins():
    cost = Cost(0.0, 1.0, 0.0)
    assert adaptive(1.0, [[], [100.0]], cost)
    assert not adaptive(1.0, [[], [100.0, 100.0]], cost)
    assert not GATES["SRSF(2)"](1.0, [[100.0, 100.0]], cost)
    assert GATES["SRSF(n)"](1.0, [[100.0, 100.0]], cost)


@pytest.mark.parametrize(
    ("gpus", "k", "expected"),
    [
        (2, 1, {1: 2}),
        (2, 2, {1: 1, 2: 1}),
        (5, 4, {1: 4, 2: 1}),
        (4, 4, {1: 2, 2: 2}),
        (12, 1, {}),
    ],
)
def test_small_gangs_are_scattered_and_large_ones_fill_machines(gpus, k, expected):
    assert place(gpus, [2, 4, 4, 1], k) == expected


def test_the_same_seed_gives_the_same_figures_and_another_one_others():
    found = [message_gate.mean_jct_s("Ada-SRSF", seed, 0.25, jobs=8) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_a_gang_larger_than_the_cluster_is_refused():
    with pytest.raises(ValueError, match="needs 7 devices of 6"):
        ends("SRSF(1)", [Job(7, 0.0, 1.0, 1.0, 1)])
