"""The event loop, compiled: arrivals, finishes, timers and faults in virtual time, one pass after each moment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.deferred import deferred
from berth.native.kernels import entry, inlined, kernel
from berth.schedule.allocation import release, requeue
from berth.schedule.asking import wake_time_of
from berth.schedule.claims import take_devices
from berth.schedule.decide import Phases, decide
from berth.schedule.estimates import record_duration, refresh_remaining
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, begin_attempt
from berth.schedule.queue import enqueue, enqueue_all, set_order, smallest_demand, update_policy_state
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Action, EstimateKind, JobStatus, World, places_of
from berth.schedule.totals import update_totals
from berth.simulate.engine_state import EngineState, Event, FaultKind, Net, NetworkMode
from berth.simulate.heap import insert, remove
from berth.simulate.log import has_room, write
from berth.simulate.speed import SpeedHooks, account_exposed_comm, finish_time_of

OVER, MORE, LOG_FULL = 0, 1, 2
_MOMENTS = 10_000  # after this many moments the loop returns, events or not


@entry
def advance(
    world: World, hooks: Hooks, phases: Phases, engine: EngineState, net: Net, speed: SpeedHooks, events: int
) -> int:
    """Runs until this many more events have happened, the log is full, or nothing is left to happen."""
    clock = engine.clock[0]
    until = clock.events + events
    for _ in range(_MOMENTS):
        if clock.events >= until:
            break
        now = next_event_s(world, engine)
        if now == math.inf:
            return OVER
        if clock.logging and not has_room(world, engine, now):
            return LOG_FULL
        clock.moments += 1
        advance_clock(world, engine, now)
        finish_jobs(world, engine, net, speed, now)
        apply_faults(world, hooks, engine, net, speed, now)
        enqueue_arrivals(world, hooks, engine, now)
        clock.wake = decide(world, hooks, phases, now)
        apply(world, engine, net, speed, now)
        clock.wake = min(clock.wake, running_wake(world, hooks, now))
    return MORE


@inlined
def next_event_s(world: World, engine: EngineState) -> float:
    """The time of the next event."""
    clock = engine.clock[0]
    now = clock.wake
    if clock.arrived < len(world.jobs):
        now = min(now, world.jobs[clock.arrived].arrival_s)
    if clock.heap > 0:
        now = min(now, engine.accounts[engine.heap[0]].finish_s)
    if clock.fault < len(engine.faults) and clock.finished < len(world.jobs):
        now = min(now, engine.faults[clock.fault].time)
    return now


@inlined
def advance_clock(world: World, engine: EngineState, now: float) -> None:
    """Moves the clock to `now` and accounts for devices that were idle though a job wanted them."""
    clock, state = engine.clock[0], world.state[0]
    span = now - clock.now
    if span > 0 and state.queue_start < state.queue_stop and state.free >= smallest_demand(world):
        clock.idle_wanted_s += span * state.free
    clock.now = state.now = now


@inlined
def finish_jobs(world: World, engine: EngineState, net: Net, speed: SpeedHooks, now: float) -> None:
    """Ends all jobs that finish by now."""
    clock = engine.clock[0]
    while clock.heap > 0 and engine.accounts[engine.heap[0]].finish_s <= now:
        row = engine.heap[0]
        job = world.jobs[row]
        advance_progress(job, now)
        record_duration(world, row)
        end_attempt(world, engine, net, speed, row, job.tier, job.started_s, now)
        write(world, engine, Event.FINISHED, row, job.reason, now)
        release(world, row)
        job.state, job.true_remaining_s, job.estimated_remaining_s, job.end_s = JobStatus.DONE, 0.0, 0.0, now
        clock.finished += 1
        clock.events += 1


@inlined
def enqueue_arrivals(world: World, hooks: Hooks, engine: EngineState, now: float) -> None:
    """Puts all jobs submitted by now into the queue; one that can never run is skipped."""
    clock, first, count = engine.clock[0], engine.clock[0].arrived, 0
    while clock.arrived < len(world.jobs) and world.jobs[clock.arrived].arrival_s <= now:
        clock.arrived += 1
    if clock.arrived == first:
        return
    clock.events += clock.arrived - first
    rows = np.empty(clock.arrived - first, np.int32)
    for row in range(first, clock.arrived):
        if world.jobs[row].state == JobStatus.REFUSED:
            clock.finished += 1
            continue
        world.jobs[row].queued_since_s = world.jobs[row].arrival_s
        set_order(world, hooks, row, now)
        rows[count] = row
        count += 1
        write(world, engine, Event.ARRIVED, row, ReasonCode.NONE, now)
    if count == 1:
        enqueue(world, rows[0])
    elif count > 1:
        enqueue_all(world, rows[:count])


@kernel
def apply(world: World, engine: EngineState, net: Net, speed: SpeedHooks, now: float) -> None:
    """Lets time act on the decisions of a pass: evicted jobs leave before any other takes a place."""
    clock = engine.clock[0]
    decisions = world.decisions[: world.state[0].decisions]
    for decision in decisions:
        if decision.what == Action.EVICT:
            end_attempt(
                world, engine, net, speed, decision.job, decision.from_tier, decision.ran_since_s, now
            )
            clock.evictions += 1
            write(world, engine, Event.EVICTED, decision.job, decision.reason, now)
    for decision in decisions:
        if decision.what == Action.START:
            start_attempt(world, engine, net, speed, decision.job, now)
            write(world, engine, Event.STARTED, decision.job, decision.reason, now)
        elif decision.what == Action.MOVE:
            end_attempt(
                world, engine, net, speed, decision.job, decision.from_tier, decision.ran_since_s, now
            )
            start_attempt(world, engine, net, speed, decision.job, now)
            clock.moves += 1
            write(world, engine, Event.MOVED, decision.job, decision.reason, now)


@inlined
def start_attempt(
    world: World, engine: EngineState, net: Net, speed: SpeedHooks, row: int, now: float
) -> None:
    """Starts the clock of a gang that has its place: after restoring, if it ran before."""
    job, account, clock = world.jobs[row], engine.accounts[row], engine.clock[0]
    if job.shape != account.shape:
        enter_shape(world, job, account)
    account.lost_gpu_s += begin_attempt(world, row, now) * job.gpus
    account.accounted_remaining_s = job.true_remaining_s
    job.checkpoint_interval_s = clock.checkpoint_s
    job.next_checkpoint_s = job.restored_at_s + clock.checkpoint_s if clock.checkpoint_s > 0 else math.inf
    account.heap_index = -1
    if clock.network == NetworkMode.OFF and clock.device_types == 1:
        job.speed = 1.0
    else:
        speed.enter(world, engine, net, row, now)
    if job.estimate_kind != EstimateKind.TRACKED:
        refresh_remaining(job, now)  # its index changes at a time that its speed decides
    account.finish_s = finish_time_of(job, now)
    insert(engine, row)


@kernel
def enter_shape(world: World, job: Any, account: Any) -> None:
    """Notes the shape in which an attempt begins; what was done again is counted in its seconds from now on."""
    if account.shape >= 0:
        account.redone_s *= world.shapes[job.shape].unit_s / world.shapes[account.shape].unit_s
        account.reshapes += 1 - world.shapes[job.shape].gang
    account.shape = job.shape


@inlined
def end_attempt(
    world: World,
    engine: EngineState,
    net: Net,
    speed: SpeedHooks,
    row: int,
    tier: int,
    started_s: float,
    now: float,
) -> None:
    """Stops the clock of a gang that ran at a tier since `started_s`; its progress is up to date."""
    job, account = world.jobs[row], engine.accounts[row]
    gpus, unit = job.gpus, 1.0
    if job.shape >= 0:  # a job that changes its shape is already described by the new one
        was = world.shapes[account.shape]
        gpus, unit = was.gpus, was.unit_s / world.shapes[job.shape].unit_s
        account.usd += (now - started_s) / 3600.0 * was.usd_per_hour
    account_exposed_comm(job, account, gpus, unit)
    account.tier_gpu_s[tier] += (now - started_s) * gpus
    account.lost_gpu_s -= max(0.0, job.restored_at_s - now) * gpus  # it had not finished restoring
    remove(engine, row)
    if net.flows.volume[row] > 0.0:
        speed.depart(world, engine, net, row, now)


@kernel
def running_wake(world: World, hooks: Hooks, now: float) -> float:
    """When a running job's order changes by itself, as when it has attained enough service to sink a queue.

    That time does not change while a job runs, so only jobs that start or move are asked; all of them once it has come.
    """
    state = world.state[0]
    if not world.rules[0].wake_running:
        return math.inf
    if now >= state.running_wake_s:
        state.running_wake_s = math.inf
        for i in range(state.running):
            row = world.running[i]
            advance_progress(world.jobs[row], now)
            update_totals(world, world.jobs[row], now)
            update_policy_state(world, hooks, row, now)  # no pass has, where no running job can be preempted
            state.running_wake_s = min(state.running_wake_s, wake_time_of(world, hooks, row, now))
    else:
        for decision in world.decisions[: state.decisions]:
            if decision.what != Action.EVICT:
                wake = wake_time_of(world, hooks, decision.job, now)
                state.running_wake_s = min(state.running_wake_s, wake)
    return state.running_wake_s if state.queue_start < state.queue_stop else math.inf


@inlined
def apply_faults(
    world: World, hooks: Hooks, engine: EngineState, net: Net, speed: SpeedHooks, now: float
) -> None:
    """Lets machines fail, be repaired, be drained and come back, up to now."""
    clock = engine.clock[0]
    if clock.fault < len(engine.faults) and engine.faults[clock.fault].time <= now:
        apply_due_faults(world, hooks, engine, net, speed, now)


@deferred
def apply_due_faults(
    world: World, hooks: Hooks, engine: EngineState, net: Net, speed: SpeedHooks, now: float
) -> None:
    """The same, where there are some."""
    clock = engine.clock[0]
    while clock.fault < len(engine.faults) and engine.faults[clock.fault].time <= now:
        fault = engine.faults[clock.fault]
        clock.fault += 1
        clock.events += 1
        machine = world.groups[0, fault.machine]
        for at in range(machine.start, machine.stop):
            host = world.hosts[at]
            if fault.what in (FaultKind.FAIL, FaultKind.DRAIN):
                host.down += 1
                if host.down == 1:
                    take_devices(world, at, host.free)
                if fault.what == FaultKind.FAIL:
                    evict_from_host(world, hooks, engine, net, speed, at, now)
            else:
                host.down -= 1
                if host.down == 0:
                    take_devices(world, at, -(host.size - devices_in_use(world, at)))
        event = fault.what + (Event.FAILED - FaultKind.FAIL)
        write(world, engine, event, -1 - fault.machine, ReasonCode.NONE, now)


@kernel
def devices_in_use(world: World, at: int) -> int:
    """Devices of a host that running jobs hold."""
    total = 0
    for i in range(world.state[0].running):
        for place in places_of(world, world.jobs[world.running[i]].first_place):
            if place.host == at:
                total += place.count
    return total


@kernel
def runs_on(world: World, row: int, at: int) -> bool:
    """Whether a running job holds devices of a host."""
    held = False
    for place in places_of(world, world.jobs[row].first_place):
        held |= place.host == at
    return held


@kernel
def evict_from_host(
    world: World, hooks: Hooks, engine: EngineState, net: Net, speed: SpeedHooks, at: int, now: float
) -> None:
    """Rolls jobs on a failed host back to their last checkpoint and puts them into the queue."""
    i = 0
    while i < world.state[0].running:
        row = world.running[i]
        if not runs_on(world, row, at):
            i += 1
            continue
        job = world.jobs[row]
        advance_progress(job, now)
        end_attempt(world, engine, net, speed, row, job.tier, job.started_s, now)
        roll_back(job, engine.accounts[row], now)
        engine.clock[0].evictions += 1
        release(world, row)
        requeue(world, hooks, row, now, ReasonCode.HOST_LOST)
        write(world, engine, Event.EVICTED, row, ReasonCode.HOST_LOST, now)


@kernel
def roll_back(job: Any, account: Any, now: float) -> None:
    """Returns a job to its last checkpoint; without checkpoints, to the start of this attempt."""
    since_s = job.restored_at_s
    if job.checkpoint_interval_s > 0:
        since_s = job.next_checkpoint_s - job.checkpoint_interval_s
    again_s = max(0.0, job.checkpointed_remaining_s - job.true_remaining_s)
    job.true_remaining_s += again_s
    account.accounted_remaining_s = job.true_remaining_s  # the cost of the work that is lost stays accounted
    job.done_s -= again_s
    refresh_remaining(job, now)
    account.redone_s += again_s
    account.lost_gpu_s += max(0.0, now - since_s) * job.gpus
