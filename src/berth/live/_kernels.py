"""What the fold does to the world, compiled: the pass itself, and every way in which a job enters or leaves."""

from __future__ import annotations

from berth.compile import entry, kernel
from berth.schedule.attempt import (
    book,
    charge,
    end,
    requeue,
    restore_s,
    seat_at,
    set_keys,
    touch,
    widen_bound,
)
from berth.schedule.decide import decide
from berth.schedule.place import claim, take
from berth.schedule.policy import Hooks
from berth.schedule.queue import add_running, enqueue
from berth.schedule.steps import Steps
from berth.schedule.view import DONE, EVICT, FUTURE, MOVE, START, Array, World
from berth.simulate.engine import held_on, running_wake

_OVERRUN = 0.25  # a job that outlives its estimate is expected to need such a share more


@entry
def run_pass(world: World, hooks: Hooks, steps: Steps, now: float) -> float:
    """One pass at `now`; the decisions stand in the world. Returns when the answer could change by itself."""
    age(world, now)
    wake = decide(world, hooks, steps, now)
    state = world.state[0]
    for i in range(state.decisions):
        what, row, _ = world.decisions[i]
        if what in (EVICT, MOVE):
            book(world.jobs[row])
        if what in (START, MOVE):
            set_off(world, row, now)
    return min(wake, running_wake(world, hooks, now))


@kernel
def age(world: World, now: float) -> None:
    """Brings the books of all that run up to `now`, and the estimates of those that outlived theirs."""
    world.state[0].now = now
    for i in range(world.state[0].running):
        job = world.jobs[world.running[i]]
        touch(job, now)
        if job.left <= 0.0:
            more = _OVERRUN * max(1.0, job.work)
            job.work += more
            job.left = job.remaining = job.booked = more


@entry
def bring_up_to(world: World, now: float) -> None:
    """The same without a pass: a forecast begins at the present, not at the last event."""
    age(world, now)


@kernel
def set_off(world: World, row: int, now: float) -> None:
    """A gang has its place: how fast it should go there."""
    job = world.jobs[row]
    job.speed = 1.0 / job.slow[job.tier]
    job.stall = now
    if job.first_start < 0:
        job.first_start = now
    else:
        job.stall += restore_s(world, job.gpus)
        job.lost += restore_s(world, job.gpus) * job.gpus
    job.saved = job.left


@entry
def join(world: World, hooks: Hooks, row: int, now: float) -> None:
    """A job begins to wait."""
    world.state[0].now = now
    world.jobs[row].since = now
    set_keys(world, hooks, row, now)
    enqueue(world, row)


@entry
def stand_anew(world: World, hooks: Hooks, row: int, now: float) -> None:
    """A waiting job whose facts have changed finds its place in the queue again."""
    leave_queue(world, row)
    set_keys(world, hooks, row, now)
    enqueue(world, row)


@kernel
def leave_queue(world: World, row: int) -> None:
    """Takes a job out of the waiting."""
    state, waiting = world.state[0], world.waiting
    at = state.first
    while waiting[at] != row:
        at += 1
    for i in range(at, state.first, -1):
        waiting[i] = waiting[i - 1]
    state.first += 1
    world.demands[world.jobs[row].demand].waiting -= 1


@entry
def withdraw(world: World, row: int) -> None:
    """A waiting job will not run."""
    leave_queue(world, row)
    world.jobs[row].state = DONE


@entry
def finish(world: World, row: int, now: float) -> None:
    """A running job is over."""
    stop(world, row, now)
    world.jobs[row].state, world.jobs[row].end = DONE, now


@entry
def put_off(world: World, row: int, now: float) -> None:
    """A running job failed and will be tried again later."""
    stop(world, row, now)
    world.jobs[row].state = FUTURE


@entry
def give_back(world: World, hooks: Hooks, row: int, now: float, reason: int) -> None:
    """A running job lost its place and waits again."""
    stop(world, row, now)
    requeue(world, hooks, row, now, reason)


@kernel
def stop(world: World, row: int, now: float) -> None:
    """A running job leaves its place."""
    world.state[0].now = now
    touch(world.jobs[row], now)
    end(world, row)


@entry
def take_down(world: World, machine: int) -> None:
    """A machine takes no new job."""
    group = world.groups[0, machine]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        host.down += 1
        if host.down == 1:
            take(world, at, host.free)


@entry
def bring_up(world: World, machine: int, foreign: int) -> int:
    """A machine takes jobs again, but on devices that others hold; returns how many of those could be booked."""
    group = world.groups[0, machine]
    booked = 0
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        host.down -= 1
        if host.down == 0:
            free = host.size - held_on(world, at)
            theirs = min(free, foreign)
            foreign -= theirs
            booked += theirs
            take(world, at, theirs - free)
    return booked


@entry
def lend(world: World, machine: int, devices: int) -> int:
    """Others took devices of a machine (or gave back, if below zero); returns how many could be booked."""
    group = world.groups[0, machine]
    booked = 0
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        if host.down:
            continue
        theirs = host.size - host.free - held_on(world, at)
        part = max(-theirs, min(devices, host.free))
        take(world, at, part)
        devices -= part
        booked += part
    return booked


@entry
def seat_as_told(
    world: World, row: int, hosts: Array, counts: Array, tier: int, now: float, reason: int
) -> None:
    """A waiting gang takes just these places: what a journal says, without asking the policy."""
    job = world.jobs[row]
    world.state[0].now = now
    job.waited += now - job.since
    leave_queue(world, row)
    head = -1
    for i in range(len(hosts)):
        head = claim(world, head, hosts[i], counts[i])
    seat_at(world, row, head, tier, now, reason)
    charge(world, row, job.gpus)
    add_running(world, row)
    widen_bound(world, row)
    set_off(world, row, now)


@entry
def place_of(world: World, row: int, hosts: Array, counts: Array) -> int:
    """The hosts of a running job and its devices on each, into these arrays; returns how many."""
    size, at = 0, world.jobs[row].head
    while at >= 0:
        hosts[size], counts[size] = world.places[at].host, world.places[at].count
        at = world.places[at].next
        size += 1
    return size


@entry
def run_at_speed(world: World, row: int, now: float) -> None:
    """A running job whose slow-downs have become known goes on at that speed."""
    job = world.jobs[row]
    touch(job, now)
    book(job)
    job.speed = 1.0 / job.slow[job.tier]
