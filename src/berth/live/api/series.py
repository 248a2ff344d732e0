"""Numbers over time for the dashboard: a ring of samples, taken when the books change.

Between two commits nothing changes, so samples are taken at commits and curves are steps. Each bucket of time keeps the
last sample in it: two seconds for the last hour, a minute for the last three days. It lives and dies with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from berth.live.books import Books
from berth.live.controller import Controller
from berth.live.records import Record
from berth.schedule.reasons import LINKS_BUSY, LOOKS_AHEAD, TOO_SPREAD

_FINE_S, _FINE = 2.0, 1_800
_COARSE_S, _COARSE = 60.0, 4_320
_BY_CHOICE = (TOO_SPREAD, LOOKS_AHEAD, LINKS_BUSY)


@dataclass(frozen=True, slots=True)
class Sample:
    """The books at one moment."""

    time: float
    busy: int
    free: int
    shut: int
    foreign: int
    queued: int
    running: int
    mean_wait_s: float  # of those who wait now, since they last began to
    longest_wait_s: float
    holding: int  # jobs that could start, and hold out for a nearer place
    saves_s: float  # what that should save them in all (modelled)
    usd_per_hour: float | None  # of the devices in use
    timers: dict[tuple[int, str], float]  # by demand and tier


class Series:
    """Samples of one controller's books."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._fine: deque[Sample] = deque(maxlen=_FINE)
        self._coarse: deque[Sample] = deque(maxlen=_COARSE)
        controller.listeners.append(self._committed)

    def _committed(self, first: int, records: Sequence[Record]) -> None:
        self.take()

    def take(self) -> None:
        """One look at the books, by whoever may read them now."""
        sample = sample_of(self._controller.books, self._controller.now())
        _keep(self._fine, sample, _FINE_S)
        _keep(self._coarse, sample, _COARSE_S)

    def told(self, after: float) -> dict[str, Any]:
        """Samples after a moment, in columns."""
        with self._controller.lock:
            self.take()
            fine = list(self._fine)
            samples = [one for one in self._coarse if one.time < fine[0].time] + fine
        return columns([one for one in samples if one.time > after])


def _keep(ring: deque[Sample], sample: Sample, bucket_s: float) -> None:
    if ring and ring[-1].time // bucket_s == sample.time // bucket_s:
        ring[-1] = sample
    else:
        ring.append(sample)


def columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """One list for each number; a timer that was always zero is left out."""
    told: dict[str, Any] = {
        field.name: [getattr(one, field.name) for one in samples]
        for field in fields(Sample)
        if field.name != "timers"
    }
    keys = sorted({key for one in samples for key, value in one.timers.items() if value > 0.0})
    told["timers"] = [
        {"gpus": gpus, "tier": tier, "seconds": [one.timers.get((gpus, tier)) for one in samples]}
        for gpus, tier in keys
    ]
    return told


def sample_of(books: Books, now: float) -> Sample:
    """The numbers of one moment."""
    world, state = books.world, books.world.state[0]
    rows = world.waiting[state["queue_start"] : state["queue_stop"]]
    waits = np.maximum(now - world.jobs["queued_since_s"][rows], 0.0)
    reasons, saves = world.jobs["reason"][rows], world.jobs["saves_s"][rows]
    said_now = world.jobs["explained_s"][rows] == state["now"]  # else the last pass did not come to it
    holding = said_now & np.isin(reasons, _BY_CHOICE) & np.isfinite(saves)
    on_machine, of_kind = _held(books)
    shut = sum(
        machine.size - held
        for machine, held, why in zip(books.cluster.machines, on_machine, books.shut, strict=True)
        if why
    )
    return Sample(
        time=now,
        busy=sum(of_kind),
        free=int(state["free"]),
        shut=shut,
        foreign=sum(books.foreign),
        queued=len(rows),
        running=int(state["running"]),
        mean_wait_s=float(waits.mean()) if len(rows) else 0.0,
        longest_wait_s=float(waits.max(initial=0.0)),
        holding=int(holding.sum()),
        saves_s=float(saves[holding].sum()),
        usd_per_hour=_usd_per_hour(books, of_kind),
        timers=_timers(books),
    )


def _held(books: Books) -> tuple[list[int], list[int]]:
    """Devices that attempts hold, by machine and by type."""
    on_machine, of_kind = [0] * len(books.cluster.machines), [0] * len(books.cluster.device_types)
    for attempt in books.attempts.values():
        if attempt.why is None:  # else it is on its way out
            for seat in attempt.seats:
                on_machine[seat.machine] += len(seat.devices)
                of_kind[seat.kind] += len(seat.devices)
    return on_machine, of_kind


def _usd_per_hour(books: Books, of_kind: list[int]) -> float | None:
    """Price of the devices in use; None: some price is not known."""
    total = 0.0
    for device, held in zip(books.cluster.device_types, of_kind, strict=True):
        if device.usd_per_hour is None:
            return None
        total += device.usd_per_hour * held
    return total


def _timers(books: Books) -> dict[tuple[int, str], float]:
    offers, demands = books.world.wait_stats["timer_s"], books.world.demands["gpus"].tolist()
    return {
        (gpus, tier): float(offers[at, level])
        for at, gpus in enumerate(demands)
        for level, tier in enumerate(books.setup.tiers)
        if gpus > 0 and np.isfinite(offers[at, level])
    }
