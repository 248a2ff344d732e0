"""The protocol of a policy.

A policy is a frozen dataclass. Its fields are its constants; its static methods are small pure functions of
one job, and berth compiles those it overrides:

    @dataclass(frozen=True)
    class ShortestFirst(Policy):
        \"\"\"The job with least work left goes first, and takes the place of others.\"\"\"

        def rules(self) -> Rules:
            return Rules(order=StaticOrder(), preempt=PreemptByOrder())

        @staticmethod
        def order(job: JobView, now: float, params: ShortestFirst) -> float:
            return job.estimated_remaining_s

`job` has the fields of `views.JobView`, `now` is the time in seconds, and `params` holds the constants.
There is no clock, no I/O and no randomness in a policy; the simulator and the live controller call the same functions.
What a policy must remember of a job is declared in its class `Job` and set by `update`, the one function that may
write; called twice at the same time it must leave the same state. `update` is called before each call of `order`.
A function of one job may have one more parameter, `cluster`, for totals of the cluster and of the job's user.
Where order preempts, a job must not go later by starting, or it would be evicted at once.

What is wrong with a policy is reported with file:line: when it is loaded (checks.py, lint.py), when it is
compiled (sealed.py), or when a function returns what can't be used (hooks.py, failures.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import IntEnum
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numba import from_dtype, types

from berth.errors import InputError
from berth.schedule.records import CLUSTER, JOB, PARAMS, TABLE, WAIT_STATS, Array
from berth.schedule.rules import Blocked, Preempt, Rules
from berth.schedule.views import JobView, WaitStatsView

if TYPE_CHECKING:
    from typing import Self

    from berth.workload.trace import Trace

__all__ = ["SIGNATURES", "WITH_CLUSTER", "Blocked", "Hooks", "Names", "Policy", "Preempt", "Rules"]

_JOB = from_dtype(JOB)
_WAIT_STATS = from_dtype(WAIT_STATS)
_CLUSTER = from_dtype(CLUSTER)
_PARAMS = from_dtype(PARAMS)


class Hooks(NamedTuple):
    """A policy's functions as compiled code calls them."""

    update: Any
    order: Any
    tie_break: Any
    allowed_tier: Any
    wake: Any
    spread: Any
    gain: Any
    cost: Any
    observe: Any


_F, _I = types.float64, types.int64
SIGNATURES: dict[
    str, Any
] = {  # of the compiled hooks; `cluster`, where a hook may have it, comes before `params`
    "update": _F(_JOB, _F, _CLUSTER, _PARAMS),
    "order": _F(_JOB, _F, _CLUSTER, _PARAMS),
    "tie_break": _F(_JOB, _F, _CLUSTER, _PARAMS),
    "allowed_tier": _I(_JOB, _F, _CLUSTER, _PARAMS),
    "wake": _F(_JOB, _F, _CLUSTER, _PARAMS),
    "spread": _I(_JOB, _I, _F, _F, _PARAMS),
    "gain": _F(_JOB, _F, _F, _F, _PARAMS),
    "cost": _F(_JOB, _JOB, _F, _PARAMS),
    "observe": _F(_WAIT_STATS, _F, _I, _F, _PARAMS),
}


WITH_CLUSTER = tuple(hook for hook, signature in SIGNATURES.items() if _CLUSTER in signature.args)


# What a hook answers where a policy does not override it


def _update(job: JobView, now: float, params: Policy) -> None:
    return None


def _order(job: JobView, now: float, params: Policy) -> float:
    return job.arrival_s


def _tie_break(job: JobView, now: float, params: Policy) -> float:
    return 0.0


def _allowed_tier(job: JobView, now: float, params: Policy) -> int:
    return job.widest_tier


def _wake(job: JobView, now: float, params: Policy) -> float:
    return math.inf


def _spread(job: JobView, tier: int, wait: float, now: float, params: Policy) -> int:
    loses_s = job.estimated_remaining_s * (job.slowdown[tier] - job.slowdown[job.nearest_tier])
    return 1 if loses_s < wait else 0


def _gain(job: JobView, here: float, there: float, now: float, params: Policy) -> float:
    return job.estimated_remaining_s * (here - there)


def _cost(victim: JobView, job: JobView, now: float, params: Policy) -> float:
    return math.inf


def _observe(stats: WaitStatsView, wait: float, gave_up: int, now: float, params: Policy) -> float:
    return stats.timer_s


@dataclass(frozen=True)
class Policy:
    """The defaults: first come, first served, anywhere in the cluster, no job is moved."""

    Job: ClassVar[type] = JobView  # a subclass declares what the policy remembers of a job

    update: ClassVar[Callable[..., None]] = staticmethod(_update)
    """update(job, now, params): sets the fields of the policy's own `Job`; called before `order`."""
    order: ClassVar[Callable[..., float]] = staticmethod(_order)
    """order(job, now, params): which job goes first, the smallest number."""
    tie_break: ClassVar[Callable[..., float]] = staticmethod(_tie_break)
    """tie_break(job, now, params): which goes first among jobs of equal order; then arrival decides."""
    allowed_tier: ClassVar[Callable[..., int]] = staticmethod(_allowed_tier)
    """allowed_tier(job, now, params): the widest tier that it accepts now."""
    wake: ClassVar[Callable[..., float]] = staticmethod(_wake)
    """wake(job, now, params): when the answers for this job could change other than by an event."""
    spread: ClassVar[Callable[..., int]] = staticmethod(_spread)
    """spread(job, tier, wait, now, params): 1 to start at `tier` now rather than wait `wait` seconds."""
    gain: ClassVar[Callable[..., float]] = staticmethod(_gain)
    """gain(job, here, there, now, params): seconds gained when its slowdown falls from `here` to `there`."""
    cost: ClassVar[Callable[..., float]] = staticmethod(_cost)
    """cost(victim, job, now, params): seconds that moving `victim` for `job` costs, beside restoring."""
    observe: ClassVar[Callable[..., float]] = staticmethod(_observe)
    """observe(stats, wait, gave_up, now, params): the new timer, after a wait for a tier ended."""

    def rules(self) -> Rules:
        """What the policy asks for beside its functions."""
        return Rules()

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """Seconds to wait for each tier, nearest first, before anything is learned."""
        return [0.0] * len(tiers)

    def prepare(self, trace: Trace) -> Self:
        """The policy that runs, for policies that need to know the trace beforehand."""
        return self

    def constants(self) -> Array:
        """The fields, as the one record that compiled code reads."""
        record = np.zeros(1, PARAMS)
        for index, field in enumerate(constant_fields(type(self))):
            record["value"][0, index] = float(getattr(self, field.name))
        for name in array_names(type(self)):
            values = getattr(self, name)
            if len(values) > TABLE:
                what = f"{type(self).__name__}.{name} has {len(values)} entries"
                raise InputError(f"{what}, and at most {TABLE} fit")
            record["table"][0, : len(values)] = values
        return record


def constant_fields(policy: type[Policy]) -> list[Field[Any]]:
    """The fields that a user sets, in the order in which compiled code has them."""
    return [field for field in fields(policy) if not field.metadata.get("array")]


def array_names(policy: type[Policy]) -> list[str]:
    """The field that `constant.array` made, if there is one."""
    return [field.name for field in fields(policy) if field.metadata.get("array")]


def constant_type(field: Field[Any]) -> type:
    """What a constant is in a hook: float, bool, or an IntEnum."""
    kind = type(field.default)
    return kind if field.default is not MISSING and issubclass(kind, bool | IntEnum) else float


class Names(NamedTuple):
    """What a policy's functions read by names of its own."""

    params: tuple[tuple[str, type], ...]  # constants with their types; `Sequence` for the array
    state: tuple[tuple[str, type], ...]  # fields of its `Job`, int or float, by slot


def names_of(policy: type[Policy]) -> Names:
    """The names of a policy's constants and of its state."""
    params = [(field.name, constant_type(field)) for field in constant_fields(policy)]
    arrays = [(name, Sequence) for name in array_names(policy)]
    return Names((*params, *arrays), state_of(policy))


def state_of(policy: type[Policy]) -> tuple[tuple[str, type], ...]:
    """The fields that a policy's `Job` has beside those of `JobView`, with their types."""
    owners = [kind for kind in reversed(policy.Job.__mro__) if JobView in kind.__mro__[1:]]
    declared = {name: kind for owner in owners for name, kind in get_annotations(owner).items()}
    kinds: dict[Any, type] = {"int": int, "float": float}
    return tuple((name, kinds.get(kind, kind)) for name, kind in declared.items())


def uses_cluster(policy: type[Policy]) -> bool:
    """Whether any hook of a policy reads totals of the cluster."""
    return any(takes_cluster(getattr(policy, hook)) for hook in WITH_CLUSTER)


def ranks_by_cluster(policy: type[Policy]) -> bool:
    """Whether the order of jobs depends on totals of the cluster."""
    return any(takes_cluster(getattr(policy, hook)) for hook in ("update", "order", "tie_break"))


def takes_cluster(function: Callable[..., Any]) -> bool:
    """Whether a hook has the parameter `cluster`."""
    code = function.__code__
    return "cluster" in code.co_varnames[: code.co_argcount]
