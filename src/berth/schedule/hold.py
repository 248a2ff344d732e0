"""Looking ahead: when a group will be free for a gang, and holding it until then.

What runs is expected to end when its remaining work at its present speed is done. A held group's free
devices are kept out of sight for the length of a pass; others may use them only if they end in time, or if
the job they are held for will not need them.
"""

from __future__ import annotations

import math

import numpy as np

from berth.compile import kernel
from berth.schedule.attempt import touch
from berth.schedule.place import take
from berth.schedule.view import RUNNING, Array, World


@kernel
def by_end(world: World, now: float) -> Array:
    """Running rows, those expected to end soonest first; `ends` of each is up to date."""
    ending, state = world.ending, world.state[0]
    count = 0
    for i in range(state.ending):
        job = world.jobs[ending[i]]
        if job.state != RUNNING:
            job.listed = 0
            continue
        touch(job, now)
        job.ends = max(now, job.stall) + job.remaining / job.speed
        row, k = ending[i], count - 1
        while k >= 0 and world.jobs[ending[k]].ends > job.ends:
            ending[k + 1] = ending[k]
            k -= 1
        ending[k + 1] = row
        count += 1
    state.ending = count
    return ending[:count]


@kernel
def soonest(world: World, row: int, tier: int, rows: Array, now: float) -> tuple[float, int, int]:
    """(time, group, devices to spare): when and where a tier first holds the gang; (inf, -1, 0): never."""
    job = world.jobs[row]
    count = world.groups.shape[1]
    free = np.zeros(count, np.int64)
    best, best_free = -1, 1 << 30
    at = 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        free[number] = usable(world, tier, number, job.kind)
        if job.gpus <= free[number] < best_free:
            best, best_free = number, free[number]
        at = world.groups[tier, number].stop
    if best >= 0:
        return now, best, best_free - job.gpus
    for i in range(len(rows)):
        entry = world.jobs[rows[i]].head
        while entry >= 0:
            place = world.places[entry]
            host = world.hosts[place.host]
            if not host.down and (job.kind < 0 or host.kind == job.kind):
                number = host.group[tier]
                free[number] += place.count
                if free[number] >= job.gpus:
                    return world.jobs[rows[i]].ends, number, free[number] - job.gpus
            entry = place.next
    return math.inf, -1, 0


@kernel
def usable(world: World, tier: int, group: int, kind: int) -> int:
    """Free devices of a group that a job asking for `kind` can use, hidden ones included."""
    total = 0
    for at in range(world.groups[tier, group].start, world.groups[tier, group].stop):
        host = world.hosts[at]
        if kind < 0 or host.kind == kind:
            total += host.free + host.hidden
    return total


@kernel
def hold(world: World, row: int, tier: int, group: int, until: float, extra: int) -> None:
    """Keeps a group's free devices out of everybody's sight."""
    state = world.state[0]
    state.held, state.held_tier, state.held_group = row, tier, group
    state.held_until, state.held_extra = until, extra
    hide(world)


@kernel
def hide(world: World) -> None:
    """Takes the held group's free devices out of the counts."""
    state = world.state[0]
    group = world.groups[state.held_tier, state.held_group]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        if host.free > 0:
            host.hidden = host.free
            state.hidden += host.free
            take(world, at, host.free)


@kernel
def unhide(world: World) -> None:
    """Puts them back."""
    state = world.state[0]
    group = world.groups[state.held_tier, state.held_group]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        if host.hidden > 0:
            take(world, at, -host.hidden)
            state.hidden -= host.hidden
            host.hidden = 0


@kernel
def release_hold(world: World) -> None:
    """Ends the hold, if there is one."""
    if world.state[0].held >= 0:
        unhide(world)
        world.state[0].held = -1
