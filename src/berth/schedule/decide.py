"""The pass: state of the world in, decisions out. This is the whole scheduler.

What a pass decides it applies to the world at once (who holds what, who waits) and lists in `decisions`; time
passes elsewhere. Its steps go from the least to the most disruptive: fill free places, spread over what would
idle, move somebody up, move somebody out of the way.
"""

from __future__ import annotations

import math

from berth.compile import inlined
from berth.schedule.hold import release_hold
from berth.schedule.policy import Hooks
from berth.schedule.replan import may_displace
from berth.schedule.steps import Steps
from berth.schedule.view import World
from berth.schedule.walk import SKIP, STOP, refresh_keys, rekey

BY_ORDER, BY_GAIN = 1, 2


@inlined
def decide(world: World, hooks: Hooks, steps: Steps, now: float) -> float:
    """One pass; returns the time at which the answer could change without any event."""
    state = world.state[0]
    state.decisions, state.now, state.held, state.reserved = 0, now, -1, -1
    wake = math.inf
    if state.first < state.last:
        if not state.steady:
            wake = refresh_keys(world, hooks, now)
        elif now >= state.next_rekey:
            rekey(world, hooks, now)
        # where order preempts, a place that is held could be lost again
        if state.hold_after_s < math.inf and state.preempt != BY_ORDER:
            steps.hold_for_longest(world, hooks, now)
        wake = min(wake, fill_places(world, hooks, steps, now))
        if state.steady and state.running > 0:  # else nobody could make way for who has waited long
            wake = min(wake, state.next_rekey)
        if state.defragment > 0 and state.first < state.last:
            steps.defragment(world, hooks, now)
        if state.look_ahead:
            steps.spread_idle(world, hooks, now)
    if state.move_up > 0:
        steps.move_up(world, hooks, now)
    if state.preempt == BY_GAIN and state.first < state.last:
        wake = min(wake, steps.make_room(world, hooks, now))
    release_hold(world)
    if state.learns:
        steps.learn(world, hooks, now)
    return wake


@inlined
def fill_places(world: World, hooks: Hooks, steps: Steps, now: float) -> float:
    """Who fits starts; where order preempts, who does not may displace others, at once or in rounds."""
    state = world.state[0]
    if state.preempt != BY_ORDER:
        return steps.walk(world, hooks, now, state.blocked)
    if state.period_s > 0 and now < state.next_round:
        return min(steps.walk(world, hooks, now, SKIP), next_round(world))
    if now >= state.running_wake:
        state.bounded = 0
    wake = steps.walk(world, hooks, now, STOP)
    if state.first < state.last:
        displaces = may_displace(world, world.waiting[state.first])
        wake = steps.replan(world, hooks, now) if displaces else steps.walk(world, hooks, now, SKIP)
    if state.period_s > 0:
        state.next_round = (math.floor(now / state.period_s) + 1) * state.period_s
        if state.next_round <= now:  # by rounding
            state.next_round += state.period_s
        wake = min(wake, next_round(world))
    return wake


@inlined
def next_round(world: World) -> float:
    """When who runs is decided anew; where nobody runs nobody can be displaced, and no round need come."""
    return world.state[0].next_round if world.state[0].running > 0 else math.inf
