"""One planned pipeline, event by event: what a batch takes when nothing is averaged away.

A batch is cut into micro-batches. Each stage has one computer (its units work on a micro-batch together) and
one port; types of device are joined by links that several boundaries may share. What happens:

- a forward or backward of a micro-batch holds the stage's computer; backwards go first (1f1b, with so many
  micro-batches in flight as stages and crossings follow), or only after all forwards (fill-drain);
- activations hold the sender's port, then the link, then the receiver's port; gradients the same way back;
- rows of a micro-batch hold the port once it has gone backward; the all-reduce is cut into as many buckets as
  there are micro-batches and may begin with the last backward. Ports serve activations before both;
- a stage begins no batch before it has synchronised the last one: fill and drain.

Ports and links serve in order of arrival. Times are per micro-batch; `noise` multiplies the computer's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry, inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Columns of a stage: seconds per micro-batch. OUT_F, IN_B, LINK_* are of the boundary to its right.
FORWARD, BACKWARD, ROWS, REDUCE, OUT_F, IN_F, OUT_B, IN_B, LINK_F, LINK_B, LINK = range(11)
WORK_COLUMNS = 11

# What resources work on. A tensor goes from _OUT to _LINK to _IN, and then it is _HERE.
_F, _B, _OUT_F, _LINK_F, _IN_F, _HERE_F, _OUT_B, _LINK_B, _IN_B, _HERE_B, _ROWS, _REDUCE = range(12)
_KINDS = 12
_NONE = -1


class Order(NamedTuple):
    """In which order a stage works."""

    micro: int  # micro-batches of a batch
    group: int  # batches between two waits for the synchronisation
    groups: int  # how many of those are simulated; the first is not measured
    drains: bool  # all forwards of a group before its backwards
    flight: int  # micro-batches in flight for each stage from here to the last; 0: as many as come


@entry
def seconds_per_batch(work: Floats, noise: Floats, order: Order) -> float:
    """How long one batch takes, from the end of one to the end of the next, after a first one."""
    return simulate(work, noise, order)


@kernel
def simulate(work: Floats, noise: Floats, order: Order) -> float:  # noqa: PLR0912, PLR0915 - see below
    """As `seconds_per_batch`; `work[stage]`, `noise[micro-batch, stage]`.

    One long function on purpose: handing these arrays to helpers costs ten times what the helpers do.
    """
    stages, size = len(work), order.micro * order.group
    every = size * order.groups
    seconds, place, then = _routes(work)
    resources = 2 * stages + int(work[:, LINK].max()) + 1  # computers, ports, links
    ends = np.full(resources, np.inf)  # when each is done with its job
    job = np.zeros(resources, np.int64)
    first, last = np.full((2, resources), _NONE), np.full((2, resources), _NONE)  # activations; the rest
    after = np.empty(_KINDS * stages * every, np.int64)  # the next in its queue
    come, begun = np.zeros((2, stages), np.int64), np.zeros((2, stages), np.int64)  # forwards; backwards
    done, synced = np.zeros(stages, np.int64), np.zeros(stages, np.int64)  # backwards; groups
    left = np.zeros((stages, order.groups), np.int64)  # parts of a group that are not done
    for stage in range(stages):
        left[stage, :] = size * (1 + (work[stage, ROWS] > 0) + (work[stage, REDUCE] > 0))
    come[0, 0] = every
    finished = np.zeros(order.groups)
    fresh = np.empty(order.micro + 3, np.int64)  # jobs for ports and links that this event brings
    now, stage, waiting = 0.0, 0, stages * order.groups
    resource = _NONE  # nobody has finished anything yet
    while waiting > 0:
        count = 0
        if resource != _NONE:
            step, micro = job[resource] // every, job[resource] % every
            kind, stage = step // stages, step % stages
            done[stage] += kind == _B
            following = then[step]
            if following == _HERE_F:
                come[0, stage + 1] += 1
            elif following == _HERE_B:
                come[1, max(0, stage - (kind != _F))] += 1
            elif following != _NONE:
                fresh[count] = (following * stages + stage) * every + micro
                count += 1
            if kind == _B and work[stage, ROWS] > 0:
                fresh[count] = (_ROWS * stages + stage) * every + micro
                count += 1
            if kind in (_B, _ROWS, _REDUCE):
                left[stage, micro // size] -= 1
                while synced[stage] < order.groups and left[stage, synced[stage]] == 0:
                    finished[synced[stage]] = now
                    synced[stage] += 1
                    waiting -= 1
        for one in range(max(0, stage - 1), min(stages, stage + 2)):
            if ends[one] < np.inf:
                continue
            ahead, back = begun[0, one], begun[1, one]
            if back < come[1, one] and (not order.drains or ahead >= (back // size + 1) * size):
                begun[1, one] += 1
                job[one] = (_B * stages + one) * every + back
                ends[one] = now + work[one, BACKWARD] * noise[back, one]
                if work[one, REDUCE] > 0 and (back + 1) % order.micro == 0:
                    for micro in range(back + 1 - order.micro, back + 1):
                        fresh[count] = (_REDUCE * stages + one) * every + micro
                        count += 1
            elif ahead < come[0, one] and _may_go_ahead(ahead, done[one], synced[one], stages - one, order):
                begun[0, one] += 1
                job[one] = (_F * stages + one) * every + ahead
                ends[one] = now + work[one, FORWARD] * noise[ahead, one]
        for number in range(count + 1):
            if number < count:
                one = place[fresh[number] // every]
                rank = 1 if fresh[number] // every // stages >= _ROWS else 0
                after[fresh[number]] = _NONE
                if first[rank, one] == _NONE:
                    first[rank, one] = fresh[number]
                else:
                    after[last[rank, one]] = fresh[number]
                last[rank, one] = fresh[number]
            else:
                one = resource  # which is free now, whatever it brought
            if one >= stages and ends[one] == np.inf:
                rank = 0 if first[0, one] != _NONE else 1
                job[one] = first[rank, one]
                if job[one] != _NONE:
                    first[rank, one] = after[job[one]]
                    ends[one] = now + seconds[job[one] // every]
        resource = 0
        for one in range(1, resources):
            if ends[one] < ends[resource]:
                resource = one
        now = ends[resource]
        ends[resource] = np.inf
    return (finished[-1] - finished[0]) / ((order.groups - 1) * order.group)


@inlined
def _may_go_ahead(micro: int, done: int, synced: int, to_go: int, order: Order) -> bool:
    """Whether a forward may begin: its group's turn has come, and not too many are in flight."""
    if micro // (order.micro * order.group) > synced:
        return False
    return order.flight == 0 or micro - done < order.flight * to_go - 1


@kernel
def _routes(work: Floats) -> tuple[Floats, Ints, Ints]:
    """Of each job, [kind * stages + stage]: how long, where, and what follows; what takes no time is left out."""
    stages = len(work)
    seconds = np.zeros(_KINDS * stages)
    place = np.zeros(_KINDS * stages, np.int64)
    then = np.full(_KINDS * stages, _NONE)
    for stage in range(stages):
        left, right = max(0, stage - 1), min(stages - 1, stage + 1)
        port = stages + stage
        for kind, taken, at in (
            (_OUT_F, work[stage, OUT_F], port),
            (_LINK_F, work[stage, LINK_F], 2 * stages + int(work[stage, LINK])),
            (_IN_F, work[right, IN_F], stages + right),
            (_OUT_B, work[stage, OUT_B], port),
            (_LINK_B, work[left, LINK_B], 2 * stages + int(work[left, LINK])),
            (_IN_B, work[left, IN_B], stages + left),
            (_ROWS, work[stage, ROWS], port),
            (_REDUCE, work[stage, REDUCE], port),
        ):
            seconds[kind * stages + stage], place[kind * stages + stage] = taken, at
        follows = _HERE_F
        for kind in (_IN_F, _LINK_F, _OUT_F, _F):
            then[kind * stages + stage] = follows
            if kind != _F and seconds[kind * stages + stage] > 0:
                follows = kind
        follows = _HERE_B
        for kind in (_IN_B, _LINK_B, _OUT_B, _B):
            then[kind * stages + stage] = follows
            if kind != _B and seconds[kind * stages + stage] > 0:
                follows = kind
    then[_F * stages + stages - 1] = _HERE_B  # the last stage turns round
    then[_B * stages] = _NONE
    return seconds, place, then
