"""The protocol of a policy, and how one becomes compiled code.

A policy is a frozen dataclass. Its fields are its constants; its static methods are small pure functions of
one job's record, and berth compiles those it overrides:

    @dataclass(frozen=True)
    class ShortestFirst(Policy):
        \"\"\"The job with least work left goes first, and takes the place of others.\"\"\"

        def rules(self):
            return Rules(steady=True, preempt=Preempt.BY_ORDER)

        @staticmethod
        def order(job, now, my):
            return job.remaining

`my` holds the constants, `job` a record with the names in view.py, `now` the time in seconds. There is no
clock, no I/O and no randomness in a policy; the simulator and the live controller call the same functions.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, njit, types

from berth.schedule.view import CONSTANTS, JOB, OFFER, Array

_JOB = from_dtype(JOB)
_OFFER = from_dtype(OFFER)
_MY = from_dtype(CONSTANTS)


class Preempt(IntEnum):
    """Who moves for whom."""

    NEVER = 0
    BY_ORDER = 1  # at every event the most deserving run; who no longer fits is evicted
    BY_GAIN = 2  # a job is moved only where what it gains exceeds what it costs the victims


class Blocked(IntEnum):
    """What a job that does not fit means for those behind it."""

    SKIP = 0  # they may go first
    STOP = 1  # they wait too
    BACKFILL = 2  # they may go first if that does not delay it


class Hooks(NamedTuple):
    """A policy's functions as compiled code calls them."""

    order: Any
    then: Any
    reach: Any
    wake: Any
    spread: Any
    gain: Any
    cost: Any
    observe: Any


_F, _I = types.float64, types.int64
SIGNATURES: dict[str, Any] = {
    "order": _F(_JOB, _F, _MY),
    "then": _F(_JOB, _F, _MY),
    "reach": _I(_JOB, _F, _MY),
    "wake": _F(_JOB, _F, _MY),
    "spread": _I(_JOB, _I, _F, _F, _MY),
    "gain": _F(_JOB, _F, _F, _F, _MY),
    "cost": _F(_JOB, _JOB, _F, _MY),
    "observe": _F(_OFFER, _F, _I, _F, _MY),
}


@dataclass(frozen=True)
class Rules:
    """What a policy wants beside its functions: how the pass goes about it."""

    preempt: Preempt = Preempt.NEVER
    spares_equals: bool = False  # by order: nobody is evicted for a job with an equal `order`
    blocked: Blocked = Blocked.SKIP
    steady: bool = False  # the keys of a waiting job never change while it waits
    wakes: bool = False  # `wake` is asked for running jobs too
    period_s: float = 0.0  # > 0: who runs is decided anew only so often
    look_ahead: bool = False  # what would idle may be spread over, if `spread` says so
    move_up: float = 0.0  # > 0: a spread job moves to a nearer place if that saves so many times the cost
    defragment: float = (
        0.0  # > 0: others step aside for a blocked job if that spares it so many times the cost
    )
    hold_after_s: float = math.inf  # the job that has waited longest, once over this, has a place held for it
    hold_share: float = math.inf  # ... if that comes free within such a share of its wait so far
    min_run_s: float = 0.0  # nobody is evicted sooner (by gain)
    budget_s: float = 0.0  # nor twice within this time
    margin: float = 1.2  # gain must exceed so many times the cost
    learns: bool = False  # `observe` is told how long jobs waited


@dataclass(frozen=True)
class Policy:
    """The defaults: first come, first served, anywhere in the cluster, nobody is moved."""

    def rules(self) -> Rules:
        """How the pass goes about it."""
        return Rules(steady=True)

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """Seconds to hold out for each tier, nearest first (before anything is learned)."""
        return [0.0] * len(tiers)

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Who goes first: the smallest."""
        return job.arrival

    @staticmethod
    def then(job: Any, now: float, my: Any) -> float:
        """Who goes first among those with equal `order`; after it arrival decides."""
        return 0.0

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> int:
        """How far apart may it be spread now: the widest acceptable tier."""
        return job.widest

    @staticmethod
    def wake(job: Any, now: float, my: Any) -> float:
        """When could the answers for this job change, other than by an event."""
        return math.inf

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, my: Any) -> int:
        """1 if it should run at `tier` now rather than wait so long for the nearest place."""
        return 1 if job.remaining * (job.slow[tier] - job.slow[job.floor]) < wait else 0

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, my: Any) -> float:
        """Seconds that `job` gains when its slow-down falls from `here` to `there`."""
        return job.remaining * (here - there)

    @staticmethod
    def cost(victim: Any, job: Any, now: float, my: Any) -> float:
        """Seconds that moving `victim` out of the way of `job` costs, beside restoring; infinite: never."""
        return math.inf

    @staticmethod
    def observe(offer: Any, wait: float, gave_up: int, now: float, my: Any) -> float:
        """Learns from a wait for a tier that ended (or was given up); returns the new timer."""
        return offer.timer

    def constants(self) -> Array:
        """The fields, as the one record that compiled code reads."""
        record = np.zeros(1, CONSTANTS)
        for index, field in enumerate(fields(self)):
            record["value"][0, index] = float(getattr(self, field.name))
        return record


class _Callable(types.WrapperAddressProtocol):
    """A function by its address: compiled code calls it without knowing which it is, or who made it."""

    def __init__(self, address: int, signature: Any, keep: object) -> None:
        self._address, self._signature, self._keep = address, signature, keep

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        return self._signature


def hooks(policy: Policy) -> Hooks:
    """The policy's functions, compiled."""
    return Hooks(**{name: _hook(type(policy), name) for name in SIGNATURES})


_compiled: dict[tuple[type, str], _Callable] = {}


def _hook(kind: type[Policy], name: str) -> _Callable:
    owner = next(base for base in kind.__mro__ if name in vars(base))
    if (kind, name) not in _compiled:
        names = [field.name for field in fields(kind)] if owner is not Policy else []
        function = vars(owner)[name].__func__
        _compiled[kind, name] = _compile(function, names, SIGNATURES[name])
    return _compiled[kind, name]


def _compile(function: Callable[..., Any], names: list[str], signature: Any) -> _Callable:
    """`function(..., my)` behind a fixed signature whose last argument is the record of constants."""
    constants_type = namedtuple("My", names or ["nothing"])
    arguments = [f"a{i}" for i in range(len(signature.args) - 1)]
    values = ", ".join(f"c.value[{i}]" for i in range(max(1, len(names))))
    source = f"def hook({', '.join(arguments)}, c):\n    return f({', '.join(arguments)}, My({values}))\n"
    scope: dict[str, Any] = {"f": njit(function), "My": constants_type}
    exec(source, scope)
    compiled = njit(signature)(scope["hook"])
    result = compiled.overloads[signature.args]
    address = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return _Callable(address, signature, compiled)
