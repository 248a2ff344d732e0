"""How gangs take, exchange and leave devices. Every change of placement in a pass goes through this file.

Devices are claimed first and assigned to a job afterwards, so that a claim can be rolled back (`cancel_claim`).
What becomes of a job is appended to `decisions`; the simulator or the controller lets time act on it.
"""

from __future__ import annotations

import numpy as np

from berth import reproducible
from berth.native.kernels import inlined, kernel
from berth.schedule.balance import balanced_shares, free_per_host, sensitive_to_imbalance
from berth.schedule.policy import Hooks
from berth.schedule.queue import add_running, enqueue, remove_running, set_order
from berth.schedule.records import MAX_TIERS, Action, JobStatus, World, places_of
from berth.schedule.totals import charge_user

_TYPICAL_STARTS = 200  # recent starts that the typical service is the mean of

_log = kernel(reproducible.log)


# Claims


@inlined
def take_devices(world: World, at: int, devices: int) -> None:
    """Takes devices of a host; a negative number returns them."""
    host = world.hosts[at]
    host.free -= devices
    world.state[0].free -= devices
    for tier in range(world.groups.shape[0]):
        world.groups[tier, host.group[tier]].free[host.device_type] -= devices


@kernel
def claim_in_group(world: World, device_type: int, tier: int, group: int, need: int, balanced: bool) -> int:
    """Claims `need` devices inside a group that has them; returns the claim.

    At each level full children are taken first and the last one by best fit; `balanced`: machines are taken so
    that the gang is spread evenly. Levels are walked with a stack of what is still needed at each.
    """
    claim = -1
    if tier == 0:
        return claim_on_host(world, claim, host_of(world, device_type, group), need)
    needs = np.zeros(MAX_TIERS, np.int64)
    groups = np.zeros(MAX_TIERS, np.int64)
    needs[tier], groups[tier] = need, group
    level = tier
    while True:
        if needs[level] == 0:
            if level == tier:
                return claim
            level += 1
        elif level == 0:
            claim = claim_on_host(world, claim, host_of(world, device_type, groups[0]), needs[0])
            needs[0] = 0
        elif level == 1 and balanced:
            claim = claim_balanced(world, claim, device_type, groups[1], needs[1])
            needs[1] = 0
        else:
            child, free = next_child(world, device_type, level, groups[level], needs[level])
            part = min(needs[level], free)
            needs[level] -= part
            level -= 1
            needs[level], groups[level] = part, child


@kernel
def claim_balanced(world: World, claim: int, device_type: int, group: int, need: int) -> int:
    """Claims devices on several machines of a rack, spread as evenly as they allow."""
    start = world.groups[1, group].start
    shares = balanced_shares(free_per_host(world, device_type, 1, group), need)
    for k in range(len(shares)):
        if shares[k] > 0:
            claim = claim_on_host(world, claim, start + k, shares[k])
    return claim


@inlined
def host_of(world: World, device_type: int, machine: int) -> int:
    """The host with a machine's devices of one type."""
    at = world.groups[0, machine].start
    while world.hosts[at].device_type != device_type:
        at += 1
    return at


@kernel
def next_child(world: World, device_type: int, tier: int, group: int, need: int) -> tuple[int, int]:
    """(child, its free devices): the fullest child that holds all of it, else the emptiest."""
    tight, tight_free, wide, wide_free = -1, 1 << 30, -1, 0
    at, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    while at < stop:
        number = world.hosts[at].group[tier - 1]
        child = world.groups[tier - 1, number]
        free = child.free[device_type]
        if need <= free < tight_free:
            tight, tight_free = number, free
        if free > wide_free:
            wide, wide_free = number, free
        at = child.stop
    if tight >= 0 and not world.rules[0].worst_fit:
        return tight, tight_free
    return wide, wide_free


@inlined
def claim_on_host(world: World, claim: int, host: int, devices: int) -> int:
    """Takes devices of one host and puts them in front of a claim."""
    take_devices(world, host, devices)
    state = world.state[0]
    state.spare -= 1
    entry = world.places[state.spare].spare
    world.places[entry].host = host
    world.places[entry].count = devices
    world.places[entry].next = claim
    return entry


@inlined
def return_devices(world: World, claim: int) -> None:
    """Returns the devices of a claim but keeps its places; a host that is down keeps its devices."""
    for place in places_of(world, claim):
        if not world.hosts[place.host].down:
            take_devices(world, place.host, -place.count)


@inlined
def still_free(world: World, claim: int) -> bool:
    """Whether the devices of a claim that were returned are free."""
    for place in places_of(world, claim):
        host = world.hosts[place.host]
        if not host.down and host.free < place.count:
            return False
    return True


@inlined
def reclaim(world: World, claim: int) -> None:
    """Takes the devices of a claim again that were returned."""
    for place in places_of(world, claim):
        if not world.hosts[place.host].down:
            take_devices(world, place.host, place.count)


@inlined
def free_entries(world: World, claim: int) -> None:
    """Frees the entries of a claim whose devices are returned."""
    state = world.state[0]
    while claim >= 0:
        world.places[state.spare].spare = claim
        state.spare += 1
        claim = world.places[claim].next


@inlined
def cancel_claim(world: World, claim: int) -> None:
    """Rolls a claim back."""
    return_devices(world, claim)
    free_entries(world, claim)


# Jobs


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


@kernel
def start_job(
    world: World, row: int, device_type: int, tier: int, group: int, now: float, reason: int
) -> None:
    """Starts a waiting gang inside a group that has room for it."""
    job = world.jobs[row]
    claim = claim_in_group(world, device_type, tier, group, job.gpus, sensitive_to_imbalance(world, job))
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
    world.demands[job.demand].waiting -= 1
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
    if not job.in_ending_list:
        job.in_ending_list = 1
        world.ending[world.state[0].ending] = row
        world.state[0].ending += 1
    job.reason, job.waits_for_tier, job.until_s, job.saves_s = reason, tier, now, 0.0


@kernel
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


@kernel
def evict(world: World, row: int, reason: int) -> None:
    """Detaches a gang, whose devices are returned, and records that; it must be requeued."""
    job = world.jobs[row]
    from_tier, ran_since_s = job.tier, job.started_s
    detach(world, row)
    record_decision(world, Action.EVICT, row, reason, from_tier, ran_since_s)


@kernel
def requeue(world: World, hooks: Hooks, row: int, now: float, reason: int) -> None:
    """Puts a job that lost its place back into the queue."""
    job = world.jobs[row]
    job.queued_since_s = job.last_eviction_s = now
    job.evictions += 1
    job.reason, job.waits_for_tier, job.until_s, job.saves_s = reason, job.nearest_tier, now, 0.0
    job.explained_s = now
    set_order(world, hooks, row, now)
    enqueue(world, row)
