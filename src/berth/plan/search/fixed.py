"""Plans without a search: all layers on CPU cores, all on one GPU type, or both by rule.

A type is a CPU if its name begins with "cpu" or the device catalogue says so. If no name is known, the cheapest type
counts as the CPU, and the note says so.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import known_devices, resolve
from berth.plan.evaluate import Assignments
from berth.plan.problem import Problem
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.method import AssignmentSearch, Search

_DATA_HEAVY = ("emb", "sparse", "lookup")  # prefixes of the kinds of layers that move rows


def cpu_types(problem: Problem) -> tuple[list[int], str]:
    """Return the types that are CPUs, and a note if that is a guess."""
    devices = [_device_kind(name) for name in problem.type_names]
    cpus = [index for index, kind in enumerate(devices) if kind == "cpu"]
    if cpus:
        return cpus, ""
    if all(kind == "gpu" for kind in devices):
        return [], "no type is a CPU"
    cheapest = int(np.argmin([one.usd_per_hour for one in problem.types]))
    return [cheapest], f"no type is called cpu: {problem.type_names[cheapest]}, the cheapest, counts as one"


def _device_kind(name: str) -> str | None:
    if name.lower().startswith("cpu"):
        return "cpu"
    known = resolve(name)
    return known_devices()[known].device.kind if known else None


def _fixed(name: str, search: Search, space: AssignmentSpace) -> str:
    problem = search.problem
    cpus, note = cpu_types(problem)
    gpus = [kind for kind in range(len(problem.types)) if kind not in cpus]
    if name != "cpu-only" and not gpus:
        note = "no type is a GPU"
    plans = np.unique(_PLANS[name](problem, cpus, gpus), axis=0)
    if len(plans):
        search.evaluate(plans[: search.remaining])
        search.report_progress()
        if search.evaluate.best is None:
            note = "; ".join(filter(None, [note, "no such plan is feasible"]))
    return note


def _uniform(problem: Problem, types: list[int]) -> Assignments:
    return np.array([[device] * len(problem.layers) for device in types], np.int64).reshape(
        -1, len(problem.layers)
    )


def is_data_heavy(problem: Problem) -> NDArray[np.bool_]:
    """Return for each layer whether it moves rows of tables, by its kind; the first layer always counts."""
    first = np.arange(len(problem.layers)) == 0
    heavy: NDArray[np.bool_] = first | np.array(
        [kind.lower().startswith(_DATA_HEAVY) for kind in problem.kinds]
    )
    return heavy


def _by_rule(problem: Problem, cpus: list[int], gpus: list[int]) -> Assignments:
    """Put the first layer, or all layers that move rows, on a CPU and the others on one GPU type."""
    first, heavy = np.arange(len(problem.layers)) == 0, is_data_heavy(problem)
    plans = [np.where(on_cpu, cpu, gpu) for cpu in cpus for gpu in gpus for on_cpu in (first, heavy)]
    return np.array(plans, np.int64).reshape(-1, len(problem.layers))


_PLANS = {
    "cpu-only": lambda problem, cpus, gpus: _uniform(problem, cpus),
    "gpu-only": lambda problem, cpus, gpus: _uniform(problem, gpus),
    "heuristic": _by_rule,
}

METHODS = {name: AssignmentSearch(name, partial(_fixed, name)) for name in _PLANS}
