"""Preemption for gain: at which gain, and at which moment, a running job makes way. All figures are whole seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from berth.schedule import Policy, PreemptByGain, Rules, StaticOrder
from berth.simulate.run import Run, Setting, simulate
from berth.testing import check_policy, cluster, jobs


@dataclass(frozen=True)
class Gains(Policy):
    """Jobs of ten seconds gain `gain_s` by a start, any victim loses `cost_s` beside its restart."""

    gain_s: float = 0.0
    cost_s: float = 0.0
    margin: float = 1.0
    min_run_s: float = 0.0
    interval_s: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByGain(self.margin, self.min_run_s, self.interval_s))

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return params.gain_s if job.work_s == 10.0 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return params.cost_s


def play(policy: Policy, rows: list, machines: Any, **setting: Any) -> Run:
    chosen = {"network": "off", "eviction_s": 40.0, "eviction_large_s": 60.0, **setting}
    return check_policy(policy, jobs(rows), cluster(machines), Setting(**chosen))


@pytest.mark.parametrize(
    ("gpus", "gain_s", "cost_s", "margin", "evicted"),
    [
        (8, 140.0, 100.0, 1.0, False),  # as much as the victim loses: 100 s, and 40 s for its restart
        (8, 141.0, 100.0, 1.0, True),
        (8, 280.0, 100.0, 2.0, False),
        (8, 281.0, 100.0, 2.0, True),
        (9, 160.0, 100.0, 1.0, False),  # above eight devices a restart takes 60 s
        (9, 161.0, 100.0, 1.0, True),
        (8, 40.0, 0.0, 1.0, False),
        (8, 41.0, 0.0, 1.0, True),
    ],
)
def test_a_job_makes_way_where_the_gain_is_more_than_the_margin_times_its_loss(
    gpus, gain_s, cost_s, margin, evicted
):
    run = play(Gains(gain_s, cost_s, margin), [(0, gpus, 1000), (50, gpus, 10)], [gpus])
    restart_s = 40.0 if gpus <= 8 else 60.0
    expected = [1010.0 + restart_s, 60.0] if evicted else [1000.0, 1010.0]
    assert run.records["end_s"].tolist() == expected
    assert run.accounts["lost_gpu_s"].tolist() == [restart_s * gpus * evicted, 0.0]


@pytest.mark.parametrize(("gain_s", "victims"), [(281.0, 2), (280.0, 0), (141.0, 0)])
def test_two_victims_must_be_worth_both_of_their_losses(gain_s, victims):
    run = play(Gains(gain_s, 100.0), [(0, 2, 1000), (0, 2, 1000), (50, 4, 10)], [4])
    assert run.records["evictions"].tolist() == ([1, 1, 0] if victims else [0, 0, 0])


def test_a_victim_is_only_taken_inside_one_machine():
    # Half of each machine is free, and j2 needs a whole one: one victim suffices, and keeps what it did.
    run = play(Gains(141.0, 100.0), [(0, 3, 1000), (0, 3, 2000), (50, 4, 10)], [4, 4])
    assert run.records["evictions"].tolist() == [1, 0, 0]
    assert run.records["first_start_s"][2] == 50.0
    assert run.records["end_s"].tolist() == [1050.0, 2000.0, 60.0]


@pytest.mark.parametrize(
    ("min_run_s", "start_s"), [(0.0, 50.0), (50.0, 50.0), (51.0, 51.0), (300.0, 300.0), (5000.0, 1000.0)]
)
def test_no_job_makes_way_before_it_has_worked_for_a_while_and_then_at_once(min_run_s, start_s):
    run = play(Gains(1e6, min_run_s=min_run_s), [(0, 4, 1000), (50, 4, 10)], [4])
    assert run.records["first_start_s"][1] == start_s


def test_restoring_is_not_work():
    # j0 makes way at 100 s, is back at 110 s and has restored at 150 s: it is protected until 250 s.
    rows = [(0, 4, 1000), (100, 4, 10), (160, 4, 10)]
    run = play(Gains(1e6, min_run_s=100.0), rows, [4])
    assert run.records["first_start_s"].tolist() == [0.0, 100.0, 250.0]
    # 100 s of work, then 100 s from 150 s to 250 s, then 800 s after 260 s and a restart of 40 s
    assert run.records["end_s"][0] == 1100.0


@pytest.mark.parametrize(
    ("interval_s", "second_s"), [(0.0, 160.0), (60.0, 160.0), (200.0, 300.0), (500.0, 600.0)]
)
def test_no_job_makes_way_again_within_the_interval(interval_s, second_s):
    # The first time at 100 s; the second comes at 160 s.
    rows = [(0, 4, 1000), (100, 4, 10), (160, 4, 10)]
    run = play(Gains(1e6, interval_s=interval_s), rows, [4])
    assert run.records["first_start_s"].tolist() == [0.0, 100.0, second_s]
    assert run.records["evictions"].tolist() == [2, 0, 0]


@dataclass(frozen=True)
class ByCost(Policy):
    """A victim loses as many seconds as it arrived after the start."""

    by_order: bool = False

    def rules(self) -> Rules:
        by_gain = PreemptByGain(margin=1.0, victims_by_order=self.by_order)
        return Rules(order=StaticOrder(), preempt=by_gain)

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return 1e6 if job.work_s == 10.0 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return victim.arrival_s


@pytest.mark.parametrize(
    ("by_order", "gpus", "evictions"),
    [
        (False, 1, [1, 0, 0, 0, 0]),
        (False, 2, [1, 1, 0, 0, 0]),
        (False, 3, [1, 1, 1, 0, 0]),
        (True, 1, [0, 0, 0, 1, 0]),
        (True, 2, [0, 0, 0, 1, 0]),  # the last came with two devices
        (True, 3, [0, 0, 1, 1, 0]),
    ],
)
def test_victims_are_the_cheapest_or_the_last_in_order(by_order, gpus, evictions):
    rows = [(0, 1, 1000), (1, 1, 1000), (2, 1, 1000), (3, 2, 1000), (50, gpus, 10)]
    run = play(ByCost(by_order), rows, [5])
    assert run.records["evictions"].tolist() == evictions
    assert run.records["first_start_s"][4] == 50.0


@dataclass(frozen=True)
class SomeStay(ByCost):
    """Jobs of 500 s may not be evicted, others cost `cost_s`; the last in order are asked about first."""

    gain_s: float = 0.0
    cost_s: float = 100.0

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return params.gain_s if job.work_s == 10.0 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return math.inf if victim.work_s == 500.0 else params.cost_s


@pytest.mark.parametrize("by_order", [False, True])
@pytest.mark.parametrize(
    ("gpus", "gain_s", "evicted", "start_s"),
    [
        (1, 141.0, 1, 50.0),
        (1, 140.0, 0, 501.0),  # when j1 has ended
        (2, 281.0, 2, 50.0),
        (2, 280.0, 1, 501.0),
        (3, 281.0, 2, 501.0),
        (3, 141.0, 1, 503.0),  # and j3
    ],
)
def test_jobs_that_may_not_be_evicted_stay_and_are_not_counted(by_order, gpus, gain_s, evicted, start_s):
    """j1 and j3 stay: two of four devices can come free at 50 s. Each costs 100 s, and a restart of 40 s."""
    rows = [(0, 1, 1000), (1, 1, 500), (2, 1, 1000), (3, 1, 500), (50, gpus, 10)]
    run = play(SomeStay(by_order, gain_s), rows, [4])
    assert run.records["first_start_s"][4] == start_s
    assert run.records["evictions"].tolist()[1::2] == [0, 0]
    assert run.records["evictions"].sum() == evicted


def test_what_an_eviction_frees_beyond_need_goes_to_the_next_in_the_same_pass():
    # j0 holds all eight; j1 needs five, j2 three: one eviction is enough for both.
    rows = [(0, 8, 1000), (50, 5, 10), (50, 3, 10)]
    run = play(Gains(1e6), rows, [8])
    assert run.records["first_start_s"].tolist() == [0.0, 50.0, 50.0]
    assert run.records["evictions"].tolist() == [1, 0, 0]
    assert run.records["end_s"].tolist() == [1050.0, 60.0, 60.0]


def test_what_a_start_beside_an_eviction_gains_is_not_counted_for_the_job_behind_it():
    """j2 starts beside j3 where j0 was evicted. j4 gains nothing: it follows j0, which is back at 60 s on m0.

    j0 had 950 s left and restores for 40 s.
    """
    rows = [(0, 8, 1000), (0, 8, 2000), (50, 5, 10), (50, 3, 10), (50, 8, 100)]
    run = play(Gains(1e6), rows, [8, 8])
    assert run.records["evictions"].tolist() == [1, 0, 0, 0, 0]
    assert run.records["first_start_s"].tolist() == [0.0, 0.0, 50.0, 50.0, 1050.0]


def test_a_job_over_its_quota_has_no_other_make_way():
    rows = [(0, 4, 1000, None, "y"), (0, 4, 500, None, "x"), (50, 4, 10, None, "x")]
    run = play(Gains(1e6), rows, [4, 4], quotas={"x": 4})
    assert run.records["evictions"].tolist() == [0, 0, 0]
    assert run.records["first_start_s"][2] == 500.0


@pytest.mark.parametrize(
    ("gain_s", "ends"),
    [
        # j1 takes j0's place at 50 s and loses it to j2 at 55 s. At 65 s j0, first in order, is back, and has restored
        # at 105 s. A second later j1 may take its place again if its gain is more than two restarts: 80 s.
        (80.0, [1055.0, 1055.0 + 40 + 5, 65.0]),
        (81.0, [106.0 + 40 + 5 + 40 + 949, 106.0 + 40 + 5, 65.0]),
    ],
)
def test_a_job_that_ran_before_pays_its_own_restart_too(gain_s, ends):
    rows = [(0, 4, 1000, None, None, 0), (50, 4, 10, None, None, 0), (55, 4, 10, None, None, 1)]
    run = play(Gains(gain_s, min_run_s=1.0), rows, [4])
    assert run.records["first_start_s"].tolist() == [0.0, 50.0, 55.0]
    assert run.records["end_s"].tolist() == ends


@pytest.mark.slow
def test_at_most_four_blocked_jobs_are_considered_in_one_pass():
    # No job may be evicted for the first four; the fifth, for which one may, is not looked at.
    @dataclass(frozen=True)
    class Five(Gains):
        """The cost of a victim forbids it for all but the largest."""

        @staticmethod
        def cost(victim: Any, job: Any, now: float, params: Any) -> float:
            return 0.0 if job.gpus == 3 else 1e12

    rows = [(0, 4, 1000), *[(50, 4, 10)] * 4, (50, 3, 10)]
    run = simulate(jobs(rows), cluster([4]), Five(1e6), Setting(network="off"))
    assert run.records["evictions"][0] == 0
    few = simulate(jobs([*rows[:4], rows[5]]), cluster([4]), Five(1e6), Setting(network="off"))
    assert few.records["evictions"][0] == 1
    assert few.records["first_start_s"][4] == 50.0
