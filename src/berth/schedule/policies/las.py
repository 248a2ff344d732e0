"""Least attained service in queues (2D-LAS), as Tiresias' own simulator does it; for schedulers that don't
know how long jobs take.

A job sinks a queue when its GPU-seconds reach a limit. Inside a queue, those who run come before those who
wait; who is evicted waits before those who waited already; who has just sunk comes last. `job.queue` is
the queue, `notes[0]` when it was entered, `notes[1]` the service and `notes[2]` the wait that were
forgiven when the job last came back to the first queue.
"""

from __future__ import annotations

import math
from typing import Any

_SLACK = 1e-3  # GPU-seconds: a job woken when it reaches a limit has reached it


def rank(job: Any, now: float, first: float, second: float, starvation: float) -> float:
    """The queue, and inside it: who runs, who waits, who has just sunk. Brings the job's notes up to date."""
    if job.attained_gpu_s == 0.0 and job.queue == 0:
        job.notes[0] = job.arrival_s
    service = job.attained_gpu_s - job.notes[1]
    while job.queue < 2 and service + _SLACK >= (first if job.queue == 0 else second):
        over = service - (first if job.queue == 0 else second)
        job.queue += 1
        job.notes[0] = max(job.notes[0], now - max(0.0, over) / job.gpus)
    if job.tier < 0 and now >= starved_at(job, starvation):
        job.notes[0], job.notes[1] = now, job.attained_gpu_s
        job.notes[2] = job.waited_s + now - job.queued_since_s
        job.queue = 0
    if job.tier < 0:
        return job.queue + 0.25
    return job.queue + (0.5 if job.notes[0] >= now - _SLACK and job.started_s < now else 0.0)


def place_in_line(job: Any) -> float:
    """Among equals: running by when they came to run in this queue, waiting as they joined its line."""
    if job.tier >= 0:
        return max(job.started_s, job.notes[0])
    return -job.last_eviction_s if job.last_eviction_s > job.notes[0] + _SLACK else job.notes[0]


def sinks_at(job: Any, now: float, first: float, second: float) -> float:
    """When a running job reaches the limit of its queue."""
    if job.queue >= 2:
        return math.inf
    limit = first if job.queue == 0 else second
    return now + max(_SLACK, limit - job.attained_gpu_s + job.notes[1]) / job.gpus


def starved_at(job: Any, starvation: float) -> float:
    """When a waiting job comes back to the first queue: once it waited `starvation` times what it ran."""
    if starvation == 0.0 or job.queue == 0:
        return math.inf
    ran_s = (job.attained_gpu_s - job.notes[1]) / job.gpus
    waited_s = job.waited_s - job.notes[2]
    return job.queued_since_s + max(0.0, starvation * ran_s - waited_s)
