"""How scarce each device type is: what holding one device for a second costs the jobs that wait.

A job that holds a device of a type with C devices for d seconds delays each of the N jobs that would take that type by
about d / C: the shadow price of a device-second is N / C seconds of waiting. N is counted as jobs join and leave the
queue, and averaged over time: an empty queue now says little about the next hour.
"""

from __future__ import annotations

from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.records import MAX_DEVICE_TYPES, World

SHARES = 840  # a job that accepts n types counts 840 / n for each; every n up to 8 divides it
_AVERAGED_S = 3600.0


@kernel
def count_demand(world: World, row: int, more: int) -> None:
    """Counts a job among those that wait for the types it would take."""
    state, job = world.state[0], world.jobs[row]
    types = 0
    for device_type in range(state.device_types):
        types += job.device_type_mask >> device_type & 1
    for device_type in range(state.device_types):
        if job.device_type_mask >> device_type & 1:
            state.waiting_for[device_type] += more * (SHARES if job.shape >= 0 else SHARES // types)


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


@inlined
def price_of(world: World, shape: Any, own_mask: int) -> float:
    """Seconds of waiting per second that a shape's devices cost others; `own_mask`: types the job itself waits for."""
    state, total = world.state[0], 0.0
    for device_type in range(MAX_DEVICE_TYPES):
        if shape.need[device_type] > 0:
            others = state.waiting_for[device_type] / SHARES - (own_mask >> device_type & 1)
            waiting = max(0.0, 0.5 * (others + state.mean_waiting[device_type]))
            total += shape.need[device_type] * waiting / world.cluster[0].devices[device_type]
    return total
