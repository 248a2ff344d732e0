"""Finding a place for a gang: the nearest tier that holds it, and in that tier the group that fits best.

Best fit: the machine (rack, ...) with fewest free devices that still holds the gang.
"""

from __future__ import annotations

import math
from typing import Any

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.balance import sensitive_to_imbalance
from berth.schedule.groups import find_place
from berth.schedule.links import may_send
from berth.schedule.records import World
from berth.schedule.shapes import find_shape, find_vector


@inlined
def accepts_device_type(job: Any, device_type: int) -> bool:
    """Whether a job can run on devices of a type."""
    listed = (job.device_type_mask >> device_type) & 1 == 1
    return job.device_type == device_type or (job.device_type < 0 and listed)


@deferred
def find_place_for(world: World, row: int, allowed_tier: int, open_: bool) -> tuple[int, int, int]:
    """(device type, tier, group) of the nearest place for a job up to a tier; device type -1: none.

    `open_`: reserved devices are counted.
    """
    job, state = world.jobs[row], world.state[0]
    if job.shape >= 0:
        return find_place_for_shape(world, row, allowed_tier, open_)
    if job.gpus > state.free or exceeds_quota(world, row):
        return -1, -1, -1
    device_type, tier, group = nearest_place(world, row, allowed_tier)
    if device_type >= 0 and limited_links(world, tier) and not may_send(world, row, device_type, tier, group):
        return -1, -1, -1
    return device_type, tier, group


@inlined
def too_large(world: World, job: Any, allowed_tier: int) -> bool:
    """Whether it is known that no place up to a tier holds a gang, with reserved devices too."""
    most = 0
    for device_type in device_types_of(world, job):
        if accepts_device_type(job, device_type):
            most = max(most, world.state[0].most_free[0, device_type, allowed_tier])
    return job.shape < 0 and job.gpus > most


@kernel
def find_place_for_shape(world: World, row: int, allowed_tier: int, open_: bool) -> tuple[int, int, int]:
    """The same for a job with parts or alternatives, in the shape that its record describes.

    Its row of `World.demands` is that of its smallest shape: what failed is kept with each shape.
    """
    if exceeds_quota(world, row):
        return -1, -1, -1
    device_type = max(0, world.jobs[row].device_type)
    tier, group = find_shape(world, world.jobs[row].shape, allowed_tier, open_)
    if tier < 0 or (limited_links(world, tier) and not may_send(world, row, device_type, tier, group)):
        return -1, -1, -1
    return device_type, tier, group


@inlined
def limited_links(world: World, tier: int) -> bool:
    """Whether a gang at a tier sends over links that the policy does not let all jobs share."""
    return tier > 0 and world.rules[0].link_ratio < math.inf


@inlined
def nearest_place(world: World, row: int, allowed_tier: int) -> tuple[int, int, int]:
    """The same by free devices alone, without quota and links."""
    job = world.jobs[row]
    if job.vector:
        tier, group = find_vector(world, job.shape, allowed_tier)
        return min(tier, 0), tier, group
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
