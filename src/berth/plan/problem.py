"""A planning problem: layers, device types with prices and limits, and the throughput to hold.

Times are seconds per batch on ONE device; `alpha` and `beta` are the fractions of computation and of communication
that replicas divide among them (Amdahl's law). A problem is plain numbers. It is built from a layer profile and a
cluster (`berth.plan.build`) or read from JSON (`berth.plan.problem_json`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.plan.arrays import ProblemArrays
    from berth.plan.build import ProblemSource

UNLIMITED = 10**9  # devices of a type without a limit: more than can be rented
SMALLEST, LARGEST = 1e-18, 1e18  # products and quotients of a few such numbers neither underflow nor overflow

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DevicePool:
    """The devices of one type: the price of one, how many there are, and the memory of one (None: enough)."""

    name: str
    usd_per_hour: float
    limit: int = UNLIMITED
    memory_bytes: float | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that the cost of a plan depends on; arrays have shape [layer, type] or [layer]."""

    batch: float
    throughput: float
    samples: float
    types: tuple[DevicePool, ...]
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    oct_s: Floats
    odt_s: Floats
    alpha: Floats
    beta: Floats
    cross_s: Floats  # data time added to both stages when the next layer is on another type
    replicated_bytes: Floats  # held by every replica of the layer's stage
    sharded_bytes: Floats  # divided among them
    allowed: NDArray[np.bool_]
    epochs: float = 1.0
    fixed_usd_per_hour: float = 0.0
    source: ProblemSource | None = None  # the profile and cluster it was built from

    @property
    def type_names(self) -> tuple[str, ...]:
        """Names of the device types, in order."""
        return tuple(one.name for one in self.types)

    @cached_property
    def arrays(self) -> ProblemArrays:
        """The numbers as the kernels read them."""
        from berth.plan.arrays import problem_arrays

        return problem_arrays(self)

    def at(self, throughput: float) -> Problem:
        """Return the problem at another throughput."""
        return replace(self, throughput=throughput)

    def with_limits(self, limits: dict[str, int]) -> Problem:
        """Return the problem with other limits on the given types."""
        types = tuple(replace(one, limit=limits.get(one.name, one.limit)) for one in self.types)
        return replace(self, types=types)

    def pinned(self, layer: str, type_name: str) -> Problem:
        """Return the problem in which the layer may run on this type only."""
        allowed = self.allowed.copy()
        row, column = self.layer_index(layer), self.type_index(type_name)
        allowed[row, :] = False
        allowed[row, column] = self.allowed[row, column]
        return replace(self, allowed=allowed)

    def without(self, type_name: str) -> Problem:
        """Return the problem in which no layer may run on this type."""
        allowed = self.allowed.copy()
        allowed[:, self.type_index(type_name)] = False
        return replace(self, allowed=allowed)

    def layer_index(self, name: str) -> int:
        """Return the index of a layer."""
        if name not in self.layers:
            raise UnknownNameError("layer", name, self.layers)
        return self.layers.index(name)

    def type_index(self, name: str) -> int:
        """Return the index of a device type."""
        if name not in self.type_names:
            raise UnknownNameError("device type of this problem", name, self.type_names)
        return self.type_names.index(name)

    def serving_usd(self, throughput: float) -> float:
        """Return the cost of reading examples and serving rows, which the prices of plans leave out.

        It is 0 for a problem without a source.
        """
        if self.source is None:
            return 0.0
        cores = self.source.serving_cores(throughput)
        hours = self.epochs * self.samples / throughput / 3600
        return hours * cores.total * cores.core_usd_per_hour


def make_problem(
    *,
    batch: float,
    throughput: float,
    types: tuple[DevicePool, ...],
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
    """Return a checked problem; by default crossings cost nothing, memory is enough and all types are allowed."""
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
    """Return the problem; raise an `InputError` if it can't be planned."""
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
    return problem


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
