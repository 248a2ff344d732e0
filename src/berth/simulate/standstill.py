"""Notices when time passes and nothing gets done: jobs that take each other's place before they have restored.

A policy that shares devices in rounds no longer than a restore keeps everybody restoring for ever. The loop
hands control back now and then; where since a look long ago nobody has come or gone, nobody will come any more,
and next to no work was done though everybody had time to restore several times over, nothing ever will be done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth.schedule.view import RUNNING, WAITING, Array, World

_MOMENTS = 1000  # at least so many between the two looks
_RESTORES = 10  # ... and so many times the longest restore
_LEAST = 1e-6  # seconds of work per second, all jobs together
_STILL = 1_000_000  # moments without any time passing


@dataclass(frozen=True, slots=True)
class _Look:
    now: float
    moments: int
    left_s: float


@dataclass(slots=True)
class Standstill:
    """What the world was like when last looked at."""

    events: int = -1
    mark: _Look | None = None

    def reached(self, world: World, clock: Array, faults: int) -> bool:
        """Whether only time has passed since an earlier look, and always will; `faults` are all that there are."""
        events = int(clock[0]["events"])
        to_come = clock[0]["arrived"] < len(world.jobs) or clock[0]["fault"] < faults
        if events != self.events or to_come or world.state[0]["running"] == 0:
            self.events, self.mark = events, None
            return False
        look = _Look(float(clock[0]["now"]), int(clock[0]["moments"]), 0.0)
        if self.mark is not None and not self._long_since(look, world):
            return False
        look = _Look(look.now, look.moments, _left_s(world.jobs, look.now))
        before, self.mark = self.mark, look
        return before is not None and before.left_s - look.left_s <= _LEAST * (look.now - before.now)

    def _long_since(self, look: _Look, world: World) -> bool:
        assert self.mark is not None
        moments, span_s = look.moments - self.mark.moments, look.now - self.mark.now
        state = world.state[0]
        restore_s = max(float(state["eviction_s"]), float(state["eviction_large_s"]))
        return moments >= _STILL or (moments >= _MOMENTS and span_s > _RESTORES * restore_s)


def _left_s(jobs: Array, now: float) -> float:
    """Seconds of work left in all jobs that are there; what runs is booked only up to when it was last touched."""
    there = jobs[(jobs["state"] == RUNNING) | (jobs["state"] == WAITING)]
    running = there[there["state"] == RUNNING]
    since = np.maximum(running["touched"], running["stall"])
    return float(there["left"].sum() - (np.maximum(0.0, now - since) * running["speed"]).sum())
