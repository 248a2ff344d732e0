"""The pipeline without waits: micro-batches follow each other for ever, nobody waits for a synchronisation.

In every round each computer, port and link does each of its jobs once, in the order in which a micro-batch
meets them; a job on a micro-batch is one round later than the job before it, so that what it needs is there.
In steady state a round takes as long as the busiest of them works, which is the closed formula if nothing
varies and links are not shared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.compile import kernel
from berth.plan.objective.pipeline import (
    BACKWARD,
    FORWARD,
    IN_B,
    IN_F,
    LINK,
    LINK_B,
    LINK_F,
    OUT_B,
    OUT_F,
    REDUCE,
    ROWS,
)  # fmt: skip

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@kernel
def stream(work: Floats, noise: Floats, rounds: int) -> float:
    """Seconds per micro-batch in steady state."""
    stages = len(work)
    at, taken, waits = _jobs(work)
    jobs = len(at)
    ended = np.zeros((jobs, jobs + 1))  # of the last micro-batches, by their number modulo jobs + 1
    free = np.zeros(int(at.max()) + 1)
    began = np.zeros(len(free))
    warm = 4 * jobs
    for now in range(warm + rounds):
        for job in range(min(jobs, now + 1)):
            micro = now - job
            place = micro % (jobs + 1)
            start = free[at[job]]
            if waits[job] >= 0:
                start = max(start, ended[waits[job], place])
            varies = noise[micro % len(noise), at[job]] if at[job] < stages else 1.0
            free[at[job]] = ended[job, place] = start + taken[job] * varies
        if now == warm - 1:
            began[:] = free
    return float((free - began).max()) / rounds


@kernel
def _jobs(work: Floats) -> tuple[Ints, Floats, Ints]:
    """What one micro-batch asks for, in its order: of which resource, how long, and after which job."""
    stages = len(work)
    at, taken, waits = np.zeros(10 * stages, np.int64), np.zeros(10 * stages), np.zeros(10 * stages, np.int64)
    count = 0
    before = -1
    for step in range(2 * stages):
        ahead = step < stages
        stage = step if ahead else 2 * stages - 1 - step
        if step > 0 and step != stages:
            left, right = (stage - 1, stage) if ahead else (stage, stage + 1)
            link = 2 * stages + max(0, int(work[left, LINK]))
            giver, taker = (left, right) if ahead else (right, left)
            for resource, seconds in (
                (stages + giver, work[giver, OUT_F if ahead else OUT_B]),
                (link, work[left, LINK_F if ahead else LINK_B]),
                (stages + taker, work[taker, IN_F if ahead else IN_B]),
            ):
                if seconds > 0:
                    at[count], taken[count], waits[count] = resource, seconds, before
                    before = count
                    count += 1
        at[count], taken[count], waits[count] = stage, work[stage, FORWARD if ahead else BACKWARD], before
        before = count
        count += 1
        synchronising = 0.0 if ahead else work[stage, ROWS] + work[stage, REDUCE]
        if synchronising > 0:
            at[count], taken[count], waits[count] = stages + stage, synchronising, before
            count += 1
    return at[:count], taken[:count], waits[:count]
