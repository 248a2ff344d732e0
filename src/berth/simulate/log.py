"""The event log, written by the compiled loop into a buffer that the caller empties."""

from __future__ import annotations

from berth.native.deferred import deferred
from berth.native.kernels import inlined
from berth.schedule.records import World, places_of
from berth.simulate.engine_state import EngineState, Event


@deferred
def has_room(world: World, engine: EngineState, now: float) -> bool:
    """Whether the buffers hold whatever may happen at this moment."""
    clock, state = engine.clock[0], world.state[0]
    arrivals = 0
    row = clock.arrived
    while row < len(world.jobs) and world.jobs[row].arrival_s <= now:
        arrivals += 1
        row += 1
    faults = 0
    fault = clock.fault
    while fault < len(engine.faults) and engine.faults[fault].time <= now:
        faults += 1
        fault += 1
    events = 2 * arrivals + 2 * (state.queue_stop - state.queue_start) + 4 * state.running + faults + 8
    places = 2 * len(world.places)
    return clock.log + events <= len(engine.log) and clock.log_places + places <= len(engine.log_places)


@inlined
def write(world: World, engine: EngineState, what: int, row: int, reason: int, now: float) -> None:
    """Appends one event, in a run with a log."""
    if engine.clock[0].logging:
        write_event(world, engine, what, row, reason, now)


@deferred
def write_event(world: World, engine: EngineState, what: int, row: int, reason: int, now: float) -> None:
    """The same: a start and a move name their places. A negative row is a machine: -1 - machine."""
    clock = engine.clock[0]
    entry = engine.log[clock.log]
    clock.log += 1
    entry.time, entry.job, entry.what = now, row, what
    entry.tier, entry.reason, entry.gpus, entry.places, entry.count = -1, 0, 0, clock.log_places, 0
    entry.until, entry.saves, entry.shape = 0.0, 0.0, -1
    if row < 0:
        return
    job = world.jobs[row]
    entry.tier, entry.reason, entry.gpus = -1 if what == Event.EVICTED else job.tier, reason, job.gpus
    entry.until, entry.saves = job.until_s, job.saves_s
    if job.shape >= 0 and not world.shapes[job.shape].gang:
        entry.shape = job.shape
    if what in (Event.STARTED, Event.MOVED):
        for place in places_of(world, job.first_place):
            host = world.hosts[place.host]
            logged = engine.log_places[clock.log_places]
            logged.machine, logged.device_type, logged.gpus = host.machine, host.device_type, place.count
            logged.part = place.part
            clock.log_places += 1
            entry.count += 1
