"""Growth of the scheduler's arrays: rows for new jobs, in place of those of ended ones.

The arrays have a fixed length. When they are full they are copied to longer ones without the rows of ended jobs. The
order of the others does not change, so no decision does.
"""

from __future__ import annotations

import numpy as np

from berth.schedule.records import DECISION, DEMAND, MAX_TIERS, USER, WAIT_STATS, Array, World
from berth.schedule.world import new_jobs

FIRST = 256  # rows at the start


def with_demand(world: World, gpus: int, timers: Array) -> World:
    """Return the arrays with an entry for jobs of this size; sizes are in ascending order."""
    sizes = world.demands["gpus"]
    at = int(np.searchsorted(sizes, gpus))
    if at < len(sizes) and sizes[at] == gpus:
        return world
    demands, wait_stats = np.zeros(len(sizes) + 1, DEMAND), np.zeros((len(sizes) + 1, MAX_TIERS), WAIT_STATS)
    others = np.delete(np.arange(len(demands)), at)
    demands[others], wait_stats[others] = world.demands, world.wait_stats
    demands["gpus"][at] = gpus
    wait_stats["timer_s"][at, : len(timers)] = wait_stats["initial_timer_s"][at, : len(timers)] = timers
    world.jobs["demand"][world.jobs["demand"] >= at] += 1
    return world._replace(demands=demands, wait_stats=wait_stats)


def with_user(world: World, user: int) -> World:
    """The world with totals for the user of this number."""
    if user < len(world.users):
        return world
    users = np.zeros(2 * user, USER)
    users[: len(world.users)] = world.users
    return world._replace(users=users)


def with_usage(world: World, earlier: World, now: float) -> World:
    """The world, in which nothing runs, with what users have used in an earlier one."""
    users = earlier.users.copy()
    users["gpu_s"] += users["gpus"] * np.maximum(0.0, now - users["updated_s"])
    users["gpus"], users["devices"], users["updated_s"] = 0, 0, now
    return world._replace(users=users)


def with_free_rows(world: World, kept: Array) -> World:
    """Return full arrays with these rows only, in their order, followed by free ones."""
    size = len(world.jobs) if 2 * len(kept) <= len(world.jobs) else 2 * len(world.jobs)
    new_row = np.full(len(world.jobs), -1, np.int32)
    new_row[kept] = np.arange(len(kept), dtype=np.int32)
    jobs = new_jobs(size)
    jobs[: len(kept)] = world.jobs[kept]
    jobs["id"] = np.arange(size)
    state = world.state.copy()
    devices = len(world.running)
    waiting = np.zeros(size + 1, np.int32)
    queued = new_row[world.waiting[state["queue_start"][0] : state["queue_stop"][0]]]
    waiting[: len(queued)] = queued
    running = np.zeros(devices, np.int32)
    count = int(state["running"][0])
    running[:count] = new_row[world.running[:count]]
    ending = np.zeros(size + devices, np.int32)
    listed = new_row[world.ending[: int(state["ending"][0])]]
    listed = listed[listed >= 0]
    ending[: len(listed)] = listed
    state["queue_start"], state["queue_stop"], state["ending"], state["decisions"] = (
        0,
        len(queued),
        len(listed),
        0,
    )
    bound = world.bound.copy()
    bound["valid"] = 0  # the bound names a row; it is found again when it is needed
    if (reserved := int(state["last_reserved"][0])) >= 0:
        state["last_reserved"] = new_row[reserved]
    return world._replace(
        jobs=jobs,
        waiting=waiting,
        running=running,
        ending=ending,
        decisions=np.zeros(2 * devices + size, DECISION),
        bound=bound,
        state=state,
    )
