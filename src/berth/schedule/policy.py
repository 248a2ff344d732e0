"""The protocol of a policy.

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
What a policy must remember of a job, `order` keeps in `job.queue` and `job.notes`. It is the one function that
may write, and it writes nothing else; asked twice at the same time it must give the same answer twice.
Where order preempts, a job must not become less deserving by starting, or it would be evicted at once.

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
from berth.schedule.view import CONSTANTS, JOB, OFFER, TABLE, Array

if TYPE_CHECKING:
    from typing import Self

    from berth.workload.trace import Trace

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
    """What a policy wants beside its functions: how the pass goes about it.

    `steady` and `keys_hold` are promises that make a pass quicker; the defaults promise nothing. A promise
    that does not hold gives a wrong order: `berth policies check` looks for one.
    """

    preempt: Preempt = Preempt.NEVER
    blocked: Blocked = Blocked.SKIP
    steady: bool = False  # the keys of a waiting job never change while it waits
    wakes: bool = False  # `wake` is asked for running jobs too
    keys_hold: bool = False  # a running job's keys never rise but when it wakes: ranking is spared
    period_s: float = 0.0  # > 0: which jobs run is decided again only this often
    look_ahead: bool = False  # what would idle may be spread over, if `spread` says so
    move_up: float = 0.0  # > 0: a spread job moves to a nearer place if that saves this many times the cost
    defragment: float = (
        0.0  # > 0: others step aside for a blocked job if that spares it this many times the cost
    )
    farther: bool = False  # ... also to a farther place, at the cost of what that slows them
    shape: float = math.inf  # gangs that lose more than this share by an uneven shape are spread evenly
    hold_after_s: float = math.inf  # the job that has waited longest, once over this, has a place held for it
    hold_share: float = math.inf  # ... if that comes free within such a share of its wait so far
    rekey_after_s: float = math.inf  # steady keys are computed again for a job that has waited this long
    min_run_s: float = 0.0  # no job is evicted before it has worked this long (by gain)
    budget_s: float = 0.0  # nor twice within this time
    margin: float = 1.2  # gain must exceed this many times the cost
    by_rank: bool = False  # victims of a gain are taken least deserving first, not cheapest first
    emptiest: bool = False  # a gang goes to the group with most free devices, not to the one with fewest
    # a gang starts on free devices only where on each link that it would send over at most one other job sends,
    # whose message is this many times larger (its own / the other's below this); inf: links may be shared by all
    link_ratio: float = math.inf
    eviction_s: float | None = None  # what moving a job costs under this policy; None: as the run is set
    learns: bool = False  # `observe` is called with how long jobs waited

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
    """The defaults: first come, first served, anywhere in the cluster, nobody is moved."""

    def rules(self) -> Rules:
        """How the pass goes about it."""
        return Rules()

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """Seconds to hold out for each tier, nearest first (before anything is learned)."""
        return [0.0] * len(tiers)

    def prepare(self, trace: Trace) -> Self:
        """The policy as it goes into a run, for those who need to know the trace beforehand."""
        return self

    def table(self) -> Sequence[float]:
        """Numbers beyond the constants; a policy that overrides this finds them in `my.table`."""
        return ()

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
