"""Problems to measure planners on: the zoo's profiles on sets of devices, and generated ones.

The generated problems resemble real ones (embeddings that move rows, fully connected layers that compute,
small layers that do neither; devices like those of the catalogue, all figures jittered), but none of their
numbers is taken from a profile of the zoo: what is learned on them was not learned on the zoo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from berth.plan.bench import ROWS
from berth.plan.problem import UNLIMITED, DevicePool, Problem, make_problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.method import Budget, get_method
from berth.plan.world import WorldOptions
from berth.plan.world_problem import problem_for

Floats = NDArray[np.float64]

NETWORK_BYTES_PER_S = 25e9 / 8
DEVICE_SETS = {
    2: ("cpu-core", "V100"),
    4: ("cpu-core", "T4", "V100", "A100"),
    8: ("cpu-core", "T4", "L4", "P100", "V100", "L40S", "A100", "H100"),
}
# flops reached, bytes/s of memory, bytes/s of the link, dollars per hour; the first is a CPU core
_DEVICES = np.array(
    [
        (3.0e10, 8.0e09, 3.1e9, 0.04),
        (1.0e13, 2.4e11, 1.6e10, 0.53),
        (3.0e13, 2.2e11, 3.2e10, 0.80),
        (2.6e12, 1.8e11, 1.6e10, 0.90),
        (5.6e12, 5.5e11, 1.6e10, 1.46),
        (9.0e13, 6.5e11, 3.2e10, 1.86),
        (3.0e13, 6.8e11, 1.5e11, 2.42),
        (9.0e13, 1.2e12, 3.0e11, 2.74),
        (3.0e14, 2.5e12, 4.5e11, 6.88),
    ]
)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem with a name, and its optimum."""

    name: str
    problem: Problem
    best_usd: float


def with_optimum(name: str, problem: Problem) -> Case | None:
    """The problem solved; None if it has no solution."""
    plan = get_method("exact")(problem, Budget(seconds=20), None).plan
    return None if plan is None else Case(name, problem, plan.cost_usd)


def zoo_problem(model: str, kinds: int) -> Problem:
    """A model of the zoo on 2, 4 or 8 types of devices without limits; its throughput is still to be chosen."""
    return problem_for(load_layer_profile(model), DEVICE_SETS[kinds], 1.0, options=WorldOptions(rows=ROWS))


def generated(layers: int, kinds: int, seed: int) -> Problem:
    """A problem like those of practice; it may be infeasible, since one in four has limits."""
    draw = np.random.default_rng([seed, layers, kinds])
    devices = _devices(draw, kinds)
    facts = _facts(draw, layers)
    problem = _roofline(draw, devices, facts)
    limits = draw.random() < 0.25
    types = tuple(
        replace(one, limit=int(10 ** draw.uniform(1.0, 4.0)) if limits else UNLIMITED)
        for one in problem.types
    )
    fixed = float(draw.choice([0.0, 1.0, 5.0]))
    return replace(
        problem,
        types=types,
        fixed_usd_per_hour=fixed,
        throughput=float(draw.uniform(0.05, 0.95)) * _serial_bound(draw, problem),
    )


def _devices(draw: np.random.Generator, kinds: int) -> Floats:
    """A CPU core in nine problems of ten, and GPUs: all figures of the table times exp(normal(0, 0.25))."""
    gpus = draw.choice(np.arange(1, len(_DEVICES)), min(kinds, len(_DEVICES) - 1), replace=False)
    rows = np.sort(gpus)[:kinds]
    if draw.random() < 0.9:
        rows[0] = 0
    made: Floats = _DEVICES[rows] * np.exp(draw.normal(0, 0.25, (len(rows), _DEVICES.shape[1])))
    return made


@dataclass(frozen=True, slots=True)
class _Facts:
    """Per layer and batch: operations, bytes moved, of dense parameters, of rows touched, handed on."""

    batch: int
    kinds: tuple[str, ...]
    numbers: Floats  # [layer, 5]


def _facts(draw: np.random.Generator, layers: int) -> _Facts:
    batch = int(draw.choice([512, 1024, 4096]))
    width, slots = int(draw.choice([256, 512, 1024, 2048])), int(draw.choice([8, 26, 100]))
    embeddings = {0} if draw.random() < 0.8 else set()
    embeddings |= {int(layer) for layer in draw.integers(0, layers, int(draw.choice([0, 0, 1, 2])))}
    kinds, numbers = [], []
    for layer in range(layers):
        dice = draw.random()
        if layer in embeddings:
            rows, dim = batch * slots * draw.uniform(0.2, 1.0), int(draw.choice([8, 16, 64]))
            kinds.append("embedding")
            numbers.append((0.0, 16.0 * rows * dim, 0.0, 4.0 * rows * dim, 4.0 * batch * slots * dim))
        elif dice < 0.3:
            kinds.append(str(draw.choice(["pooling", "concat", "norm", "loss"])))
            dense = 8.0 * width if kinds[-1] == "norm" else 0.0
            numbers.append((0.0, 24.0 * batch * width, dense, 0.0, 4.0 * batch * width))
        else:
            kinds.append(str(draw.choice(["fully_connected", "fully_connected", "attention", "convolution"])))
            after = int(np.clip(width * draw.choice([0.5, 1, 1, 1, 2]), 16, 8192))
            work, weights = 6.0 * batch * width * after, 4.0 * width * after
            repeats = 1.0 if kinds[-1] == "fully_connected" else float(draw.uniform(1, 30))
            moved = 3 * weights + 12.0 * batch * (width + after)
            numbers.append((work * repeats, moved, weights, 0.0, 4.0 * batch * after))
            width = after
    return _Facts(batch, tuple(kinds), np.array(numbers))


def _roofline(draw: np.random.Generator, devices: Floats, facts: _Facts) -> Problem:
    flops, moved, dense, touched, out = facts.numbers.T[:, :, None]
    speed, memory, link, price = devices.T
    launch = np.where(price < 0.2, 4e-6, 2e-5)
    jitter = np.exp(draw.normal(0, 0.2, (len(flops), len(devices))))
    shared = np.maximum(flops / speed, moved / memory) * jitter
    serial = (launch + 3 * dense / memory) * draw.uniform(0.3, 1.0, jitter.shape)
    ring = np.where(dense > 0, dense / link + 6e-5, 0.0)
    rows = np.where(touched > 0, 2.2 * touched / NETWORK_BYTES_PER_S + 6e-5, 0.0) * np.ones_like(jitter)
    data = ring + rows
    cross = 2 * out[:, 0] / NETWORK_BYTES_PER_S
    cross[-1] = 0.0
    return make_problem(
        batch=facts.batch,
        throughput=1.0,
        types=tuple(
            DevicePool(f"{'cpu' if usd < 0.2 else 'gpu'}{index}", float(usd))
            for index, usd in enumerate(price)
        ),
        layers=tuple(f"layer{index}" for index in range(len(flops))),
        kinds=facts.kinds,
        oct_s=shared + serial,
        odt_s=data,
        alpha=shared / (shared + serial),
        beta=np.where(data > 0, 0.93 * rows / np.maximum(data, 1e-12), 1.0),
        cross_s=cross,
    )


def _serial_bound(draw: np.random.Generator, problem: Problem) -> float:
    """The throughput at which the serial time of the best of many random plans is the whole stage time."""
    from berth.plan.search.assignments import AssignmentSpace

    plans = AssignmentSpace(problem, draw).random_runs(400)
    stated = problem.stated
    assert stated is not None
    serial = stated.oct_s * (1 - stated.alpha), stated.odt_s * (1 - stated.beta)
    longest = np.zeros(len(plans))
    fills = [np.zeros(len(plans)) for _ in serial]
    for layer in range(plans.shape[1]):
        goes_on = layer > 0 and plans[:, layer] == plans[:, layer - 1]
        fills = [
            fill * goes_on + times[layer, plans[:, layer]] for fill, times in zip(fills, serial, strict=True)
        ]
        longest = np.maximum(longest, np.maximum(*fills))
    return float(problem.batch / longest.min())
