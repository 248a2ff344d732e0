"""Planning problems at random, and the plainest way to solve the small ones: every plan there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from berth.plan.problem import (
    COMPUTE,
    CURVES,
    EXAMPLE_BYTES,
    EXCHANGE,
    FACTS,
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
    Choice,
    DevicePool,
    HostPool,
    Problem,
    make_problem,
)


def random_problem(
    layers: int,
    types: int,
    seed: int,
    *,
    throughput: float = 2000.0,
    limit: int = 1000,
    serial: float = 0.02,
    fixed: float = 1.0,
) -> Problem:
    """A cheap slow type and faster, more expensive ones, over layers that compute and layers that move data.

    `serial` is the largest part of a layer's time that more replicas do not share.
    """
    draw = np.random.default_rng(seed)
    speed = np.concatenate([[1.0], draw.uniform(3, 60, types - 1)])
    link = np.concatenate([[1.0], draw.uniform(0.3, 3, types - 1)])
    price = np.concatenate([[0.04], draw.uniform(0.4, 6, types - 1)])
    return make_problem(
        batch=512,
        throughput=throughput,
        types=tuple(DevicePool(f"t{kind}", float(price[kind]), limit) for kind in range(types)),
        layers=tuple(f"layer{row}" for row in range(layers)),
        oct_s=np.outer(draw.lognormal(0, 1, layers), 1 / speed),
        odt_s=np.outer(draw.lognormal(-1.5, 1.2, layers), 1 / link),
        alpha=1 - draw.uniform(0, serial, (layers, types)),
        beta=1 - draw.uniform(0, serial, (layers, types)),
        cross_s=draw.lognormal(-3, 1, layers),
        fixed_usd_per_hour=fixed,
    )


def random_world(
    layers: int, types: int, seed: int, *, limit: int = 4, micro: tuple[int, ...] = (1, 3)
) -> Problem:
    """A small problem as a model and a cluster give it: curves, shared NICs, tables, servers, readers, all-reduce.

    Type 0 is the one that servers and readers are rented from.
    """
    draw = np.random.default_rng(seed)
    grid = np.array([0.0, 4.0, 16.0, 64.0])
    places = ("servers", "replicas")
    choices = tuple(
        Choice(device, place, int(draw.integers(1, limit + 1)) if draw.random() < 0.3 else 10**9)
        for device in range(types)
        for place in places
    )
    has_tables = draw.random(layers) < 0.5
    facts = np.zeros((len(choices), layers, FACTS))
    curves = np.zeros((len(choices), layers, CURVES, len(grid)))
    served = draw.uniform(1, 30, layers) * has_tables
    for row, choice in enumerate(choices):
        speed = 1 + 5 * choice.device
        steps = draw.lognormal(-2, 1, (layers, 3, len(grid))) / speed
        curves[row, :, (COMPUTE, IN, OUT)] = np.cumsum(steps, axis=-1).swapaxes(0, 1)
        concave = np.sqrt(grid) * 2 + 1
        facts[row, :, OPTIMISER_S] = draw.uniform(0, 0.02, layers)
        facts[row, :, SYNC_BYTES] = draw.uniform(0, 1, layers) * (draw.random(layers) < 0.7)
        facts[row, :, HELD_BYTES] = draw.uniform(0, 3, layers)
        facts[row, :, EXAMPLE_BYTES] = draw.uniform(0, 0.05, layers)
        facts[row, :, HAS_TABLES] = has_tables
        if choice.tables == "servers":
            facts[row, :, SERVED_BYTES] = served
            rates = draw.uniform(0.001, 0.02, (2, layers)) * has_tables
            curves[row, :, SERVER_CPU], curves[row, :, SERVER_NIC] = rates[..., None] * concave
        else:
            facts[row, :, SHARDED_BYTES] = served
            curves[row, :, EXCHANGE] = (draw.uniform(0, 0.1, layers) * has_tables)[:, None] * concave / speed
        same = row - row % len(places)  # without tables their place makes no difference
        facts[row, ~has_tables], curves[row, ~has_tables] = (
            facts[same, ~has_tables],
            curves[same, ~has_tables],
        )
    ring = np.zeros((types, 2, limit + 1))
    ring[:, :, 2:] = np.cumsum(draw.uniform(0, 0.05, (types, 2, limit - 1)), axis=-1)
    price = np.concatenate([[0.2], draw.uniform(0.3, 3, types - 1)])
    problem = Problem(
        batch=64.0,
        throughput=float(draw.uniform(5, 40)),
        samples=1e6,
        types=tuple(
            DevicePool(
                f"t{kind}", float(price[kind]), limit, float(draw.uniform(10, 60)), int(draw.integers(1, 3))
            )
            for kind in range(types)
        ),
        layers=tuple(f"layer{row}" for row in range(layers)),
        kinds=("layer",) * layers,
        allowed=np.ones((layers, types), bool),
        choices=choices,
        grid=grid,
        facts=facts,
        curves=curves,
        cross=np.repeat(draw.uniform(0, 0.01, (types, layers, 3)), len(places), axis=0),
        ring=ring,
        host=HostPool(0, float(price[0]), float(draw.uniform(8, 40)), 1, float(draw.uniform(0, 3))),
        message=np.repeat(draw.uniform(0, 0.02, (types, 2)), len(places), axis=0),
        loop_s=float(draw.uniform(0, 0.02)),
        fixed_usd_per_hour=float(draw.choice([0.0, 1.0, 10.0])),
        micro=micro,
    )
    return problem.allowing(problem.allowed)


# --- the plainest solver ---


class NaiveStage(NamedTuple):
    """One way to size one stage."""

    step_s: float
    device: int
    devices: int
    cores: int


def naive_best_usd(problem: Problem) -> float:
    """The cheapest plan by trying every cut, choice, number of micro-batches and count; infinite if there is none."""
    best = math.inf
    for cuts in _cuts(len(problem.layers)):
        for chosen in itertools.product(range(len(problem.choices)), repeat=len(cuts)):
            for micro in problem.micro or (1,):
                ways = [
                    list(_ways(problem, first, last, choice, micro, len(cuts)))
                    for (first, last), choice in zip(cuts, chosen, strict=True)
                ]
                best = min(best, _cheapest_of(problem, ways))
    return best


def _cuts(layers: int) -> Iterator[list[tuple[int, int]]]:
    for ends in itertools.product((False, True), repeat=layers - 1):
        edges = [0, *(at + 1 for at, end in enumerate(ends) if end), layers]
        yield [(a, b - 1) for a, b in itertools.pairwise(edges)]


def _ways(
    problem: Problem, first: int, last: int, choice: int, micro: int, stages: int
) -> Iterator[NaiveStage]:
    """Every number of replicas and of server cores, with the step time as the formula is written down."""
    rows = slice(first, last + 1)
    place = problem.choices[choice]
    pool = problem.types[place.device]
    if not problem.allowed[rows, place.device].all():
        return
    facts = problem.facts[choice, rows].sum(axis=0)
    cap = place.cap if facts[HAS_TABLES] else problem.max_replicas
    for replicas in range(1, min(cap, problem.max_replicas, pool.limit) + 1):
        call = problem.batch / (replicas * micro)
        in_flight = min(micro, 2 * stages - 1) if problem.micro else 1
        held = facts[HELD_BYTES] + facts[SHARDED_BYTES] / replicas + facts[EXAMPLE_BYTES] * call * in_flight
        if pool.memory_bytes is not None and held > pool.memory_bytes * (1 + 1e-9):
            continue
        c, i, o, cpu, nic, exchange = (_at(problem, choice, rows, which, call) for which in range(CURVES))
        i += exchange * (replicas - 1) / replicas
        o += exchange * (replicas - 1) / replicas
        message, computing = (0.0, 0.0) if problem.message is None else problem.message[choice]
        if first > 0:
            i += problem.cross[choice, first - 1, 0] * call + message
            o += problem.cross[choice, first - 1, 1] * call + message
            c += problem.cross[choice, first - 1, 2] * call + computing
        if last + 1 < len(problem.layers):
            o += problem.cross[choice, last, 0] * call + message
            i += problem.cross[choice, last, 1] * call + message
            c += problem.cross[choice, last, 2] * call + computing
        w_max, w_sum = (micro - 1, stages) if problem.micro else (1, 0)
        step_s = w_max * max(c, i, o) + w_sum * (c + i + o)
        ring = problem.ring[place.device, :, min(replicas, problem.ring.shape[2] - 1)]
        if facts[SYNC_BYTES] > 0:
            step_s += facts[SYNC_BYTES] * ring[0] + ring[1]
        step_s += facts[OPTIMISER_S] + problem.loop_s
        devices = -(-replicas // pool.unit) * pool.unit
        if facts[SERVED_BYTES] <= 0:
            yield NaiveStage(step_s, place.device, devices, 0)
            continue
        least = max(1, math.ceil(facts[SERVED_BYTES] / problem.host.memory_bytes * (1 - 1e-9)))
        load = replicas * micro * max(cpu, nic)
        most = problem.types[problem.host.device].limit if problem.host.device >= 0 else least + 20
        for servers in range(least, most + 1):
            cores = -(-servers // problem.host.unit) * problem.host.unit
            yield NaiveStage(max(step_s, load / servers), place.device, devices, cores)


def _at(problem: Problem, choice: int, rows: slice, which: int, call: float) -> float:
    grid = problem.grid
    values = problem.curves[choice, rows, which].sum(axis=0)
    if call <= grid[-1]:
        return float(np.interp(call, grid, values))
    slope = (values[-1] - values[-2]) / (grid[-1] - grid[-2])
    return float(values[-1] + slope * (call - grid[-1]))


def _cheapest_of(problem: Problem, ways: list[list[NaiveStage]]) -> float:
    """The cheapest combination of sized stages and readers that keeps the limits and the throughput."""
    longest = problem.batch / problem.throughput * (1 + 1e-9)
    host, best = problem.host, math.inf
    most = problem.types[host.device].limit if host.device >= 0 else 20
    readers = range(1, most + 1) if host.readers_s > 0 else (0,)
    for sized in itertools.product(*ways):
        slowest = max(way.step_s for way in sized)
        if slowest > longest:
            continue
        for count in readers:
            step_s = max(slowest, host.readers_s / count) if count else slowest
            if step_s > longest:
                continue
            cores = sum(way.cores for way in sized) + -(-count // host.unit) * host.unit
            used = [0] * len(problem.types)
            for way in sized:
                used[way.device] += way.devices
            rate = problem.fixed_usd_per_hour + cores * host.usd_per_hour
            rate += sum(one.usd_per_hour * number for one, number in zip(problem.types, used, strict=True))
            if host.device >= 0:
                used[host.device] += cores
            if any(number > one.limit for one, number in zip(problem.types, used, strict=True)):
                continue
            best = min(best, step_s * rate)
    return best * problem.epochs * problem.samples / problem.batch / 3600


def assignments(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Every type for every layer."""
    return itertools.product(range(len(problem.types)), repeat=len(problem.layers))
