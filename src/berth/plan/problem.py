"""A planning problem: layers, device types with prices and limits, and the throughput to hold.

A problem is plain numbers. It is built from a layer profile and a cluster (`berth.plan.world_problem`) or stated as
JSON (`berth.plan.problem_json`, `make_problem`). A plan cuts the layers into stages anywhere; each stage has a choice
(a device type and a place for its tables) and replicas. One step trains a batch. With k replicas and m micro-batches
one call of a stage has u = batch / (k m) examples, and its step takes

    w_max * max(c, i, o) + w_sum * (c + i + o) + optimiser + loop + all-reduce(k)

with the curves at u: c computation, i and o what comes in and goes out over its share of the machine's NIC. Of rows
that devices hold for each other, (k - 1) / k move. `Schedule` has the weights.
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
    from berth.plan.world import ProblemSource

UNLIMITED = 10**9  # devices of a type without a limit: more than can be rented
SMALLEST, LARGEST = 1e-18, 1e18  # products and quotients of a few such numbers neither underflow nor overflow

Floats = NDArray[np.float64]

# Facts of a layer, summed over the layers of a stage.
FORBIDDEN, OPTIMISER_S, SYNC_BYTES, HELD_BYTES, EXAMPLE_BYTES, SHARDED_BYTES, SERVED_BYTES, HAS_TABLES = (
    range(8)
)
FACTS = 8
# Curves over the examples of a call: seconds of one replica, then of one server core, then the seconds, in as well as
# out, that rows in the memory of devices would take if none were in its own.
COMPUTE, IN, OUT, SERVER_CPU, SERVER_NIC, EXCHANGE = range(6)
CURVES = 6

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class DevicePool:
    """The devices of one type: the price of one, how many there are, and the memory of one (None: enough)."""

    name: str
    usd_per_hour: float
    limit: int = UNLIMITED
    memory_bytes: float | None = None
    unit: int = 1  # devices that are rented together: those of a machine where only whole ones are rented


@dataclass(frozen=True, slots=True)
class Choice:
    """What a stage can run on: a device type, and where its tables are."""

    device: int
    tables: str = ""  # "", servers, disk, machine, replicas
    cap: int = UNLIMITED  # replicas of one stage with tables


@dataclass(frozen=True, slots=True)
class HostPool:
    """The cores that run parameter servers and readers."""

    device: int = -1  # index of their type; -1: not one of the problem's types
    usd_per_hour: float = 0.0
    memory_bytes: float = np.inf  # of one core
    unit: int = 1
    readers_s: float = 0.0  # core-seconds of reading one batch


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the stages of one step follow each other: the weights of a stage's curves in its step time.

    Sync: m micro-batches pass all stages and their links, so a step takes at most (m - 1) times the slowest of
    them plus the way of one micro-batch through all; each of S stages is allowed 1/S of that way. Async, and problems
    stated in JSON, count the throughput only: the larger of computation and data.
    """

    micro: int
    stages: int  # at most this many; 0: any number
    w_max: float
    w_sum: float
    in_flight: int  # micro-batches whose activations a replica holds


@dataclass(frozen=True, slots=True)
class StatedTimes:
    """The figures of a problem that is stated in JSON; seconds per batch on ONE device, [layer, type] or [layer]."""

    oct_s: Floats
    odt_s: Floats
    alpha: Floats  # fraction of the computation that replicas divide among them (Amdahl's law)
    beta: Floats  # the same of the communication
    cross_s: Floats  # data time added to both stages at a boundary after this layer
    replicated_bytes: Floats  # held by every replica of the layer's stage
    sharded_bytes: Floats  # divided among them


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that the cost of a plan depends on."""

    batch: float  # examples of one step
    throughput: float
    samples: float
    types: tuple[DevicePool, ...]
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    allowed: NDArray[np.bool_]  # [layer, type]
    choices: tuple[Choice, ...]
    grid: Floats  # [point]: examples of one call, from 0
    facts: Floats  # [choice, layer, fact]
    curves: Floats  # [choice, layer, curve, point]
    cross: Floats  # [choice, layer, 3]: after this layer, per example: NIC seconds forward and backward, computing
    ring: Floats  # [type, 2, replicas]: seconds per byte, and seconds, of an all-reduce among 0, 1, 2 .. replicas
    host: HostPool = HostPool()
    max_replicas: int = UNLIMITED  # of one stage
    # [choice, 2]: of every call at each boundary: seconds in and out, and computing
    message: Floats | None = None
    loop_s: float = 0.0  # of every stage, once per step
    epochs: float = 1.0
    fixed_usd_per_hour: float = 0.0
    micro: tuple[int, ...] = ()  # micro-batches to choose from; (): steps are not pipelined
    stated: StatedTimes | None = None
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

    def schedules(self, stages: int) -> tuple[Schedule, ...]:
        """Return the schedules of plans with at most this many stages (0: any number, as if it were one)."""
        if not self.micro:
            return (Schedule(1, 0, 1.0, 0.0, 1),)
        return tuple(pipelined(micro, stages, stages) for micro in self.micro)

    @property
    def most_usd_per_hour(self) -> float:
        """Price of everything that can be rented; infinite if cores outside the types are needed."""
        outside = self.host.readers_s > 0 or bool(self.facts[..., SERVED_BYTES].any())
        if self.host.device < 0 and outside:
            return float("inf")
        return sum(one.usd_per_hour * one.limit for one in self.types)

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
        return self.allowing(allowed)

    def without(self, type_name: str) -> Problem:
        """Return the problem in which no layer may run on this type."""
        allowed = self.allowed.copy()
        allowed[:, self.type_index(type_name)] = False
        return self.allowing(allowed)

    def allowing(self, allowed: NDArray[np.bool_]) -> Problem:
        """Return the problem in which each layer may run on these types, [layer, type]."""
        facts = self.facts.copy()
        devices = [choice.device for choice in self.choices]
        facts[:, :, FORBIDDEN] = ~allowed.T[devices]
        return replace(self, allowed=allowed, facts=facts)

    def by_place(self) -> tuple[tuple[Problem, tuple[int, ...]], ...]:
        """Return the problem with all tables in one place, for each place, and the rows of its choices here."""
        places = dict.fromkeys(choice.tables for choice in self.choices)
        found = []
        for place in places:
            rows = [row for row, choice in enumerate(self.choices) if choice.tables == place]
            one = replace(
                self,
                choices=tuple(self.choices[row] for row in rows),
                facts=self.facts[rows],
                curves=self.curves[rows],
                cross=self.cross[rows],
                message=None if self.message is None else self.message[rows],
            )
            found.append((one, tuple(rows)))
        return tuple(found)

    def layer_index(self, name: str) -> int:
        """Return the index of a layer."""
        if name not in self.layers:
            raise UnknownNameError("layer", name, self.layers)
        return self.layers.index(name)

    def choice_index(self, type_name: str, tables: str) -> int:
        """Return the index of a type with a place for tables; the type's first choice where tables do not matter."""
        device = self.type_index(type_name)
        places = {choice.tables: row for row, choice in enumerate(self.choices) if choice.device == device}
        if tables and tables not in places:
            raise UnknownNameError("place for tables", tables, places)
        return places[tables] if tables else min(places.values())

    def type_index(self, name: str) -> int:
        """Return the index of a device type."""
        if name not in self.type_names:
            raise UnknownNameError("device type of this problem", name, self.type_names)
        return self.type_names.index(name)


def pipelined(micro: int, stages: int, ways: int) -> Schedule:
    """Return the schedule of at most `stages` stages, each of which is allowed 1/`ways` of the way through all."""
    return Schedule(micro, stages, micro - 1.0, float(ways), min(micro, 2 * max(1, ways) - 1))


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
    """Return a checked problem with Amdahl's law; by default crossings are free, memory is enough, all is allowed.

    A stage of k replicas takes the larger of the sums of oct_s (1 - alpha + alpha / k) and of
    odt_s (1 - beta + beta / k) + cross_s / k at its boundaries.
    """
    shape, rows = (len(layers), len(types)), (len(layers),)

    def matrix(given: Any, dtype: Any = np.float64) -> Any:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(given, dtype=dtype), shape))

    def column(given: Any) -> Floats:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(0.0 if given is None else given, float), rows))

    stated = StatedTimes(
        matrix(oct_s),
        matrix(odt_s),
        matrix(alpha),
        matrix(beta),
        column(cross_s),
        column(replicated_bytes),
        column(sharded_bytes),
    )
    numbers = float(batch), float(throughput), float(samples)
    _check_stated(stated, layers, types, numbers)
    problem = Problem(
        batch=numbers[0],
        throughput=numbers[1],
        samples=numbers[2],
        types=types,
        layers=layers,
        kinds=kinds or ("layer",) * len(layers),
        allowed=matrix(True if allowed is None else allowed, bool),
        choices=tuple(Choice(device) for device in range(len(types))),
        grid=np.array([0.0, numbers[0]]),
        facts=_stated_facts(stated),
        curves=_stated_curves(stated),
        cross=_stated_crossings(stated, numbers[0]),
        ring=np.zeros((len(types), 2, 2)),
        epochs=float(epochs),
        fixed_usd_per_hour=float(fixed_usd_per_hour),
        stated=stated,
    )
    return checked(problem.allowing(problem.allowed))


def _stated_crossings(stated: StatedTimes, batch: float) -> Floats:
    layers, types = stated.oct_s.shape
    cross = np.zeros((types, layers, 3))
    cross[:, :, :2] = (stated.cross_s / batch)[None, :, None]
    return cross


def _stated_facts(stated: StatedTimes) -> Floats:
    layers, types = stated.oct_s.shape
    facts = np.zeros((types, layers, FACTS))
    facts[:, :, HELD_BYTES] = stated.replicated_bytes
    facts[:, :, SHARDED_BYTES] = stated.sharded_bytes
    return facts


def _stated_curves(stated: StatedTimes) -> Floats:
    layers, types = stated.oct_s.shape
    curves = np.zeros((types, layers, CURVES, 2))
    curves[:, :, COMPUTE, 0], curves[:, :, COMPUTE, 1] = (stated.oct_s * (1 - stated.alpha)).T, stated.oct_s.T
    curves[:, :, IN, 0], curves[:, :, IN, 1] = (stated.odt_s * (1 - stated.beta)).T, stated.odt_s.T
    return curves


def _check_stated(
    stated: StatedTimes,
    layers: tuple[str, ...],
    types: tuple[DevicePool, ...],
    numbers: tuple[float, float, float],
) -> None:
    if not layers:
        raise InputError("the model has no layers", hint="a plan needs at least one")
    if not types:
        raise InputError("there is no device type", hint="give at least one with a price")
    for name, value in zip(("batch", "throughput", "samples"), numbers, strict=True):
        _check_number(name, value, least=0.0, strictly=True)
    for name, values, most in (
        ("computation time (oct)", stated.oct_s, LARGEST),
        ("communication time (odt)", stated.odt_s, LARGEST),
        ("alpha", stated.alpha, 1.0),
        ("beta", stated.beta, 1.0),
    ):
        _check_matrix(layers, types, name, values, strictly=name.startswith("computation"), most=most)
    for name, column in (
        ("crossing time", stated.cross_s),
        ("replicated bytes", stated.replicated_bytes),
        ("sharded bytes", stated.sharded_bytes),
    ):
        for layer, value in zip(layers, column, strict=True):
            _check_number(f"{name} of {layer}", float(value), least=0.0)


def checked(problem: Problem) -> Problem:
    """Return the problem; raise an `InputError` if it can't be planned."""
    _check_unique("layer", problem.layers)
    _check_unique("device type", problem.type_names)
    for name, value in (
        ("batch", problem.batch),
        ("throughput", problem.throughput),
        ("samples", problem.samples),
        ("epochs", problem.epochs),
    ):
        _check_number(name, value, least=0.0, strictly=True)
    _check_number("fixed price", problem.fixed_usd_per_hour, least=0.0)
    for one in problem.types:
        _check_number(f"price of {one.name}", one.usd_per_hour, least=0.0, strictly=True)
        _check_number(f"limit of {one.name}", one.limit, least=0.0)
        if one.memory_bytes is not None:
            _check_number(f"memory of {one.name}", one.memory_bytes, least=0.0, strictly=True)
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
    layers: tuple[str, ...],
    types: tuple[DevicePool, ...],
    name: str,
    values: Floats,
    *,
    strictly: bool,
    most: float,
) -> None:
    low = values < (SMALLEST if strictly else 0.0)
    for row, column in np.argwhere(~np.isfinite(values) | low | (values > most))[:1]:
        where = f"{name} of layer {layers[row]!r} on {types[column].name}"
        if most == 1:
            raise InputError(f"{where} is {values[row, column]:g}", hint="a number from 0 to 1 is expected")
        _check_number(where, values[row, column], least=0.0, strictly=strictly)
