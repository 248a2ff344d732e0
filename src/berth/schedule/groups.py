"""Which group of a tier holds a gang best: the one with fewest free devices that still holds it.

What a search that fails has shown is kept (`State.most_free`): no group of these tiers has that many free devices. It
holds, for gangs of this size and larger ones, until some group has as many again: taking devices changes nothing,
returning them raises what is kept to what the groups around them have (claims.py).
"""

from __future__ import annotations

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.balance import free_per_host, most_balanced_group, scattered_shares
from berth.schedule.records import MANY_FREE, World


@deferred
def find_place(
    world: World, device_type: int, devices: int, nearest_tier: int, allowed_tier: int, balanced: bool
) -> tuple[int, int]:
    """(tier, group) of the nearest place from one tier to another, or (-1, -1)."""
    most_free = world.state[0].most_free[1 if world.state[0].masked > 0 else 0, device_type]
    if nearest_tier > allowed_tier or devices > most_free[allowed_tier]:
        return -1, -1
    if allowed_tier > 0 and devices <= world.rules[0].scatter_up_to:
        group = emptiest_group(world, device_type, devices, allowed_tier)
        if group >= 0:
            return scattered_place(world, device_type, devices, allowed_tier, group)
    for tier in range(nearest_tier, allowed_tier + 1):
        group = find_in_tier(world, device_type, devices, tier, balanced)
        if group >= 0:
            return tier, group
    for tier in range(allowed_tier + 1):  # what is inside a group has no more than it
        most_free[tier] = min(most_free[tier], devices - 1)
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
    at, hosts, fit = 0, len(world.hosts), devices
    while at < hosts:
        host = world.hosts[at]
        parent = world.groups[above, host.group[above]]
        if above > tier and parent.free[device_type] < devices:
            at = parent.stop
            continue
        if above == 1 and tier == 0:
            fit = tightest_fit(world.racks[host.group[1]].present[device_type], devices)
            if fit > best_free or (fit == best_free and parent.free[device_type] >= best_above):
                at = parent.stop
                continue
        number = host.group[tier]
        group = world.groups[tier, number]
        free = group.free[device_type]
        if devices <= free <= best_free:
            parent_free = parent.free[device_type]
            if free < best_free or parent_free < best_above:
                best, best_free, best_above = number, free, parent_free
        # nothing inside the same parent is better
        at = parent.stop if free == fit else group.stop
    return best


@inlined
def tightest_fit(present: int, devices: int) -> int:
    """Fewest free devices of a machine of a rack that holds the gang, by the bits of RACK; none: a large number.

    From MANY_FREE on it may be more than that.
    """
    fit = min(devices, MANY_FREE)
    left = present >> fit
    if left == 0:
        return 1 << 31
    while left & 1 == 0:
        left >>= 1
        fit += 1
    return max(fit, devices) if fit == MANY_FREE else fit


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


@kernel
def scattered_place(world: World, device_type: int, devices: int, tier: int, group: int) -> tuple[int, int]:
    """(tier, group) of the nearest group around the devices that a scattered gang takes inside a group."""
    start = world.groups[tier, group].start
    shares = scattered_shares(free_per_host(world, device_type, tier, group), devices)
    for level in range(tier):
        around, number = True, -1
        for k in range(len(shares)):
            if shares[k] > 0:
                here = world.hosts[start + k].group[level]
                around = around and (number < 0 or number == here)
                number = here
        if around:
            return level, number
    return tier, group
