"""Time per example of a pipeline with given replicas: by a quick estimate, and by event simulation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import kernel
from berth.plan.arrays import ProblemArrays
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
    WORK_COLUMNS,
    ScheduleParams,
    simulate,
    steady_state,
)
from berth.plan.provision import CP, CS, DP, DS, LAST, REPLICAS, TYPE

Floats = NDArray[np.float64]

NO_LINK, PAIRS, ALL = range(3)
F1B1, FILL_DRAIN, STREAM = range(3)

_FLIGHT = 2  # micro-batches in flight per remaining stage in 1f1b: one in the stage, one in the crossing
_STEADY_ROUNDS = 64  # micro-batches measured in steady state


class PipelineSettings(NamedTuple):
    """The properties of a pipeline that its problem does not state."""

    batch: float
    micro: int  # micro-batches of a batch; 0: the best of 1, 2, 4 .. max_micro
    max_micro: int
    schedule: int
    group: int  # batches between two synchronisations that all stages wait for
    batches: int  # measured, after a first one
    per_call: float  # share of the serial computation that every micro-batch repeats
    shared: int  # which crossings share a link
    lanes: float  # bandwidth of a link, in links of one device
    cross_forward: Floats  # [layer] share of the crossing that goes forward
    sigma: Floats  # [layer, type] relative standard deviation of a layer's time
    normals: Floats  # [micro-batch, layer] drawn once, the same for every assignment


@kernel
def estimate(
    stages: Floats, problem: ProblemArrays, settings: PipelineSettings, passes: Floats, micro: int
) -> float:
    """Return seconds per example: once through all stages, then one micro-batch after the other at the slowest."""
    through, slowest, exposed = 0.0, 0.0, 0.0
    for row in range(len(stages)):
        stage = stages[row]
        computing = _computing(stage, settings, micro) * (passes[row, 0] + passes[row, 1])
        moving = settings.batch * (stage[DS] + stage[DP] / stage[REPLICAS]) / micro
        # After the last backward; the work of earlier stages hides it.
        last = settings.batch * stage[DS] - computing * passes[row, 1]
        last = max(0.0, last) + settings.batch * stage[DP] / (stage[REPLICAS] * micro)
        exposed = max(exposed, last - through)
        through += computing
        if row + 1 < len(stages):
            crossing = problem.cross[int(stage[LAST])] * settings.batch / micro
            through += crossing / stage[REPLICAS] + crossing / stages[row + 1, REPLICAS]
        slowest = max(slowest, computing, moving)
    if settings.schedule == STREAM:
        return slowest * micro / settings.batch
    whole = through + (micro * settings.group - 1) * slowest + exposed
    return whole / (settings.batch * settings.group)


@kernel
def _computing(stage: Floats, settings: PipelineSettings, micro: int) -> float:
    """Return the seconds of one micro-batch at a stage, both passes."""
    again = settings.per_call + (1 - settings.per_call) / micro
    return settings.batch * (stage[CS] * again + stage[CP] / (stage[REPLICAS] * micro))


@kernel
def simulated_s(
    stages: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
    noise: Floats,
    micro: int,
) -> float:
    """Return seconds per example by event simulation."""
    work = _work(stages, problem, settings, passes, micro)
    if settings.schedule == STREAM:
        return steady_state(work, noise, _STEADY_ROUNDS) * micro / settings.batch
    flight = _FLIGHT if settings.schedule == F1B1 else 0
    order = ScheduleParams(
        micro, settings.group, 1 + settings.batches, settings.schedule == FILL_DRAIN, flight
    )
    return simulate(work, noise, order) / settings.batch


@kernel
def _work(
    stages: Floats, problem: ProblemArrays, settings: PipelineSettings, passes: Floats, micro: int
) -> Floats:
    """Return the columns of berth.plan.objective.pipeline for these replicas."""
    count = len(stages)
    work = np.zeros((count, WORK_COLUMNS))
    scale = settings.batch / micro
    work[:, LINK] = -1
    for row in range(count):
        stage = stages[row]
        computing = _computing(stage, settings, micro)
        work[row, FORWARD], work[row, BACKWARD] = computing * passes[row, 0], computing * passes[row, 1]
        work[row, REDUCE] = stage[DS] * scale
        work[row, ROWS] += stage[DP] / stage[REPLICAS] * scale
        if row + 1 == count:
            continue
        last, right = int(stage[LAST]), stages[row + 1]
        ahead = problem.cross[last] * scale * settings.cross_forward[last]
        back = problem.cross[last] * scale - ahead
        work[row, OUT_F], work[row, IN_B] = ahead / stage[REPLICAS], back / stage[REPLICAS]
        work[row + 1, IN_F], work[row + 1, OUT_B] = ahead / right[REPLICAS], back / right[REPLICAS]
        work[row, ROWS] -= (ahead + back) / stage[REPLICAS]
        work[row + 1, ROWS] -= (ahead + back) / right[REPLICAS]
        if settings.shared != NO_LINK:
            work[row, LINK_F], work[row, LINK_B] = ahead / settings.lanes, back / settings.lanes
            work[row, LINK] = _link(stages, row) if settings.shared == PAIRS else 0
    # The data time without the crossings; a difference of equal sums may not be exactly 0.
    for row in range(count):
        if work[row, ROWS] < 1e-12 * scale * (stages[row, DP] + stages[row, DS]):
            work[row, ROWS] = 0.0
    return work


@kernel
def _link(stages: Floats, row: int) -> int:
    """Return the number of the link: that of the first boundary between the same two types."""
    pair = (stages[row, TYPE], stages[row + 1, TYPE])
    for earlier in range(row):
        other = (stages[earlier, TYPE], stages[earlier + 1, TYPE])
        if other == pair or other == (pair[1], pair[0]):
            return earlier
    return row
