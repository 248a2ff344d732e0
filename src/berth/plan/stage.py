"""What one stage needs at a step time: the fewest replicas, and the server cores behind them.

All times are seconds of one step. A stage's time falls as replicas share the batch, except for the all-reduce, which
only grows with them. So the fewest replicas are found from below: each round asks for the replicas that are enough
beside the all-reduce of the last count, and the first count that is enough is the least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import inlined, kernel
from berth.plan.arrays import ProblemArrays
from berth.plan.problem import (
    COMPUTE,
    EXAMPLE_BYTES,
    EXCHANGE,
    FACTS,
    FORBIDDEN,
    HAS_TABLES,
    HELD_BYTES,
    IN,
    OPTIMISER_S,
    OUT,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
)

Floats = NDArray[np.float64]

Crossing = tuple[float, float, float, float, float]

SLACK = 1e-9  # step times that agree to nine digits are equal: the throughput is often met exactly
_NEVER = np.inf


class Slots(NamedTuple):
    """A schedule (`berth.plan.problem.Schedule`) for the kernels."""

    micro: float
    stages: int
    w_max: float
    w_sum: float
    in_flight: float


@inlined
def fact(problem: ProblemArrays, choice: int, first: int, last: int, column: int) -> float:
    """Return the sum of a fact over layers first..last."""
    return problem.running[choice, last + 1, column] - problem.running[choice, first, column]


@inlined
def curve(problem: ProblemArrays, choice: int, first: int, last: int, which: int, point: int) -> float:
    """Return the sum of a curve over layers first..last at a point of the grid."""
    column = FACTS + which * len(problem.grid) + point
    return problem.running[choice, last + 1, column] - problem.running[choice, first, column]


@inlined
def crossing(problem: ProblemArrays, choice: int, first: int, last: int, left: bool) -> Crossing:
    """Return NIC seconds per example in and out at the boundaries, seconds per call; computing per example, per call.

    The boundary before `first` counts only if `left`.
    """
    cross = problem.cross
    into, out, computing, count = 0.0, 0.0, 0.0, 0.0
    if left and first > 0:
        into += cross[choice, first - 1, 0]
        out += cross[choice, first - 1, 1]
        computing += cross[choice, first - 1, 2]
        count += 1.0
    if last + 1 < cross.shape[1]:
        out += cross[choice, last, 0]
        into += cross[choice, last, 1]
        computing += cross[choice, last, 2]
        count += 1.0
    return into, out, count * problem.message[choice, 0], computing, count * problem.message[choice, 1]


@inlined
def segment(problem: ProblemArrays, examples: float) -> int:
    """Return the point of the grid at or below a number of examples, the last but one at most."""
    point = len(problem.grid) - 2
    while point > 0 and problem.grid[point] > examples:
        point -= 1
    return point


@inlined
def curve_at(
    problem: ProblemArrays, choice: int, first: int, last: int, which: int, examples: float
) -> float:
    """Return a curve of layers first..last for one call."""
    point = segment(problem, examples)
    low = curve(problem, choice, first, last, which, point)
    high = curve(problem, choice, first, last, which, point + 1)
    share = (examples - problem.grid[point]) / (problem.grid[point + 1] - problem.grid[point])
    return low + (high - low) * share


@inlined
def ring_s(problem: ProblemArrays, device: int, replicas: float, bytes_: float) -> float:
    """Return the seconds of an all-reduce among replicas."""
    if bytes_ <= 0.0:
        return 0.0
    row = int(min(replicas, problem.ring.shape[2] - 1.0))
    return bytes_ * problem.ring[device, 0, row] + problem.ring[device, 1, row]


@inlined
def away(replicas: float) -> float:
    """Return the share of rows in the memory of a stage's devices that a device does not hold itself."""
    return (replicas - 1.0) / replicas


@inlined
def parts_of(
    problem: ProblemArrays,
    choice: int,
    first: int,
    last: int,
    moved: Crossing,
    elsewhere: float,
    examples: float,
) -> tuple[float, float, float]:
    """Return seconds of computing, in and out of one call; `elsewhere` is the share of rows that other devices hold."""
    c = curve_at(problem, choice, first, last, COMPUTE, examples)
    i = curve_at(problem, choice, first, last, IN, examples)
    o = curve_at(problem, choice, first, last, OUT, examples)
    rows = elsewhere * curve_at(problem, choice, first, last, EXCHANGE, examples)
    c += moved[3] * examples + moved[4]
    return c, i + rows + moved[0] * examples + moved[2], o + rows + moved[1] * examples + moved[2]


@inlined
def parts_at(
    problem: ProblemArrays,
    choice: int,
    first: int,
    last: int,
    moved: Crossing,
    elsewhere: float,
    point: int,
) -> tuple[float, float, float]:
    """Return what `parts_of` does, at a point of the grid."""
    examples = problem.grid[point]
    c = curve(problem, choice, first, last, COMPUTE, point)
    i = curve(problem, choice, first, last, IN, point)
    o = curve(problem, choice, first, last, OUT, point)
    rows = elsewhere * curve(problem, choice, first, last, EXCHANGE, point)
    c += moved[3] * examples + moved[4]
    return c, i + rows + moved[0] * examples + moved[2], o + rows + moved[1] * examples + moved[2]


@inlined
def reach(
    w_max: float, w_sum: float, rest: float, one: float, total: float, slope: float, slopes: float
) -> float:
    """Return how far beyond a point a call may go until one of the curves uses up the rest."""
    rise = w_max * slope + w_sum * slopes
    room = rest - w_max * one - w_sum * total
    if rise <= 0.0:
        return _NEVER
    return max(0.0, room / rise)


@kernel
def largest_call(
    problem: ProblemArrays,
    slots: Slots,
    choice: int,
    first: int,
    last: int,
    moved: Crossing,
    elsewhere: float,
    rest: float,
) -> float:
    """Return the most examples of a call with which a step's calls take at most `rest`; negative if none."""
    point = len(problem.grid) - 1
    high_c, high_i, high_o = 0.0, 0.0, 0.0
    while True:
        c, i, o = parts_at(problem, choice, first, last, moved, elsewhere, point)
        taken = slots.w_max * max(c, i, o) + slots.w_sum * (c + i + o)
        if taken <= rest * (1 + SLACK):
            break
        if point == 0:
            return -1.0
        high_c, high_i, high_o = c, i, o
        point -= 1
    begin = problem.grid[point]
    if point == len(problem.grid) - 1:  # beyond the grid the last slope continues
        low_c, low_i, low_o = parts_at(problem, choice, first, last, moved, elsewhere, point - 1)
        width = begin - problem.grid[point - 1]
        slope_c, slope_i, slope_o = (c - low_c) / width, (i - low_i) / width, (o - low_o) / width
    else:
        width = problem.grid[point + 1] - begin
        slope_c, slope_i, slope_o = (high_c - c) / width, (high_i - i) / width, (high_o - o) / width
    total, slopes = c + i + o, slope_c + slope_i + slope_o
    more = min(
        reach(slots.w_max, slots.w_sum, rest, c, total, slope_c, slopes),
        reach(slots.w_max, slots.w_sum, rest, i, total, slope_i, slopes),
        reach(slots.w_max, slots.w_sum, rest, o, total, slope_o, slopes),
    )
    if point < len(problem.grid) - 1:
        more = min(more, width)
    return begin + more


@inlined
def memory_replicas(problem: ProblemArrays, slots: Slots, choice: int, first: int, last: int) -> float:
    """Return the fewest replicas whose memory holds layers first..last and the examples in flight."""
    memory = problem.memory[problem.type_of[choice]]
    held = fact(problem, choice, first, last, HELD_BYTES)
    example_bytes = fact(problem, choice, first, last, EXAMPLE_BYTES)
    divided = fact(problem, choice, first, last, SHARDED_BYTES)
    divided += example_bytes * problem.batch * slots.in_flight / slots.micro
    if held + divided <= memory:
        return 1.0
    if held >= memory:
        return _NEVER
    return np.ceil(divided / (memory - held) * (1 - SLACK))


@kernel
def replicas_needed(
    problem: ProblemArrays,
    slots: Slots,
    choice: int,
    first: int,
    last: int,
    left: bool,
    step_s: float,
    start: float,
) -> float:
    """Return the fewest replicas, `start` at least, with which a stage takes at most `step_s`; infinite if none.

    Without `left`, the crossing before its first layer does not count: then a longer stage never needs fewer.
    """
    if fact(problem, choice, first, last, FORBIDDEN) > 0.5:
        return _NEVER
    moved = crossing(problem, choice, first, last, left)
    device = problem.type_of[choice]
    sync = fact(problem, choice, first, last, SYNC_BYTES)
    free = step_s - fact(problem, choice, first, last, OPTIMISER_S) - problem.loop_s
    most = min(problem.most, problem.limit[device])
    if fact(problem, choice, first, last, HAS_TABLES) > 0.5:
        most = min(most, problem.cap[choice])
    replicas = max(start, memory_replicas(problem, slots, choice, first, last))
    while replicas <= most:
        rest = free - ring_s(problem, device, replicas, sync)
        examples = largest_call(problem, slots, choice, first, last, moved, away(replicas), rest)
        if examples <= 0.0:
            return _NEVER
        wanted = np.ceil(problem.batch / (slots.micro * examples) * (1 - SLACK))
        if wanted <= replicas:
            return replicas
        replicas = wanted
    return _NEVER


@kernel
def stage_s(
    problem: ProblemArrays, slots: Slots, choice: int, first: int, last: int, replicas: float
) -> tuple[float, float, float, float, float]:
    """Return the seconds of a step of a stage: all, and per call compute, in, out; then the all-reduce."""
    moved = crossing(problem, choice, first, last, True)
    examples = problem.batch / (replicas * slots.micro)
    c, i, o = parts_of(problem, choice, first, last, moved, away(replicas), examples)
    ring = ring_s(problem, problem.type_of[choice], replicas, fact(problem, choice, first, last, SYNC_BYTES))
    calls = slots.w_max * max(c, i, o) + slots.w_sum * (c + i + o)
    return calls + fact(problem, choice, first, last, OPTIMISER_S) + problem.loop_s + ring, c, i, o, ring


@inlined
def server_load(
    problem: ProblemArrays, slots: Slots, choice: int, first: int, last: int, replicas: float
) -> float:
    """Return the core-seconds that servers spend on one step of a stage: computing or sending, the larger."""
    examples = problem.batch / (replicas * slots.micro)
    calls = replicas * slots.micro
    return calls * max(
        curve_at(problem, choice, first, last, SERVER_CPU, examples),
        curve_at(problem, choice, first, last, SERVER_NIC, examples),
    )


@inlined
def servers_needed(
    problem: ProblemArrays, slots: Slots, choice: int, first: int, last: int, step_s: float, replicas: float
) -> float:
    """Return the server cores that hold a stage's tables and keep up with its replicas."""
    held = fact(problem, choice, first, last, SERVED_BYTES)
    if held <= 0.0:
        return 0.0
    load = server_load(problem, slots, choice, first, last, replicas) / step_s
    return max(1.0, np.ceil(max(load, held / problem.host_memory) * (1 - SLACK)))


@inlined
def rented(count: float, unit: float) -> float:
    """Return the devices that are paid for: whole machines where only they are rented."""
    return count if unit == 1.0 else np.ceil(count / unit) * unit


@inlined
def readers_needed(problem: ProblemArrays, step_s: float) -> float:
    """Return the reader cores that keep up with a step."""
    if problem.readers_s <= 0.0:
        return 0.0
    return max(1.0, np.ceil(problem.readers_s / step_s * (1 - SLACK)))


@inlined
def host_cores(
    problem: ProblemArrays,
    slots: Slots,
    choice: int,
    first: int,
    last: int,
    left: bool,
    step_s: float,
    replicas: float,
) -> float:
    """Return the cores rented beside a stage: its servers, and, with `left`, the readers beside the first stage."""
    cores = rented(servers_needed(problem, slots, choice, first, last, step_s, replicas), problem.host_unit)
    if left and first == 0:
        cores += rented(readers_needed(problem, step_s), problem.host_unit)
    return cores


@inlined
def skips(problem: ProblemArrays, choice: int, first: int, last: int) -> bool:
    """Return whether another choice of the same type is the same: places of tables differ with tables only."""
    return problem.tables[choice] > 0 and not fact(problem, choice, first, last, HAS_TABLES) > 0.5


@kernel
def work(
    problem: ProblemArrays, slots: Slots, choice: int, first: int, last: int, left: bool, step_s: float
) -> tuple[float, float]:
    """Return lower bounds on devices x step time and on host cores x step time, at `step_s` and any faster step.

    With u examples per call there are batch / (micro u) replicas, and a step takes at least what the calls take:
    their product is at least the smallest (calls / u) over every u that is small enough. Of rows in the memory of
    devices 1 - micro u / batch move; with that factor, calls / u between two points is still least at one of them.
    """
    if fact(problem, choice, first, last, FORBIDDEN) > 0.5:
        return _NEVER, 0.0
    moved = crossing(problem, choice, first, last, left)
    rest = (step_s - fact(problem, choice, first, last, OPTIMISER_S) - problem.loop_s) * (1 + SLACK)
    most = largest_call(problem, slots, choice, first, last, moved, 0.0, rest)
    if most <= 0.0:
        return _NEVER, 0.0
    most = min(most, problem.batch / slots.micro)
    least_c, least_i, least_o = _NEVER, _NEVER, _NEVER
    grid = problem.grid
    for point in range(1, len(grid) + 1):
        if point < len(grid) and grid[point] < most:
            examples = grid[point]
            elsewhere = 1.0 - slots.micro * examples / problem.batch
            c, i, o = parts_at(problem, choice, first, last, moved, elsewhere, point)
        else:
            examples = most
            elsewhere = max(0.0, 1.0 - slots.micro * examples / problem.batch)
            c, i, o = parts_of(problem, choice, first, last, moved, elsewhere, examples)
        each = slots.w_sum * (c + i + o)
        least_c = min(least_c, (slots.w_max * c + each) / examples)
        least_i = min(least_i, (slots.w_max * i + each) / examples)
        least_o = min(least_o, (slots.w_max * o + each) / examples)
        if examples >= most:
            break
    devices = problem.batch / slots.micro * max(least_c, least_i, least_o)
    cores = problem.readers_s if left and first == 0 else 0.0
    if fact(problem, choice, first, last, SERVED_BYTES) > 0.0:
        per_example = max(
            curve_at(problem, choice, first, last, SERVER_CPU, most),
            curve_at(problem, choice, first, last, SERVER_NIC, most),
        )
        cores += problem.batch * per_example / most
    return devices, cores
