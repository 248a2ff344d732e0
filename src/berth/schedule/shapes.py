"""Placing jobs with parts: which group holds a shape, and claiming all of its devices or none.

A group holds a shape if it has enough free devices of every type, and each part that is tied to a tier finds a group
of that tier inside it. Parts that are not tied are claimed together, type by type, as compactly as a gang.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.balance import sensitive_to_imbalance
from berth.schedule.claims import cancel_claim, claim_in_group
from berth.schedule.groups import find_place
from berth.schedule.records import MAX_DEVICE_TYPES, Array, World

_MAX_TIED = 16
_MAX_TRIES = 256  # groups tried for tied parts before a place is given up
_NONE = 1 << 30


@deferred
def find_shape(world: World, number: int, allowed_tier: int, open_: bool) -> tuple[int, int]:
    """(tier, group) of the nearest place for a shape up to a tier, or (-1, -1).

    As for gangs, a search that failed in this epoch is not repeated.
    """
    shape, epoch = world.shapes[number], world.state[0].search_epoch
    failed = shape.failed_open if open_ else shape.failed
    if failed[allowed_tier] == epoch or shape.devices > world.state[0].free:
        return -1, -1
    if shape.vector:
        tier, group = find_vector(world, number, allowed_tier)
    else:
        tier, group = find_place(
            world, shape.device_type, shape.devices, shape.nearest_tier, allowed_tier, False
        )
    if tier < 0:
        for narrower in range(allowed_tier + 1):
            failed[narrower] = epoch
    return tier, group


@inlined
def has_failed(world: World, shape: Any, open_: bool) -> bool:
    """Whether a search of this epoch found no place for a shape."""
    failed = shape.failed_open if open_ else shape.failed
    return failed[shape.widest_tier] == world.state[0].search_epoch or shape.devices > world.state[0].free


@deferred
def find_vector(world: World, number: int, allowed_tier: int) -> tuple[int, int]:
    """The same for a shape of several types or with tied parts."""
    shape, top = world.shapes[number], world.groups.shape[0] - 1
    if not has_devices(world.groups[top, 0].free, shape.need):
        return -1, -1
    for tier in range(shape.nearest_tier, allowed_tier + 1):
        group = tightest_group(world, shape, tier)
        if group >= 0:
            return tier, group
    return -1, -1


@inlined
def has_devices(free: Array, need: Array) -> bool:
    """Whether there are enough devices of every type."""
    enough = True
    for device_type in range(MAX_DEVICE_TYPES):
        enough = enough and free[device_type] >= need[device_type]
    return enough


@kernel
def tightest_group(world: World, shape: Any, tier: int) -> int:
    """The group of a tier that holds a shape with fewest devices of its types to spare, or -1."""
    best, fewest, at = -1, _NONE, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        at = group.stop
        if has_devices(group.free, shape.need):
            spare = spare_devices(group.free, shape.need)
            if spare < fewest and holds_tied(world, shape, tier, number):
                best, fewest = number, spare
    return best


@inlined
def spare_devices(free: Array, need: Array) -> int:
    """Free devices of the types that are needed, beyond the need."""
    spare = 0
    for device_type in range(MAX_DEVICE_TYPES):
        if need[device_type] > 0:
            spare += free[device_type] - need[device_type]
    return spare


@inlined
def holds_tied(world: World, shape: Any, tier: int, group: int) -> bool:
    """Whether the tied parts of a shape find their places inside a group."""
    if ties_below(world, shape, tier) == 0:
        return True
    claim, placed = claim_tied(world, shape, tier, group)
    cancel_claim(world, claim)
    return placed


@inlined
def ties_below(world: World, shape: Any, tier: int) -> int:
    """How many parts are tied to a nearer tier; they come first."""
    count = 0
    while count < shape.tied_count and world.tied[shape.first_tied + count].tier < tier:
        count += 1
    return count


@kernel
def claim_tied(world: World, shape: Any, tier: int, group: int) -> tuple[int, bool]:
    """(claim, whether all are placed): the tied parts of a shape, each within one group of its tier.

    Each takes the tightest group that holds it. Where a later one finds none, the one before tries its next best, so
    that a place is found if there is one, up to a limit of tries.
    """
    count = ties_below(world, shape, tier)
    claims = np.full(_MAX_TIED, -1, np.int64)
    spares, places = np.full(_MAX_TIED, -1, np.int64), np.full(_MAX_TIED, -1, np.int64)
    at, tries = 0, 0
    while 0 <= at < count:
        part = world.tied[shape.first_tied + at]
        tries += 1
        spare, place = next_tightest(world, part, tier, group, spares[at], places[at])
        if place < 0 or tries > _MAX_TRIES:
            spares[at] = places[at] = -1
            at -= 1
            if at >= 0:
                cancel_claim(world, claims[at])
                claims[at] = -1
            if tries > _MAX_TRIES:
                break
            continue
        spares[at], places[at] = spare, place
        claims[at] = claim_vector(world, part.need, part.tier, place, part.part)
        at += 1
    claim = -1
    for k in range(count):
        claim = chain(world, claims[k], claim)
    return claim, at == count


@kernel
def next_tightest(world: World, part: Any, tier: int, group: int, spare: int, place: int) -> tuple[int, int]:
    """(spare, group) that follows (spare, place), tightest first, of the groups inside a group that hold a part."""
    best, fewest = -1, _NONE
    at, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    while at < stop:
        number = world.hosts[at].group[part.tier]
        inner = world.groups[part.tier, number]
        at = inner.stop
        if not has_devices(inner.free, part.need):
            continue
        left = spare_devices(inner.free, part.need)
        after = left > spare or (left == spare and number > place)
        if after and (left < fewest or (left == fewest and number < best)):
            best, fewest = number, left
    return fewest, best


@kernel
def claim_vector(world: World, need: Array, tier: int, group: int, part: int) -> int:
    """Claims devices of several types inside a group that has them."""
    claim = -1
    for device_type in range(world.state[0].device_types):
        if need[device_type] > 0:
            more = claim_in_group(world, device_type, tier, group, need[device_type], False)
            claim = chain(world, more, claim)
    entry = claim
    while entry >= 0:
        world.places[entry].part = part
        entry = world.places[entry].next
    return claim


@inlined
def chain(world: World, first: int, then: int) -> int:
    """One claim out of two."""
    if first < 0:
        return then
    last = first
    while world.places[last].next >= 0:
        last = world.places[last].next
    world.places[last].next = then
    return first


@deferred
def claim_shape(world: World, number: int, tier: int, group: int) -> int:
    """Claims all devices of a shape inside a group that holds it."""
    shape = world.shapes[number]
    if not shape.vector:
        return claim_in_group(world, shape.device_type, tier, group, shape.devices, False)
    claim, placed = claim_tied(world, shape, tier, group)
    assert placed
    left = np.zeros(MAX_DEVICE_TYPES, np.int64)
    for device_type in range(MAX_DEVICE_TYPES):
        left[device_type] = shape.need[device_type]
    for k in range(ties_below(world, shape, tier)):
        for device_type in range(MAX_DEVICE_TYPES):
            left[device_type] -= world.tied[shape.first_tied + k].need[device_type]
    return chain(world, claim_vector(world, left, tier, group, -1), claim)


@inlined
def claim_for(world: World, row: int, device_type: int, tier: int, group: int) -> int:
    """Claims the devices that a job's record asks for inside a group that holds it."""
    job = world.jobs[row]
    if job.shape >= 0:
        if not world.shapes[job.shape].gang:
            return claim_shape(world, job.shape, tier, group)
        device_type = job.device_type
    return claim_in_group(world, device_type, tier, group, job.gpus, sensitive_to_imbalance(world, job))
