"""Learned delay timers: how long jobs of one size waited for a tier until they got it, or gave it up.

Each start is a sample for every tier from the job's nearest to the one it got: the one it got came free after its
wait; the nearer ones had not come free by then (a censored sample, "longer than"). What a timer makes of that is
the policy's decision (`observe`).
"""

from __future__ import annotations

from typing import Any

from berth.native.kernels import indirect, kernel
from berth.schedule.policy import Hooks
from berth.schedule.records import WINDOW, Action, World
from berth.schedule.segments import forget_demand


@indirect
def update_timers(world: World, hooks: Hooks, now: float) -> None:
    """Calls `observe` for every start of this pass."""
    state = world.state[0]
    for i in range(state.decisions):
        job = world.jobs[world.decisions[i].job]
        if world.decisions[i].what != Action.START or job.gpus == 1:
            continue
        for tier in range(job.nearest_tier, job.tier + 1):
            stats = world.wait_stats[job.demand, tier]
            gave_up = 1 if tier < job.tier else 0
            record_wait(stats, now - job.queued_since_s, gave_up, now)
            before_s = stats.timer_s
            stats.timer_s = hooks.observe(stats, now - job.queued_since_s, gave_up, now, world.params[0])
            if stats.timer_s != before_s:
                forget_demand(world, job.demand)


@kernel
def record_wait(stats: Any, wait: float, gave_up: int, now: float) -> None:
    """Puts one wait into the window in place of the oldest."""
    stats.at_s[stats.next] = now
    stats.wait_s[stats.next] = wait
    stats.gave_up[stats.next] = gave_up
    stats.next = (stats.next + 1) % WINDOW
    stats.count = min(stats.count + 1, WINDOW)
