"""A run over time, recounted from its log: who held what from when to when, queue, use, occupancy, timers.

Curves are means over equal bins of time, from exact integrals: a peak shorter than a bin is flattened, but no
GPU-second is lost or counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from berth.schedule.records import Array, World
from berth.simulate.engine_state import Event
from berth.simulate.run import Run

Floats = NDArray[np.float64]

_MOST_ROWS = 48  # of an occupancy map


@dataclass(frozen=True, slots=True, eq=False)
class Attempts:
    """Every stretch of time that a gang spent in one place: one row each, by job, then by time."""

    job: NDArray[np.int64]
    start_s: Floats
    stop_s: Floats
    tier: NDArray[np.int32]
    gpus: NDArray[np.int32]
    places: NDArray[np.int64]  # first of its entries in the run's list of places
    count: NDArray[np.int32]
    ended_by: NDArray[np.int32]  # FINISHED, EVICTED or MOVED
    shape: NDArray[np.int32]  # index of its shape; -1: a plain gang

    def __len__(self) -> int:
        return len(self.job)


def attempts(run: Run) -> Attempts:
    """The attempts of all jobs, from the log."""
    log = run.log[np.isin(run.log["what"], (Event.STARTED, Event.MOVED, Event.EVICTED, Event.FINISHED))]
    log = log[np.argsort(log["job"], kind="stable")]
    opens = np.flatnonzero(np.isin(log["what"], (Event.STARTED, Event.MOVED)))
    first, last = log[opens], log[np.minimum(opens + 1, len(log) - 1)]
    open_ = (first["job"] != last["job"]) | (opens + 1 == len(log))  # a run at a livelock is cut off
    assert run.livelock or not open_.any(), "an attempt that never ends"
    return Attempts(
        job=first["job"],
        start_s=first["time"],
        stop_s=np.where(open_, run.clock[0]["now"], last["time"]),
        tier=first["tier"],
        gpus=first["gpus"],
        places=first["places"],
        count=first["count"],
        ended_by=np.where(open_, Event.EVICTED, last["what"]),
        shape=first["shape"],
    )


def machines_of(run: Run, tried: Attempts, at: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Machines of one attempt, and the devices it held on each."""
    places = run.log_places[tried.places[at] : tried.places[at] + tried.count[at]]
    return places["machine"], places["gpus"]


def last_end_s(run: Run) -> float:
    """When the last job was over."""
    return float(run.records["end_s"].max(initial=0.0))


def binned_mean(times: Floats, steps: Floats, edges: Floats) -> Floats:
    """Mean in each bin of a value that starts at 0 and changes by `steps` at `times`."""
    order = np.argsort(times, kind="stable")
    times, value = times[order], np.cumsum(steps[order])
    integral = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(times))])
    if not len(times):
        return np.zeros(len(edges) - 1)
    beyond = np.maximum(0.0, edges - times[-1]) * value[-1]
    at_edges = np.interp(edges, times, integral, left=0.0) + beyond
    return np.diff(at_edges) / np.diff(edges)


def queue_length(run: Run, edges: Floats) -> Floats:
    """Jobs that wait, over time."""
    log = run.log[np.isin(run.log["what"], (Event.ARRIVED, Event.STARTED, Event.EVICTED))]
    steps = np.where(log["what"] == Event.STARTED, -1.0, 1.0)
    return binned_mean(log["time"], steps, edges)


def devices_held(tried: Attempts, edges: Floats) -> Floats:
    """Devices that jobs hold, over time."""
    times = np.concatenate([tried.start_s, tried.stop_s])
    return binned_mean(times, np.concatenate([tried.gpus, -tried.gpus]).astype(np.float64), edges)


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Share of each rack's devices that is held, over time."""

    word: str  # what a row is: rack, machine ...
    names: tuple[str, ...]
    share: Floats  # [row, bin]


def occupancy(run: Run, tried: Attempts, edges: Floats) -> Occupancy:
    """Rack by time; where there are too many racks, neighbours share a row."""
    level = run.cluster.rack_level
    names = run.cluster.group_names[level]
    together = -(-len(names) // _MOST_ROWS)
    row_of_machine = run.cluster.groups[level] // together
    rows = -(-len(names) // together)
    size = np.maximum(1, np.bincount(row_of_machine, weights=run.cluster.sizes, minlength=rows))
    entries = _entries(tried)
    attempt = np.repeat(np.arange(len(tried)), tried.count)
    row = row_of_machine[run.log_places["machine"][entries]]
    gpus = run.log_places["gpus"][entries].astype(np.float64)
    share = np.zeros((rows, len(edges) - 1))
    for number in range(rows):
        mine = row == number
        times = np.concatenate([tried.start_s[attempt[mine]], tried.stop_s[attempt[mine]]])
        share[number] = binned_mean(times, np.concatenate([gpus[mine], -gpus[mine]]), edges) / size[number]
    shown = [names[i] if together == 1 else f"{names[i]} ..." for i in range(0, len(names), together)]
    return Occupancy(run.cluster.tiers[level].name, tuple(shown), share)


def _entries(tried: Attempts) -> NDArray[np.int64]:
    """Indices into the list of places, attempt after attempt."""
    offset = np.concatenate([[0], np.cumsum(tried.count)[:-1]]) if len(tried) else np.zeros(0, np.int64)
    within = np.arange(int(tried.count.sum())) - np.repeat(offset, tried.count)
    return np.asarray(np.repeat(tried.places, tried.count) + within, dtype=np.int64)


@dataclass(slots=True)
class TimerWatch:
    """Looks at the timers of a policy that learns, every `every` events; pass it to `simulate`."""

    every: int
    times: list[float] = field(default_factory=list)
    timers: list[Array] = field(default_factory=list)  # [demand, tier] each
    demands: Array | None = None
    samples: Array | None = None  # [demand, tier] that taught the timer, at the last look

    def __call__(self, world: World, clock: Array) -> int:
        """One look; returns after how many events the next is due."""
        if world.rules[0]["learn_timers"]:
            self.times.append(float(clock[0]["now"]))
            self.timers.append(world.wait_stats["timer_s"].copy())
            self.demands, self.samples = world.demands["gpus"].copy(), world.wait_stats["count"].copy()
        return self.every
