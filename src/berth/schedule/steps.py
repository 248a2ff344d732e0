"""The steps of a pass, each compiled by itself and called by its address; a pass has those its policy needs."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from berth.compile import Step, step, types_of
from berth.schedule.defragment import defragment
from berth.schedule.lookahead import hold_for_longest, spread_idle
from berth.schedule.policy import Hooks, Preempt, Rules
from berth.schedule.preempt import make_room, move_up
from berth.schedule.replan import replan
from berth.schedule.tune import learn
from berth.schedule.view import World
from berth.schedule.walk import walk


class Steps(NamedTuple):
    """What a pass calls, from the least to the most disruptive."""

    hold_for_longest: Any
    walk: Any
    replan: Any
    defragment: Any
    spread_idle: Any
    move_up: Any
    make_room: Any
    learn: Any


def steps_for(rules: Rules, world: World, hooks: Hooks) -> Steps:
    """The steps that these rules ask for; the others do nothing."""
    by_order, by_gain = rules.preempt == Preempt.BY_ORDER, rules.preempt == Preempt.BY_GAIN
    when, what = types.float64, types_of(world, hooks)
    acts = types.void(*what, when)
    wakes = when(*what, when)

    def act(wanted: bool, one: Step) -> Any:
        return (one if wanted else _nothing).at(acts)

    def wake(wanted: bool, one: Step) -> Any:
        return (one if wanted else _never).at(wakes)

    return Steps(
        hold_for_longest=act(rules.hold_after_s < float("inf") and not by_order, hold_for_longest),
        walk=walk.at(when(*what, when, types.int64)),
        replan=wake(by_order, replan),
        defragment=act(rules.defragment > 0, defragment),
        spread_idle=act(rules.look_ahead, spread_idle),
        move_up=act(rules.move_up > 0, move_up),
        make_room=wake(by_gain, make_room),
        learn=act(rules.learns, learn),
    )


@step
def _nothing(world: World, hooks: Hooks, now: float) -> None:
    """A step that nobody asked for."""


@step
def _never(world: World, hooks: Hooks, now: float) -> float:
    """The same where a time is wanted."""
    return float("inf")
