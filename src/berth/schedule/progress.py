"""How an attempt makes progress: restoring, working, checkpointing. Time is set by the simulator or by live."""

from __future__ import annotations

import math
from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.estimates import refresh_remaining
from berth.schedule.records import SMALL_GANG, World


@inlined
def advance_progress(job: Any, now: float) -> None:
    """Advances a running job's progress to `now`; its speed has not changed since the last update."""
    span = now - job.updated_s
    if span <= 0:
        return
    if now >= job.next_checkpoint_s:
        record_checkpoint(job, now)
    worked = max(0.0, now - max(job.updated_s, job.restored_at_s)) * job.speed
    job.done_s += worked
    job.true_remaining_s = max(0.0, job.true_remaining_s - worked)
    job.ran_s += span
    job.attained_gpu_s += span * job.gpus
    job.updated_s = now
    refresh_remaining(job, now)


@kernel
def record_checkpoint(job: Any, now: float) -> None:
    """Records the work that was left at the last checkpoint by `now`; progress is as of `updated_s`."""
    passed = math.floor((now - job.next_checkpoint_s) / job.checkpoint_interval_s)
    at = job.next_checkpoint_s + passed * job.checkpoint_interval_s
    worked = (at - max(job.updated_s, job.restored_at_s)) * job.speed
    job.checkpointed_remaining_s = max(0.0, job.true_remaining_s - worked)
    job.next_checkpoint_s = at + job.checkpoint_interval_s


@inlined
def begin_attempt(world: World, row: int, now: float) -> float:
    """Starts the clock of a gang that has its place; returns the seconds that it restores first."""
    job = world.jobs[row]
    job.restored_at_s = now
    job.checkpointed_remaining_s = job.true_remaining_s
    if job.first_start_s < 0:
        job.first_start_s = now
        return 0.0
    restore_s = restore_cost_s(world, job.gpus)
    job.restored_at_s += restore_s
    return restore_s


@inlined
def restore_cost_s(world: World, gpus: int) -> float:
    """Seconds that it costs a gang to be stopped and to restore its state elsewhere."""
    rules = world.rules[0]
    return rules.eviction_s if gpus <= SMALL_GANG else rules.eviction_large_s
