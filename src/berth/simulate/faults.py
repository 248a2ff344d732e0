"""Machines that fail and are repaired, or are drained for a while: drawn once, from a seed, in order of time.

Each machine has a random stream of its own, so the others' faults stay as they were when a machine is added
or a drain is planned. Times between failures and times to repair are exponential. Every failure comes with
its repair, also after the horizon: no machine stays down forever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from berth import reproducible
from berth.cluster.model import Cluster
from berth.errors import InputError, QuantityError, UnknownNameError
from berth.schedule.records import Array
from berth.simulate.engine_state import FAULT, FaultKind
from berth.units import seconds
from berth.workload.streams import stream
from berth.workload.trace import Trace

_HINT = "write it like mtbf=30d,mttr=4h,seed=1 or drain=r0-m3@2d+6h"
MOST_FAULTS = 10_000_000
_PAIR = {FaultKind.FAIL: FaultKind.REPAIR, FaultKind.DRAIN: FaultKind.UNDRAIN}


@dataclass(frozen=True, slots=True)
class Drain:
    """A machine that takes no new job from `start_s` on, for `for_s`; what runs there goes on."""

    machine: str
    start_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """What is to go wrong."""

    mtbf_s: float = math.inf  # of one machine: mean time from a repair to the next failure
    mttr_s: float = 4 * 3600.0
    seed: int = 0
    drains: tuple[Drain, ...] = ()

    @property
    def random(self) -> bool:
        """Whether another seed gives other faults."""
        return self.mtbf_s < math.inf

    def at(self, seed: int) -> FaultSpec:
        """The same with `seed` added to its own."""
        return replace(self, seed=self.seed + seed)

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0 or not 0 < self.mttr_s < math.inf:
            raise InputError("mtbf and mttr must be above zero", hint=_HINT)


def parse_faults(text: str) -> FaultSpec:
    """`mtbf=30d,mttr=4h,seed=1`, and any number of `drain=machine@start+length`."""
    mtbf_s, mttr_s, seed = math.inf, 4 * 3600.0, 0
    drains: list[Drain] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"faults: {part!r} gives no value", hint=_HINT)
        if key == "mtbf":
            mtbf_s = seconds(value)
        elif key == "mttr":
            mttr_s = seconds(value)
        elif key == "seed":
            seed = _whole(value)
        elif key == "drain":
            drains.append(_drain(value))
        else:
            raise UnknownNameError("fault setting", key, ("mtbf", "mttr", "seed", "drain"))
    return FaultSpec(mtbf_s, mttr_s, seed, tuple(drains))


def draw_faults(spec: FaultSpec, cluster: Cluster, horizon_s: float) -> Array:
    """The faults of all machines in order of time; failures happen up to the horizon."""
    expected = len(cluster.machines) * horizon_s / spec.mtbf_s
    if not expected < MOST_FAULTS:
        raise InputError(f"about {expected:.0f} failures are beyond what berth takes", hint="a longer mtbf")
    rows = [row for drain in spec.drains for row in _drained(drain, cluster)]
    if spec.random:
        for machine in range(len(cluster.machines)):
            rows += _failures(spec, machine, horizon_s)
    rows.sort()
    return np.array(rows, FAULT)


def faults_of(planned: Array, spec: FaultSpec | None, seed: int, trace: Trace, cluster: Cluster) -> Array:
    """The planned faults together with those that `spec` draws at `seed`, checked and in order of time.

    They depend on the trace and the cluster, and on nothing that a policy does.
    """
    if spec is not None:
        drawn = draw_faults(spec.at(seed), cluster, horizon_of(trace, cluster))
        planned = np.sort(np.concatenate([planned, drawn]), order=("time", "machine", "what"))
    check_faults(planned, cluster)
    return planned


def horizon_of(trace: Trace, cluster: Cluster) -> float:
    """A time by which any reasonable policy is through with a trace: failures are drawn until then."""
    busy_s = trace.gpu_seconds / max(1, cluster.devices)
    return trace.span_s + 4.0 * busy_s + 10.0 * float(trace.duration_s.max(initial=0.0))


def check_faults(faults: Array, cluster: Cluster) -> None:
    """Refuses faults that can't be played: unknown machines, times out of order, ends of nothing."""
    if not len(faults):
        return
    if not np.isfinite(faults["time"]).all() or (np.diff(faults["time"]) < 0).any():
        raise InputError("faults must be in order of time")
    if faults["machine"].min() < 0 or faults["machine"].max() >= len(cluster.machines):
        raise InputError(f"a fault names a machine that is not among the {len(cluster.machines)}")
    for begins, ends in _PAIR.items():
        _check_pairs(faults, begins, ends)


def _check_pairs(faults: Array, begins: int, ends: int) -> None:
    down: dict[int, int] = {}
    for machine, what in zip(faults["machine"].tolist(), faults["what"].tolist(), strict=True):
        if what in (begins, ends):
            down[machine] = down.get(machine, 0) + (1 if what == begins else -1)
            if down[machine] < 0:
                raise InputError(f"machine {machine} is put back before it is taken away")


def _failures(spec: FaultSpec, machine: int, horizon_s: float) -> list[tuple[float, int, int]]:
    draws = stream(spec.seed, "failures", machine)
    rows: list[tuple[float, int, int]] = []
    now = _exponential(draws, spec.mtbf_s)
    while now < horizon_s:
        back = now + _exponential(draws, spec.mttr_s)
        rows += [(now, machine, FaultKind.FAIL), (back, machine, FaultKind.REPAIR)]
        now = back + _exponential(draws, spec.mtbf_s)
    return rows


def _exponential(draws: np.random.Generator, mean_s: float) -> float:
    """In whole milliseconds, at least one: the same number on every CPU."""
    return max(1, round(-1000.0 * mean_s * reproducible.log(1.0 - draws.random()))) / 1000.0


def _drained(drain: Drain, cluster: Cluster) -> Sequence[tuple[float, int, int]]:
    names = [machine.name for machine in cluster.machines]
    if drain.machine not in names:
        raise UnknownNameError("machine", drain.machine, names)
    machine = names.index(drain.machine)
    return (drain.start_s, machine, FaultKind.DRAIN), (
        drain.start_s + drain.for_s,
        machine,
        FaultKind.UNDRAIN,
    )


def _drain(text: str) -> Drain:
    machine, at, when = text.rpartition("@")
    start, plus, length = when.partition("+")
    if not (machine and at and plus):
        raise InputError(f"faults: {text!r} is not a drain", hint=_HINT)
    return Drain(machine, seconds(start), seconds(length))


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise QuantityError(f"faults: {text!r} is not a seed", hint="a whole number from 0 up")
    return int(text)
