"""Least attained service in queues (2D-LAS), as Tiresias' own simulator does it; for schedulers that don't
know how long jobs take.

A job sinks a queue when its GPU-seconds reach a limit. Inside a queue, running jobs come before waiting ones; a job
that is evicted waits before those that waited already; a job that has just sunk comes last.
"""

from __future__ import annotations

import math

from berth.errors import InputError
from berth.schedule.views import JobView

_SLACK = 1e-3  # GPU-seconds: a job woken when it reaches a limit has reached it


class LasJob(JobView):
    """What the queues remember of a job."""

    queue: int  # 0, 1 or 2
    entered_s: float  # when it entered that queue
    forgiven_gpu_s: float  # service ...
    forgiven_wait_s: float  # ... and wait, as of when the job last came back to the first queue


def check_queues(first: float, second: float) -> None:
    """Refuses limits that a job would reach in the wrong order."""
    if second < first:
        raise InputError(
            f"first is {first:g} and second {second:g} GPU-seconds: a job leaves the first queue before the second",
            hint="give a second that is not below first",
        )


def update_queue(job: LasJob, now: float, first: float, second: float, starvation: float) -> None:
    """Lets a job sink to the queue of its service, or come back to the first one if it starves."""
    if job.attained_gpu_s == 0.0 and job.queue == 0:
        job.entered_s = job.arrival_s
    service = job.attained_gpu_s - job.forgiven_gpu_s
    while job.queue < 2 and service + _SLACK >= (first if job.queue == 0 else second):
        over = service - (first if job.queue == 0 else second)
        job.queue += 1
        job.entered_s = max(job.entered_s, now - max(0.0, over) / job.gpus)
    if job.tier < 0 and now >= starved_at(job, starvation):
        job.queue, job.entered_s = 0, now
        job.forgiven_gpu_s = job.attained_gpu_s
        job.forgiven_wait_s = job.waited_s + now - job.queued_since_s


def rank(job: LasJob, now: float) -> float:
    """The queue, and inside it: running jobs, waiting jobs, jobs that have just sunk."""
    if job.tier < 0:
        return job.queue + 0.25
    return job.queue + (0.5 if job.entered_s >= now - _SLACK and job.started_s < now else 0.0)


def place_in_line(job: LasJob) -> float:
    """Among equals: running by when they came to run in this queue, waiting as they joined its line."""
    if job.tier >= 0:
        return max(job.started_s, job.entered_s)
    return -job.last_eviction_s if job.last_eviction_s > job.entered_s + _SLACK else job.entered_s


def sinks_at(job: LasJob, now: float, first: float, second: float) -> float:
    """When a running job reaches the limit of its queue."""
    if job.queue >= 2:
        return math.inf
    limit = first if job.queue == 0 else second
    return now + max(_SLACK, limit - job.attained_gpu_s + job.forgiven_gpu_s) / job.gpus


def starved_at(job: LasJob, starvation: float) -> float:
    """When a waiting job comes back to the first queue: once it waited `starvation` times what it ran."""
    if starvation == 0.0 or job.queue == 0:
        return math.inf
    ran_s = (job.attained_gpu_s - job.forgiven_gpu_s) / job.gpus
    waited_s = job.waited_s - job.forgiven_wait_s
    return job.queued_since_s + max(0.0, starvation * ran_s - waited_s)
