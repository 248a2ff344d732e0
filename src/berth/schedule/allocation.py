"""How gangs take, exchange and leave devices. Every change of placement in a pass goes through this file.

Devices are claimed first (claims.py) and assigned to a job afterwards. What becomes of a job is appended to
`decisions`; the simulator or the controller lets time act on it.
"""

from __future__ import annotations

from berth import reproducible
from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.claims import free_entries, return_devices
from berth.schedule.policy import Hooks
from berth.schedule.queue import add_running, count_waiting, enqueue, remove_running, set_order
from berth.schedule.records import Action, JobStatus, World
from berth.schedule.shapes import claim_for
from berth.schedule.totals import charge_user

_TYPICAL_STARTS = 200  # recent starts that the typical service is the mean of

_log = kernel(reproducible.log)


@inlined
def record_decision(
    world: World, what: int, row: int, reason: int, from_tier: int, ran_since_s: float
) -> None:
    """Appends one decision; call it once the job's record says where it runs now."""
    decision = world.decisions[world.state[0].decisions]
    decision.what, decision.job, decision.reason = what, row, reason
    decision.from_tier, decision.to_tier = from_tier, world.jobs[row].tier
    decision.ran_since_s = ran_since_s
    world.state[0].decisions += 1


@inlined
def charge_quota(world: World, row: int, gpus: int) -> None:
    """Charges devices to a job's virtual cluster, if it has a quota."""
    quota = world.jobs[row].quota
    if quota >= 0:
        world.quotas[quota].used += gpus


@deferred
def start_job(
    world: World, row: int, device_type: int, tier: int, group: int, now: float, reason: int
) -> None:
    """Starts a waiting gang inside a group that has room for it."""
    job = world.jobs[row]
    claim = claim_for(world, row, device_type, tier, group)
    start_on(world, row, claim, tier, now, reason)
    if job.first_start_s < 0:
        record_service(world, row)
    record_decision(world, Action.START, row, reason, -1, now)


@kernel
def start_on(world: World, row: int, claim: int, tier: int, now: float, reason: int) -> None:
    """Puts a waiting gang on devices that are claimed for it."""
    job = world.jobs[row]
    job.waited_s += now - job.queued_since_s
    assign(world, row, claim, tier, now, reason)
    count_waiting(world, row, -1)
    charge_quota(world, row, job.gpus)
    charge_user(world, row, job.gpus, now)
    add_running(world, row)


@inlined
def record_service(world: World, row: int) -> None:
    """Updates the typical service of a job: a geometric mean, as a few jobs are very long."""
    job, state, rules = world.jobs[row], world.state[0], world.rules[0]
    state.starts += 1
    if rules.relax_locality or rules.defragment > 0:
        weight = 1.0 / min(state.starts, _TYPICAL_STARTS)
        service = _log(max(1.0, job.estimated_remaining_s * job.gpus))
        state.typical_log_gpu_s += weight * (service - state.typical_log_gpu_s)


@kernel
def assign(world: World, row: int, claim: int, tier: int, now: float, reason: int) -> None:
    """Gives a claim to a job, with the reason."""
    job = world.jobs[row]
    job.first_place = claim
    job.tier = tier
    job.state = JobStatus.RUNNING
    job.started_s = job.updated_s = now
    job.spared = 0
    if not job.in_ending_list:
        job.in_ending_list = 1
        world.ending[world.state[0].ending] = row
        world.state[0].ending += 1
    if tier > 0 and world.rules[0].migrate_gain > 0 and not job.in_apart_list:
        job.in_apart_list = 1
        world.apart[world.state[0].apart] = row
        world.state[0].apart += 1
    job.reason, job.waits_for_tier, job.until_s, job.saves_s = reason, tier, now, 0.0


@deferred
def relocate(world: World, row: int, claim: int, tier: int, now: float, reason: int) -> None:
    """Moves a running gang, whose old devices are returned, to a claim."""
    job = world.jobs[row]
    from_tier, ran_since_s = job.tier, job.started_s
    charge_user(world, row, -job.gpus, now)
    free_entries(world, job.first_place)
    assign(world, row, claim, tier, now, reason)
    charge_user(world, row, job.gpus, now)
    job.moves += 1
    record_decision(world, Action.MOVE, row, reason, from_tier, ran_since_s)


@kernel
def release(world: World, row: int) -> None:
    """Takes a gang off its devices."""
    return_devices(world, world.jobs[row].first_place)
    detach(world, row)


@inlined
def detach(world: World, row: int) -> None:
    """Takes a gang off devices that are already returned."""
    job = world.jobs[row]
    charge_user(world, row, -job.gpus, job.updated_s)
    free_entries(world, job.first_place)
    job.first_place = -1
    job.tier = -1
    charge_quota(world, row, -job.gpus)
    remove_running(world, row)


@deferred
def evict(world: World, row: int, reason: int) -> None:
    """Detaches a gang, whose devices are returned, and records that; it must be requeued."""
    job = world.jobs[row]
    from_tier, ran_since_s = job.tier, job.started_s
    detach(world, row)
    record_decision(world, Action.EVICT, row, reason, from_tier, ran_since_s)


@deferred
def requeue(world: World, hooks: Hooks, row: int, now: float, reason: int) -> None:
    """Puts a job that lost its place back into the queue."""
    job = world.jobs[row]
    job.queued_since_s = job.last_eviction_s = now
    job.evictions += 1
    job.reason, job.waits_for_tier, job.until_s, job.saves_s = reason, job.nearest_tier, now, 0.0
    job.explained_s, job.other_shape = now, -1
    set_order(world, hooks, row, now)
    enqueue(world, row)
