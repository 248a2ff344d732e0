"""Until when a place is reserved: the end of what runs there at its speed of now, restores included.

A job that overtakes the one for which a place is reserved has to end by that second.
"""

from __future__ import annotations

from typing import Any

import pytest

from berth.schedule.records import JobStatus
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES


def play(rows: list, machines: Any, watch: Any = None, **setting: Any) -> Run:
    chosen = Setting(**{"network": "off", "eviction_s": 40.0, "eviction_large_s": 60.0, **setting})
    return simulate(jobs(rows), cluster(machines), EXERCISES["backfill"], chosen, watch=watch)


@pytest.mark.parametrize(
    ("work_s", "starts_s", "end_s"),
    [
        (100, [60.0, 200.0], 200.0),  # back at 60 s, with 40 s to restore and 100 s to work
        (101, [210.0, 200.0], 210.0 + 40.0 + 101.0),
    ],
)
def test_a_job_that_ran_before_must_restore_in_time_too(work_s, starts_s, end_s):
    """j1 needs both machines, from 200 s on. j2 works on m1 from 2 s on, until m1 fails at 50 s and is back at 60 s."""
    rows = [(0, 4, 200), (1, 8, 10), (2, 2, work_s)]
    run = play(rows, [4, 4], faults=faults([(50, 1, "fail"), (60, 1, "repair")]))
    assert [run.records["started_s"][2], run.records["first_start_s"][1]] == starts_s
    assert run.records["end_s"][2] == end_s


@pytest.mark.parametrize(("seconds", "start_s"), [(148, 12.0), (149, 250.0)])
def test_a_place_is_reserved_until_a_restored_job_ends(seconds, start_s):
    """j0 is evicted by a fault at 10 s, on m1 from then on, and has restored at 50 s: it ends at 160 s."""
    down = faults([(10, 0, "fail"), (11, 0, "repair")])
    rows = [(0, 4, 110), (11, 8, 90), (12, 4, seconds)]
    run = play(rows, [4, 4], faults=down)
    assert run.records["end_s"][0] == 160.0
    assert run.records["first_start_s"].tolist() == [0.0, 160.0, start_s]


# Two gangs of vgg16 share the uplink of m1 until one of them ends.
SHARING = [(0, 6, 1000, "vgg16"), (0, 5, 300, "vgg16")]


@pytest.mark.parametrize(("early_s", "passes"), [(1.0, True), (-1.0, False)])
def test_on_shared_links_a_job_is_expected_to_end_at_its_speed_of_now(early_s, passes):
    """j2 needs all devices. j3 comes at 20 s, and ends one second before or after j0 would at its speed of then.

    j0 is faster once j1 has ended: where j3 does not overtake, j2 starts earlier than was expected.
    """
    expected = []

    def look(world: Any, clock: Any) -> int:
        now, first = float(clock["now"][0]), world.jobs[0]
        if now <= 20.0 and first["state"] == JobStatus.RUNNING:
            left_s = first["estimated_remaining_s"] - (now - first["updated_s"]) * first["speed"]
            expected.append(now + left_s / first["speed"])
        return 1

    shared = {"machines": [4, 4, 4], "network": "on", "congestion": 20.0}
    rows = [*SHARING, (10, 12, 100), (20, 1, 1)]
    end_s = play(rows, watch=look, **shared).records["end_s"][0]
    assert end_s < expected[-1] - 10.0
    rows[3] = (20, 1, expected[-1] - 20.0 - early_s)
    starts = play(rows, **shared).records["first_start_s"]
    assert (starts[3] == 20.0) == passes
    assert starts[2] == pytest.approx(expected[-1] - early_s if passes else end_s, rel=1e-12)
