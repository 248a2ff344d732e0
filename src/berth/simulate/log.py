"""The log of events, written by the compiled loop into a buffer that is emptied now and then."""

from __future__ import annotations

from typing import Any

from berth.compile import kernel
from berth.schedule.view import World
from berth.simulate.view import EVICTED, MOVED, STARTED, Course


@kernel
def has_room(world: World, course: Course, now: float) -> bool:
    """Whether the buffers hold whatever may happen at this moment."""
    clock, state = course.clock[0], world.state[0]
    coming = 0
    row = clock.arrived
    while row < len(world.jobs) and world.jobs[row].arrival <= now:
        coming += 1
        row += 1
    broken = 0
    fault = clock.fault
    while fault < len(course.faults) and course.faults[fault].time <= now:
        broken += 1
        fault += 1
    events = 2 * coming + 2 * (state.last - state.first) + 4 * state.running + broken + 8
    places = 2 * len(world.places)
    return clock.log + events <= len(course.log) and clock.log_places + places <= len(course.log_places)


@kernel
def write(world: World, course: Course, what: int, row: int, reason: int, now: float) -> None:
    """Appends one event; a start and a move name their places. A negative row is a machine: -1 - machine."""
    clock = course.clock[0]
    if not clock.logging:
        return
    entry = course.log[clock.log]
    clock.log += 1
    entry.time, entry.job, entry.what = now, row, what
    entry.tier, entry.reason, entry.gpus, entry.places, entry.count = -1, 0, 0, clock.log_places, 0
    entry.until, entry.saves = 0.0, 0.0
    if row < 0:
        return
    job = world.jobs[row]
    entry.tier, entry.reason, entry.gpus = -1 if what == EVICTED else job.tier, reason, job.gpus
    entry.until, entry.saves = job.until, job.saves
    if what in (STARTED, MOVED):
        write_places(world, course, job.head, entry)


@kernel
def write_places(world: World, course: Course, head: int, entry: Any) -> None:
    """Appends where a gang stands."""
    clock = course.clock[0]
    while head >= 0:
        place = world.places[head]
        host = world.hosts[place.host]
        spot = course.log_places[clock.log_places]
        spot.machine, spot.kind, spot.gpus = host.machine, host.kind, place.count
        clock.log_places += 1
        entry.count += 1
        head = place.next
