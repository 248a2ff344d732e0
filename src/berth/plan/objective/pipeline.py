"""Event simulation of pipelined training steps: what each stage computes, sends and asks servers for, and when.

A stage has four resources that do one task at a time: its device, the two directions of its NIC share, and the servers
of its tables; the first stage also has readers. A micro-batch meets these tasks:

    READ      readers      first stage only; reads run up to two steps ahead
    LOOKUP    servers      rows are asked for a few micro-batches ahead, but not before the barrier
    PULL      in           rows, and what was read
    ARRIVE_F  in           activations of the stage before; sent before they arrive
    FORWARD   device       needs both of them; a limited number of micro-batches is in flight
    SEND_F    out
    ARRIVE_B  in           gradients of the stage after
    BACKWARD  device
    SEND_B    out
    PUSH      out          gradients of rows
    UPDATE    servers      the servers apply them

After the last micro-batch of a step a stage has the all-reduce (REDUCE, out) and its optimiser (OPTIMISE, device). The
next step starts when all stages are done. Streams have no steps: nothing waits for a barrier.

A free resource takes the task with the oldest micro-batch: backwards before forwards, sends before prefetched rows.
Every task of a stage meets the micro-batches in order, so counts of what was started and done are the whole state.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# By resource; for the same micro-batch, the first goes first.
BACKWARD, FORWARD, OPTIMISE, ARRIVE_B, ARRIVE_F, PULL, SEND_B, SEND_F, PUSH, REDUCE, LOOKUP, UPDATE, READ = (
    range(13)
)
TASKS = 13
_DEVICE, _IN, _OUT, _SERVERS, _READERS = range(5)
RESOURCE = np.array([_DEVICE] * 3 + [_IN] * 3 + [_OUT] * 4 + [_SERVERS] * 2 + [_READERS])  # of each task
_RESOURCES = 5
_READ_AHEAD = 16  # micro-batches, beside two steps
_ENDLESS = 1 << 60  # a stream goes on after the last step that counts: it does not drain


class Limits(NamedTuple):
    """What stages may start."""

    released: int  # micro-batches before the barrier
    micro: int  # of a step
    flight: int  # micro-batches of a stage from the begin of forward to the end of backward
    ahead: int  # beside them: rows asked for, pushes under way


@inlined
def _allowed(task: int, stage: int, needs: Ints, started: Ints, done: Ints, limits: Limits) -> int:
    """Return how many micro-batches (steps for REDUCE and OPTIMISE) a task of a stage may have started by now."""
    allowed = _ENDLESS
    for number in range(needs.shape[2]):
        need = needs[task, stage, number]
        if need >= 0:
            allowed = min(allowed, done[need // done.shape[1], need % done.shape[1]])
    if task == FORWARD:
        pushed = done[UPDATE, stage] + limits.flight + limits.ahead
        allowed = min(allowed, done[BACKWARD, stage] + limits.flight, pushed)
    elif task == REDUCE:
        allowed //= limits.micro
    elif task == LOOKUP:
        allowed = min(limits.released, started[FORWARD, stage] + limits.ahead)
    elif task == READ and stage == 0:
        allowed = started[FORWARD, 0] + 2 * limits.micro + _READ_AHEAD
    return allowed


@kernel
def _start(
    seconds: Floats,
    factors: Floats,
    resource: Ints,
    needs: Ints,
    started: Ints,
    done: Ints,
    ends: Floats,
    running: Ints,
    around: tuple[int, int],
    limits: Limits,
    now: float,
) -> None:
    """Start the tasks that may start in and near the stages `around`; those that take no time are done at once."""
    stages = seconds.shape[1]
    low, high = max(0, around[0]), min(stages - 1, around[1])
    changed = True
    while changed:
        changed = False
        for stage in range(low, high + 1):
            oldest, chosen = _ENDLESS, 0
            for task in range(TASKS):
                place = resource[task] * stages + stage
                before = started[task, stage]
                allowed = _allowed(task, stage, needs, started, done, limits)
                if allowed > before:
                    if seconds[task, stage] == 0.0:
                        started[task, stage] = done[task, stage] = allowed
                        changed = True
                    elif ends[place] == np.inf and before < oldest:
                        oldest, chosen = before, task
                if oldest < _ENDLESS and (task + 1 == TASKS or resource[task + 1] != resource[task]):
                    taken = seconds[chosen, stage]
                    if chosen <= FORWARD:  # or BACKWARD
                        taken *= factors[oldest % len(factors), stage]
                    started[chosen, stage] = oldest + 1
                    running[place] = chosen
                    ends[place] = now + taken
                    oldest, changed = _ENDLESS, True
            if changed:
                low, high = max(0, min(low, stage - 1)), min(stages - 1, max(high, stage + 1))


@entry
def _step_ends(
    seconds: Floats,
    factors: Floats,
    resource: Ints,
    needs: Ints,
    micro: int,
    flight: int,
    ahead: int,
    steps: int,
    streams: bool,
) -> Floats:
    """Return when each step ends."""
    stages = seconds.shape[1]
    started, done = np.zeros((TASKS, stages), np.int64), np.zeros((TASKS, stages), np.int64)
    ends, running = np.full(_RESOURCES * stages, np.inf), np.zeros(_RESOURCES * stages, np.int64)
    finished, count, now = np.zeros(steps), 0, 0.0
    released = _ENDLESS if streams else micro
    around = (0, stages - 1)
    while True:
        limits = Limits(released, micro, flight, ahead)
        _start(seconds, factors, resource, needs, started, done, ends, running, around, limits, now)
        least = steps
        for stage in range(stages):
            least = min(least, done[UPDATE, stage] // micro)
            if not streams:
                least = min(least, done[OPTIMISE, stage])
        if least > count:
            finished[count:least] = now
            count = least
            if count == steps:
                return finished
            if not streams:
                released = (count + 1) * micro
                around = (0, stages - 1)
                continue
        place = 0
        for one in range(1, len(ends)):
            if ends[one] < ends[place]:
                place = one
        if ends[place] == np.inf:
            return np.full(steps, np.inf)
        now = ends[place]
        ends[place] = np.inf
        stage = place % stages
        done[running[place], stage] += 1
        around = (stage - 1, stage + 1)


def step_ends(
    seconds: Floats,
    factors: Floats,
    *,
    micro: int,
    flight: int,
    ahead: int,
    steps: int,
    streams: bool = False,
) -> Floats:
    """Return when each step ends, in seconds from the start; `seconds` of each task is [task, stage], of one call.

    `factors` [micro-batch, stage] multiply the computation; `flight` and `ahead` are those of `Limits`.
    """
    needs = _needs(seconds.shape[1])
    return _step_ends(seconds, factors, RESOURCE, needs, micro, flight, ahead, steps, streams)


@cache
def _needs(stages: int) -> Ints:
    """Return the one or two tasks that each task waits for, as task * stages + stage, [task, stage, 2]; -1: none.

    A task that a stage does not have waits for itself.
    """
    found = np.full((TASKS, stages, 2), -1)
    for stage in range(stages):
        waits: dict[int, tuple[tuple[int, int], ...]] = {
            BACKWARD: ((ARRIVE_B, stage),) if stage + 1 < stages else ((FORWARD, stage),),
            FORWARD: ((PULL, stage), (ARRIVE_F, stage)) if stage else ((PULL, stage),),
            OPTIMISE: ((REDUCE, stage),),
            ARRIVE_B: ((SEND_B, stage + 1),) if stage + 1 < stages else ((ARRIVE_B, stage),),
            ARRIVE_F: ((SEND_F, stage - 1),) if stage else ((ARRIVE_F, stage),),
            PULL: ((LOOKUP, stage),) if stage else ((LOOKUP, stage), (READ, stage)),
            SEND_B: ((BACKWARD, stage),),
            SEND_F: ((FORWARD, stage),),
            PUSH: ((BACKWARD, stage),),
            REDUCE: ((PUSH, stage),),
            UPDATE: ((PUSH, stage),),
            READ: () if stage == 0 else ((READ, stage),),
        }
        for task, tasks in waits.items():
            for number, (before, where) in enumerate(tasks):
                found[task, stage, number] = before * stages + where
    return found
