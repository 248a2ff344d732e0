"""A problem that was built from a model and a cluster, as JSON: all arrays, so that its proof can be checked alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from berth.errors import SpecError
from berth.plan.problem import CURVES, FACTS, Choice, DevicePool, HostPool, Problem, checked

_ARRAYS = ("grid", "facts", "curves", "cross", "ring", "message")


def built_document(problem: Problem) -> dict[str, Any]:
    """Return the arrays of a problem as JSON data."""
    host = asdict(problem.host)
    host["memory_bytes"] = host["memory_bytes"] if np.isfinite(host["memory_bytes"]) else None
    return {
        "layers": list(problem.layers),
        "kinds": list(problem.kinds),
        "choices": [asdict(choice) for choice in problem.choices],
        "units": [one.unit for one in problem.types],
        "host": host,
        "max_replicas": problem.max_replicas,
        "loop_s": problem.loop_s,
        "micro": list(problem.micro),
        "allowed": problem.allowed.tolist(),
        **{name: _values(problem, name).tolist() for name in _ARRAYS},
    }


def _values(problem: Problem, name: str) -> Any:
    return getattr(problem.arrays if name == "message" else problem, name)


def built_problem(data: dict[str, Any], where: str) -> Problem:
    """Return the problem of a document with `built`."""
    try:
        problem = _built(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"is not a problem that berth wrote: {error}", where=where) from None
    choices, layers, points = len(problem.choices), len(problem.layers), len(problem.grid)
    shapes = {
        "facts": (choices, layers, FACTS),
        "curves": (choices, layers, CURVES, points),
        "cross": (choices, layers, 3),
        "message": (choices, 2),
        "allowed": (layers, len(problem.types)),
    }
    for name, shape in shapes.items():
        values = getattr(problem, name)
        if values.shape != shape or not np.isfinite(values).all():
            raise SpecError(f"its {name} are not numbers of shape {shape}", where=where)
    growing = [
        np.diff(problem.grid) > 0,
        np.diff(problem.curves, axis=-1) >= 0,
        np.diff(problem.ring, axis=-1) >= 0,
    ]
    if not all(part.all() for part in growing) or problem.ring.shape[:2] != (len(problem.types), 2):
        raise SpecError("its grid, curves and ring must not fall", where=where)
    return checked(problem)


def _built(data: dict[str, Any]) -> Problem:
    written = data["built"]
    host = dict(written["host"])
    host["memory_bytes"] = np.inf if host["memory_bytes"] is None else host["memory_bytes"]
    types = tuple(
        DevicePool(
            one["name"],
            float(one["usd_per_hour"]),
            10**9 if one.get("limit") is None else int(one["limit"]),
            one.get("memory_bytes"),
            int(unit),
        )
        for one, unit in zip(data["types"], written["units"], strict=True)
    )
    grid, facts, curves, cross, ring, message = (np.array(written[name], float) for name in _ARRAYS)
    return Problem(
        batch=float(data["batch"]),
        throughput=float(data["throughput"]),
        samples=float(data["samples"]),
        epochs=float(data["epochs"]),
        fixed_usd_per_hour=float(data["fixed_usd_per_hour"]),
        types=types,
        layers=tuple(written["layers"]),
        kinds=tuple(written["kinds"]),
        choices=tuple(Choice(**choice) for choice in written["choices"]),
        host=HostPool(**host),
        max_replicas=int(written["max_replicas"]),
        message=message,
        loop_s=float(written["loop_s"]),
        micro=tuple(int(one) for one in written["micro"]),
        allowed=np.array(written["allowed"], bool),
        grid=grid,
        facts=facts,
        curves=curves,
        cross=cross,
        ring=ring,
    )
