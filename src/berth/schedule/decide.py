"""The pass: the scheduler decides which jobs start, move and lose their place. Read this file first.

A pass changes who holds which devices and who waits, and lists every change in `World.decisions`. Time does not
pass in it: the simulator and the live controller start and stop the clocks of the jobs in that list. Its phases go
from the least to the most disruptive. `decide` says which of them a policy's rules ask for. Each is compiled by itself
and called by its address, and `phases_for` leaves out those that `decide` will not call: compiling one takes seconds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import types

from berth.native.kernels import IndirectKernel, indirect, inlined, types_of
from berth.schedule.defragment import defragment
from berth.schedule.delay_timers import update_timers
from berth.schedule.migrate_nearer import migrate_nearer
from berth.schedule.policy import Hooks
from berth.schedule.preempt_by_order import preempt_by_order
from berth.schedule.preempt_for_gain import preempt_for_gain
from berth.schedule.queue import may_displace
from berth.schedule.records import World
from berth.schedule.relax_locality import relax_locality, reserve_for_longest_waiting
from berth.schedule.reservation import cancel_reservation
from berth.schedule.reshape import reshape
from berth.schedule.rules import Blocked, Preempt, PreemptByGain, PreemptByOrder, Rules
from berth.schedule.start_waiting import refresh_order, refresh_overdue_order, start_waiting


class Phases(NamedTuple):
    """What a pass calls, in this order."""

    refresh_order: Any
    reserve_for_longest_waiting: Any
    start_waiting: Any
    preempt_by_order: Any
    defragment: Any
    relax_locality: Any
    migrate_nearer: Any
    reshape: Any
    preempt_for_gain: Any
    update_timers: Any


@inlined
def decide(world: World, hooks: Hooks, phases: Phases, now: float) -> float:
    """Runs one pass; returns the time at which the answer could change without any event."""
    state, rules, reservation = world.state[0], world.rules[0], world.reservation[0]
    state.decisions, state.now = 0, now
    reservation.holder = reservation.last_holder = -1
    wake = math.inf
    if state.queue_start < state.queue_stop:
        if not rules.static_order or now >= state.next_reorder_s:
            wake = phases.refresh_order(world, hooks, now)
        if rules.reserve_after_s < math.inf:
            phases.reserve_for_longest_waiting(world, hooks, now)
        wake = min(wake, fill_devices(world, hooks, phases, now))
        if state.running > 0:  # else no job could give way to one that has waited long
            wake = min(wake, state.next_reorder_s)
        if rules.defragment > 0 and state.queue_start < state.queue_stop:
            phases.defragment(world, hooks, now)
        if rules.relax_locality:
            phases.relax_locality(world, hooks, now)
    if rules.migrate_gain > 0:
        phases.migrate_nearer(world, hooks, now)
        if len(world.shapes) > 0:
            wake = min(wake, phases.reshape(world, hooks, now))
    if rules.preempt == Preempt.BY_GAIN and state.queue_start < state.queue_stop:
        wake = min(wake, phases.preempt_for_gain(world, hooks, now))
    cancel_reservation(world)
    if rules.learn_timers:
        phases.update_timers(world, hooks, now)
    return wake


@inlined
def fill_devices(world: World, hooks: Hooks, phases: Phases, now: float) -> float:
    """Starts jobs that fit; where order preempts, those that do not may displace others, at once or in rounds."""
    state, rules = world.state[0], world.rules[0]
    if rules.preempt != Preempt.BY_ORDER:
        return phases.start_waiting(world, hooks, now, rules.blocked)
    if rules.period_s > 0 and now < state.next_round_s:
        return min(phases.start_waiting(world, hooks, now, Blocked.SKIP), next_round_s(world))
    if now >= state.running_wake_s:
        world.bound[0].valid = 0
    wake = phases.start_waiting(world, hooks, now, Blocked.STOP)
    if state.queue_start < state.queue_stop:
        if may_displace(world, world.waiting[state.queue_start]):
            wake = phases.preempt_by_order(world, hooks, now)
        else:
            wake = phases.start_waiting(world, hooks, now, Blocked.SKIP)
    if rules.period_s > 0:
        state.next_round_s = (math.floor(now / rules.period_s) + 1) * rules.period_s
        if state.next_round_s <= now:  # by rounding
            state.next_round_s += rules.period_s
        wake = min(wake, next_round_s(world))
    return wake


@inlined
def next_round_s(world: World) -> float:
    """When preemption is considered again; where nothing runs nothing can be displaced."""
    return world.state[0].next_round_s if world.state[0].running > 0 else math.inf


def phases_for(rules: Rules, world: World, hooks: Hooks, *, with_shapes: bool = True) -> Phases:
    """The phases that these rules ask for; in place of the others is one that does nothing.

    `with_shapes`: jobs may have alternative shapes; without such jobs none changes its shape.
    """
    by_order, by_gain = isinstance(rules.preempt, PreemptByOrder), isinstance(rules.preempt, PreemptByGain)
    arguments = (*types_of(world, hooks), types.float64)

    def act(wanted: bool, phase: IndirectKernel) -> Any:
        return (phase if wanted else _nothing).pointer(types.void(*arguments))

    def wake(wanted: bool, phase: IndirectKernel) -> Any:
        return (phase if wanted else _never).pointer(types.float64(*arguments))

    order, migrates = rules.order, bool(rules.migrate and rules.migrate.gain > 0)
    return Phases(
        refresh_order=(
            wake(order.reorder_after_s < math.inf, refresh_overdue_order)
            if order
            else wake(True, refresh_order)
        ),
        reserve_for_longest_waiting=act(rules.reserve is not None, reserve_for_longest_waiting),
        start_waiting=start_waiting.pointer(types.float64(*arguments, types.int64)),
        preempt_by_order=wake(by_order, preempt_by_order),
        defragment=act(bool(rules.defragment and rules.defragment.gain > 0), defragment),
        relax_locality=act(rules.relax_locality, relax_locality),
        migrate_nearer=act(migrates, migrate_nearer),
        reshape=wake(migrates and with_shapes, reshape),
        preempt_for_gain=wake(by_gain, preempt_for_gain),
        update_timers=act(rules.learn_timers, update_timers),
    )


@indirect
def _nothing(world: World, hooks: Hooks, now: float) -> None:
    """A phase that the rules do not ask for."""


@indirect
def _never(world: World, hooks: Hooks, now: float) -> float:
    """The same where a time is returned."""
    return math.inf
