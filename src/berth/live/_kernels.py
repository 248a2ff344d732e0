"""What the controller does to the scheduler's world, compiled: the pass, and how jobs and machines come and go."""

from __future__ import annotations

from berth.native.kernels import entry, kernel
from berth.schedule.allocation import release, requeue, start_on
from berth.schedule.claims import claim_on_host, take_devices
from berth.schedule.decide import Phases, decide
from berth.schedule.estimates import refresh_remaining
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, begin_attempt
from berth.schedule.queue import count_waiting, dequeue_at, enqueue, set_order
from berth.schedule.records import Action, Array, EstimateKind, JobStatus, World, places_of
from berth.schedule.shape_choice import take_shape
from berth.simulate.engine import devices_in_use, running_wake

_OVERRUN = 0.25  # a job that outlives its estimate is expected to need this share more


@entry
def run_pass(world: World, hooks: Hooks, phases: Phases, now: float) -> float:
    """Runs one pass at `now` and starts clocks; returns when the answer could change by itself."""
    advance_running(world, now)
    wake = decide(world, hooks, phases, now)
    for decision in world.decisions[: world.state[0].decisions]:
        if decision.what != Action.EVICT:
            start_attempt(world, decision.job, now)
    return min(wake, running_wake(world, hooks, now))


@kernel
def advance_running(world: World, now: float) -> None:
    """Advances the progress of all running jobs to `now`, and extends estimates that were too short."""
    world.state[0].now = now
    for i in range(world.state[0].running):
        job = world.jobs[world.running[i]]
        advance_progress(job, now)
        if job.true_remaining_s <= 0.0:
            more = _OVERRUN * max(1.0, job.work_s)
            job.work_s += more
            job.true_remaining_s = job.estimated_remaining_s = more
            world.bound[0].valid = 0  # it goes later now


@entry
def bring_up_to(world: World, now: float) -> None:
    """Advances all running jobs without a pass: a forecast begins at the present, not at the last event."""
    advance_running(world, now)


@kernel
def start_attempt(world: World, row: int, now: float) -> None:
    """Starts the clock of a gang that has its place, at the speed that its tier allows."""
    world.jobs[row].speed = 1.0 / world.jobs[row].slowdown[world.jobs[row].tier]
    begin_attempt(world, row, now)
    if world.jobs[row].estimate_kind != EstimateKind.TRACKED:
        refresh_remaining(world.jobs[row], now)  # its index changes at a time that its speed decides


@entry
def join(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Puts a new job into the queue."""
    world.state[0].now = now
    world.jobs[row].queued_since_s = now
    set_order(world, hooks, row, now)
    enqueue(world, row)


@entry
def reorder(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Finds the place in the queue of a waiting job again whose facts have changed."""
    dequeue(world, row)
    count_waiting(world, row, -1)
    set_order(world, hooks, row, now)
    enqueue(world, row)


@kernel
def dequeue(world: World, row: int) -> None:
    """Removes a job from the queue."""
    at = world.state[0].queue_start
    while world.waiting[at] != row:
        at += 1
    dequeue_at(world, at)


@entry
def withdraw(world: World, row: int) -> None:
    """Ends a waiting job that will not run."""
    dequeue(world, row)
    count_waiting(world, row, -1)
    world.jobs[row].state = JobStatus.DONE


@entry
def finish(world: World, row: int, now: float) -> None:
    """Ends a running job."""
    stop(world, row, now)
    world.jobs[row].state, world.jobs[row].end_s = JobStatus.DONE, now


@entry
def put_off(world: World, row: int, now: float) -> None:
    """Stops a running job that failed and will be retried later."""
    stop(world, row, now)
    world.jobs[row].state = JobStatus.FUTURE


@entry
def give_back(world: World, hooks: Hooks, row: int, now: float, reason: int) -> None:
    """Puts a running job that lost its place back into the queue."""
    stop(world, row, now)
    requeue(world, hooks, row, now, reason)


@kernel
def stop(world: World, row: int, now: float) -> None:
    """Takes a running job off its devices."""
    world.state[0].now = now
    advance_progress(world.jobs[row], now)
    release(world, row)


@entry
def take_down(world: World, machine: int) -> None:
    """Keeps new jobs off a machine."""
    group = world.groups[0, machine]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        host.down += 1
        if host.down == 1:
            take_devices(world, at, host.free)


@entry
def bring_up(world: World, machine: int) -> None:
    """Makes a machine available again; no device of it is in external use then."""
    group = world.groups[0, machine]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        host.down -= 1
        if host.down == 0:
            take_devices(world, at, devices_in_use(world, at) - host.size)


@entry
def set_external(world: World, machine: int, devices: int, blocked: Array) -> int:
    """Sets how many devices of a machine are in external use; returns how many could be taken.

    First as many of each type as are `blocked`, then any that are free.
    """
    group = world.groups[0, machine]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        if not host.down:
            take_devices(world, at, devices_in_use(world, at) + host.free - host.size)
    taken = 0
    for any_type in range(2):
        for at in range(group.start, group.stop):
            host = world.hosts[at]
            part = min(devices - taken, host.free)
            if any_type == 0:
                part = min(part, blocked[host.device_type])
            take_devices(world, at, part)
            taken += part
    return taken


@entry
def start_as_recorded(
    world: World, row: int, hosts: Array, counts: Array, parts: Array, tier: int, now: float, reason: int
) -> None:
    """Starts a waiting job on the places that the journal names, without asking the policy; part -1: not tied."""
    world.state[0].now = now
    dequeue(world, row)
    claim = -1
    for i in range(len(hosts)):
        claim = claim_on_host(world, claim, hosts[i], counts[i])
        world.places[claim].part = parts[i]
    start_on(world, row, claim, tier, now, reason)
    start_attempt(world, row, now)


@entry
def use_shape(world: World, row: int, number: int) -> None:
    """Describes a waiting job by one of its shapes."""
    take_shape(world, row, number)


@entry
def place_of(world: World, row: int, hosts: Array, counts: Array, parts: Array) -> int:
    """Writes the hosts of a running job, its devices on each and their tied parts into arrays; returns how many."""
    size = 0
    for place in places_of(world, world.jobs[row].first_place):
        hosts[size], counts[size], parts[size] = place.host, place.count, place.part
        size += 1
    return size


@entry
def run_at_speed(world: World, row: int, now: float) -> None:
    """Lets a running job go on at the speed of its tier, once its slowdowns are known."""
    job = world.jobs[row]
    advance_progress(job, now)
    job.speed = 1.0 / job.slowdown[job.tier]
