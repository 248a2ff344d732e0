"""Preemption by order on several machines, and learned waits: whole runs of a few jobs, computed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from berth.schedule import Policy, PreemptByOrder, Rules, StaticOrder
from berth.schedule.records import WINDOW
from berth.simulate.run import Run, Setting, simulate
from berth.testing import check_policy, cluster, jobs
from berth.testing.policies import EXERCISES, LeastLeft


def play(rows: list, machines: Any, policy: str = "least-left", **setting: Any) -> Run:
    chosen = {"network": "off", "eviction_s": 40.0, "eviction_large_s": 60.0, **setting}
    return check_policy(EXERCISES[policy], jobs(rows), cluster(machines), Setting(**chosen))


CASES = {
    # j2 has less left than both: the one with most left makes way, and is back when j2 ends
    "the last in order makes way": (
        [(0, 4, 1000), (0, 4, 500), (10, 4, 100)],
        [1, 0, 0],
        [110 + 40 + 990, 500, 110],
    ),
    "both make way for a gang on both machines": (
        [(0, 4, 1000), (0, 4, 1000), (10, 8, 50)],
        [1, 1, 0],
        [60 + 40 + 990, 60 + 40 + 990, 60],
    ),
    "no more make way than are needed": (
        [(0, 2, 1000), (0, 2, 900), (0, 4, 800), (10, 2, 100)],
        [1, 0, 0, 0],
        [110 + 40 + 990, 900, 800, 110],
    ),
    # j3 fits what j2 leaves of j0's machine; at 110 s j0, with 990 s left, takes its place back from j3, with 1900 s
    "what is left over is used until the evicted job fits again": (
        [(0, 4, 1000), (0, 4, 500), (10, 2, 100), (10, 2, 2000)],
        [1, 0, 0, 1],
        [110 + 40 + 990, 500, 110, 500 + 40 + 1900],
    ),
    # by 910 s j0 has 90 s left, less than the 100 s of j1
    "a job that has little left stays": ([(0, 8, 1000), (910, 8, 100)], [0, 0], [1000, 1100]),
    "with as much left the first to arrive stays": ([(0, 8, 1000), (900, 8, 100)], [0, 0], [1000, 1100]),
    "with a second more it makes way": ([(0, 8, 1001), (900, 8, 100)], [1, 0], [1000 + 40 + 101, 1000]),
    # the shortest waits for nothing but a priority above it
    "a priority counts before the order": (
        [(0, 8, 1000, None, None, 1), (10, 8, 100, None, None, 0), (20, 8, 300, None, None, 2)],
        [1, 0, 0],
        [320 + 40 + 980, 1340 + 100, 320],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_who_makes_way_and_when_every_job_ends(name):
    rows, evictions, ends = CASES[name]
    run = play(rows, [4, 4])
    assert run.records["evictions"].tolist() == evictions
    assert run.records["end_s"].tolist() == ends
    restored = [40.0 * row[1] * count for row, count in zip(rows, evictions, strict=True)]
    assert run.accounts["lost_gpu_s"].tolist() == restored


@pytest.mark.parametrize(("gpus", "restart_s"), [(8, 40.0), (9, 60.0)])
def test_a_gang_of_more_than_eight_devices_restores_longer(gpus, restart_s):
    run = play([(0, gpus, 1000), (100, gpus, 50)], [gpus])
    assert run.records["end_s"].tolist() == [150 + restart_s + 900, 150]
    assert run.accounts["lost_gpu_s"].tolist() == [restart_s * gpus, 0.0]


def test_an_eviction_while_a_job_restores_costs_only_what_it_restored():
    # j0 is back at 150 s and would have restored at 190 s; j2 takes its place at 160 s, until 210 s.
    run = play([(0, 8, 1000), (100, 8, 50), (160, 8, 50)], [8])
    assert run.records["end_s"].tolist() == [210 + 40 + 900, 150, 210]
    assert run.accounts["lost_gpu_s"].tolist() == [8 * (10 + 40), 0.0, 0.0]


@dataclass(frozen=True)
class Protected(LeastLeft):
    """Least remaining work; no job is evicted before it has worked for `min_run_s`."""

    min_run_s: float = 0.0

    def rules(self) -> Rules:
        return Rules(
            order=StaticOrder(), preempt=PreemptByOrder(min_run_s=self.min_run_s, monotone_order=True)
        )


@pytest.mark.parametrize(
    ("min_run_s", "starts_s", "end_s"),
    [
        (0.0, [100.0, 200.0], 1000.0 + 50 + 40 + 50 + 40),
        (40.0, [100.0, 230.0], 230.0 + 50 + 40 + 860),  # it works again from 190 s on
        (100.0, [100.0, 290.0], 290.0 + 50 + 40 + 800),
        (150.0, [150.0, 200.0], 250.0 + 40 + 850),  # the second job follows the first at once
    ],
)
def test_a_job_that_restores_is_protected_until_it_has_worked_long_enough(min_run_s, starts_s, end_s):
    """Shorter jobs come at 100 s and 200 s; j0 makes way for each, and is back 50 s later for a restart of 40 s."""
    rows = [(0, 4, 1000), (100, 4, 50), (200, 4, 50)]
    setting = Setting(network="off", eviction_s=40.0, eviction_large_s=60.0)
    run = check_policy(Protected(min_run_s), jobs(rows), cluster([4]), setting)
    assert run.records["first_start_s"][1:].tolist() == starts_s
    assert run.records["end_s"][0] == end_s


def test_a_quota_is_made_free_only_by_a_job_of_the_same_virtual_cluster():
    # x holds its four devices; four are free. The shorter j2 of x takes j0's share, and not j1's place.
    rows = [(0, 4, 1000, None, "x"), (0, 2, 5000, None, "y"), (10, 2, 100, None, "x")]
    run = play(rows, [4, 4], quotas={"x": 4})
    assert run.records["evictions"].tolist() == [1, 0, 0]
    assert run.records["end_s"].tolist() == [110 + 40 + 990, 5000, 110]


@pytest.mark.slow
def test_least_attained_service_takes_turns_by_rounds():
    # Every 100 s the one with less service runs; a turn costs 40 s of restoring from the second on.
    run = play([(0, 8, 150), (0, 8, 150)], [8], "rounds")
    # j0 0-100, j1 100-200; j0 has had as much as j1 and came first: it restores until 240 s and ends at 290 s
    assert run.records["end_s"].tolist() == [290.0, 290.0 + 40 + 50]
    assert run.records["evictions"].tolist() == [1, 1]


@dataclass(frozen=True)
class Remembers(Policy):
    """First come, first served; the timer of a tier is the number of waits in its window."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), learn_timers=True)

    @staticmethod
    def observe(stats: Any, wait: float, gave_up: int, now: float, params: Any) -> float:
        return float(stats.count)


@pytest.mark.slow
def test_the_window_keeps_the_last_hundred_waits_of_each_size():
    # One gang at a time: number k arrives at k and starts at 3 k. A single job between them leaves no wait.
    count = WINDOW + 30
    rows = [*((number, 2, 3) for number in range(count)), (1000, 1, 10)]
    stats = simulate(jobs(rows), cluster([2]), Remembers(), Setting(network="off")).world.wait_stats
    singles, pairs = stats[0, 0], stats[1, 0]
    numbers = np.array([*range(WINDOW, count), *range(30, WINDOW)])  # in a ring: the newest over the oldest
    assert singles["count"] == 0
    assert (pairs["count"], pairs["next"], pairs["timer_s"]) == (WINDOW, 30, float(WINDOW))
    assert pairs["wait_s"].tolist() == (2.0 * numbers).tolist()
    assert pairs["at_s"].tolist() == (3.0 * numbers).tolist()
    assert pairs["gave_up"].sum() == 0
