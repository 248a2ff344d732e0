"""Planning problems at random, and the plainest way to solve the small ones: every plan there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from berth.plan.problem import DevicePool, Problem, make_problem


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


def assignments(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Every type for every layer."""
    return itertools.product(range(len(problem.types)), repeat=len(problem.layers))


def naive_stages(problem: Problem, assignment: Sequence[int]) -> list[tuple[int, int, int]]:
    """(type, first layer, last layer) of the maximal runs."""
    stages, first = [], 0
    for kind, run in itertools.groupby(assignment):
        length = len(list(run))
        stages.append((kind, first, first + length - 1))
        first += length
    return stages


def naive_stage_s(problem: Problem, kind: int, first: int, last: int, replicas: int) -> float:
    """A stage's time per example, from the formula as it is written down."""
    rows = slice(first, last + 1)
    compute, data = problem.oct_s[rows, kind], problem.odt_s[rows, kind]
    crossing = 0.0
    if first > 0:
        crossing += float(problem.cross_s[first - 1])
    if last + 1 < len(problem.layers):
        crossing += float(problem.cross_s[last])
    alpha, beta = problem.alpha[rows, kind], problem.beta[rows, kind]
    ct = float(np.sum(compute * (1 - alpha + alpha / replicas)))
    dt = float(np.sum(data * (1 - beta + beta / replicas))) + crossing / replicas
    return max(ct, dt) / problem.batch


def naive_cost_usd(problem: Problem, assignment: Sequence[int]) -> float:
    """The cheapest replicas for an assignment by trying all; infinite if none hold the throughput."""
    stages = naive_stages(problem, assignment)
    if not all(problem.allowed[layer, kind] for layer, kind in enumerate(assignment)):
        return math.inf
    best = math.inf
    for replicas in itertools.product(*(range(1, problem.types[kind].limit + 1) for kind, _, _ in stages)):
        used = dict.fromkeys(range(len(problem.types)), 0)
        for (kind, _, _), count in zip(stages, replicas, strict=True):
            used[kind] += count
        if any(count > problem.types[kind].limit for kind, count in used.items()):
            continue
        if not _holds(problem, stages, replicas):
            continue
        slowest = max(
            naive_stage_s(problem, *stage, count) for stage, count in zip(stages, replicas, strict=True)
        )
        if slowest > (1 + 1e-9) / problem.throughput:
            continue
        rate = problem.fixed_usd_per_hour
        rate += sum(problem.types[kind].usd_per_hour * count for kind, count in used.items())
        best = min(best, problem.epochs * problem.samples * slowest / 3600 * rate)
    return best


def _holds(problem: Problem, stages: list[tuple[int, int, int]], replicas: Sequence[int]) -> bool:
    """Whether every stage fits into the memory of its replicas."""
    for (kind, first, last), count in zip(stages, replicas, strict=True):
        memory = problem.types[kind].memory_bytes
        rows = slice(first, last + 1)
        each = problem.replicated_bytes[rows].sum() + problem.sharded_bytes[rows].sum() / count
        if memory is not None and each > memory * (1 + 1e-9):
            return False
    return True
