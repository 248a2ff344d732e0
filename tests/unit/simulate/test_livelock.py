"""A run is stopped where `wake` asks in vain, and not where a policy only looks often."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from berth.simulate.livelock import LivelockDetector

CLOCK = [(name, "f8" if name == "now" else "i8") for name in ("now", "moments", "arrived", "fault")]
CLOCK += [(name, "i8") for name in ("events", "evictions", "moves")]


def stopped_after(gap_s: float, *, running: int = 0, most: int = 40_000_000) -> tuple[str, int]:
    """Why and after how many moments a run is stopped in which nothing changes and moments are this far apart."""
    jobs = np.zeros(1, [("state", "i8"), ("left", "f8"), ("touched", "f8"), ("stall", "f8"), ("speed", "f8")])
    world = SimpleNamespace(jobs=jobs, state=np.array([(running,)], [("running", "i8")]))
    clock, livelock = np.zeros(1, CLOCK), LivelockDetector()
    clock["arrived"] = 0 if running else 1  # a job is to come, or none
    for moments in range(0, most, 10_000):
        clock["moments"], clock["now"] = moments, moments * gap_s
        if why := livelock.reached(world, clock, 0):
            return why, moments
    return "", most


@pytest.mark.parametrize("gap_s", [0.0, 1e-6])
def test_moments_without_time_passing_end_a_run(gap_s):
    assert stopped_after(gap_s) == ("waking", 100_000)
    assert stopped_after(gap_s, running=1) == ("waking", 1_000_000)


@pytest.mark.parametrize("gap_s", [1.0, 60.0])
def test_a_place_that_opens_after_days_is_reached_by_looks_every_second(gap_s):
    hours = 48 * 3600
    assert stopped_after(gap_s, most=hours) == ("", hours)


def test_looks_that_lead_nowhere_end_a_run_after_as_many_as_a_year_has_seconds():
    assert stopped_after(1.0) == ("waking", 31_540_000)
