"""Waiting for a more even place, and places reserved for jobs that wait long: the moments at which each ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from berth.schedule import Policy, Reserve, Rules, StaticOrder
from berth.simulate.events import event_frame
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster, jobs

SETTING = Setting(network="off", log=True, eviction_s=40.0, eviction_large_s=60.0)


def places(run: Run, job: str) -> list[str]:
    log = event_frame(run)
    return sorted(log.filter((log["event"] == "started") & (log["job"] == job))["places"][0])


# Uneven gangs


@dataclass(frozen=True)
class WaitsFor(Policy):
    """A gang starts unevenly if the wait for an even place is longer than `longest_s`."""

    longest_s: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), relax_locality=True, imbalance_tolerance=0.1)

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1 if wait > params.longest_s else 0


def uneven(longest_s: float, three: float) -> Run:
    """j0 holds m1 for good; two devices of m2 are free from the start, one more from 200 s on and all from 300 s on.

    The gang j3 of ten has its work slowed by half as 8 + 2, by `three` - 1 as 7 + 3, and not at all as 5 + 5.
    """

    def set_costs(world: Any, clock: Any) -> int:
        world.jobs[3]["shape_imbalance"] = (1 / (2 * 4), 1 / (2 * 3), 1 / (2 * 2))
        world.jobs[3]["shape_slowdown"] = (1.0, three, 1.5)
        return 1_000_000

    rows = [(0, 5, 9000), (0, 1, 200), (0, 2, 300), (0, 10, 1000)]
    return simulate(jobs(rows), cluster([[8, 5, 5]]), WaitsFor(longest_s), SETTING, watch=set_costs)


@pytest.mark.parametrize(
    ("three", "longest_s", "start_s", "where"),
    [
        # 7 + 3 costs less than half of what 8 + 2 does, so the wait is until 200 s
        (1.24, 199.0, 0.0, ["m0:8", "m2:2"]),
        # and there the next wait is until 300 s
        (1.24, 200.0, 300.0, ["m0:5", "m2:5"]),
        (1.24, 99.0, 0.0, ["m0:8", "m2:2"]),
        # 7 + 3 costs more than half of it, so the wait is until 300 s
        (1.26, 299.0, 0.0, ["m0:8", "m2:2"]),
        (1.26, 300.0, 300.0, ["m0:5", "m2:5"]),
        # 7 + 3 costs no more than is tolerated
        (1.09, 200.0, 200.0, ["m0:7", "m2:3"]),
    ],
)
def test_an_uneven_gang_weighs_the_wait_until_its_loss_is_halved(three, longest_s, start_s, where):
    run = uneven(longest_s, three)
    assert run.records["first_start_s"][3] == start_s
    assert places(run, "j3") == where


def test_machines_of_another_rack_make_no_gang_more_even():
    """The devices that come free in the other rack do not help the ten on m0 and m1: they start as 8 + 2."""

    def set_costs(world: Any, clock: Any) -> int:
        for job in world.jobs:
            job["shape_imbalance"], job["shape_slowdown"] = (0.125, 0.25, 0.75), (1.0, 1.5, 3.0)
        return 1_000_000

    rows = [(0, 5, 300), (0, 10, 1000)]
    racks = [[8, 2], [5]]
    run = simulate(jobs(rows), cluster(racks), WaitsFor(1e9), SETTING, watch=set_costs)
    assert run.records["first_start_s"].tolist() == [0.0, 0.0]
    assert places(run, "j1") == ["m0:8", "m1:2"]


# Reserved places


@dataclass(frozen=True)
class ShortestFirst(Policy):
    """Least work goes first and small jobs overtake; one that has waited 100 s has a place reserved."""

    in_order: bool = False

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), reserve=Reserve(100.0, in_order=self.in_order))

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return job.work_s


# Single devices keep a machine of two half busy: from 10 s to 110 s, from 60 s to 160 s, and so on.
SINGLES = [(0, 1, 60), *((at, 1, 100) for at in range(10, 500, 50))]


@pytest.mark.parametrize(("in_order", "starts_s"), [(False, [160.0, 180.0]), (True, [170.0, 160.0])])
def test_the_place_is_for_the_longest_waiting_job_or_for_the_first_in_order(in_order, starts_s):
    """At 110 s both pairs have waited more than 100 s, and the machine is free at 160 s: for 20 s or for 10 s."""
    rows = [SINGLES[0], (1, 2, 20), (5, 2, 10), *SINGLES[1:]]
    run = simulate(jobs(rows), cluster([2]), ShortestFirst(in_order), SETTING)
    assert run.records["first_start_s"][1:3].tolist() == starts_s


@pytest.mark.parametrize(
    ("priority", "seconds", "start_s", "pair_s"),
    [(0, 40, 120.0, 160.0), (0, 41, 170.0, 160.0), (1, 41, 120.0, 161.0)],
    ids=["ends in time", "ends too late", "of higher priority"],
)
def test_a_reserved_device_is_used_by_jobs_that_end_in_time_or_have_a_higher_priority(
    priority, seconds, start_s, pair_s
):
    """From 110 s on one device is kept free for the pair j1, which needs both at 160 s, for 10 s."""
    rows = [(*row, None, None, 0) for row in [SINGLES[0], (1, 2, 10), *SINGLES[1:4]]]
    rows.append((120, 1, seconds, None, None, priority))
    run = simulate(jobs(rows), cluster([2]), ShortestFirst(), SETTING)
    assert run.records["first_start_s"][[1, 5]].tolist() == [pair_s, start_s]


@dataclass(frozen=True)
class OneMachine(Policy):
    """A job starts on one machine only."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), relax_locality=True)

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1 if tier == job.nearest_tier else 0

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier


def test_a_job_that_may_use_what_is_reserved_and_does_not_start_leaves_it_reserved():
    """From 5 s on m0 has three free devices of six, m1 and m2 two of four.

    j5 needs all of m0, from 2,000 s on. j6, of lower priority, needs three beyond that, and follows when j5 has ended.
    """
    rows = [(0, 2, 9000), (0, 2, 5), (0, 2, 9000), (0, 2, 5), (0, 3, 2000), (6, 6, 100), (400, 3, 5000)]
    ranked = [(*row, None, None, int(number == 5)) for number, row in enumerate(rows)]
    run = simulate(jobs(ranked), cluster([6, 4, 4]), OneMachine(), SETTING)
    assert (places(run, "j5"), places(run, "j6")) == (["m0:6"], ["m0:3"])
    assert run.records["first_start_s"][5:].tolist() == [2000.0, 2100.0]
