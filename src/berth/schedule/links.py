"""Which gangs send over which links, for policies that limit how many share one.

Every group below the top tier has one uplink. A gang sends over the uplinks of all groups that hold some of its
devices and not all of them: at every level below its tier.
"""

from __future__ import annotations

import numpy as np

from berth.native.deferred import deferred
from berth.native.kernels import kernel
from berth.schedule.claims import cancel_claim
from berth.schedule.records import Array, World, places_of
from berth.schedule.shapes import claim_for, claim_shape


@deferred
def may_send(world: World, row: int, device_type: int, tier: int, group: int) -> bool:
    """Whether a gang may start in a group that has room for it, by what others send over the same links.

    An idle link may be used. One other gang is joined only by a message much smaller than its own, which
    delays it little; two are never joined (AdaDUAL, arXiv 2002.10105).
    """
    message_bytes = world.jobs[row].message_bytes
    if message_bytes <= 0.0:
        return True
    return may_join(world, claim_for(world, row, device_type, tier, group), message_bytes, tier)


@kernel
def shape_may_send(world: World, number: int, tier: int, group: int) -> bool:
    """The same for a job that would start in a shape."""
    message_bytes = world.shapes[number].message_bytes
    if message_bytes <= 0.0:
        return True
    return may_join(world, claim_shape(world, number, tier, group), message_bytes, tier)


@kernel
def may_join(world: World, claim: int, message_bytes: float, tier: int) -> bool:
    """Whether a gang with these places, which are cancelled, may send over the links that they share with others."""
    senders, messages = links_in_use(world)
    allowed = True
    for place in places_of(world, claim):
        for level in range(tier):
            number = world.hosts[place.host].group[level]
            if senders[level, number] > 0:
                alone = senders[level, number] == 1
                ratio = message_bytes / messages[level, number]
                allowed = allowed and alone and ratio < world.rules[0].link_ratio
    cancel_claim(world, claim)
    return allowed


@kernel
def links_in_use(world: World) -> tuple[Array, Array]:
    """[level, group]: how many running gangs send over the uplink, and the message of the last of them."""
    senders = np.zeros(world.groups.shape, np.int64)
    messages = np.zeros(world.groups.shape)
    last = np.full(world.groups.shape, -1)
    for i in range(world.state[0].running):
        row = world.running[i]
        job = world.jobs[row]
        if job.tier == 0 or job.message_bytes <= 0.0:
            continue
        for place in places_of(world, job.first_place):
            for level in range(job.tier):
                number = world.hosts[place.host].group[level]
                if last[level, number] != row:
                    last[level, number] = row
                    senders[level, number] += 1
                    messages[level, number] = job.message_bytes
    return senders, messages
