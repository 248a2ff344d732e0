"""Gangs on several machines of a rack: which shape they get, from which slowdown on, and when they even out.

The imbalance of a gang on n machines with m devices on the smallest is (n - 1) / (n m). The tests write what an
imbalance costs into the jobs: nothing up to 1/8, a slowdown of 1.5 at 1/4 (8 + 2 devices) and of 3 at 3/4.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from berth.schedule import Migrate, Policy, Rules, StaticOrder
from berth.schedule.balance import slowdown_by_imbalance
from berth.simulate.events import event_frame
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster, jobs

IMBALANCE, SLOWDOWN = (0.125, 0.25, 0.75), (1.0, 1.5, 3.0)


@dataclass(frozen=True)
class Evenly(Policy):
    """First come, first served, as evenly as the rules say; a job moves where that saves more than it costs."""

    tolerance: float = 0.1
    times: float = 1.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), imbalance_tolerance=self.tolerance, migrate=Migrate(self.times))


def play(rows: list, machines: Any, policy: Policy | None = None, slowdown: tuple = SLOWDOWN) -> Run:
    def set_costs(world: Any, clock: Any) -> int:
        for job in world.jobs:
            job["shape_imbalance"], job["shape_slowdown"] = IMBALANCE, slowdown
        return 1_000_000

    setting = Setting(network="off", log=True, eviction_s=40.0, eviction_large_s=60.0)
    return simulate(jobs(rows), cluster(machines), policy or Evenly(), setting, watch=set_costs)


def places(run: Run, job: str) -> list[list[str]]:
    """Where a job started, and then where it moved."""
    log = event_frame(run)
    found = log.filter((log["job"] == job) & log["event"].is_in(["started", "moved"]))["places"]
    return [sorted(where) for where in found.to_list()]


@pytest.mark.parametrize(
    ("imbalance", "slowdown"),
    [
        (0.0, 1.0),
        (0.125, 1.0),
        (0.15625, 1.125),  # a quarter of the way from 1/8 to 1/4
        (0.25, 1.5),
        (0.5, 2.25),  # half way from 1/4 to 3/4
        (0.75, 3.0),
        (1.0, 3.75),  # beyond the last point the line goes on
    ],
)
def test_the_slowdown_is_a_line_through_three_points(imbalance, slowdown):
    job = SimpleNamespace(shape_imbalance=IMBALANCE, shape_slowdown=SLOWDOWN)
    line = getattr(slowdown_by_imbalance, "py_func", slowdown_by_imbalance)
    assert line(job, imbalance) == slowdown


def test_where_two_points_are_the_same_imbalance_the_later_slowdown_holds():
    job = SimpleNamespace(shape_imbalance=(0.125, 0.25, 0.25), shape_slowdown=(1.0, 1.5, 3.0))
    line = getattr(slowdown_by_imbalance, "py_func", slowdown_by_imbalance)
    assert line(job, 0.3) == 3.0


@pytest.mark.parametrize(
    ("worst", "where"),
    [(1.5, ["m0:8", "m1:2"]), (1.75, ["m1:5", "m2:5"])],
    ids=["as much as tolerated", "more"],
)
def test_a_gang_is_spread_evenly_if_its_worst_shape_costs_more_than_is_tolerated(worst, where):
    """Ten of 8, 5 and 5: the emptiest machine and the rest elsewhere, or two halves."""
    run = play([(0, 10, 100)], [[8, 5, 5]], Evenly(tolerance=0.5), (1.0, 1.25, worst))
    assert places(run, "j0") == [where]


@pytest.mark.parametrize(
    ("machines", "where"),
    [
        # 8 + 2 leaves no device of its rack free, but 5 + 5 of the other is more even
        ([[8, 2], [6, 6]], ["m2:5", "m3:5"]),
        # 5 + 5 in both racks: the rack with fewer free devices
        ([[5, 5, 2], [5, 5]], ["m3:5", "m4:5"]),
        ([[5, 5], [5, 5, 2]], ["m0:5", "m1:5"]),
        # 5 + 5 in both, and as many free: the first
        ([[5, 5], [5, 5]], ["m0:5", "m1:5"]),
        # three times 4 has imbalance 2/12, twice 5 has 1/10
        ([[4, 4, 4], [5, 5, 1]], ["m3:5", "m4:5"]),
        # too few devices in the second rack
        ([[8, 2], [5, 4]], ["m0:8", "m1:2"]),
    ],
)
def test_an_even_gang_takes_the_rack_that_holds_it_most_evenly(machines, where):
    assert places(play([(0, 10, 100)], machines), "j0") == [where]


@pytest.mark.parametrize(
    ("machines", "gpus", "where"),
    [
        # twice 5 and one more: on the first of the two, as far as it has devices
        ([[6, 6]], 11, ["m0:6", "m1:5"]),
        ([[5, 8]], 11, ["m0:5", "m1:6"]),
        # the fullest machines that do: 5 + 5 fit on the last two
        ([[8, 8, 5, 5]], 10, ["m2:5", "m3:5"]),
        # 6 + 6 need one of the larger; the machine of 4 is too small for a part
        ([[4, 6, 8, 8]], 12, ["m1:6", "m2:6"]),
    ],
)
def test_the_parts_of_an_even_gang_leave_the_emptiest_machines_whole(machines, gpus, where):
    assert places(play([(0, gpus, 100)], machines), "j0") == [where]


# Until 300 s jobs hold three devices of m1 and all of m2: the gang of ten starts as 8 + 2. From then on 5 + 5 is free,
# its own devices included. A restart of more than eight devices takes 60 s.
def uneven(seconds: float) -> list:
    return [(0, 3, 300), (0, 5, 300), (0, 10, seconds)]


@pytest.mark.parametrize(
    ("seconds", "times", "moved"),
    [(420, 1.0, False), (421, 1.0, True), (540, 2.0, False), (541, 2.0, True)],
)
def test_an_uneven_gang_moves_where_that_saves_more_than_moving_costs(seconds, times, moved):
    """At 300 s it has `seconds` - 300 left, and saves half of that: 1.5 - 1 times what is left against 60 s."""
    run = play(uneven(seconds), [[8, 5, 5]], Evenly(times=times))
    assert places(run, "j2") == [["m0:8", "m1:2"], ["m1:5", "m2:5"]][: 1 + moved]
    assert run.records["end_s"][2] == seconds + 60.0 * moved
    assert run.records["saves_s"][2] == (0.5 * (seconds - 300) if moved else 0.0)


@pytest.mark.parametrize(("tolerance", "moved"), [(0.5, False), (0.25, True)])
def test_a_gang_stays_where_its_shape_costs_no_more_than_is_tolerated(tolerance, moved):
    run = play(uneven(2000), [[8, 5, 5]], Evenly(tolerance))
    assert len(places(run, "j2")) == 1 + moved


def test_a_gang_that_does_not_move_keeps_its_devices():
    """From 300 s on eight devices are free beside the gang: nine only when it has ended."""
    run = play([*uneven(420), (310, 9, 10)], [[8, 5, 5]])
    assert run.records["first_start_s"][3] == 420.0


def test_a_gang_does_not_move_to_a_shape_as_uneven_as_its_own():
    """When j0 ends there is another machine of two, so 8 + 2 is possible twice."""
    run = play([(0, 2, 300), (0, 10, 2000)], [[8, 2, 2]])
    assert len(places(run, "j1")) == 1
