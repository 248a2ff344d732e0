"""Finding and taking places: best fit over the tiers, whole gangs only.

Best fit: the machine (rack, ...) with fewest free devices that still holds the gang. A gang that must be
spread takes as few groups as it can at every level: full ones first, the last one by best fit.
"""

from __future__ import annotations

import numpy as np

from berth.compile import inlined, kernel
from berth.schedule.shape import free_of, roundest_at, shares
from berth.schedule.view import MAX_TIERS, World


@inlined
def take(world: World, at: int, devices: int) -> None:
    """Devices of a host are no longer free."""
    host = world.hosts[at]
    host.free -= devices
    world.state[0].free -= devices
    for tier in range(world.groups.shape[0]):
        world.groups[tier, host.group[tier]].free[host.kind] -= devices


@kernel
def find_at(world: World, kind: int, devices: int, tier: int, even: bool) -> int:
    """The group of one tier with fewest free devices that holds the gang, or -1; ties: the fuller parent.

    `even`: of racks the one that gives a gang on several machines the best shape.
    """
    top = world.groups.shape[0] - 1
    if world.groups[top, 0].free[kind] < devices:
        return -1
    if world.state[0].emptiest:
        return emptiest_at(world, kind, devices, tier)
    if even and tier == 1:
        return roundest_at(world, kind, devices, tier)
    best, best_free, best_above = -1, 1 << 30, 1 << 30
    above = min(tier + 1, top)
    at, hosts = 0, len(world.hosts)
    while at < hosts:
        host = world.hosts[at]
        parent = world.groups[above, host.group[above]]
        if above > tier and parent.free[kind] < devices:
            at = parent.stop
            continue
        number = host.group[tier]
        group = world.groups[tier, number]
        free = group.free[kind]
        if devices <= free <= best_free:
            parent_free = parent.free[kind]
            if free < best_free or parent_free < best_above:
                best, best_free, best_above = number, free, parent_free
        # nothing inside the same parent is better than an exact fit
        at = parent.stop if free == devices else group.stop
    return best


@kernel
def emptiest_at(world: World, kind: int, devices: int, tier: int) -> int:
    """The group of one tier with most free devices, if it holds the gang, or -1."""
    best, best_free, at = -1, devices - 1, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        if group.free[kind] > best_free:
            best, best_free = number, group.free[kind]
        at = group.stop
    return best


@kernel
def find(world: World, kind: int, devices: int, floor: int, reach: int, even: bool) -> tuple[int, int]:
    """(tier, group) of the nearest place within reach, or (-1, -1)."""
    for tier in range(floor, reach + 1):
        group = find_at(world, kind, devices, tier, even)
        if group >= 0:
            return tier, group
    return -1, -1


@kernel
def fill(world: World, kind: int, tier: int, group: int, need: int, even: bool) -> int:
    """Takes `need` devices inside a group that has them; returns the head of the new list of places.

    At each level full children are taken first and the last one by best fit; `even`: of machines, those that
    give the best shape. Levels are walked with a stack of what is still needed at each.
    """
    head = -1
    if tier == 0:
        return claim(world, head, host_of(world, kind, group), need)
    needs = np.zeros(MAX_TIERS, np.int64)
    groups = np.zeros(MAX_TIERS, np.int64)
    needs[tier], groups[tier] = need, group
    level = tier
    while True:
        if needs[level] == 0:
            if level == tier:
                return head
            level += 1
        elif level == 0:
            head = claim(world, head, host_of(world, kind, groups[0]), needs[0])
            needs[0] = 0
        elif level == 1 and even:
            head = fill_evenly(world, head, kind, groups[1], needs[1])
            needs[1] = 0
        else:
            child, free = next_child(world, kind, level, groups[level], needs[level])
            part = min(needs[level], free)
            needs[level] -= part
            level -= 1
            needs[level], groups[level] = part, child


@kernel
def fill_evenly(world: World, head: int, kind: int, group: int, need: int) -> int:
    """Takes devices of several machines in the best shape they allow."""
    start = world.groups[1, group].start
    taken = shares(free_of(world, kind, 1, group), need)
    for k in range(len(taken)):
        if taken[k] > 0:
            head = claim(world, head, start + k, taken[k])
    return head


@inlined
def host_of(world: World, kind: int, machine: int) -> int:
    """The host with a machine's devices of one type."""
    at = world.groups[0, machine].start
    while world.hosts[at].kind != kind:
        at += 1
    return at


@kernel
def next_child(world: World, kind: int, tier: int, group: int, need: int) -> tuple[int, int]:
    """Where to go on inside a group: the tightest child that holds all of it, else the emptiest."""
    tight, tight_free, wide, wide_free = -1, 1 << 30, -1, 0
    at, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    while at < stop:
        number = world.hosts[at].group[tier - 1]
        child = world.groups[tier - 1, number]
        free = child.free[kind]
        if need <= free < tight_free:
            tight, tight_free = number, free
        if free > wide_free:
            wide, wide_free = number, free
        at = child.stop
    if tight >= 0 and not world.state[0].emptiest:
        return tight, tight_free
    return wide, wide_free


@inlined
def claim(world: World, head: int, host: int, devices: int) -> int:
    """Takes devices of one host and notes them in front of the list `head`."""
    take(world, host, devices)
    state = world.state[0]
    state.spare -= 1
    entry = world.places[state.spare].spare
    world.places[entry].host = host
    world.places[entry].count = devices
    world.places[entry].next = head
    return entry


@inlined
def offer_back(world: World, head: int) -> None:
    """Gives the devices of a list of places back without forgetting it; a host that is down keeps its own."""
    while head >= 0:
        place = world.places[head]
        if not world.hosts[place.host].down:
            take(world, place.host, -place.count)
        head = place.next


@inlined
def still_free(world: World, head: int) -> bool:
    """Whether all places of a list are free now, or were never given back."""
    while head >= 0:
        place = world.places[head]
        host = world.hosts[place.host]
        if not host.down and host.free < place.count:
            return False
        head = place.next
    return True


@inlined
def claim_again(world: World, head: int) -> None:
    """Takes a list of places that were given back a moment ago."""
    while head >= 0:
        place = world.places[head]
        if not world.hosts[place.host].down:
            take(world, place.host, place.count)
        head = place.next


@inlined
def forget(world: World, head: int) -> None:
    """Returns the entries of a list whose devices are given back already."""
    state = world.state[0]
    while head >= 0:
        world.places[state.spare].spare = head
        state.spare += 1
        head = world.places[head].next
