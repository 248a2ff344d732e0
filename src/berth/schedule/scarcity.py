"""How scarce each device type is: what holding one device for a second costs other jobs, and what dollars count beside.

**Those that wait.** A job that holds a device of a type with C devices for d seconds delays each of the N jobs that
wait for that type by about d / C: the shadow price of a device-second is N / C seconds of waiting. A job that joins
the queue is counted for the types of the shape that is best for it at the prices of that moment. So a type that all
prefer becomes more expensive until some prefer another, and jobs that gain most by it keep it. N is averaged over
time: an empty queue now says little about the next hour. Each counts for those that arrive before the queue is empty
again (`WAITING_WEIGHT`). A type with more free devices than those jobs want is not what they wait for: its price falls
with the fourth power of wanted / free devices.

**Dollars.** A shape in which the work costs e times more than in the cheapest of the job's shapes is priced by
`USD_WEIGHT` x e beside: of two shapes with nearly the same end the cheaper wins, on an idle cluster too. A large job
spends as many dollars to end an hour earlier as many small ones, so its dollars count more: by `USD_BY_SIZE` x size,
where the size is what the rest of the job costs in its cheapest shape, over the mean of the jobs that arrived recently.
Where a shape of a job costs nothing, or its price is not known, e has no value: such a job chooses without dollars, and
has no size. A cluster with types that cost $0 beside others has a note that says so (cluster/expand.py).
"""

from __future__ import annotations

import math
from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.records import Array, JobStatus, World

SHARES = 840  # a gang that accepts n types counts 840 / n for each; every n up to 8 divides it
NO_PRIORITY = -(1 << 40)
WAITING_WEIGHT, USD_WEIGHT, USD_BY_SIZE = 3.0, 0.2, 0.5
LARGE = 1.6  # a job of this size keeps to types on which its work costs
TYPE_MARGIN = 0.1  # at most this share more than on the cheapest
_AVERAGED_S = 3600.0
_RECENT = 200  # jobs whose dollars are averaged


@kernel
def price_shape(world: World, shape: Any) -> None:
    """Computes what a shape's devices cost others, in seconds per second."""
    state, scarcity, waits, runs = world.state[0], world.scarcity[0], 0.0, 0.0
    for device_type in range(state.device_types):
        if shape.need[device_type] > 0:
            below = scarcity.waiting_below[device_type]
            waiting = scarcity.waiting_for[device_type] - below
            share = waiting / max(1, scarcity.waiting_for[device_type]) if below > 0 else 1.0
            mean = share * scarcity.mean_waiting[device_type]
            others, price = waiting / SHARES, WAITING_WEIGHT * scarcity.price_s[device_type]
            waits += shape.need[device_type] * max(0.0, 0.5 * (others - 1.0 + mean)) * price
            runs += shape.need[device_type] * max(0.0, 0.5 * (others + mean)) * price
    usd = USD_WEIGHT * shape.usd_excess
    shape.priced, shape.price_waiting, shape.price_running = scarcity.price_version, waits + usd, runs + usd


@inlined
def price_of(world: World, shape: Any, waits: bool) -> float:
    """Seconds of waiting per second that a shape's devices cost others than a job that waits, or runs."""
    if shape.priced != world.scarcity[0].price_version:
        price_shape(world, shape)
    return shape.price_waiting if waits else shape.price_running


@inlined
def usd_left(world: World, row: int) -> float:
    """Dollars that the rest of a job costs in its cheapest shape, times the seconds of an hour."""
    job, shape = world.jobs[row], world.shapes[world.jobs[row].shape]
    return job.estimated_remaining_s * shape.usd_per_hour / (1.0 + shape.usd_excess)


@inlined
def size_of(world: World, row: int) -> float:
    """Those dollars over the mean of recent jobs; 0 for gangs, and where prices are not known."""
    mean_usd = world.scarcity[0].mean_usd
    if mean_usd <= 0.0 or world.shapes[world.jobs[row].shape].gang:
        return 0.0
    return usd_left(world, row) / mean_usd


@inlined
def refuses(shape: Any, size: float) -> bool:
    """Whether a job of a size keeps to cheaper types than those of a shape."""
    return shape.type_excess > TYPE_MARGIN and size > LARGE


@inlined
def price_for(world: World, shape: Any, waits: bool, size: float) -> float:
    """Seconds of waiting per second that a shape's devices cost others, and dollars to a job of a size."""
    return price_of(world, shape, waits) + USD_BY_SIZE * size * shape.usd_excess


@kernel
def count_demand(world: World, row: int, more: int) -> None:
    """Counts a job among those that wait for a type, or no longer."""
    job, scarcity = world.jobs[row], world.scarcity[0]
    if more > 0 and job.shape >= 0:
        if job.counted_shape < 0 and job.shape_count > 1 and not world.shapes[job.shape].gang:
            usd = usd_left(world, row)
            if usd > 0.0:
                scarcity.arrivals += 1
                scarcity.mean_usd += (usd - scarcity.mean_usd) / min(scarcity.arrivals, _RECENT)
        job.counted_shape = preferred_shape(world, row, size_of(world, row))
    add_demand(world, row, more, scarcity.waiting_for, scarcity.wanted)


@kernel
def preferred_shape(world: World, row: int, size: float) -> int:
    """The shape with the lowest cost at its nearest placement, of those that a job of this size does not refuse."""
    job = world.jobs[row]
    best, least_s = job.shape, math.inf
    for number in range(job.first_shape, job.first_shape + job.shape_count):
        shape = world.shapes[number]
        if refuses(shape, size):
            continue
        cost_s = (
            shape.unit_s * shape.slowdown[shape.nearest_tier] * (1.0 + price_for(world, shape, True, size))
        )
        if cost_s < least_s:
            best, least_s = number, cost_s
    return best


@kernel
def add_demand(world: World, row: int, more: int, waiting: Array, wanted: Array) -> None:
    """Adds a job to the jobs and devices of each type that it is counted for; a gang by the share of its types."""
    device_types, job = world.state[0].device_types, world.jobs[row]
    if job.shape >= 0:
        for device_type in range(device_types):
            need = world.shapes[job.counted_shape].need[device_type]
            if need > 0:
                waiting[device_type] += more * SHARES
                wanted[device_type] += more * SHARES * need
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
    state, scarcity = world.state[0], world.scarcity[0]
    span = now - scarcity.priced_s
    weight = span / (span + _AVERAGED_S) if span > 0 else 0.0
    scarcity.priced_s = now
    for device_type in range(state.device_types):
        waiting = scarcity.waiting_for[device_type] / SHARES
        scarcity.mean_waiting[device_type] += weight * (waiting - scarcity.mean_waiting[device_type])


@kernel
def set_prices(world: World, priority: int) -> None:
    """Sets the price of each type for jobs of a priority: those below it may be delayed and do not count."""
    state, scarcity = world.state[0], world.scarcity[0]
    scarcity.priced_for = priority
    scarcity.price_version += 1
    for device_type in range(state.device_types):
        scarcity.waiting_below[device_type] = scarcity.wanted_below[device_type] = 0
    at = state.queue_stop - 1
    while at >= state.queue_start and world.jobs[world.waiting[at]].priority < priority:
        if world.jobs[world.waiting[at]].state == JobStatus.WAITING:
            add_demand(world, world.waiting[at], 1, scarcity.waiting_below, scarcity.wanted_below)
        at -= 1
    for device_type in range(state.device_types):
        free = world.groups[world.groups.shape[0] - 1, 0].free[device_type]
        wanted = (scarcity.wanted[device_type] - scarcity.wanted_below[device_type]) / SHARES
        lacking = min(1.0, wanted / max(1, free))
        scarcity.price_s[device_type] = lacking**4 / max(1, world.cluster[0].devices[device_type])
