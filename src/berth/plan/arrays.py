"""The numbers of a problem as the kernels read them: prefix sums over layers, so a stage is a difference of two rows.

A column is a figure that adds up over the layers of a stage. Curves have one column for each point of `grid`, the
examples of one call; between two points they are linear, and beyond the last they continue its slope.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.plan.problem import CURVES, FACTS, Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ProblemArrays(NamedTuple):
    """A problem as arrays; a choice is a device type with a place for the tables."""

    running: Floats  # [choice, layer + 1, column]: facts, then the points of each curve, summed over the layers before
    cross: Floats  # [choice, layer, 3]: after this layer, per example: NIC seconds forward and backward, computing
    grid: Floats  # [point]: examples per call, from 0
    message: Floats  # [choice, 2]: of every call at each boundary: seconds in and out, and computing
    loop_s: float  # of every stage, once per step
    ring: Floats  # [type, 2, replicas]: seconds per byte, and seconds, of an all-reduce
    type_of: Ints  # [choice]
    tables: Ints  # [choice]: 0 for the first choice of a type, which also runs layers without tables
    cap: Floats  # [choice]: replicas of one stage with tables
    most: float  # replicas of any stage
    price: Floats  # [type]: dollars per hour of one device
    limit: Floats  # [type]: devices
    memory: Floats  # [type]: bytes of one device
    unit: Floats  # [type]: devices that are rented together
    host: int  # type of servers and readers; -1: none of the types, without a limit
    host_price: float
    host_memory: float
    host_unit: float
    readers_s: float  # core-seconds of reading one batch
    batch: float
    slowest: float  # the longest step that holds the throughput
    fixed: float  # dollars per hour that do not depend on the plan


def problem_arrays(problem: Problem) -> ProblemArrays:
    """Return the arrays of a problem."""
    choices, layers, host = problem.choices, len(problem.layers), problem.host
    columns = np.zeros((len(choices), layers, FACTS + CURVES * len(problem.grid)))
    columns[:, :, :FACTS] = problem.facts
    columns[:, :, FACTS:] = problem.curves.reshape(len(choices), layers, -1)
    running = np.zeros((len(choices), layers + 1, columns.shape[2]))
    np.cumsum(columns, axis=1, out=running[:, 1:])
    first = {choice.device: row for row, choice in reversed(list(enumerate(choices)))}
    return ProblemArrays(
        running=running,
        cross=np.ascontiguousarray(problem.cross),
        grid=np.ascontiguousarray(problem.grid),
        message=np.zeros((len(choices), 2)) if problem.message is None else problem.message,
        loop_s=problem.loop_s,
        ring=np.ascontiguousarray(problem.ring),
        type_of=np.array([choice.device for choice in choices]),
        tables=np.array([int(first[choice.device] != row) for row, choice in enumerate(choices)]),
        cap=np.array([float(choice.cap) for choice in choices]),
        most=float(problem.max_replicas),
        price=np.array([one.usd_per_hour for one in problem.types]),
        limit=np.array([float(one.limit) for one in problem.types]),
        memory=np.array([np.inf if one.memory_bytes is None else one.memory_bytes for one in problem.types]),
        unit=np.array([float(one.unit) for one in problem.types]),
        host=host.device,
        host_price=host.usd_per_hour,
        host_memory=host.memory_bytes,
        host_unit=float(host.unit),
        readers_s=host.readers_s,
        batch=problem.batch,
        slowest=problem.batch / problem.throughput,
        fixed=problem.fixed_usd_per_hour,
    )
