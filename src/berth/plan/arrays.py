"""The numbers of a problem as the kernels read them: per example instead of per batch, serial and shared parts apart.

A layer's computation on k replicas takes `serial + shared / k`, and so does a stage's, with the sums over its layers.
`running` holds prefix sums over layers, so the sums of a stage are the difference of two entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from berth.plan.problem import Problem

Floats = NDArray[np.float64]

COMPUTE_SERIAL, COMPUTE_SHARED, DATA_SERIAL, DATA_SHARED, REPLICATED, SHARDED, FORBIDDEN = range(7)
COLUMNS = 7


class ProblemArrays(NamedTuple):
    """A problem as arrays."""

    layer: Floats  # [type, layer, column]
    running: Floats  # [type, layer + 1, column]: sums over the layers before
    cross: Floats  # [layer]: data time per example if the type changes after this layer
    price: Floats  # [type], dollars per hour
    limit: Floats  # [type], devices
    memory: Floats  # [type], bytes of one device
    slowest: float  # the longest stage time that holds the throughput
    fixed: float  # dollars per hour that do not depend on the plan


def problem_arrays(problem: Problem) -> ProblemArrays:
    """Return the arrays of a problem."""
    types, layers = len(problem.types), len(problem.layers)
    layer = np.zeros((types, layers, COLUMNS))
    compute, data = problem.oct_s / problem.batch, problem.odt_s / problem.batch
    layer[:, :, COMPUTE_SERIAL] = (compute * (1 - problem.alpha)).T
    layer[:, :, COMPUTE_SHARED] = (compute * problem.alpha).T
    layer[:, :, DATA_SERIAL] = (data * (1 - problem.beta)).T
    layer[:, :, DATA_SHARED] = (data * problem.beta).T
    layer[:, :, REPLICATED] = problem.replicated_bytes
    layer[:, :, SHARDED] = problem.sharded_bytes
    layer[:, :, FORBIDDEN] = ~problem.allowed.T
    running = np.zeros((types, layers + 1, COLUMNS))
    np.cumsum(layer, axis=1, out=running[:, 1:])
    return ProblemArrays(
        layer=layer,
        running=running,
        cross=problem.cross_s / problem.batch,
        price=np.array([one.usd_per_hour for one in problem.types]),
        limit=np.array([float(one.limit) for one in problem.types]),
        memory=np.array([np.inf if one.memory_bytes is None else one.memory_bytes for one in problem.types]),
        slowest=1.0 / problem.throughput,
        fixed=problem.fixed_usd_per_hour,
    )
