"""Event simulation of one planned pipeline.

A batch is split into micro-batches. Each stage has one computer (its replicas work on a micro-batch together) and
one NIC; device types are connected by links that several boundaries may share. The events:

- a forward or backward of a micro-batch occupies the stage's computer; backwards go first (1f1b, with a bounded
  number of micro-batches in flight), or only after all forwards (fill-drain);
- activations occupy the sender's NIC, then the link, then the receiver's NIC; gradients the same way back;
- rows of a micro-batch occupy the NIC after its backward; the all-reduce is split into as many buckets as there are
  micro-batches and may start with the last backward. NICs serve activations before both;
- a stage starts no batch before it has synchronised the previous one: fill and drain.

NICs and links serve in order of arrival. Times are per micro-batch; `noise` multiplies those of the computers.
`steady_state` is the same pipeline without the waits for synchronisation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Columns of a stage: seconds per micro-batch. OUT_F, IN_B, LINK_* are of the boundary to its right.
FORWARD, BACKWARD, ROWS, REDUCE, OUT_F, IN_F, OUT_B, IN_B, LINK_F, LINK_B, LINK = range(11)
WORK_COLUMNS = 11

# Tasks of a resource. A tensor goes from _OUT to _LINK to _IN, and then it is _HERE.
_F, _B, _OUT_F, _LINK_F, _IN_F, _HERE_F, _OUT_B, _LINK_B, _IN_B, _HERE_B, _ROWS, _REDUCE = range(12)
_TASKS = 12
_NONE = -1


class ScheduleParams(NamedTuple):
    """The order in which a stage works."""

    micro: int  # micro-batches of a batch
    group: int  # batches between two waits for synchronisation
    groups: int  # groups to simulate; the first is not measured
    drains: bool  # run all forwards of a group before its backwards
    flight: int  # micro-batches in flight for each stage from here to the last; 0: no bound


@entry
def seconds_per_batch(work: Floats, noise: Floats, order: ScheduleParams) -> float:
    """Return the time of one batch, from the end of one to the end of the next, after a first one."""
    return simulate(work, noise, order)


@kernel
def simulate(work: Floats, noise: Floats, order: ScheduleParams) -> float:  # noqa: PLR0912, PLR0915 - see below
    """Return `seconds_per_batch` for `work[stage]` and `noise[micro-batch, stage]`.

    This is one long function because passing these arrays to helpers costs ten times what the helpers do. A job is
    numbered (task * stages + stage) * total + micro-batch.
    """
    stages, size = len(work), order.micro * order.group
    total = size * order.groups
    seconds, place, following = _routes(work)
    resources = 2 * stages + int(work[:, LINK].max()) + 1  # computers, NICs, links
    ends = np.full(resources, np.inf)  # when the job of each resource ends
    job = np.zeros(resources, np.int64)
    head, tail = (
        np.full((2, resources), _NONE),
        np.full((2, resources), _NONE),
    )  # queues: activations; the rest
    next_in_queue = np.empty(_TASKS * stages * total, np.int64)
    arrived, started = np.zeros((2, stages), np.int64), np.zeros((2, stages), np.int64)  # forwards; backwards
    done, synced = np.zeros(stages, np.int64), np.zeros(stages, np.int64)  # backwards; groups
    pending = np.zeros((stages, order.groups), np.int64)  # parts of a group that are not done
    for stage in range(stages):
        pending[stage, :] = size * (1 + (work[stage, ROWS] > 0) + (work[stage, REDUCE] > 0))
    arrived[0, 0] = total
    finished = np.zeros(order.groups)
    new_jobs = np.empty(order.micro + 3, np.int64)  # jobs for NICs and links that this event creates
    now, stage, unfinished = 0.0, 0, stages * order.groups
    resource = _NONE  # the one whose job has just ended
    while unfinished > 0:
        count = 0
        if resource != _NONE:
            step, micro = job[resource] // total, job[resource] % total
            task, stage = step // stages, step % stages
            done[stage] += task == _B
            after = following[step]
            if after == _HERE_F:
                arrived[0, stage + 1] += 1
            elif after == _HERE_B:
                arrived[1, max(0, stage - (task != _F))] += 1
            elif after != _NONE:
                new_jobs[count] = (after * stages + stage) * total + micro
                count += 1
            if task == _B and work[stage, ROWS] > 0:
                new_jobs[count] = (_ROWS * stages + stage) * total + micro
                count += 1
            if task in (_B, _ROWS, _REDUCE):
                pending[stage, micro // size] -= 1
                while synced[stage] < order.groups and pending[stage, synced[stage]] == 0:
                    finished[synced[stage]] = now
                    synced[stage] += 1
                    unfinished -= 1
        for one in range(max(0, stage - 1), min(stages, stage + 2)):
            if ends[one] < np.inf:
                continue
            ahead, back = started[0, one], started[1, one]
            if back < arrived[1, one] and (not order.drains or ahead >= (back // size + 1) * size):
                started[1, one] += 1
                job[one] = (_B * stages + one) * total + back
                ends[one] = now + work[one, BACKWARD] * noise[back, one]
                if work[one, REDUCE] > 0 and (back + 1) % order.micro == 0:
                    for micro in range(back + 1 - order.micro, back + 1):
                        new_jobs[count] = (_REDUCE * stages + one) * total + micro
                        count += 1
            elif ahead < arrived[0, one] and _may_start(ahead, done[one], synced[one], stages - one, order):
                started[0, one] += 1
                job[one] = (_F * stages + one) * total + ahead
                ends[one] = now + work[one, FORWARD] * noise[ahead, one]
        for number in range(count + 1):
            if number < count:
                one = place[new_jobs[number] // total]
                rank = 1 if new_jobs[number] // total // stages >= _ROWS else 0
                next_in_queue[new_jobs[number]] = _NONE
                if head[rank, one] == _NONE:
                    head[rank, one] = new_jobs[number]
                else:
                    next_in_queue[tail[rank, one]] = new_jobs[number]
                tail[rank, one] = new_jobs[number]
            else:
                one = resource  # it is free now, even without a new job
            if one >= stages and ends[one] == np.inf:
                rank = 0 if head[0, one] != _NONE else 1
                job[one] = head[rank, one]
                if job[one] != _NONE:
                    head[rank, one] = next_in_queue[job[one]]
                    ends[one] = now + seconds[job[one] // total]
        resource = 0
        for one in range(1, resources):
            if ends[one] < ends[resource]:
                resource = one
        now = ends[resource]
        ends[resource] = np.inf
    return (finished[-1] - finished[0]) / ((order.groups - 1) * order.group)


@inlined
def _may_start(micro: int, done: int, synced: int, to_go: int, order: ScheduleParams) -> bool:
    """Return whether a forward may start: it is its group's turn, and not too many are in flight."""
    if micro // (order.micro * order.group) > synced:
        return False
    return order.flight == 0 or micro - done < order.flight * to_go - 1


@kernel
def steady_state(work: Floats, noise: Floats, rounds: int) -> float:
    """Return seconds per micro-batch if micro-batches follow each other without waits for synchronisation.

    In every round each resource does each of its jobs once, in the order in which a micro-batch meets them. A job on
    a micro-batch runs one round after the previous one, so its input is there. A round takes as long as the busiest
    resource works: that is the closed formula if nothing varies and links are not shared.
    """
    stages = len(work)
    place, seconds, waits_for = _chain(work)
    jobs = len(place)
    ended = np.zeros((jobs, jobs + 1))  # of the last micro-batches, by their number modulo jobs + 1
    free = np.zeros(int(place.max()) + 1)
    began = np.zeros(len(free))
    warm = 4 * jobs
    for now in range(warm + rounds):
        for job in range(min(jobs, now + 1)):
            micro = now - job
            slot = micro % (jobs + 1)
            start = free[place[job]]
            if waits_for[job] >= 0:
                start = max(start, ended[waits_for[job], slot])
            factor = noise[micro % len(noise), place[job]] if place[job] < stages else 1.0
            free[place[job]] = ended[job, slot] = start + seconds[job] * factor
        if now == warm - 1:
            began[:] = free
    return float((free - began).max()) / rounds


@kernel
def _chain(work: Floats) -> tuple[Ints, Floats, Ints]:
    """Return the jobs of one micro-batch in order: resource, seconds, and the job that each waits for."""
    stages = len(work)
    seconds, place, following = _routes(work)
    at, taken = np.zeros(10 * stages, np.int64), np.zeros(10 * stages)
    waits_for = np.zeros(10 * stages, np.int64)
    count, before, task, stage = 0, _NONE, _F, 0
    while task != _NONE:
        step = task * stages + stage
        at[count], taken[count], waits_for[count] = place[step], seconds[step], before
        before = count
        count += 1
        synchronising = work[stage, ROWS] + work[stage, REDUCE]
        if task == _B and synchronising > 0:
            at[count], taken[count], waits_for[count] = stages + stage, synchronising, before
            count += 1
        after = following[step]
        if after == _HERE_F:
            task, stage = _F, stage + 1
        elif after == _HERE_B:
            task, stage = _B, stage - (task != _F)
        else:
            task = after
    return at[:count], taken[:count], waits_for[:count]


@kernel
def _routes(work: Floats) -> tuple[Floats, Ints, Ints]:
    """Return for each [task * stages + stage]: seconds, resource, and the task that follows; skips empty tasks."""
    stages = len(work)
    seconds = np.zeros(_TASKS * stages)
    place = np.zeros(_TASKS * stages, np.int64)
    following = np.full(_TASKS * stages, _NONE)
    for stage in range(stages):
        left, right = max(0, stage - 1), min(stages - 1, stage + 1)
        nic = stages + stage
        for task, taken, at in (
            (_F, work[stage, FORWARD], stage),
            (_B, work[stage, BACKWARD], stage),
            (_OUT_F, work[stage, OUT_F], nic),
            (_LINK_F, work[stage, LINK_F], 2 * stages + int(work[stage, LINK])),
            (_IN_F, work[right, IN_F], stages + right),
            (_OUT_B, work[stage, OUT_B], nic),
            (_LINK_B, work[left, LINK_B], 2 * stages + int(work[left, LINK])),
            (_IN_B, work[left, IN_B], stages + left),
            (_ROWS, work[stage, ROWS], nic),
            (_REDUCE, work[stage, REDUCE], nic),
        ):
            seconds[task * stages + stage], place[task * stages + stage] = taken, at
        for arrival, tasks in (
            (_HERE_F, (_IN_F, _LINK_F, _OUT_F, _F)),
            (_HERE_B, (_IN_B, _LINK_B, _OUT_B, _B)),
        ):
            after = arrival
            for task in tasks:
                following[task * stages + stage] = after
                if seconds[task * stages + stage] > 0:
                    after = task
    following[_F * stages + stages - 1] = _HERE_B  # the last stage turns around
    following[_B * stages] = _NONE
    return seconds, place, following
