"""The event loop, compiled: arrivals, ends, timers and faults in virtual time, one pass after each moment."""

from __future__ import annotations

import math
from typing import Any

from berth.compile import entry, inlined, kernel
from berth.schedule.attempt import book, end, requeue, restore_s, set_keys, touch
from berth.schedule.decide import decide
from berth.schedule.place import take
from berth.schedule.policy import Hooks
from berth.schedule.queue import enqueue
from berth.schedule.reasons import HOST_LOST, NONE
from berth.schedule.steps import Steps
from berth.schedule.view import DONE, EVICT, MOVE, REFUSED, START, World
from berth.schedule.walk import smallest_demand, wake_of
from berth.simulate.heap import insert, remove
from berth.simulate.log import has_room, write
from berth.simulate.motion import Motion
from berth.simulate.speed import expected_end
from berth.simulate.view import (
    ARRIVED,
    DRAIN,
    DRAINED,
    EVICTED,
    FAIL,
    FAILED,
    FINISHED,
    MOVED,
    OFF,
    REPAIRED,
    STARTED,
    UNDRAINED,
    Course,
    Net,
)

OVER, MORE, LOG_FULL = 0, 1, 2
_MOMENTS = 10_000  # after so many moments the caller is asked whether to go on, events or not


@entry
def advance(
    world: World, hooks: Hooks, steps: Steps, course: Course, net: Net, motion: Motion, events: int
) -> int:
    """Runs until so many more events have happened, the log is full, or nothing is left to happen."""
    clock = course.clock[0]
    until = clock.events + events
    for _ in range(_MOMENTS):
        if clock.events >= until:
            break
        now = next_time(world, course)
        if now == math.inf:
            return OVER
        if clock.logging and not has_room(world, course, now):
            return LOG_FULL
        clock.moments += 1
        pass_time(world, course, now)
        finish(world, course, net, motion, now)
        break_and_mend(world, hooks, course, net, motion, now)
        arrive(world, hooks, course, now)
        clock.wake = decide(world, hooks, steps, now)
        apply(world, course, net, motion, now)
        clock.wake = min(clock.wake, running_wake(world, hooks, now))
    return MORE


@inlined
def next_time(world: World, course: Course) -> float:
    """The time of whatever happens next."""
    clock = course.clock[0]
    now = clock.wake
    if clock.arrived < len(world.jobs):
        now = min(now, world.jobs[clock.arrived].arrival)
    if clock.heap > 0:
        now = min(now, world.jobs[course.heap[0]].finish)
    if clock.fault < len(course.faults) and clock.finished < len(world.jobs):
        now = min(now, course.faults[clock.fault].time)
    return now


@inlined
def pass_time(world: World, course: Course, now: float) -> None:
    """Books what the devices did since the last moment."""
    clock, state = course.clock[0], world.state[0]
    span = now - clock.now
    if span > 0 and state.first < state.last and state.free >= smallest_demand(world):
        clock.idle_wanted_s += span * state.free
    clock.now = state.now = now


@inlined
def finish(world: World, course: Course, net: Net, motion: Motion, now: float) -> None:
    """All gangs that end by now leave."""
    clock = course.clock[0]
    while clock.heap > 0 and world.jobs[course.heap[0]].finish <= now:
        row = course.heap[0]
        job = world.jobs[row]
        touch(job, now)
        stop_clock(world, course, net, motion, row, now)
        write(world, course, FINISHED, row, job.reason, now)
        end(world, row)
        job.state, job.left, job.remaining, job.end = DONE, 0.0, 0.0, now
        clock.finished += 1
        clock.events += 1


@inlined
def arrive(world: World, hooks: Hooks, course: Course, now: float) -> None:
    """All jobs submitted by now join the queue; one that can never run is set aside."""
    clock = course.clock[0]
    while clock.arrived < len(world.jobs) and world.jobs[clock.arrived].arrival <= now:
        row = clock.arrived
        clock.arrived += 1
        clock.events += 1
        if world.jobs[row].state == REFUSED:
            clock.finished += 1
            continue
        world.jobs[row].since = world.jobs[row].arrival
        set_keys(world, hooks, row, now)
        enqueue(world, row)
        write(world, course, ARRIVED, row, NONE, now)


@kernel
def apply(world: World, course: Course, net: Net, motion: Motion, now: float) -> None:
    """Lets time act on what the pass decided: who leaves does so before anybody takes a place."""
    clock, state = course.clock[0], world.state[0]
    for i in range(state.decisions):
        what, row, reason = world.decisions[i]
        if what == EVICT:
            stop_clock(world, course, net, motion, row, now)
            clock.evictions += 1
            write(world, course, EVICTED, row, reason, now)
    for i in range(state.decisions):
        what, row, reason = world.decisions[i]
        if what == START:
            start_clock(world, course, net, motion, row, now)
            write(world, course, STARTED, row, reason, now)
        elif what == MOVE:
            stop_clock(world, course, net, motion, row, now)
            start_clock(world, course, net, motion, row, now)
            clock.moves += 1
            write(world, course, MOVED, row, reason, now)


@inlined
def start_clock(world: World, course: Course, net: Net, motion: Motion, row: int, now: float) -> None:
    """A gang begins to run: after restoring, if it ran before."""
    job = world.jobs[row]
    job.stall = now
    if job.first_start < 0:
        job.first_start = now
    else:
        restore = restore_s(world, job.gpus)
        job.stall += restore
        job.lost += restore * job.gpus
    job.saved, job.checkpoint_s = job.left, course.clock[0].checkpoint_s
    job.next_checkpoint = job.stall + job.checkpoint_s if job.checkpoint_s > 0 else math.inf
    job.heap_at = -1
    if course.clock[0].network == OFF and course.clock[0].kinds == 1:
        job.speed = 1.0
    else:
        motion.enter(world, course, net, row, now)
    job.finish = expected_end(job, now)
    insert(world.jobs, course.heap, course.clock, row)


@inlined
def stop_clock(world: World, course: Course, net: Net, motion: Motion, row: int, now: float) -> None:
    """A gang no longer runs where it ran; its books are up to date."""
    job = world.jobs[row]
    book(job)
    job.lost -= max(0.0, job.stall - now) * job.gpus  # it did not come to the end of restoring
    remove(world.jobs, course.heap, course.clock, row)
    if net.flows.volume[row] > 0.0:
        motion.depart(world, course, net, row, now)


@kernel
def running_wake(world: World, hooks: Hooks, now: float) -> float:
    """When a running job's standing changes by itself (it has attained enough to sink a queue, say).

    That moment stays the same while a job runs, so only those that start are asked; all of them only once it
    has come.
    """
    state = world.state[0]
    if not state.wakes:
        return math.inf
    if now >= state.running_wake:
        state.running_wake = math.inf
        for i in range(state.running):
            job = world.jobs[world.running[i]]
            touch(job, now)
            state.running_wake = min(state.running_wake, wake_of(world, hooks, world.running[i], now))
    else:
        for i in range(state.decisions):
            if world.decisions[i, 0] == START:
                row = world.decisions[i, 1]
                state.running_wake = min(state.running_wake, wake_of(world, hooks, row, now))
    return state.running_wake if state.first < state.last else math.inf


@kernel
def break_and_mend(world: World, hooks: Hooks, course: Course, net: Net, motion: Motion, now: float) -> None:
    """Machines fail and are repaired, are drained and put back."""
    clock = course.clock[0]
    while clock.fault < len(course.faults) and course.faults[clock.fault].time <= now:
        fault = course.faults[clock.fault]
        clock.fault += 1
        clock.events += 1
        machine = world.groups[0, fault.machine]
        for at in range(machine.start, machine.stop):
            host = world.hosts[at]
            if fault.what in (FAIL, DRAIN):
                host.down += 1
                if host.down == 1:
                    take(world, at, host.free)
                if fault.what == FAIL:
                    lose(world, hooks, course, net, motion, at, now)
            else:
                host.down -= 1
                if host.down == 0:
                    take(world, at, -(host.size - held_on(world, at)))
        write_fault(world, course, fault.what, fault.machine, now)


@kernel
def write_fault(world: World, course: Course, what: int, machine: int, now: float) -> None:
    """Notes a fault in the log under the machine's number."""
    codes = (0, FAILED, REPAIRED, DRAINED, UNDRAINED)
    write(world, course, codes[what], -1 - machine, NONE, now)


@kernel
def held_on(world: World, at: int) -> int:
    """Devices of a host that running jobs hold."""
    total = 0
    for i in range(world.state[0].running):
        entry = world.jobs[world.running[i]].head
        while entry >= 0:
            if world.places[entry].host == at:
                total += world.places[entry].count
            entry = world.places[entry].next
    return total


@kernel
def lose(world: World, hooks: Hooks, course: Course, net: Net, motion: Motion, at: int, now: float) -> None:
    """Jobs on a failed host go back to their last checkpoint and wait again."""
    i = 0
    while i < world.state[0].running:
        row = world.running[i]
        job = world.jobs[row]
        entry = job.head
        while entry >= 0 and world.places[entry].host != at:
            entry = world.places[entry].next
        if entry < 0:
            i += 1
            continue
        touch(job, now)
        stop_clock(world, course, net, motion, row, now)
        roll_back(job, now)
        course.clock[0].evictions += 1
        end(world, row)
        requeue(world, hooks, row, now, HOST_LOST)
        write(world, course, EVICTED, row, HOST_LOST, now)


@kernel
def roll_back(job: Any, now: float) -> None:
    """Returns a job to its last checkpoint; without checkpoints, to the start of this attempt."""
    since = job.next_checkpoint - job.checkpoint_s if job.checkpoint_s > 0 else job.stall
    again = max(0.0, job.saved - job.left)
    job.left += again
    job.booked = job.left  # what it cost to do that work the first time stays counted
    job.remaining = job.left * job.doubt
    job.redone += again
    job.lost += max(0.0, now - since) * job.gpus
