"""The protocol of a policy.

A policy is a frozen dataclass. Its fields are its constants; its static methods are small pure functions of
one job's record, and berth compiles those it overrides:

    @dataclass(frozen=True)
    class ShortestFirst(Policy):
        \"\"\"The job with least work left goes first, and takes the place of others.\"\"\"

        def rules(self):
            return Rules(static_order=True, preempt=Preempt.BY_ORDER)

        @staticmethod
        def order(job, now, params):
            return job.estimated_remaining_s

`params` holds the constants, `job` a record with the fields in `records.POLICY_FIELDS`, `now` the time in seconds.
There is no clock, no I/O and no randomness in a policy; the simulator and the live controller call the same functions.
What a policy must remember of a job, `order` keeps in `job.queue` and `job.notes`. It is the one function that
may write, and it writes nothing else; called twice at the same time it must return the same answer.
Where order preempts, a job must not go later by starting, or it would be evicted at once.

What is wrong with a policy is reported with file:line: when it is loaded (checks.py, lint.py), when it is
compiled (sealed.py), or when a function returns what can't be used (hooks.py, failures.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from enum import IntEnum
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import from_dtype, types

from berth.errors import InputError, nearest
from berth.schedule.records import JOB, PARAMS, TABLE, WAIT_STATS, Array

if TYPE_CHECKING:
    from typing import Self

    from berth.workload.trace import Trace

_JOB = from_dtype(JOB)
_OFFER = from_dtype(WAIT_STATS)
_MY = from_dtype(PARAMS)


class Preempt(IntEnum):
    """When running jobs lose their place to others."""

    NEVER = 0
    BY_ORDER = 1  # at every event the jobs that go first run; a job that no longer fits is evicted
    BY_GAIN = 2  # a job is evicted only where another gains more than that costs the victims


class Blocked(IntEnum):
    """What a job that does not fit means for those behind it."""

    SKIP = 0  # they may start first
    STOP = 1  # they wait too
    BACKFILL = 2  # they may start first if that does not delay it


class Hooks(NamedTuple):
    """A policy's functions as compiled code calls them."""

    order: Any
    tie_break: Any
    allowed_tier: Any
    wake: Any
    spread: Any
    gain: Any
    cost: Any
    observe: Any


_F, _I = types.float64, types.int64
SIGNATURES: dict[str, Any] = {
    "order": _F(_JOB, _F, _MY),
    "tie_break": _F(_JOB, _F, _MY),
    "allowed_tier": _I(_JOB, _F, _MY),
    "wake": _F(_JOB, _F, _MY),
    "spread": _I(_JOB, _I, _F, _F, _MY),
    "gain": _F(_JOB, _F, _F, _F, _MY),
    "cost": _F(_JOB, _JOB, _F, _MY),
    "observe": _F(_OFFER, _F, _I, _F, _MY),
}


@dataclass(frozen=True)
class Rules:
    """What a policy asks for beside its functions.

    `static_order` and `monotone_order` are promises that make a pass faster; the defaults promise nothing. A
    promise that is not kept gives a wrong order: `berth policies check` looks for one.
    """

    preempt: Preempt = Preempt.NEVER
    blocked: Blocked = Blocked.SKIP
    static_order: bool = False  # the order of a waiting job never changes while it waits
    monotone_order: bool = False  # a running job's order never gets worse except when it wakes
    wake_running: bool = False  # `wake` is called for running jobs too
    period_s: float = 0.0  # > 0: preemption by order is considered only this often
    relax_locality: bool = False  # a job may start spread over devices that would idle, if `spread` agrees
    migrate_gain: float = 0.0  # > 0: a spread job moves to a nearer place that saves this many times the cost
    defragment: float = 0.0  # > 0: jobs move for a blocked one whose wait is worth this many times the cost
    defragment_farther: bool = False  # ... also to farther places, at the cost of what that slows them
    imbalance_tolerance: float = (
        math.inf
    )  # gangs that an uneven spread slows by more than this are spread evenly
    reserve_after_s: float = math.inf  # the longest waiting job, once over this, has a place reserved for it
    reserve_share: float = math.inf  # ... if that comes free within this share of its wait so far
    reorder_after_s: float = math.inf  # a static order is computed again for a job that has waited this long
    min_run_s: float = 0.0  # by gain: no job is evicted before it has worked this long
    eviction_interval_s: float = 0.0  # by gain: nor again within this time
    gain_margin: float = 1.2  # by gain: the gain must exceed this many times the cost
    victims_by_order: bool = False  # by gain: victims are taken last in order first, not cheapest first
    worst_fit: bool = False  # a gang takes the group with most free devices, not the one with fewest
    # a gang starts on free devices only where at most one other job sends over each link that it would use, and
    # its message is below this share of that job's; inf: links may be shared by all
    link_ratio: float = math.inf
    eviction_s: float | None = None  # what moving a job costs under this policy; None: as the run is set
    learn_timers: bool = False  # `observe` is called with how long jobs waited

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value is None and field.default is None):
                _check_rule(field.name, value, 0.0 if field.default is None else field.default)


def _check_rule(name: str, value: Any, like: Any) -> None:
    """Refuses a rule's value of another kind than its default, and numbers that mean nothing."""
    if isinstance(like, IntEnum):
        kind = type(like)
        if not isinstance(value, kind):
            near = nearest(str(value), kind.__members__) or next(iter(kind.__members__))
            raise InputError(f"rule {name} is {value!r}", hint=f"write {name}={kind.__name__}.{near}")
    elif isinstance(like, bool):
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"rule {name} is {value!r}", hint="write True or False")
    elif isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0.0:
        raise InputError(f"rule {name} is {value!r}", hint="write a number, 0 or more")


def constant_fields(policy: type[Policy]) -> list[Field[Any]]:
    """The fields that are constants, in the order in which compiled code has them."""
    return [field for field in fields(policy) if not field.metadata.get("data")]


@dataclass(frozen=True)
class Policy:
    """The defaults: first come, first served, anywhere in the cluster, no job is moved."""

    def rules(self) -> Rules:
        """What the policy asks for beside its functions."""
        return Rules()

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """Seconds to wait for each tier, nearest first, before anything is learned."""
        return [0.0] * len(tiers)

    def prepare(self, trace: Trace) -> Self:
        """The policy that runs, for policies that need to know the trace beforehand."""
        return self

    def table(self) -> Sequence[float]:
        """Numbers beyond the constants; a policy that overrides this finds them in `params.table`."""
        return ()

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """Which job goes first: the smallest number."""
        return job.arrival_s

    @staticmethod
    def tie_break(job: Any, now: float, params: Any) -> float:
        """Which goes first among jobs of equal `order`; then arrival decides."""
        return 0.0

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        """The widest tier that it accepts now."""
        return job.widest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        """When the answers for this job could change other than by an event."""
        return math.inf

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        """1 to start at `tier` now rather than wait `wait` seconds for the nearest place."""
        return (
            1
            if job.estimated_remaining_s * (job.slowdown[tier] - job.slowdown[job.nearest_tier]) < wait
            else 0
        )

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        """Seconds that `job` gains when its slowdown falls from `here` to `there`."""
        return job.estimated_remaining_s * (here - there)

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        """Seconds that moving `victim` out of the way of `job` costs, beside restoring; infinite: never."""
        return math.inf

    @staticmethod
    def observe(stats: Any, wait: float, gave_up: int, now: float, params: Any) -> float:
        """Learns from a wait for a tier that ended (or was given up); returns the new timer."""
        return stats.timer_s

    def constants(self) -> Array:
        """The fields, as the one record that compiled code reads."""
        record = np.zeros(1, PARAMS)
        for index, field in enumerate(constant_fields(type(self))):
            value = getattr(self, field.name)
            words = field.metadata.get("words")  # compiled code sees a word as its place in this list
            record["value"][0, index] = float(words.index(value) if words else value)
        table = self.table()
        if len(table) > TABLE:
            raise InputError(
                f"{type(self).__name__}.table() has {len(table)} entries, and at most {TABLE} fit"
            )
        record["table"][0, : len(table)] = table
        return record
