"""A world that grows: rows for jobs that come, room made of those that are over.

The scheduler's arrays have a fixed length and are walked by row. Here they are moved to longer ones when they are
full, the rows of jobs that are over falling out; the order of the others stays, and with it every decision.
"""

from __future__ import annotations

import numpy as np

from berth.schedule.view import DEMAND, MAX_TIERS, OFFER, Array, World
from berth.schedule.world import new_jobs

FIRST = 256  # rows of a new world


def with_demand(world: World, gpus: int, timers: Array) -> World:
    """The world with an entry for jobs of this size; sizes stand smallest first."""
    sizes = world.demands["gpus"]
    at = int(np.searchsorted(sizes, gpus))
    if at < len(sizes) and sizes[at] == gpus:
        return world
    demands, offers = np.zeros(len(sizes) + 1, DEMAND), np.zeros((len(sizes) + 1, MAX_TIERS), OFFER)
    others = np.delete(np.arange(len(demands)), at)
    demands[others], offers[others] = world.demands, world.offers
    demands["gpus"][at] = gpus
    offers["timer"][at, : len(timers)] = offers["fixed"][at, : len(timers)] = timers
    world.jobs["demand"][world.jobs["demand"] >= at] += 1
    return world._replace(demands=demands, offers=offers)


def with_room(world: World, kept: Array) -> World:
    """A full world with these rows only, in their order, and with free ones behind them."""
    size = len(world.jobs) if 2 * len(kept) <= len(world.jobs) else 2 * len(world.jobs)
    new_row = np.full(len(world.jobs), -1, np.int32)
    new_row[kept] = np.arange(len(kept), dtype=np.int32)
    jobs = new_jobs(size)
    jobs[: len(kept)] = world.jobs[kept]
    jobs["id"] = np.arange(size)
    state = world.state.copy()
    devices = len(world.running)
    waiting = np.zeros(size + 1, np.int32)
    queued = new_row[world.waiting[state["first"][0] : state["last"][0]]]
    waiting[: len(queued)] = queued
    running = np.zeros(devices, np.int32)
    count = int(state["running"][0])
    running[:count] = new_row[world.running[:count]]
    ending = np.zeros(size + devices, np.int32)
    listed = new_row[world.ending[: int(state["ending"][0])]]
    listed = listed[listed >= 0]
    ending[: len(listed)] = listed
    state["first"], state["last"], state["ending"], state["decisions"] = 0, len(queued), len(listed), 0
    state["bounded"] = 0  # the bound names a row; it is found again when it is needed
    if (reserved := int(state["reserved"][0])) >= 0:
        state["reserved"] = new_row[reserved]
    return world._replace(
        jobs=jobs,
        waiting=waiting,
        running=running,
        ending=ending,
        decisions=np.zeros((2 * devices + size, 3), np.int32),
        state=state,
    )
