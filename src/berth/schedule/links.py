"""Who sends over which links, for policies that let a gang start only where it does not meet too many others.

Every group below the top has one up-link. A gang sends over those of all groups that hold some of its devices
and not all of them: at every level below the tier at which it stands together.
"""

from __future__ import annotations

import numpy as np

from berth.compile import kernel
from berth.schedule.place import fill, forget, offer_back
from berth.schedule.shape import minds_shape
from berth.schedule.view import Array, World


@kernel
def may_send(world: World, row: int, kind: int, tier: int, group: int) -> bool:
    """Whether a gang may start in a group that has room for it, by what others send over the same links.

    A link that nobody sends over is free to take. One other is joined only by a message much smaller than its
    own, which it delays little; two are never joined (AdaDUAL, arXiv 2002.10105).
    """
    job = world.jobs[row]
    if job.message <= 0.0:
        return True
    senders, messages = links_in_use(world)
    head = fill(world, kind, tier, group, job.gpus, minds_shape(job, world.state[0].shape))
    allowed, entry = True, head
    while entry >= 0 and allowed:
        place = world.places[entry]
        for level in range(tier):
            number = world.hosts[place.host].group[level]
            if senders[level, number] > 0:
                alone = senders[level, number] == 1
                ratio = job.message / messages[level, number]
                allowed = allowed and alone and ratio < world.state[0].link_ratio
        entry = place.next
    offer_back(world, head)
    forget(world, head)
    return allowed


@kernel
def links_in_use(world: World) -> tuple[Array, Array]:
    """[level, group]: how many running gangs send over the up-link, and the message of the last of them."""
    senders = np.zeros(world.groups.shape, np.int64)
    messages = np.zeros(world.groups.shape)
    last = np.full(world.groups.shape, -1)
    for i in range(world.state[0].running):
        row = world.running[i]
        job = world.jobs[row]
        if job.tier == 0 or job.message <= 0.0:
            continue
        entry = job.head
        while entry >= 0:
            place = world.places[entry]
            for level in range(job.tier):
                number = world.hosts[place.host].group[level]
                if last[level, number] != row:
                    last[level, number] = row
                    senders[level, number] += 1
                    messages[level, number] = job.message
            entry = place.next
    return senders, messages
