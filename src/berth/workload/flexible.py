"""Generates jobs with alternatives for a cluster: data-parallel jobs on few or many GPUs, and jobs with CPU parts.

Times are formulas, not measurements. A data-parallel job has one global batch: on n devices each computes its n-th
part, beside a fixed share, and all of them reduce the gradients as the network model says. A plan-like job reads and
looks up rows on CPU cores and trains dense layers on GPUs; the slower side sets the pace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from berth.cluster.gpus import usable_types
from berth.cluster.memo import per_cluster
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.network.fabric import Fabric
from berth.network.iteration import iteration_time
from berth.network.spread import realise, spreads, usable_devices
from berth.workload.binding import bind_fitting, device_index
from berth.workload.distributions import load_durations
from berth.workload.profiles import load_profile
from berth.workload.shapes import NEAR, Offer, Part, Shape, Work, canonical
from berth.workload.streams import stream
from berth.workload.trace import Trace

KINDS = ("plan", "data-parallel", "mixed")
MODELS = ("resnet50", "vgg16", "bert-base", "bert-large", "gpt2", "transformer-xl")
_REFERENCE = 8  # devices on which each has the batch of its profile
_FIXED = 0.1  # share of a step's computation that does not shrink with the batch of a device
_SIZES = ((2, 4, 8), (4, 8, 16))
_BATCH = 4096.0
_GANGS = (1, 1, 2, 4, 8)  # sizes of ordinary gangs
# a plan-like job, per example: what a core looks up and reads, what crosses to the GPUs, and computing on a fast GPU
_ROWS_PER_CORE, _READS_PER_CORE, _CROSSING_BYTES = 9e3, 40e3, 1.5e3
_EXAMPLES_PER_GPU = 90e3  # where memory moves a terabyte per second
_CORE = "cpu-core"


@dataclass(frozen=True)
class FlexibleSpec:
    """What to generate; the load is what the cluster earns if every job runs in its cheapest shape."""

    jobs: int
    load: float
    kind: str = "mixed"  # of KINDS
    durations: str = "lognormal:1h:1"  # in the middle shape
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"jobs with alternatives: {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.jobs < 2 or not 0 < self.load <= 1000:
            raise InputError("jobs with alternatives: at least 2 jobs and a load above 0 are needed")


def generate_flexible(spec: FlexibleSpec, cluster: Cluster) -> Trace:
    """A trace for a cluster, with offers."""
    data_parallel, plans = data_parallel_classes(cluster), plan_classes(cluster)
    if not data_parallel or (spec.kind != "data-parallel" and not plans):
        raise InputError(f"{cluster.name} has too few device types for jobs with alternatives")
    draws = stream(spec.seed, "sizes").random((spec.jobs, 3))
    seconds = load_durations(spec.durations).draw(
        stream(spec.seed, "durations").random(spec.jobs), np.full(spec.jobs, _REFERENCE)
    )
    offers: dict[str, Offer] = {}
    sizes, dollars = np.zeros(spec.jobs, np.int64), np.zeros(spec.jobs)
    prices = _prices(cluster)
    for row, (kind, pick, size) in enumerate(draws):
        share = {"plan": 1.0, "data-parallel": 0.0, "mixed": 1 / 3}[spec.kind]
        if spec.kind == "mixed" and kind >= 2 / 3:
            sizes[row] = _GANGS[int(size * len(_GANGS))]
            dollars[row] = sizes[row] * min(prices.values()) * seconds[row]
            continue
        classes = plans if kind < share else data_parallel
        shapes = classes[int(pick * len(classes))]
        offer = _offer(shapes, float(seconds[row]))
        offers[str(row)] = offer
        sizes[row] = sum(offer.alternatives[0].devices.values())
        dollars[row] = min(offer.near_s(one) * _usd(one, prices) for one in shapes)
    span_s = float(dollars.sum()) / (spec.load * _usd_of(cluster, prices))
    submit_s = np.sort(stream(spec.seed, "arrivals").random(spec.jobs)) * span_s
    columns: dict[str, Any] = {
        "job_id": [str(row) for row in range(spec.jobs)],
        "submit_s": np.round(submit_s, 3),
        "num_gpu": sizes,
        "duration_s": [
            offers[str(row)].near_s(offers[str(row)].alternatives[0]) if str(row) in offers else seconds[row]
            for row in range(spec.jobs)
        ],
    }
    return Trace.from_columns(columns, source="generated", offers=offers)


def _offer(shapes: tuple[Shape, ...], seconds: float) -> Offer:
    """A job that takes this long in the middle of its shapes."""
    paces = sorted(Offer(Work(1.0), ()).near_s(one) for one in shapes)
    return canonical(Offer(Work(float(round(seconds / paces[len(paces) // 2]))), shapes))


def _prices(cluster: Cluster) -> dict[str, float]:
    """Dollars per hour of each type; where one is not known, all count by their number."""
    known = {kind.name: kind.usd_per_hour for kind in cluster.device_types}
    if any(price is None for price in known.values()):
        return dict.fromkeys(known, 1.0)
    return {name: price or 0.0 for name, price in known.items()}


def _usd(shape: Shape, prices: dict[str, float]) -> float:
    return sum(prices[name] * count for name, count in shape.devices.items())


def _usd_of(cluster: Cluster, prices: dict[str, float]) -> float:
    kinds = usable_types(cluster)
    return sum(prices[cluster.device_types[kind].name] * cluster.count_of(kind) for kind in kinds)


# Data-parallel jobs


@per_cluster
def data_parallel_classes(cluster: Cluster) -> list[tuple[Shape, ...]]:
    """For each model and pair of GPU types, the shapes on few and on many of each."""
    fabric = Fabric(cluster, 1.0)
    kinds = [cluster.device_types[index].name for index in usable_types(cluster)]
    found = []
    for model in MODELS:
        for pair in combinations(kinds, 2) if len(kinds) > 1 else [tuple(kinds)]:
            for sizes in _SIZES:
                shapes = [
                    shape for kind in pair for size in sizes for shape in _gang(model, kind, size, fabric)
                ]
                if len(shapes) > 1:
                    found.append(tuple(shapes))
    return found


def _gang(model: str, kind: str, size: int, fabric: Fabric) -> Iterator[Shape]:
    """The shape of a model on some GPUs of a type, if the cluster has them."""
    cluster = fabric.cluster
    usable = usable_devices(cluster, kind)
    if usable.sum() < size:
        return
    index = device_index(cluster, kind)
    assert index is not None
    traffic = load_profile(model).traffic(cluster.device_types[index])
    share = _FIXED + (1.0 - _FIXED) * _REFERENCE / size
    traffic = replace(traffic, compute_s=traffic.compute_s * share)
    steps: dict[int, float] = {}
    for spread in spreads(cluster, size, usable):
        placement = realise(cluster, spread, usable)
        if placement is not None and spread.tier not in steps:
            steps[spread.tier] = iteration_time(traffic, placement, fabric).seconds
    known = sorted(steps)
    table, slowest = [], 0.0
    for tier in range(known[0], len(cluster.tiers)):
        slowest = max(slowest, steps.get(tier, 0.0))
        table.append((cluster.tiers[tier].name, slowest))
    yield Shape(
        f"{size} {kind}",
        (Part("all", ((kind, size),), collective_bytes=traffic.all_reduce_bytes),),
        tuple(table),
        _BATCH,
    )


# Plan-like jobs


@per_cluster
def plan_classes(cluster: Cluster) -> list[tuple[Shape, ...]]:
    """Recommender jobs of different weight, each with GPUs of several types and the cores that keep up with them."""
    cores = cluster.count_of(index) if (index := device_index(cluster, _CORE)) is not None else 0
    found = []
    for weight in (0.5, 1.0, 2.0):  # of the dense layers
        shapes = []
        for kind in usable_types(cluster):
            for gpus in (1, 2, 4):
                shape = _with_cores(cluster, kind, gpus, weight)
                if (
                    shape is not None
                    and shape.devices[_CORE] <= cores // 4
                    and gpus <= cluster.count_of(kind)
                ):
                    shapes.append(shape)
        fitting = bind_fitting(Offer(Work(1.0), tuple(shapes)), cluster) if shapes else ()
        if len(fitting) > 1:
            found.append(tuple(one.shape for one in fitting))
    return found


def _with_cores(cluster: Cluster, kind: int, gpus: int, weight: float) -> Shape | None:
    device = cluster.device_types[kind]
    if not device.memory_bytes_per_s:
        return None
    pace = gpus**0.9 * _EXAMPLES_PER_GPU * device.memory_bytes_per_s / 1e12 / weight
    rows, readers = math.ceil(pace / _ROWS_PER_CORE), math.ceil(pace / _READS_PER_CORE)
    step_s = _BATCH / pace
    crossing = _BATCH * _CROSSING_BYTES
    table = [
        (tier.name, step_s + crossing * (tier.oversubscription - 1.0) / (gpus * tier.bytes_per_s))
        for tier in cluster.tiers[1:]
    ]
    parts = (
        Part("dense", ((device.name, gpus),), tier=cluster.tiers[min(1, len(cluster.tiers) - 1)].name),
        Part("rows", ((_CORE, rows),)),
        Part("readers", ((_CORE, readers),)),
    )
    return Shape(
        f"{gpus} {device.name} + {rows + readers} cores",
        parts,
        ((NEAR, step_s), *table),
        _BATCH,
        between_bytes=crossing,
    )
