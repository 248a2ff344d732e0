"""Finding a place for a gang: the nearest tier that holds it, and in that tier the group that fits best.

Best fit: the machine (rack, ...) with fewest free devices that still holds the gang.
"""

from __future__ import annotations

import math
from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.balance import most_balanced_group, sensitive_to_imbalance
from berth.schedule.links import may_send
from berth.schedule.records import World

_EVERY_TYPE = -1  # every bit of `device_type_mask`


@inlined
def accepts_device_type(job: Any, device_type: int) -> bool:
    """Whether a job can run on devices of a type."""
    listed = (job.device_type_mask >> device_type) & 1 == 1
    return job.device_type == device_type or (job.device_type < 0 and listed)


@kernel
def find_place_for(world: World, row: int, allowed_tier: int, open_: bool) -> tuple[int, int, int]:
    """(device type, tier, group) of the nearest place for a job up to a tier; device type -1: none.

    Within an epoch free devices only become fewer, so a size that failed once fails again: that is kept, apart
    for searches that count reserved devices (`open_`) and for those that do not.
    """
    job, state = world.jobs[row], world.state[0]
    failed = world.demands[job.demand].failed_open if open_ else world.demands[job.demand].failed
    epoch = state.search_epoch
    if (
        failed[job.device_type + 1, allowed_tier] == epoch
        or job.gpus > state.free
        or exceeds_quota(world, row)
    ):
        return -1, -1, -1
    device_type, tier, group = nearest_place(world, row, allowed_tier)
    if device_type < 0:
        # a job that accepts some types only says nothing about another that accepts others
        if job.device_type >= 0 or job.device_type_mask == _EVERY_TYPE:
            for narrower in range(allowed_tier + 1):
                failed[job.device_type + 1, narrower] = epoch
    elif limited_links(world, tier) and not may_send(world, row, device_type, tier, group):
        return -1, -1, -1
    return device_type, tier, group


@inlined
def limited_links(world: World, tier: int) -> bool:
    """Whether a gang at a tier sends over links that the policy does not let all jobs share."""
    return tier > 0 and world.rules[0].link_ratio < math.inf


@inlined
def nearest_place(world: World, row: int, allowed_tier: int) -> tuple[int, int, int]:
    """The same by free devices alone, without quota, links and earlier searches."""
    job = world.jobs[row]
    balanced = sensitive_to_imbalance(world, job)
    best_type, best_tier, best_group = -1, allowed_tier + 1, -1
    for device_type in device_types_of(world, job):
        if not accepts_device_type(job, device_type):
            continue
        tier, group = find_place(world, device_type, job.gpus, job.nearest_tier, best_tier - 1, balanced)
        if tier >= 0:
            best_type, best_tier, best_group = device_type, tier, group
    return best_type, best_tier, best_group


@inlined
def device_types_of(world: World, job: Any) -> range:
    """The device types to try for a job."""
    first, last = job.device_type, job.device_type + 1
    if job.device_type < 0:
        first, last = 0, world.state[0].device_types
    return range(first, last)


@inlined
def exceeds_quota(world: World, row: int) -> bool:
    """Whether starting a job would exceed its quota, or overtake a job of the same quota that blocks it."""
    job = world.jobs[row]
    if job.quota < 0:
        return False
    quota = world.quotas[job.quota]
    return quota.used + job.gpus > quota.allowed or quota.closed == world.state[0].search_epoch


@kernel
def find_place(
    world: World, device_type: int, devices: int, nearest_tier: int, allowed_tier: int, balanced: bool
) -> tuple[int, int]:
    """(tier, group) of the nearest place from one tier to another, or (-1, -1)."""
    for tier in range(nearest_tier, allowed_tier + 1):
        group = find_in_tier(world, device_type, devices, tier, balanced)
        if group >= 0:
            return tier, group
    return -1, -1


@kernel
def find_in_tier(world: World, device_type: int, devices: int, tier: int, balanced: bool) -> int:
    """The group of a tier with fewest free devices that holds the gang, or -1; ties: the fuller parent.

    `balanced`: the rack in which a gang on several machines is spread most evenly.
    """
    top = world.groups.shape[0] - 1
    if world.groups[top, 0].free[device_type] < devices:
        return -1
    if world.rules[0].worst_fit:
        return emptiest_group(world, device_type, devices, tier)
    if balanced and tier == 1:
        return most_balanced_group(world, device_type, devices, tier)
    best, best_free, best_above = -1, 1 << 30, 1 << 30
    above = min(tier + 1, top)
    at, hosts = 0, len(world.hosts)
    while at < hosts:
        host = world.hosts[at]
        parent = world.groups[above, host.group[above]]
        if above > tier and parent.free[device_type] < devices:
            at = parent.stop
            continue
        number = host.group[tier]
        group = world.groups[tier, number]
        free = group.free[device_type]
        if devices <= free <= best_free:
            parent_free = parent.free[device_type]
            if free < best_free or parent_free < best_above:
                best, best_free, best_above = number, free, parent_free
        # nothing inside the same parent is better than an exact fit
        at = parent.stop if free == devices else group.stop
    return best


@kernel
def emptiest_group(world: World, device_type: int, devices: int, tier: int) -> int:
    """The group of a tier with most free devices, if it holds the gang, or -1."""
    best, best_free, at = -1, devices - 1, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        if group.free[device_type] > best_free:
            best, best_free = number, group.free[device_type]
        at = group.stop
    return best
