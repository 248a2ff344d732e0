"""What every possible stage needs at a step time, computed with numpy for the check of a proof.

It shares no code with the kernels that find plans (`berth.plan.stage`): arrays are [first layer, last layer].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from berth.plan.problem import (
    COMPUTE,
    EXAMPLE_BYTES,
    EXCHANGE,
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

if TYPE_CHECKING:
    from berth.plan.problem import Problem, Schedule

EQUAL = 1e-9  # step times that agree to nine digits are equal
_ROUNDS = 10_000
_PARTS = (COMPUTE, IN, OUT)

Array = np.ndarray


def away(replicas: Array) -> Array:
    """Return the share of rows that other devices hold, for each number of replicas."""
    count = np.where(np.isfinite(replicas), replicas, 1.0)
    share: Array = (count - 1.0) / count
    return share


class StageNeeds:
    """Replicas, devices and host cores of all stages first..last at once, from the problem's numbers."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layers = len(problem.layers)
        self.price = [one.usd_per_hour for one in problem.types]
        self.limit = [one.limit for one in problem.types]
        self.fixed = problem.fixed_usd_per_hour
        self.longest = problem.batch / problem.throughput
        self.device = [choice.device for choice in problem.choices]
        first, last = np.indices((self.layers, self.layers))
        self.forward = first <= last  # stages first..last that exist
        self.inner_left, self.inner_right = first > 0, last + 1 < self.layers
        self.at_front = first == 0
        self.sums = [self._sums(row) for row in range(len(problem.choices))]
        self.parts = [self.three(row, problem.grid) for row in range(len(problem.choices))]
        self.arcs: dict[tuple[Schedule, float], tuple[Array, Array, Array]] = {}

    def _sums(self, choice: int) -> tuple[Array, Array]:
        """Return the facts and curves of every stage first..last, added layer by layer."""
        facts, curves = self.problem.facts[choice], self.problem.curves[choice]
        return _over_stages(facts), _over_stages(curves)

    # --- what a stage needs ---

    def data(self, choice: int, point: float | Array, which: int) -> Array:
        """Return the crossings of every stage for a call of `point` examples: in, out, or computing (COMPUTE)."""
        cross = self.problem.cross[choice]
        before, after = {IN: (0, 1), OUT: (1, 0), COMPUTE: (2, 2)}[which]
        left = np.where(self.inner_left, np.roll(cross[:, before], 1)[:, None], 0.0)
        right = np.where(self.inner_right, cross[:, after][None, :], 0.0)
        boundaries = self.inner_left * 1.0 + self.inner_right
        message = 0.0 if self.problem.message is None else self.problem.message[choice][int(which == COMPUTE)]
        return (left + right) * point + boundaries * message

    def three(self, choice: int, points: Array) -> Array:
        """Return compute, in and out of every stage at points of the grid, without rows of other devices.

        The result is [3, first, last, point].
        """
        _, curves = self.sums[choice]
        return np.stack(
            [
                curves[:, :, which]
                + np.stack([self.data(choice, float(at), which) for at in points], axis=-1)
                for which in _PARTS
            ]
        )

    def at_examples(self, choice: int, examples: Array, elsewhere: Array) -> Array:
        """Return compute, in and out of every stage for calls of `examples`: [3, first, last].

        `elsewhere` is the share of rows in the memory of devices that a device does not hold itself.
        """
        rows = elsewhere * self.at_call(choice, EXCHANGE, examples)
        own = [self.at_call(choice, which, examples) + self.data(choice, examples, which) for which in _PARTS]
        return np.stack([own[0], own[1] + rows, own[2] + rows])

    def calls(self, schedule: Schedule, parts: Array) -> Array:
        """Return the seconds of all calls of a step from compute, in and out of one."""
        weighted: Array = schedule.w_max * parts.max(axis=0) + schedule.w_sum * parts.sum(axis=0)
        return weighted

    def with_rows(self, choice: int, elsewhere: Array) -> Array:
        """Return compute, in and out at the grid with this share of the rows on other devices."""
        rows = elsewhere[..., None] * self.sums[choice][1][:, :, EXCHANGE]
        return self.parts[choice] + np.stack([np.zeros_like(rows), rows, rows])

    def largest_call(self, schedule: Schedule, choice: int, rest: Array, elsewhere: Array) -> Array:
        """Return the most examples per call of every stage so that its calls take at most `rest`; 0: none."""
        grid = self.problem.grid
        parts = self.with_rows(choice, elsewhere)
        taken = self.calls(schedule, parts)
        fits = taken <= rest[..., None] * (1 + EQUAL)
        # points that fit, from the first on
        count = np.where(fits.all(axis=-1), len(grid), fits.argmin(axis=-1))
        low = np.clip(count - 1, 0, len(grid) - 2)  # the segment; beyond the grid its slope continues
        base = np.take_along_axis(parts, low[None, ..., None], axis=-1)[..., 0]
        rise = np.take_along_axis(parts, low[None, ..., None] + 1, axis=-1)[..., 0] - base
        slope = rise / (grid[low + 1] - grid[low])
        per_example = schedule.w_max * slope + schedule.w_sum * slope.sum(axis=0)
        spare = rest - (schedule.w_max * base + schedule.w_sum * base.sum(axis=0))
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.where(per_example > 0, spare / per_example, np.inf).min(axis=0)
        top = np.where(count == len(grid), np.inf, grid[low + 1])
        most = np.minimum(grid[low] + np.maximum(more, 0.0), top)
        most = np.where(count == len(grid), np.maximum(most, grid[-1]), most)
        return np.where(count == 0, 0.0, most)

    def ring(self, choice: int, replicas: Array, bytes_: Array) -> Array:
        """Return the seconds of the all-reduce."""
        ring = self.problem.ring[self.device[choice]]
        row = np.minimum(np.where(np.isfinite(replicas), replicas, 1), ring.shape[1] - 1).astype(int)
        return np.where(bytes_ > 0, bytes_ * ring[0][row] + ring[1][row], 0.0)

    def once(self, choice: int) -> Array:
        """Return the seconds of every stage that come once per step: optimiser and loop."""
        seconds: Array = self.sums[choice][0][..., OPTIMISER_S] + self.problem.loop_s
        return seconds

    def held(self, schedule: Schedule, choice: int) -> Array:
        """Return the fewest replicas of every stage whose memory holds it."""
        facts, _ = self.sums[choice]
        memory = self.problem.types[self.device[choice]].memory_bytes
        if memory is None:
            return np.ones((self.layers, self.layers))
        in_flight = facts[..., EXAMPLE_BYTES] * self.problem.batch * schedule.in_flight / schedule.micro
        divided, spare = facts[..., SHARDED_BYTES] + in_flight, memory - facts[..., HELD_BYTES]
        with np.errstate(divide="ignore", invalid="ignore"):
            count = np.where(spare > 0, np.ceil(divided / spare * (1 - EQUAL)), np.inf)
        return np.where(divided <= spare, 1.0, np.maximum(count, 1.0))

    def replicas(self, schedule: Schedule, choice: int, step_s: float) -> Array:
        """Return the fewest replicas of every stage at a step time, never more than the solver may count."""
        facts, _ = self.sums[choice]
        most = np.full(
            (self.layers, self.layers), min(self.problem.max_replicas, self.limit[self.device[choice]])
        )
        most = np.where(
            facts[..., HAS_TABLES] > 0.5, np.minimum(most, self.problem.choices[choice].cap), most
        )
        count = self.held(schedule, choice)
        count[~self.forward | (facts[..., FORBIDDEN] > 0.5) | (count > most)] = np.inf
        for _ in range(_ROUNDS):
            rest = step_s - self.once(choice) - self.ring(choice, count, facts[..., SYNC_BYTES])
            most_call = self.largest_call(schedule, choice, np.maximum(rest, 0.0), away(count))
            call = np.where(rest > 0, most_call, 0.0)
            with np.errstate(divide="ignore"):
                wanted = np.ceil(self.problem.batch / (schedule.micro * call) * (1 - EQUAL))
            more = np.where(np.isfinite(count), np.maximum(count, wanted), np.inf)
            more[more > most] = np.inf
            if np.array_equal(more, count):
                return count
            count = more
        return count

    def at_call(self, choice: int, which: int, examples: Array) -> Array:
        """Return a curve of every stage for calls of `examples`."""
        _, curves = self.sums[choice]
        grid = self.problem.grid
        low = np.clip(np.searchsorted(grid, examples, side="right") - 1, 0, len(grid) - 2)
        start = np.take_along_axis(curves[:, :, which], low[..., None], axis=-1)[..., 0]
        end = np.take_along_axis(curves[:, :, which], low[..., None] + 1, axis=-1)[..., 0]
        return start + (end - start) * (examples - grid[low]) / (grid[low + 1] - grid[low])

    def load(self, schedule: Schedule, choice: int, replicas: Array) -> Array:
        """Return the core-seconds of servers for one step of every stage."""
        count = np.where(np.isfinite(replicas), replicas, 1.0)
        examples = self.problem.batch / (count * schedule.micro)
        cpu, nic = (self.at_call(choice, which, examples) for which in (SERVER_CPU, SERVER_NIC))
        return count * schedule.micro * np.maximum(cpu, nic)

    def rents(self, schedule: Schedule, step_s: float) -> tuple[Array, Array, Array]:
        """Return replicas, devices and host cores, [choice, first, last]; infinite where a stage is impossible."""
        key = schedule, step_s
        if key not in self.arcs:
            found = [self._rents(schedule, row, step_s) for row in range(len(self.problem.choices))]
            self.arcs = {key: tuple(np.stack(part) for part in zip(*found, strict=True))}  # type: ignore[dict-item]
        return self.arcs[key]

    def _rents(self, schedule: Schedule, choice: int, step_s: float) -> tuple[Array, Array, Array]:
        host, device = self.problem.host, self.device[choice]
        facts, _ = self.sums[choice]
        replicas = self.replicas(schedule, choice, step_s)
        unit = self.problem.types[device].unit
        devices = replicas if unit == 1 else np.ceil(replicas / unit) * unit
        served = facts[..., SERVED_BYTES]
        need = np.maximum(self.load(schedule, choice, replicas) / step_s, served / host.memory_bytes)
        servers = np.where(served > 0, np.maximum(1.0, np.ceil(need * (1 - EQUAL))), 0.0)
        cores = np.ceil(servers / host.unit) * host.unit
        if host.readers_s > 0:
            reading = max(1.0, math.ceil(host.readers_s / step_s * (1 - EQUAL)))
            cores = cores + np.where(self.at_front, math.ceil(reading / host.unit) * host.unit, 0.0)
        too_many = devices + (cores if host.device == device else 0.0) > self.limit[device]
        if host.device >= 0:
            too_many |= cores > self.limit[host.device]
        gone = too_many | ~np.isfinite(replicas)
        return tuple(np.where(gone, np.inf, part) for part in (replicas, devices, cores))  # type: ignore[return-value]

    def work(self, schedule: Schedule, choice: int, step_s: float) -> Array:
        """Return a lower bound on the price of every stage x its step time, at `step_s` or faster."""
        facts, _ = self.sums[choice]
        grid, batch = self.problem.grid, self.problem.batch
        nothing = np.zeros((self.layers, self.layers))
        most = self.largest_call(schedule, choice, (step_s - self.once(choice)) * (1 + EQUAL), nothing)
        most = np.minimum(most, batch / schedule.micro)
        never = (most <= 0) | (facts[..., FORBIDDEN] > 0.5) | ~self.forward
        most = np.where(never, 1.0, most)
        least = np.full((3, self.layers, self.layers), np.inf)
        for point in range(1, len(grid)):
            elsewhere = max(0.0, 1.0 - schedule.micro * grid[point] / batch)
            parts = self.with_rows(choice, nothing + elsewhere)[..., point]
            each = (schedule.w_max * parts + schedule.w_sum * parts.sum(axis=0)) / grid[point]
            least = np.where(grid[point] < most, np.minimum(least, each), least)
        ends = self.at_examples(choice, most, np.maximum(0.0, 1.0 - schedule.micro * most / batch))
        least = np.minimum(least, (schedule.w_max * ends + schedule.w_sum * ends.sum(axis=0)) / most)
        cost = self.price[self.device[choice]] * batch / schedule.micro * least.max(axis=0)
        serving = batch * np.maximum(
            self.at_call(choice, SERVER_CPU, most), self.at_call(choice, SERVER_NIC, most)
        )
        cores = np.where(facts[..., SERVED_BYTES] > 0, serving / most, 0.0)
        cores = cores + np.where(self.at_front, self.problem.host.readers_s, 0.0)
        return np.where(never, np.inf, cost + self.problem.host.usd_per_hour * cores)

    def useful(self, choice: int) -> Array:
        """Return the stages for which a choice differs from the first one of its type."""
        facts, _ = self.sums[choice]
        is_first = choice == self.device.index(self.device[choice])
        return np.ones((self.layers, self.layers), bool) if is_first else facts[..., HAS_TABLES] > 0.5

    def cheapest(self, schedule: Schedule, costs: Array) -> float:
        """Return the cost of the cheapest chain of stages; `costs` are those of each stage, [first, last]."""
        rows = schedule.stages or 1
        ends = np.full((rows + 1, self.layers + 1), np.inf)  # at most this many stages, layers before
        ends[:, 0] = 0.0
        for last in range(self.layers):
            for row in range(1, rows + 1):
                heads = ends[row - 1 if schedule.stages else row, : last + 1]
                ends[row, last + 1] = np.min(heads + costs[: last + 1, last])
        return float(ends[rows, self.layers])

    def prices(self, extra: list[float]) -> tuple[list[float], float]:
        """Return prices of the types and of a host core, with prices on limits."""
        host = self.problem.host
        core = host.usd_per_hour + (extra[host.device] if host.device >= 0 else 0.0)
        return [price + more for price, more in zip(self.price, extra, strict=True)], core

    def rent_costs(
        self, schedule: Schedule, step_s: float, extra: list[float], below: float = math.inf
    ) -> Array:
        """Return the lowest price of every stage at a step time, with prices on limits, of those that cost less."""
        (reduced, core), (plain, plain_core) = self.prices(extra), self.prices([0.0] * len(extra))
        _, devices, cores = self.rents(schedule, step_s)
        found = []
        for row, device in enumerate(self.device):
            count, beside = _finite(devices[row]), _finite(cores[row])
            possible = self.useful(row) & np.isfinite(devices[row])
            possible &= plain[device] * count + plain_core * beside < below
            found.append(np.where(possible, reduced[device] * count + core * beside, np.inf))
        return np.min(found, axis=0)


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _over_stages(values: Array) -> Array:
    """Return the sums over layers first..last, [first, last, ...], added from the front of each stage."""
    layers = len(values)
    sums = np.zeros((layers, *values.shape))
    for first in range(layers):
        sums[first, first:] = np.cumsum(values[first:], axis=0)
    return sums
