"""How scarce each device type is: what holding one device for a second costs other jobs.

**Those that wait.** A job that holds a device of a type with C devices for d seconds delays each of the N jobs that
would take that type by about d / C: the shadow price of a device-second is N / C seconds of waiting. N is counted as
jobs join and leave the queue, and averaged over time: an empty queue now says little about the next hour. Each counts
for those that arrive before the queue is empty again (`WAITING_WEIGHT`). A type with more free devices than those jobs
want is not what they wait for: its price falls with the fourth power of wanted / free devices.

**Dollars.** A shape in which the work costs e times more than in the cheapest of the job's shapes is priced by
`USD_WEIGHT` x e beside: of two shapes with nearly the same end the cheaper wins, on an idle cluster too.
"""

from __future__ import annotations

from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.records import Array, JobStatus, World

SHARES = 840  # a job that accepts n types counts 840 / n for each; every n up to 8 divides it
NO_PRIORITY = -(1 << 40)
WAITING_WEIGHT, USD_WEIGHT = 4.0, 0.2
_AVERAGED_S = 3600.0


@kernel
def count_demand(world: World, row: int, more: int) -> None:
    """Counts a job among those that wait for a type."""
    add_demand(world, row, more, world.state[0].waiting_for, world.state[0].wanted)


@kernel
def add_demand(world: World, row: int, more: int, waiting: Array, wanted: Array) -> None:
    """Adds a job to the jobs and devices of each type, by the share of its shapes, or of its types, that this is."""
    device_types, job = world.state[0].device_types, world.jobs[row]
    if job.shape >= 0:
        share = more * (SHARES // job.shape_count)
        for number in range(job.first_shape, job.first_shape + job.shape_count):
            for device_type in range(device_types):
                if world.shapes[number].need[device_type] > 0:
                    waiting[device_type] += share
                    wanted[device_type] += share * world.shapes[number].need[device_type]
        return
    types = 0
    for device_type in range(device_types):
        types += job.device_type_mask >> device_type & 1
    for device_type in range(device_types):
        if job.device_type_mask >> device_type & 1:
            waiting[device_type] += more * (SHARES // types)
            wanted[device_type] += more * (SHARES // types) * job.gpus


@kernel
def update_prices(world: World, now: float) -> None:
    """Averages the demand for each type up to now."""
    state = world.state[0]
    span = now - state.priced_s
    weight = span / (span + _AVERAGED_S) if span > 0 else 0.0
    state.priced_s = now
    for device_type in range(state.device_types):
        waiting = state.waiting_for[device_type] / SHARES
        state.mean_waiting[device_type] += weight * (waiting - state.mean_waiting[device_type])


@kernel
def set_prices(world: World, priority: int) -> None:
    """Sets the price of each type for jobs of a priority: those below it may be delayed and do not count."""
    state = world.state[0]
    state.priced_for = priority
    state.price_version += 1
    for device_type in range(state.device_types):
        state.waiting_below[device_type] = state.wanted_below[device_type] = 0
    at = state.queue_stop - 1
    while at >= state.queue_start and world.jobs[world.waiting[at]].priority < priority:
        if world.jobs[world.waiting[at]].state == JobStatus.WAITING:
            add_demand(world, world.waiting[at], 1, state.waiting_below, state.wanted_below)
        at -= 1
    for device_type in range(state.device_types):
        free = world.groups[world.groups.shape[0] - 1, 0].free[device_type]
        wanted = (state.wanted[device_type] - state.wanted_below[device_type]) / SHARES
        lacking = min(1.0, wanted / max(1, free))
        state.price_s[device_type] = lacking**4 / max(1, world.cluster[0].devices[device_type])


@kernel
def price_shape(world: World, shape: Any) -> None:
    """Computes what a shape's devices cost others, in seconds per second."""
    state, waits, runs = world.state[0], 0.0, 0.0
    for device_type in range(state.device_types):
        if shape.need[device_type] > 0:
            below = state.waiting_below[device_type]
            waiting = state.waiting_for[device_type] - below
            share = waiting / max(1, state.waiting_for[device_type]) if below > 0 else 1.0
            mean = share * state.mean_waiting[device_type]
            others, price = waiting / SHARES, WAITING_WEIGHT * state.price_s[device_type]
            waits += shape.need[device_type] * max(0.0, 0.5 * (others - 1.0 + mean)) * price
            runs += shape.need[device_type] * max(0.0, 0.5 * (others + mean)) * price
    usd = USD_WEIGHT * shape.usd_excess
    shape.priced, shape.price_waiting, shape.price_running = state.price_version, waits + usd, runs + usd


@inlined
def price_of(world: World, shape: Any, waits: bool) -> float:
    """Seconds of waiting per second that a shape's devices cost others than a job that waits, or runs."""
    if shape.priced != world.state[0].price_version:
        price_shape(world, shape)
    return shape.price_waiting if waits else shape.price_running
