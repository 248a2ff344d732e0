"""Looking ahead: when a group will be free for a gang, and holding it until then.

What runs is expected to end when its remaining work at its present speed is done. A held group's free
devices are kept out of sight for the length of a pass; others may use them only if they end in time, or if
the job they are held for will not need them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.compile import inlined, kernel
from berth.schedule.attempt import takes, touch
from berth.schedule.place import take
from berth.schedule.view import RUNNING, Array, World

EVERY_JOB = 1 << 40  # above every priority
A_MOMENT_S = 1e-6  # what lies closer together in time is the same moment, but for rounding


@kernel
def by_end(world: World, now: float) -> Array:
    """Running rows, those expected to end soonest first; `ends` of each is up to date."""
    ending, state = world.ending, world.state[0]
    ends, count = np.empty(state.ending), 0  # side by side: records lie far apart
    for i in range(state.ending):
        job = world.jobs[ending[i]]
        if job.state != RUNNING:
            job.listed = 0
            continue
        touch(job, now)
        job.ends = max(now, job.stall) + job.remaining / job.speed
        row, end, k = ending[i], job.ends, count - 1
        while k >= 0 and ends[k] > end:
            ending[k + 1], ends[k + 1] = ending[k], ends[k]
            k -= 1
        ending[k + 1], ends[k + 1] = row, end
        count += 1
    state.ending = count
    return ending[:count]


@kernel
def soonest(world: World, row: int, tier: int, rows: Array, now: float) -> tuple[float, int, int, int]:
    """(time, group, device type, devices to spare): when and where a tier first holds the gang; (inf, ...): never.

    What is held for another is not counted: nobody knows how long that one will stay.
    """
    job, kinds = world.jobs[row], world.state[0].kinds
    free = np.zeros((world.groups.shape[1], kinds), np.int64)  # a gang's devices are all of one type
    best, best_kind, best_free = -1, -1, 1 << 30
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if takes(job, host.kind) and not kept_from(world, row, host):
            free[host.group[tier], host.kind] += host.free + host.hidden
    for number in range(len(free)):
        for kind in range(kinds):
            if job.gpus <= free[number, kind] < best_free:
                best, best_kind, best_free = number, kind, free[number, kind]
    if best >= 0:
        return now, best, best_kind, best_free - job.gpus
    return first_to_hold(world, row, tier, rows, free)


@kernel
def first_to_hold(world: World, row: int, tier: int, rows: Array, idle: Array) -> tuple[float, int, int, int]:
    """The same for a gang that no group holds yet; `idle`: devices by group and type that it may use.

    All that ends at the same moment is counted. Of groups that hold the gang from that moment on, the one is taken
    that keeps fewest idle devices from other jobs: those that the gang will not leave to spare.
    """
    job, kinds = world.jobs[row], world.state[0].kinds
    free, when = idle.copy(), math.inf
    reached, count = np.empty(free.size, np.int64), 0
    for i in range(len(rows)):
        ends = world.jobs[rows[i]].ends
        if ends > when + A_MOMENT_S:
            break
        entry = world.jobs[rows[i]].head
        while entry >= 0:
            place = world.places[entry]
            host = world.hosts[place.host]
            if not host.down and takes(job, host.kind) and not kept_from(world, row, host):
                number, before = host.group[tier], free[host.group[tier], host.kind]
                free[number, host.kind] = before + place.count
                if before < job.gpus <= before + place.count:
                    reached[count], when = number * kinds + host.kind, min(when, ends)
                    count += 1
            entry = place.next
    best, best_kind, fewest = -1, -1, 1 << 30
    for i in range(count):
        number, kind = reached[i] // kinds, reached[i] % kinds
        kept = max(0, idle[number, kind] - (free[number, kind] - job.gpus))
        if kept < fewest:
            best, best_kind, fewest = number, kind, kept
    return when, best, best_kind, free[best, best_kind] - job.gpus if best >= 0 else 0


@inlined
def kept_from(world: World, row: int, host: Any) -> bool:
    """Whether a host is part of what is held for another job."""
    state = world.state[0]
    if state.held < 0 or state.held == row or outranks_hold(world, row):
        return False
    return host.kind == state.held_kind and host.group[state.held_tier] == state.held_group


@inlined
def outranks_hold(world: World, row: int) -> bool:
    """Whether a place is held, but only from jobs of a lower priority than this one's."""
    return world.state[0].held >= 0 and world.jobs[row].priority >= world.state[0].held_below


@inlined
def in_sight_of_some(world: World) -> int:
    """Free devices that at least one waiting job may take: all but those held from every other job."""
    state = world.state[0]
    return state.free + (state.hidden if state.held_below < EVERY_JOB else 0)


@kernel
def hold(
    world: World, row: int, tier: int, group: int, kind: int, until: float, extra: int, below: int
) -> None:
    """Keeps a group's free devices of one type from other jobs of a priority below this; EVERY_JOB: from all others."""
    state = world.state[0]
    state.held, state.reserved, state.held_tier, state.held_group = row, row, tier, group
    state.held_kind, state.held_until, state.held_extra, state.held_below = kind, until, extra, below
    hide(world)


@kernel
def hide(world: World) -> None:
    """Takes the held devices out of the counts."""
    state = world.state[0]
    group = world.groups[state.held_tier, state.held_group]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        if host.free > 0 and host.kind == state.held_kind:
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
