"""The reference device: the one on which a trace's durations were taken.

A duration means nothing without its device. A job's own `device` column comes first, then the reference device of the
setting, then the most common GPU of the cluster. Durations are converted once, before a run, to seconds on the
cluster's first (fastest) type, model by model: by the modelled iteration at the job's nearest place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from berth.cluster.catalogue import known_devices, known_names, resolve
from berth.cluster.gpus import usable_types
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError, UnknownNameError
from berth.network.fabric import Fabric
from berth.network.traffic import Traffic
from berth.simulate.engine_state import NetworkMode
from berth.simulate.jobs import best_placements, draw_models, iteration_s
from berth.units import format_count
from berth.workload.mix import Mix
from berth.workload.profiles import load_profile
from berth.workload.trace import Trace


def reference_device(
    cluster: Cluster,
    name: str | DeviceType | None = None,
    *,
    where: str | None = None,
    what: str = "reference device",
) -> DeviceType:
    """The device called `name`, of the cluster or of the catalogue; by default the cluster's most common type.

    Of equally common types it is the first by name, so that the order in which they are written changes nothing.
    """
    if isinstance(name, DeviceType):
        return name
    if name is None:
        usable = sorted(
            usable_types(cluster),
            key=lambda index: (-cluster.count_of(index), cluster.device_types[index].name),
        )
        return cluster.device_types[usable[0]]
    known = resolve(name)
    own = [kind for kind in cluster.device_types if kind.name in (name, known)]
    if not own and known is None:
        names = {*(kind.name for kind in cluster.device_types), *known_names()}
        raise UnknownNameError(what, name, names, where=where)
    device = own[0] if own else known_devices()[str(known)].device
    if device.kind != "gpu":
        raise InputError(f"{what} {name} is not a GPU", where=where, hint="for example V100 or H100")
    return device


def reference_note(cluster: Cluster, reference: DeviceType, trace: Trace | None = None) -> str | None:
    """Says on which device durations were taken; None where all devices are that one, or no job states a duration."""
    jobs = None if trace is None else plain_frame(trace)
    if jobs is not None and jobs.is_empty():
        return None
    named = 0 if jobs is None else len(jobs) - jobs["device"].null_count()
    if not named and all(cluster.device_types[index] == reference for index in usable_types(cluster)):
        return None
    own = f"the device that a job names (of {named:,}), else " if named else ""
    some = ""
    if jobs is not None and trace is not None and trace.offers:
        some = f" of {format_count(len(jobs), 'job')} without alternatives"
    return f"durations{some}: taken on {own}{reference.name}; on other devices they follow modelled iteration times"


def plain_frame(trace: Trace) -> pl.DataFrame:
    """The rows of jobs without alternatives: their duration is stated, and their model matters."""
    if not trace.offers:
        return trace.frame
    return trace.frame.filter(~pl.col("job_id").is_in(list(trace.offers)))


def seconds_here(
    trace: Trace,
    cluster: Cluster,
    fabric: Fabric,
    network: int,
    mix: Mix,
    seed: int,
    reference: DeviceType,
) -> Trace:
    """The trace with durations in seconds on the cluster's first device type."""
    first = cluster.device_types[0]
    if reference == first and trace.frame["device"].null_count() == len(trace):
        return trace
    devices = _devices(trace, cluster, reference)
    models, _ = draw_models(trace, mix, seed)
    factors: dict[tuple[str, int, DeviceType], float] = {}
    factor = np.ones(len(trace))
    for row, key in enumerate(zip(models.tolist(), trace.num_gpu.tolist(), devices, strict=True)):
        if key not in factors:
            where = trace.place_of("model", key[0])
            factors[key] = _factor(*key, first, cluster, fabric, network, where)
        factor[row] = factors[key]
    return replace(trace, frame=trace.frame.with_columns(pl.Series("duration_s", trace.duration_s * factor)))


def _devices(trace: Trace, cluster: Cluster, reference: DeviceType) -> Sequence[DeviceType]:
    """The device of each job's duration."""
    names = trace.frame["device"]
    if names.null_count() == len(trace):
        return [reference] * len(trace)
    known = {
        name: reference_device(cluster, name, where=trace.place_of("device", name), what="device type")
        for name in names.drop_nulls().unique(maintain_order=True)
    }
    return [reference if name is None else known[name] for name in names]


def _factor(
    model: str,
    gpus: int,
    device: DeviceType,
    first: DeviceType,
    cluster: Cluster,
    fabric: Fabric,
    network: int,
    where: str,
) -> float:
    """Seconds on the first type per second on `device`; 1 for a job that fits nowhere."""
    if device == first or not best_placements(cluster, gpus):
        return 1.0
    profile = load_profile(model, where)
    here, there = (
        _nearest_s(profile.traffic(kind), gpus, cluster, fabric, network) for kind in (first, device)
    )
    return here / there


def _nearest_s(traffic: Traffic, gpus: int, cluster: Cluster, fabric: Fabric, network: int) -> float:
    """Seconds of an iteration at the nearest placement that the cluster has."""
    if gpus == 1 or network == NetworkMode.OFF:
        return traffic.compute_s
    placements = best_placements(cluster, gpus)
    return iteration_s(traffic, placements[min(placements)], fabric, network)
