"""Plans that people choose without a search: all on CPU cores, all on one kind of GPU, or the two by rule.

A type is a CPU if its name begins with "cpu" or the device catalogue says so. In a bare problem, whose names
say nothing, the cheapest unit stands for the CPU, and the note says that.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from berth.cluster.catalogue import known_devices, resolve
from berth.plan.evaluate import Types
from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Method, Outcome, Progress, Search
from berth.plan.search.moves import Moves

_DATA_HEAVY = ("emb", "sparse", "lookup")  # beginnings of the kinds of layers that move rows


def cpu_types(problem: Problem) -> tuple[list[int], str]:
    """The types that are CPUs, and what has to be said about that."""
    devices = [_device_kind(name) for name in problem.type_names]
    cpus = [index for index, kind in enumerate(devices) if kind == "cpu"]
    if cpus:
        return cpus, ""
    if all(kind == "gpu" for kind in devices):
        return [], "no type is a CPU"
    cheapest = int(np.argmin([one.usd_per_hour for one in problem.types]))
    return [cheapest], f"no type is called cpu: {problem.type_names[cheapest]}, the cheapest, stands for it"


def _device_kind(name: str) -> str | None:
    if name.lower().startswith("cpu"):
        return "cpu"
    known = resolve(name)
    return known_devices()[known].device.kind if known else None


def _fixed(name: str, problem: Problem, budget: Budget, progress: Progress | None = None) -> Outcome:
    search = Search(problem, budget, progress)
    cpus, note = cpu_types(problem)
    gpus = [kind for kind in range(len(problem.types)) if kind not in cpus]
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if name != "cpu-only" and not gpus:
        note = "no type is a GPU"
    if moves.stuck:
        return search.nowhere(name)
    plans = np.unique(_PLANS[name](problem, cpus, gpus), axis=0)
    if len(plans):
        search.evaluate(plans[: search.left])
        search.report()
        if search.evaluate.best is None:
            note = "; ".join(filter(None, [note, "no such plan is feasible"]))
    return search.outcome(name, note=note)


def _uniform(problem: Problem, kinds: list[int]) -> Types:
    return np.array([[kind] * len(problem.layers) for kind in kinds], np.int64).reshape(
        -1, len(problem.layers)
    )


def _by_rule(problem: Problem, cpus: list[int], gpus: list[int]) -> Types:
    """The first layer on a CPU, or all layers that move rows; the others on one type of GPU."""
    first = np.arange(len(problem.layers)) == 0
    heavy = first | np.array([kind.lower().startswith(_DATA_HEAVY) for kind in problem.kinds])
    plans = [np.where(on_cpu, cpu, gpu) for cpu in cpus for gpu in gpus for on_cpu in (first, heavy)]
    return np.array(plans, np.int64).reshape(-1, len(problem.layers))


_PLANS = {
    "cpu-only": lambda problem, cpus, gpus: _uniform(problem, cpus),
    "gpu-only": lambda problem, cpus, gpus: _uniform(problem, gpus),
    "heuristic": _by_rule,
}

METHODS: dict[str, Method] = {name: partial(_fixed, name) for name in _PLANS}
