"""How long an example takes in a pipeline whose stages have their units: by a short estimate, and by its events."""

from __future__ import annotations

from typing import NamedTuple

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
    WORK_COLUMNS,
    Order,
    simulate,
)
from berth.plan.objective.stream import stream
from berth.plan.provision import CP, CS, DP, DS, LAST, TYPE, UNITS
from berth.plan.tables import Tables

Floats = NDArray[np.float64]

NO_LINK, PAIRS, ALL = range(3)
F1B1, FILL_DRAIN, STREAM = range(3)

# In 1f1b, for each stage from here to the last: a crossing holds a micro-batch about as a stage does.
_FLIGHT = 2
_ROUNDS_OF_STREAM = 64  # micro-batches measured


class Setting(NamedTuple):
    """What a pipeline is like, beyond its problem."""

    batch: float
    micro: int  # micro-batches of a batch; 0: the best of 1, 2, 4 .. most_micro
    most_micro: int
    schedule: int
    group: int  # batches between two synchronisations that everybody waits for
    batches: int  # simulated, and measured after a first one
    per_call: float  # share of the serial computation that every micro-batch pays anew
    shared: int  # which crossings share a link
    lanes: float  # what a link carries, in links of one unit
    cross_forward: Floats  # [layer] share of the crossing that goes forward
    sigma: Floats  # [layer, type] relative standard deviation of a layer's time
    normals: Floats  # [micro-batch, layer] drawn once, the same for every assignment


@kernel
def estimate(stages: Floats, problem: Tables, setting: Setting, passes: Floats, micro: int) -> float:
    """Seconds per example: once through all stages, then one micro-batch after the other at the slowest."""
    through, slowest, exposed = 0.0, 0.0, 0.0
    for row in range(len(stages)):
        stage = stages[row]
        computing = _computing(stage, setting, micro) * (passes[row, 0] + passes[row, 1])
        moving = setting.batch * (stage[DS] + stage[DP] / stage[UNITS]) / micro
        # Behind the last backward: what the stages before it do in the meantime hides it.
        last = setting.batch * stage[DS] - computing * passes[row, 1]
        last = max(0.0, last) + setting.batch * stage[DP] / (stage[UNITS] * micro)
        exposed = max(exposed, last - through)
        through += computing
        if row + 1 < len(stages):
            crossing = problem.cross[int(stage[LAST])] * setting.batch / micro
            through += crossing / stage[UNITS] + crossing / stages[row + 1, UNITS]
        slowest = max(slowest, computing, moving)
    if setting.schedule == STREAM:
        return slowest * micro / setting.batch
    whole = through + (micro * setting.group - 1) * slowest + exposed
    return whole / (setting.batch * setting.group)


@kernel
def _computing(stage: Floats, setting: Setting, micro: int) -> float:
    """Seconds of one micro-batch at a stage, both passes."""
    again = setting.per_call + (1 - setting.per_call) / micro
    return setting.batch * (stage[CS] * again + stage[CP] / (stage[UNITS] * micro))


@kernel
def simulated_s(
    stages: Floats, problem: Tables, setting: Setting, passes: Floats, noise: Floats, micro: int
) -> float:
    """Seconds per example by the event simulation."""
    work = _work(stages, problem, setting, passes, micro)
    if setting.schedule == STREAM:
        return stream(work, noise, _ROUNDS_OF_STREAM) * micro / setting.batch
    flight = _FLIGHT if setting.schedule == F1B1 else 0
    order = Order(micro, setting.group, 1 + setting.batches, setting.schedule == FILL_DRAIN, flight)
    return simulate(work, noise, order) / setting.batch


@kernel
def _work(stages: Floats, problem: Tables, setting: Setting, passes: Floats, micro: int) -> Floats:
    """The columns of berth.plan.objective.pipeline for these units."""
    count = len(stages)
    work = np.zeros((count, WORK_COLUMNS))
    scale = setting.batch / micro
    work[:, LINK] = -1
    for row in range(count):
        stage = stages[row]
        computing = _computing(stage, setting, micro)
        work[row, FORWARD], work[row, BACKWARD] = computing * passes[row, 0], computing * passes[row, 1]
        work[row, REDUCE] = stage[DS] * scale
        work[row, ROWS] += stage[DP] / stage[UNITS] * scale
        if row + 1 == count:
            continue
        last, right = int(stage[LAST]), stages[row + 1]
        ahead = problem.cross[last] * scale * setting.cross_forward[last]
        back = problem.cross[last] * scale - ahead
        work[row, OUT_F], work[row, IN_B] = ahead / stage[UNITS], back / stage[UNITS]
        work[row + 1, IN_F], work[row + 1, OUT_B] = ahead / right[UNITS], back / right[UNITS]
        work[row, ROWS] -= (ahead + back) / stage[UNITS]
        work[row + 1, ROWS] -= (ahead + back) / right[UNITS]
        if setting.shared != NO_LINK:
            work[row, LINK_F], work[row, LINK_B] = ahead / setting.lanes, back / setting.lanes
            work[row, LINK] = _link(stages, row) if setting.shared == PAIRS else 0
    # What is left of the data time after its crossings; a difference of equal sums may not be quite 0.
    for row in range(count):
        if work[row, ROWS] < 1e-12 * scale * (stages[row, DP] + stages[row, DS]):
            work[row, ROWS] = 0.0
    return work


@kernel
def _link(stages: Floats, row: int) -> int:
    """The first boundary between the same two types: its number is the link's."""
    pair = (stages[row, TYPE], stages[row + 1, TYPE])
    for earlier in range(row):
        other = (stages[earlier, TYPE], stages[earlier + 1, TYPE])
        if other == pair or other == (pair[1], pair[0]):
            return earlier
    return row
