"""Claims: taking devices of a group for a gang, so that a trial can be rolled back (`cancel_claim`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.balance import balanced_shares, free_per_host, scattered_shares
from berth.schedule.records import MANY_FREE, MAX_TIERS, World, places_of


@inlined
def take_devices(world: World, at: int, devices: int) -> None:
    """Takes devices of a host; a negative number returns them."""
    count_devices(world, at, devices)
    if devices < 0:
        note_returned(world, at)


@kernel
def note_returned(world: World, at: int) -> None:
    """Raises what is known of the most free devices to what the groups around a host have."""
    host, state = world.hosts[at], world.state[0]
    for tier in range(world.groups.shape[0]):
        free = world.groups[tier, host.group[tier]].free[host.device_type]
        for k in range(2):
            known = state.most_free[k, host.device_type]
            known[tier] = max(known[tier], free + (state.masked if k == 0 else 0))


@inlined
def count_devices(world: World, at: int, devices: int) -> None:
    """Takes devices of a host out of the counts of free ones; a negative number adds them."""
    host = world.hosts[at]
    if len(world.racks) > 0:
        count_in_rack(world.racks[host.group[1]], host.device_type, host.free, host.free - devices)
    host.free -= devices
    world.state[0].free -= devices
    for tier in range(world.groups.shape[0]):
        world.groups[tier, host.group[tier]].free[host.device_type] -= devices


@kernel
def count_in_rack(rack: Any, device_type: int, before: int, after: int) -> None:
    """Counts a machine of a rack whose free devices change."""
    before, after = max(0, min(before, MANY_FREE)), max(0, min(after, MANY_FREE))
    rack.machines[device_type, before] -= 1
    rack.machines[device_type, after] += 1
    if rack.machines[device_type, before] == 0:
        rack.present[device_type] &= ~(1 << before)
    rack.present[device_type] |= 1 << after


@deferred
def claim_in_group(world: World, device_type: int, tier: int, group: int, need: int, balanced: bool) -> int:
    """Claims `need` devices inside a group that has them; returns the claim.

    At each level full children are taken first and the last one by best fit; `balanced`: machines are taken so
    that the gang is spread evenly. Levels are walked with a stack of what is still needed at each. Small gangs of
    policies that scatter them take devices one by one.
    """
    claim = -1
    if tier == 0:
        return claim_on_host(world, claim, host_of(world, device_type, group), need)
    if need <= world.rules[0].scatter_up_to:
        return claim_scattered(world, claim, device_type, tier, group, need)
    needs = np.zeros(MAX_TIERS, np.int64)
    groups = np.zeros(MAX_TIERS, np.int64)
    needs[tier], groups[tier] = need, group
    level = tier
    while True:
        if needs[level] == 0:
            if level == tier:
                return claim
            level += 1
        elif level == 0:
            claim = claim_on_host(world, claim, host_of(world, device_type, groups[0]), needs[0])
            needs[0] = 0
        elif level == 1 and balanced:
            claim = claim_balanced(world, claim, device_type, groups[1], needs[1])
            needs[1] = 0
        else:
            child, free = next_child(world, device_type, level, groups[level], needs[level])
            part = min(needs[level], free)
            needs[level] -= part
            level -= 1
            needs[level], groups[level] = part, child


@kernel
def claim_balanced(world: World, claim: int, device_type: int, group: int, need: int) -> int:
    """Claims devices on several machines of a rack, spread as evenly as they allow."""
    start = world.groups[1, group].start
    shares = balanced_shares(free_per_host(world, device_type, 1, group), need)
    for k in range(len(shares)):
        if shares[k] > 0:
            claim = claim_on_host(world, claim, start + k, shares[k])
    return claim


@kernel
def claim_scattered(world: World, claim: int, device_type: int, tier: int, group: int, need: int) -> int:
    """Claims devices one by one on the machines of a group with most free ones."""
    start = world.groups[tier, group].start
    shares = scattered_shares(free_per_host(world, device_type, tier, group), need)
    for k in range(len(shares)):
        if shares[k] > 0:
            claim = claim_on_host(world, claim, start + k, shares[k])
    return claim


@inlined
def host_of(world: World, device_type: int, machine: int) -> int:
    """The host with a machine's devices of one type."""
    at = world.groups[0, machine].start
    while world.hosts[at].device_type != device_type:
        at += 1
    return at


@kernel
def next_child(world: World, device_type: int, tier: int, group: int, need: int) -> tuple[int, int]:
    """(child, its free devices): the fullest child that holds all of it, else the emptiest."""
    tight, tight_free, wide, wide_free = -1, 1 << 30, -1, 0
    at, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    while at < stop:
        number = world.hosts[at].group[tier - 1]
        child = world.groups[tier - 1, number]
        free = child.free[device_type]
        if need <= free < tight_free:
            tight, tight_free = number, free
        if free > wide_free:
            wide, wide_free = number, free
        at = child.stop
    if tight >= 0 and not world.rules[0].worst_fit:
        return tight, tight_free
    return wide, wide_free


@inlined
def claim_on_host(world: World, claim: int, host: int, devices: int) -> int:
    """Takes devices of one host and puts them in front of a claim."""
    take_devices(world, host, devices)
    state = world.state[0]
    state.spare -= 1
    entry = world.places[state.spare].spare
    world.places[entry].host = host
    world.places[entry].count = devices
    world.places[entry].next = claim
    world.places[entry].part = -1
    return entry


@inlined
def return_devices(world: World, claim: int) -> None:
    """Returns the devices of a claim but keeps its places; a host that is down keeps its devices."""
    for place in places_of(world, claim):
        if not world.hosts[place.host].down:
            take_devices(world, place.host, -place.count)


@inlined
def still_free(world: World, claim: int) -> bool:
    """Whether the devices of a claim that were returned are free."""
    for place in places_of(world, claim):
        host = world.hosts[place.host]
        if not host.down and host.free < place.count:
            return False
    return True


@inlined
def reclaim(world: World, claim: int) -> None:
    """Takes the devices of a claim again that were returned."""
    for place in places_of(world, claim):
        if not world.hosts[place.host].down:
            take_devices(world, place.host, place.count)


@inlined
def free_entries(world: World, claim: int) -> None:
    """Frees the entries of a claim whose devices are returned."""
    state = world.state[0]
    while claim >= 0:
        world.places[state.spare].spare = claim
        state.spare += 1
        claim = world.places[claim].next


@inlined
def cancel_claim(world: World, claim: int) -> None:
    """Rolls a claim back, after which nothing was searched for: what is known of free devices still holds."""
    for place in places_of(world, claim):
        count_devices(world, place.host, -place.count)
    free_entries(world, claim)
