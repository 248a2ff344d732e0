"""Learning from waits: how long jobs of one demand held out for a tier until they had it, or gave it up.

Each start tells something about every tier from the job's nearest to the one it got: the one it got came
after its wait; the nearer ones had not come by then (a censored sample, "longer than"). What a timer makes of
that is the policy's word (`observe`).
"""

from __future__ import annotations

from typing import Any

from berth.compile import kernel, step
from berth.schedule.policy import Hooks
from berth.schedule.view import START, WINDOW, World


@step
def learn(world: World, hooks: Hooks, now: float) -> None:
    """Tells the policy about every start of this pass."""
    state = world.state[0]
    for i in range(state.decisions):
        if world.decisions[i, 0] != START:
            continue
        job = world.jobs[world.decisions[i, 1]]
        if job.gpus == 1:
            continue
        for tier in range(job.floor, job.tier + 1):
            offer = world.offers[job.demand, tier]
            gave_up = 1 if tier < job.tier else 0
            remember(offer, now - job.since, gave_up, now)
            offer.timer = hooks.observe(offer, now - job.since, gave_up, now, world.my[0])


@kernel
def remember(offer: Any, wait: float, gave_up: int, now: float) -> None:
    """Puts one wait into the window, in place of the oldest."""
    offer.at[offer.next] = now
    offer.wait[offer.next] = wait
    offer.gave_up[offer.next] = gave_up
    offer.next = (offer.next + 1) % WINDOW
    offer.count = min(offer.count + 1, WINDOW)
