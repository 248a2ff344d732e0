"""Numbers over time for the dashboard: ring buffers of samples, taken at each commit.

Nothing changes between two commits, so the curves are steps. A bucket keeps the last sample in it: buckets of two
seconds cover the last hour, buckets of a minute the last three days. Samples of before the controller's start are
computed from the journal (`past_series.py`) when a page first asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from berth.live.controller import Controller
from berth.live.state import ControllerState
from berth.schedule.reasons import ReasonCode

_FINE_S, _FINE = 2.0, 1_800
COARSE_S, _COARSE = 60.0, 4_320
KEPT_S = COARSE_S * _COARSE
_WAITS_BY_CHOICE = (ReasonCode.TOO_SPREAD, ReasonCode.LOOKS_AHEAD, ReasonCode.LINKS_BUSY)


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment."""

    time: float
    busy: int
    free: int
    unavailable: int
    external: int
    queued: int
    running: int
    mean_wait_s: float  # of the jobs waiting now, since they last entered the queue
    longest_wait_s: float
    holding: int  # jobs that could start but wait for a nearer placement
    saves_s: float  # what that saves in total (modelled)
    usd_per_hour: float | None  # of the devices in use
    timers: dict[tuple[int, str], float]  # by GPUs and tier


class Series:
    """Samples of one controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._fine: deque[Sample] = deque(maxlen=_FINE)
        self._coarse: deque[Sample] = deque(maxlen=_COARSE)
        self.complete = True  # samples of before the start are there, or there are none
        controller.listeners.append(lambda first, records: self.take())

    def prepend(self, samples: Sequence[Sample]) -> None:
        """Add samples of before the first one."""
        with self._controller.lock:
            kept = [*samples, *self._coarse][-_COARSE:]
            self._coarse.clear()
            self._coarse.extend(kept)
            self.complete = True

    def take(self) -> None:
        """Take a sample; call with the controller's lock held."""
        sample = sample_of(self._controller.state, self._controller.now())
        _keep(self._fine, sample, _FINE_S)
        _keep(self._coarse, sample, COARSE_S)

    def after(self, moment: float) -> dict[str, Any]:
        """Return the samples after a moment, in columns."""
        with self._controller.lock:
            self.take()
            fine = list(self._fine)
            samples = [one for one in self._coarse if one.time < fine[0].time] + fine
        return columns([one for one in samples if one.time > moment])


def _keep(ring: deque[Sample], sample: Sample, bucket_s: float) -> None:
    if ring and ring[-1].time // bucket_s == sample.time // bucket_s:
        ring[-1] = sample
    else:
        ring.append(sample)


def columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return one list per number; timers that are always zero are left out."""
    found: dict[str, Any] = {
        field.name: [getattr(one, field.name) for one in samples]
        for field in fields(Sample)
        if field.name != "timers"
    }
    keys = sorted({key for one in samples for key, value in one.timers.items() if value > 0.0})
    found["timers"] = [
        {"gpus": gpus, "tier": tier, "seconds": [one.timers.get((gpus, tier)) for one in samples]}
        for gpus, tier in keys
    ]
    return found


def sample_of(state: ControllerState, now: float) -> Sample:
    """Return the numbers of the current state."""
    world, counters = state.world, state.world.state[0]
    rows = world.waiting[counters["queue_start"] : counters["queue_stop"]]
    waits = np.maximum(now - world.jobs["queued_since_s"][rows], 0.0)
    reasons, saves = world.jobs["reason"][rows], world.jobs["saves_s"][rows]
    explained_now = world.jobs["explained_s"][rows] == counters["now"]  # else the last pass did not reach it
    holding = explained_now & np.isin(reasons, _WAITS_BY_CHOICE) & np.isfinite(saves)
    by_machine, by_type = _held(state)
    unavailable = sum(
        machine.size - held
        for machine, held, why in zip(state.cluster.machines, by_machine, state.unavailable, strict=True)
        if why
    )
    return Sample(
        time=now,
        busy=sum(by_type),
        free=int(counters["free"]),
        unavailable=unavailable,
        external=sum(state.external),
        queued=len(rows),
        running=int(counters["running"]),
        mean_wait_s=float(waits.mean()) if len(rows) else 0.0,
        longest_wait_s=float(waits.max(initial=0.0)),
        holding=int(holding.sum()),
        saves_s=float(saves[holding].sum()),
        usd_per_hour=_usd_per_hour(state, by_type),
        timers=_timers(state),
    )


def _held(state: ControllerState) -> tuple[list[int], list[int]]:
    """Devices held by attempts, by machine and by type."""
    by_machine, by_type = [0] * len(state.cluster.machines), [0] * len(state.cluster.device_types)
    for attempt in state.attempts.values():
        if attempt.why is None:  # else it is being stopped
            for seat in attempt.seats:
                by_machine[seat.machine] += len(seat.devices)
                by_type[seat.device_type] += len(seat.devices)
    return by_machine, by_type


def _usd_per_hour(state: ControllerState, by_type: list[int]) -> float | None:
    """The price of the devices in use, None if one is unknown."""
    total = 0.0
    for device, held in zip(state.cluster.device_types, by_type, strict=True):
        if device.usd_per_hour is None:
            return None
        total += device.usd_per_hour * held
    return total


def _timers(state: ControllerState) -> dict[tuple[int, str], float]:
    offers, demands = state.world.wait_stats["timer_s"], state.world.demands["gpus"].tolist()
    return {
        (gpus, tier): float(offers[at, level])
        for at, gpus in enumerate(demands)
        for level, tier in enumerate(state.setup.tiers)
        if gpus > 0 and np.isfinite(offers[at, level])
    }
