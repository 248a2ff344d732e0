"""Traces, clusters and faults written down in one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from berth.cluster.catalogue import UNNAMED, device_type
from berth.cluster.model import Cluster, Machine
from berth.cluster.tiers import default_tiers
from berth.errors import InputError
from berth.schedule.records import Array
from berth.simulate.engine_state import FAULT, FaultKind
from berth.workload.trace import Trace

MachineText: TypeAlias = int | Mapping[str, int]  # devices, or devices of each type: {"V100": 4, "P100": 2}
ClusterText: TypeAlias = "MachineText | Sequence[ClusterText]"

_WHAT = {
    "fail": FaultKind.FAIL,
    "repair": FaultKind.REPAIR,
    "drain": FaultKind.DRAIN,
    "undrain": FaultKind.UNDRAIN,
}


def jobs(rows: Sequence[Sequence[Any]]) -> Trace:
    """A trace from (arrival in seconds, GPUs, duration in seconds[, model[, virtual cluster[, priority]]]).

    Jobs are called j0, j1, ...
    """
    columns: dict[str, list[Any]] = {
        "job_id": [f"j{number}" for number in range(len(rows))],
        "submit_s": [float(row[0]) for row in rows],
        "num_gpu": [int(row[1]) for row in rows],
        "duration_s": [float(row[2]) for row in rows],
        "model": [row[3] if len(row) > 3 else None for row in rows],
        "vc": [row[4] if len(row) > 4 else None for row in rows],
        "priority": [row[5] if len(row) > 5 else None for row in rows],
    }
    trace = Trace.from_columns(columns, source="test")  # counts from the first arrival
    first_s = min(columns["submit_s"])
    return replace(trace, frame=trace.frame.with_columns(pl.col("submit_s") + first_s))


def cluster(text: ClusterText) -> Cluster:
    """A cluster as nested lists of machines: `[[4, 4], [8]]` is a rack of two machines and a rack of one.

    A machine is a number of GPUs, or a number of each type: `{"V100": 4, "P100": 4}`. All machines are
    equally deep; every level of brackets is one more tier, and a bare number is one machine.
    """
    leaves = list(_leaves(text, ()))
    depth = len(leaves[0][0])
    if any(len(path) != depth for path, _ in leaves):
        raise InputError("all machines must be equally deep", hint="[[4, 4], [8]], not [[4, 4], 8]")
    names = list(dict.fromkeys(name for _, devices in leaves for name in devices))
    machines = tuple(
        Machine(
            f"m{number}",
            tuple((names.index(name), count) for name, count in devices.items()),
        )
        for number, (_, devices) in enumerate(leaves)
    )
    rows, group_names = [], []
    for level in range(depth + 1):
        paths = [path[: depth - level] for path, _ in leaves]
        numbers = {path: number for number, path in enumerate(dict.fromkeys(paths))}
        rows.append([numbers[path] for path in paths])
        group_names.append(tuple(f"{'mrgh'[min(level, 3)]}{number}" for number in numbers.values()))
    return Cluster(
        name="test",
        device_types=tuple(device_type(name) for name in names),
        tiers=default_tiers(depth + 1),
        machines=machines,
        groups=np.array(rows, dtype=np.int32),
        group_names=tuple(group_names),
    )


def faults(rows: Sequence[tuple[float, int, str]]) -> Array:
    """Faults from (seconds, number of the machine, "fail", "repair", "drain" or "undrain")."""
    return np.array([(time_s, machine, _WHAT[what]) for time_s, machine, what in sorted(rows)], FAULT)


def _leaves(text: ClusterText, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    if isinstance(text, int):
        return [(path, {UNNAMED: text})]
    if isinstance(text, Mapping):
        return [(path, dict(text))]
    found = [leaf for number, child in enumerate(text) for leaf in _leaves(child, (*path, number))]
    if not found:
        raise InputError("a cluster of no machines")
    return found
