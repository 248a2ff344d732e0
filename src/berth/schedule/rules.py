"""What a policy asks of a pass beside its functions: small frozen classes, one for each thing a pass may do.

A rule that is None is off. `StaticOrder`, `PreemptByOrder.monotone_order` and `PreemptByGain.cost_by_order` are
promises that make a pass faster; the defaults promise nothing. A promise that is not kept gives a wrong order:
`berth policies check` looks for one.
Compiled code reads `RULES` of records.py; `rules_record` is the one translation.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from numbers import Real
from typing import Any

import numpy as np

from berth.errors import InputError, nearest
from berth.schedule.records import RULES, Array

MAX_DEVICES = 1 << 30  # of a gang, as compiled code reads it


class Preempt(IntEnum):
    """When running jobs lose their place to others, as compiled code reads it."""

    NEVER = 0
    BY_ORDER = 1
    BY_GAIN = 2


class Blocked(IntEnum):
    """What a job that does not fit means for those behind it."""

    SKIP = 0  # they may start first
    STOP = 1  # they wait too
    BACKFILL = 2  # they may start first if that does not delay it


@dataclass(frozen=True)
class _Checked:
    """Refuses values that mean nothing; the kind of a value is that of its default, else a number."""

    def __post_init__(self) -> None:
        for field in fields(self):
            like = 0.0 if field.default is MISSING else field.default
            _check(f"{type(self).__name__}.{field.name}", getattr(self, field.name), like)


@dataclass(frozen=True)
class StaticOrder(_Checked):
    """A promise: the order of a waiting job does not change while it waits, so it is computed once."""

    reorder_after_s: float = math.inf  # except for a job that has waited this long


@dataclass(frozen=True)
class PreemptByOrder(_Checked):
    """At every event the jobs that go first run; a job that no longer fits is evicted."""

    period_s: float = 0.0  # > 0: only this often
    min_run_s: float = 0.0  # no job is evicted before it has worked this long, except for a higher priority
    monotone_order: bool = False  # a promise: a running job's order gets worse only when `wake` says so


@dataclass(frozen=True)
class PreemptByGain(_Checked):
    """A job is evicted where another gains more than that costs the victims."""

    margin: float = 1.2  # the gain must exceed this many times the cost
    min_run_s: float = 0.0  # no job is evicted before it has worked this long
    eviction_interval_s: float = 0.0  # nor again within this time
    victims_by_order: bool = False  # victims are taken last in order first, not cheapest first
    # a promise: `cost` is infinite unless the victim's order is after that of the job, else the same for all jobs
    cost_by_order: bool = False


@dataclass(frozen=True)
class Migrate(_Checked):
    """A spread job moves to a nearer place that saves `gain` times the cost of moving."""

    gain: float


@dataclass(frozen=True)
class Defragment(_Checked):
    """Running jobs move for a blocked one whose wait is worth `gain` times the cost of moving them."""

    gain: float
    farther: bool = False  # also to farther places, at the cost of what that slows them


@dataclass(frozen=True)
class Reserve(_Checked):
    """The longest waiting job, once it has waited `after_s`, has a place reserved for it."""

    after_s: float
    share: float = math.inf  # if that comes free within this share of its wait so far
    in_order: bool = False  # the first in order that has waited as long, rather than the longest waiting


@dataclass(frozen=True)
class Rules:
    """What a pass does for a policy; each rule is off unless it is set."""

    order: StaticOrder | None = None
    preempt: PreemptByOrder | PreemptByGain | None = None
    blocked: Blocked = Blocked.SKIP
    wake_running: bool = False  # `wake` is called for running jobs too
    migrate: Migrate | None = None
    defragment: Defragment | None = None
    reserve: Reserve | None = None
    relax_locality: bool = False  # a job may start spread over devices that would idle, if `spread` agrees
    imbalance_tolerance: float = math.inf  # gangs slowed more than this by an uneven spread are spread evenly
    worst_fit: bool = False  # a gang takes the group with most free devices, not the one with fewest
    # gangs of up to this many devices take them one by one from the machines with most free devices, anywhere
    scatter_up_to: float = 0.0
    # a gang starts on free devices only where at most one other job sends over each link that it would use, and
    # its message is below this share of that job's; inf: links may be shared by all
    link_ratio: float = math.inf
    # in simulations a gang chooses among the device types that it accepts, by how fast each is and when it comes free
    choose_types: bool = False
    keeps_state: bool = True  # `update` and `tie_break` are called, where the policy has them
    learn_timers: bool = False  # `observe` is called with how long jobs waited
    eviction_s: float | None = None  # what moving a job costs under this policy; None: as the run is set

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in TAGGED:
                _check_tagged(field.name, value)
            elif not (value is None and field.default is None):
                _check(field.name, value, 0.0 if field.default is None else field.default)


TAGGED: dict[str, tuple[type, ...]] = {
    "order": (StaticOrder,),
    "preempt": (PreemptByOrder, PreemptByGain),
    "migrate": (Migrate,),
    "defragment": (Defragment,),
    "reserve": (Reserve,),
}
MOVED = {  # rules of earlier versions, as they are written now
    **dict.fromkeys(("static_order", "steady"), "order=StaticOrder()"),
    **dict.fromkeys(("reorder_after_s", "rekey_after_s"), "order=StaticOrder(reorder_after_s=...)"),
    **dict.fromkeys(("monotone_order", "keys_hold"), "preempt=PreemptByOrder(monotone_order=True)"),
    "period_s": "preempt=PreemptByOrder(period_s=...)",
    **dict.fromkeys(("gain_margin", "margin"), "preempt=PreemptByGain(margin=...)"),
    "min_run_s": "preempt=PreemptByGain(min_run_s=...)",
    **dict.fromkeys(("eviction_interval_s", "budget_s"), "preempt=PreemptByGain(eviction_interval_s=...)"),
    **dict.fromkeys(("victims_by_order", "by_rank"), "preempt=PreemptByGain(victims_by_order=True)"),
    **dict.fromkeys(("migrate_gain", "move_up"), "migrate=Migrate(gain=...)"),
    **dict.fromkeys(("defragment_farther", "farther"), "defragment=Defragment(gain=..., farther=True)"),
    **dict.fromkeys(("reserve_after_s", "hold_after_s"), "reserve=Reserve(after_s=...)"),
    **dict.fromkeys(("reserve_share", "hold_share"), "reserve=Reserve(after_s=..., share=...)"),
}


def _check_tagged(name: str, value: Any) -> None:
    """A tagged rule is None, or an object of one of its classes."""
    if value is None or isinstance(value, TAGGED[name]):
        return
    if isinstance(value, Preempt):
        forms = {Preempt.BY_ORDER: "PreemptByOrder()", Preempt.BY_GAIN: "PreemptByGain()"}
        form = forms.get(value, "None")
    else:
        form = " or ".join(f"{kind.__name__}(...)" for kind in TAGGED[name])
    raise InputError(f"rule {name} is {value!r}", hint=f"write {name}={form}")


def _check(name: str, value: Any, like: Any) -> None:
    """Refuses a value of another kind than `like`, and numbers that mean nothing."""
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


def rules_record(rules: Rules, eviction_s: float, eviction_large_s: float) -> Array:
    """The rules as compiled code reads them; the two costs apply where the policy does not say."""
    by_order = rules.preempt if isinstance(rules.preempt, PreemptByOrder) else None
    by_gain = rules.preempt if isinstance(rules.preempt, PreemptByGain) else PreemptByGain()
    own = rules.eviction_s
    values: dict[str, float] = {
        "preempt": Preempt.BY_ORDER if by_order else Preempt.BY_GAIN if rules.preempt else Preempt.NEVER,
        "blocked": rules.blocked,
        "wake_running": rules.wake_running,
        "static_order": rules.order is not None,
        "reorder_after_s": rules.order.reorder_after_s if rules.order else math.inf,
        "monotone_order": by_order.monotone_order if by_order else False,
        "period_s": by_order.period_s if by_order else 0.0,
        "gain_margin": by_gain.margin,
        "min_run_s": by_order.min_run_s if by_order else by_gain.min_run_s,
        "eviction_interval_s": by_gain.eviction_interval_s,
        "victims_by_order": by_gain.victims_by_order,
        "cost_by_order": by_gain.cost_by_order and by_gain.victims_by_order,
        "relax_locality": rules.relax_locality,
        "migrate_gain": rules.migrate.gain if rules.migrate else 0.0,
        "defragment": rules.defragment.gain if rules.defragment else 0.0,
        "defragment_farther": rules.defragment.farther if rules.defragment else False,
        "imbalance_tolerance": rules.imbalance_tolerance,
        "reserve_after_s": rules.reserve.after_s if rules.reserve else math.inf,
        "reserve_share": rules.reserve.share if rules.reserve else math.inf,
        "reserve_in_order": rules.reserve.in_order if rules.reserve else False,
        "worst_fit": rules.worst_fit,
        "scatter_up_to": min(rules.scatter_up_to, MAX_DEVICES),
        "link_ratio": rules.link_ratio,
        "learn_timers": rules.learn_timers,
        "eviction_s": eviction_s if own is None else own,
        "eviction_large_s": eviction_large_s if own is None else own,
    }
    record = np.zeros(1, RULES)
    for name, value in values.items():
        record[name] = value
    return record
