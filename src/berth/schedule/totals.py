"""Totals by user: what running jobs hold and what they have used, for policies that take turns between users.

They change where a job starts, moves or releases its devices (allocation.py), so the simulator and the live
controller keep the same ones. A hook with the parameter `cluster` reads them from one record, which is filled in for
the job that it is called for; where no hook has it, nothing is filled in.
"""

from __future__ import annotations

from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.records import World, places_of


@inlined
def charge_user(world: World, row: int, gpus: int, now: float) -> None:
    """Adds the devices of a job's places to what its user holds; a negative number takes them away."""
    job = world.jobs[row]
    user = world.users[job.user]
    if now > user.updated_s:
        user.gpu_s += user.gpus * (now - user.updated_s)
        user.updated_s = now
    user.gpus += gpus
    if job.vector:
        for place in places_of(world, job.first_place):
            user.devices[world.hosts[place.host].device_type] += place.count if gpus > 0 else -place.count
    else:
        user.devices[world.hosts[world.places[job.first_place].host].device_type] += gpus


@inlined
def update_totals(world: World, job: Any, now: float) -> None:
    """Fills in the totals for the job that a hook is called for, if any hook reads them."""
    if world.rules[0].uses_cluster:
        fill_totals(world, job, now)


@kernel
def fill_totals(world: World, job: Any, now: float) -> None:
    """Fills in the record that a hook reads as `cluster`."""
    cluster, user = world.cluster[0], world.users[job.user]
    free = world.groups[world.groups.shape[0] - 1, 0].free
    for device_type in range(cluster.device_types):
        cluster.free[device_type] = free[device_type]
        cluster.user_devices[device_type] = user.devices[device_type]
    cluster.user_gpus = user.gpus
    cluster.user_gpu_s = user.gpu_s + user.gpus * max(0.0, now - user.updated_s)
    cluster.quota_gpus = world.quotas[job.quota].used if job.quota >= 0 else 0
    cluster.quota_limit = world.quotas[job.quota].allowed if job.quota >= 0 else 0
