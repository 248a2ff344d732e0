"""A planning problem: layers, kinds of devices with prices and limits, and the throughput wanted.

Times are seconds per batch on ONE unit; `alpha` and `beta` are the fractions of computation and of
communication that more units share (Amdahl). A problem is plain numbers: it comes from a profile and a
cluster, or from a JSON document that anybody can write and check.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.plan.tables import Tables

UNLIMITED = 10**9  # units of a type without a limit: more than anybody can rent
SMALLEST, LARGEST = 1e-18, 1e18  # what quotients and products of a few numbers do not turn into 0 or infinity

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UnitType:
    """A kind of device: what one unit costs, how many there are in all, what one holds (None: enough)."""

    name: str
    usd_per_hour: float
    limit: int = UNLIMITED
    memory_bytes: float | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that the cost of a plan depends on; arrays are [layer, type] or [layer]."""

    batch: float
    throughput: float
    samples: float
    types: tuple[UnitType, ...]
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    oct_s: Floats
    odt_s: Floats
    alpha: Floats
    beta: Floats
    cross_s: Floats  # data time added to both stages when the next layer is on another type
    replicated_bytes: Floats  # held by every unit of the layer's stage
    sharded_bytes: Floats  # divided among them
    allowed: NDArray[np.bool_]
    epochs: float = 1.0
    fixed_usd_per_hour: float = 0.0

    @property
    def type_names(self) -> tuple[str, ...]:
        """The types in their order."""
        return tuple(one.name for one in self.types)

    @cached_property
    def tables(self) -> Tables:
        """The same numbers as the kernels want them."""
        from berth.plan.tables import tables

        return tables(self)

    def at(self, throughput: float) -> Problem:
        """The same problem at another throughput."""
        return replace(self, throughput=throughput)

    def with_limits(self, limits: dict[str, int]) -> Problem:
        """The same problem with other limits."""
        types = tuple(replace(one, limit=limits.get(one.name, one.limit)) for one in self.types)
        return replace(self, types=types)

    def pinned(self, layer: str, type_name: str) -> Problem:
        """The layer runs on this type and no other."""
        allowed = self.allowed.copy()
        row, column = self.layer_index(layer), self.type_index(type_name)
        allowed[row, :] = False
        allowed[row, column] = self.allowed[row, column]
        return replace(self, allowed=allowed)

    def without(self, type_name: str) -> Problem:
        """No layer runs on this type."""
        allowed = self.allowed.copy()
        allowed[:, self.type_index(type_name)] = False
        return replace(self, allowed=allowed)

    def layer_index(self, name: str) -> int:
        """A layer by name."""
        if name not in self.layers:
            raise UnknownNameError("layer", name, self.layers)
        return self.layers.index(name)

    def type_index(self, name: str) -> int:
        """A type by name."""
        if name not in self.type_names:
            raise UnknownNameError("device type of this problem", name, self.type_names)
        return self.type_names.index(name)

    def usd(self, stage_s: float, usd_per_hour: float) -> float:
        """What the whole training costs when an example takes `stage_s` at the bottleneck."""
        return self.epochs * self.samples * stage_s / 3600 * (self.fixed_usd_per_hour + usd_per_hour)


def make_problem(
    *,
    batch: float,
    throughput: float,
    types: tuple[UnitType, ...],
    layers: tuple[str, ...],
    oct_s: Any,
    odt_s: Any,
    alpha: Any,
    beta: Any,
    kinds: tuple[str, ...] | None = None,
    cross_s: Any = None,
    replicated_bytes: Any = None,
    sharded_bytes: Any = None,
    allowed: Any = None,
    samples: float = 1e9,
    epochs: float = 1.0,
    fixed_usd_per_hour: float = 0.0,
) -> Problem:
    """A checked problem; what is absent does not matter (no crossing cost, memory enough, all allowed)."""
    shape, rows = (len(layers), len(types)), (len(layers),)

    def matrix(given: Any, dtype: Any = np.float64) -> Any:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(given, dtype=dtype), shape))

    def column(given: Any) -> Floats:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(0.0 if given is None else given, float), rows))

    problem = Problem(
        batch=float(batch),
        throughput=float(throughput),
        samples=float(samples),
        types=types,
        layers=layers,
        kinds=kinds or ("layer",) * len(layers),
        oct_s=matrix(oct_s),
        odt_s=matrix(odt_s),
        alpha=matrix(alpha),
        beta=matrix(beta),
        cross_s=column(cross_s),
        replicated_bytes=column(replicated_bytes),
        sharded_bytes=column(sharded_bytes),
        allowed=matrix(True if allowed is None else allowed, bool),
        epochs=float(epochs),
        fixed_usd_per_hour=float(fixed_usd_per_hour),
    )
    return checked(problem)


def checked(problem: Problem) -> Problem:
    """The problem itself, or an InputError for what nobody can plan with."""
    _check(problem)
    return problem


def _check(problem: Problem) -> None:
    if not problem.layers:
        raise InputError("the model has no layers", hint="a plan needs at least one")
    if not problem.types:
        raise InputError("there is no device type", hint="give at least one with a price")
    _check_unique("layer", problem.layers)
    _check_unique("device type", problem.type_names)
    for name, value in (("batch", problem.batch), ("throughput", problem.throughput)):
        _check_number(name, value, least=0.0, strictly=True)
    for name, value in (("samples", problem.samples), ("epochs", problem.epochs)):
        _check_number(name, value, least=0.0, strictly=True)
    _check_number("fixed price", problem.fixed_usd_per_hour, least=0.0)
    for one in problem.types:
        _check_number(f"price of {one.name}", one.usd_per_hour, least=0.0, strictly=True)
        _check_number(f"limit of {one.name}", one.limit, least=0.0)
        if one.memory_bytes is not None:
            _check_number(f"memory of {one.name}", one.memory_bytes, least=0.0, strictly=True)
    _check_matrix(problem, "computation time (oct)", problem.oct_s, strictly=True)
    _check_matrix(problem, "communication time (odt)", problem.odt_s)
    _check_matrix(problem, "alpha", problem.alpha, most=1.0)
    _check_matrix(problem, "beta", problem.beta, most=1.0)
    for name, values in (
        ("crossing time", problem.cross_s),
        ("replicated bytes", problem.replicated_bytes),
        ("sharded bytes", problem.sharded_bytes),
    ):
        for layer, value in zip(problem.layers, values, strict=True):
            _check_number(f"{name} of {layer}", float(value), least=0.0)


def _check_unique(what: str, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two {what}s are called {name!r}", hint="names must differ")


def _check_number(name: str, value: float, *, least: float, strictly: bool = False) -> None:
    if not np.isfinite(value) or value < least or (strictly and value == least):
        wanted = "a number above" if strictly else "a number not below"
        raise InputError(f"{name} is {value:g}", hint=f"{wanted} {least:g} is expected")
    if value > LARGEST or (strictly and value < SMALLEST):
        raise InputError(f"{name} is {value:g}", hint=f"berth plans with {SMALLEST:g} to {LARGEST:g}")


def _check_matrix(
    problem: Problem, name: str, values: Floats, *, strictly: bool = False, most: float = LARGEST
) -> None:
    low = values < (SMALLEST if strictly else 0.0)
    for row, column in np.argwhere(~np.isfinite(values) | low | (values > most))[:1]:
        where = f"{name} of layer {problem.layers[row]!r} on {problem.type_names[column]}"
        if most == 1:
            raise InputError(f"{where} is {values[row, column]:g}", hint="a number from 0 to 1 is expected")
        _check_number(where, values[row, column], least=0.0, strictly=strictly)
