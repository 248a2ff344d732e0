"""Detects runs in which time passes and no progress is made.

The event loop returns now and then. Two kinds of run would never end:

RESTORING: jobs take each other's place before they have restored, as under a policy that shares devices in rounds
no longer than a restore. No arrival or fault is to come, no job has finished since an earlier look, and next to no
work was done though every job had time to restore several times over.

WAKING: the policy's `wake` asks to be called again and again, and no moment changes anything. Moments follow each
other so closely that what is to come would never be reached; where nothing runs and nothing is to come, fewer such
moments are enough. A policy that looks now and then, say every second, may yet start a job: it is stopped only if
nothing runs, nothing is to come and nothing changes in as many looks as a year has seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth.schedule.records import Array, JobStatus, World

RESTORING, WAKING = "restoring", "waking"
_MOMENTS = 1000  # at least this many between the two looks
_RESTORES = 10  # ... and this many times the longest restore
_LEAST = 1e-6  # seconds of work per second, all jobs together
_STILL = 1_000_000  # moments without any time passing
_CLOSE_S = 1e-3  # moments closer than this on average, _STILL of them in a row, lead nowhere
_IDLE = 100_000  # ... and this many where nothing runs
_IDLE_LOOKS = 31_536_000  # moments in a row, however far apart, in which nothing runs and nothing changes


@dataclass(frozen=True, slots=True)
class _Look:
    now: float
    moments: int
    left_s: float = 0.0


@dataclass(slots=True)
class LivelockDetector:
    """What the world was like at earlier looks."""

    events: int = -1
    mark: _Look | None = None
    changes: tuple[int, ...] = ()
    unchanged: _Look | None = None  # the first look since anything happened

    def reached(self, world: World, clock: Array, faults: int) -> str:
        """Why the run will never end, or ""; `faults` is the number of all faults of the run."""
        to_come = bool(clock[0]["arrived"] < len(world.jobs) or clock[0]["fault"] < faults)
        idle = int(world.state[0]["running"]) == 0 and not to_come
        look = _Look(float(clock[0]["now"]), int(clock[0]["moments"]))
        if self._wakes_without_effect(look, clock, idle):
            return WAKING
        return RESTORING if self._only_restores(look, world, clock, to_come) else ""

    def _wakes_without_effect(self, look: _Look, clock: Array, idle: bool) -> bool:
        changes = tuple(int(clock[0][name]) for name in ("events", "evictions", "moves"))
        if self.unchanged is None or changes != self.changes:
            self.changes, self.unchanged = changes, look
            return False
        moments, span_s = look.moments - self.unchanged.moments, look.now - self.unchanged.now
        if span_s < _CLOSE_S * moments:
            return moments >= (_IDLE if idle else _STILL)
        return idle and moments >= _IDLE_LOOKS

    def _only_restores(self, look: _Look, world: World, clock: Array, to_come: bool) -> bool:
        events = int(clock[0]["events"])
        if events != self.events or to_come or world.state[0]["running"] == 0:
            self.events, self.mark = events, None
            return False
        if self.mark is not None and not self._long_since(look, world):
            return False
        look = _Look(look.now, look.moments, _left_s(world.jobs, look.now))
        before, self.mark = self.mark, look
        return before is not None and before.left_s - look.left_s <= _LEAST * (look.now - before.now)

    def _long_since(self, look: _Look, world: World) -> bool:
        assert self.mark is not None
        moments, span_s = look.moments - self.mark.moments, look.now - self.mark.now
        rules = world.rules[0]
        restore_cost_s = max(float(rules["eviction_s"]), float(rules["eviction_large_s"]))
        return moments >= _STILL or (moments >= _MOMENTS and span_s > _RESTORES * restore_cost_s)


def _left_s(jobs: Array, now: float) -> float:
    """Seconds of work left in all jobs that are there; progress is up to date only as of `touched`."""
    there = jobs[(jobs["state"] == JobStatus.RUNNING) | (jobs["state"] == JobStatus.WAITING)]
    running = there[there["state"] == JobStatus.RUNNING]
    since = np.maximum(running["updated_s"], running["restored_at_s"])
    return float(there["true_remaining_s"].sum() - (np.maximum(0.0, now - since) * running["speed"]).sum())
