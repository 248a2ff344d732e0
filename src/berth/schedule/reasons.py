"""Why a job waits, or runs where it does: a code, the numbers behind it, and a sentence made of both.

Compiled code writes only the code and the numbers into the job's record (`reason`, `holds_out`, `until`,
`saves`). The sentence is made on request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from berth.schedule.rules import Blocked
from berth.units import format_wait

_LEAST_GAIN_S = 1.0
_NAMED = 3  # shapes that a sentence names


class ReasonCode(IntEnum):
    """Why a job waits, why it runs where it does, and why it lost its place."""

    NONE = 0
    NO_ROOM = 1
    TOO_SPREAD = 2
    OVER_QUOTA = 3
    BEHIND = 4
    HELD_FOR_OTHER = 5
    LOOKS_AHEAD = 6
    LINKS_BUSY = 7
    WAITS_FOR_SHAPE = 8
    NEAREST = 10
    SPREAD = 11
    CHEAPER_THAN_WAITING = 12
    BACKFILLED = 13
    MADE_ROOM = 14
    MOVED_UP = 15
    HELD_FOR_IT = 16
    STEPPED_ASIDE = 17
    CHOSEN = 18
    RESHAPED = 19
    OUTRANKED = 20
    MADE_WAY = 21
    HOST_LOST = 22


CODES: dict[int, str] = {code: code.name.lower().replace("_", "-") for code in ReasonCode}


def explained_record(world: Any, row: int) -> Any:
    """The record of a waiting job, for `explain`; of one that the last pass did not reach, a copy with its reason.

    A pass stops where no later job can start. A job that it did not reach waits because too little is free,
    because it may not overtake the one ahead, or because devices came free only at the end of the pass: then
    nothing has been decided yet.
    """
    job, state = world.jobs[row], world.state[0]
    if job["explained_s"] == state["now"]:
        return job
    job = job.copy()
    if (quota := quota_of(world, row)) is not None and quota.used + _fewest_gpus(world, job) > quota.allowed:
        job["reason"] = ReasonCode.OVER_QUOTA
    elif lacks_devices(world, row):
        job["reason"] = ReasonCode.NO_ROOM
    else:
        job["reason"] = ReasonCode.BEHIND if world.rules[0]["blocked"] == Blocked.STOP else ReasonCode.NONE
    job["waits_for_tier"] = job["nearest_tier"]
    job["until_s"], job["saves_s"], job["explained_s"] = math.inf, 0.0, state["now"]
    return job


def lacks_devices(world: Any, row: int) -> bool:
    """Whether fewer devices are free than a job asks for, in each of its shapes if it has any."""
    free, job = world.groups["free"][-1, 0], world.jobs[row]
    if job["shape_count"]:
        return not (_shapes_of(world, job)["need"] <= free).all(axis=1).any()
    return bool(max(free[device_type] for device_type in _kinds_of(job, len(free))) < job["gpus"])


def _fewest_gpus(world: Any, job: Any) -> int:
    """What a job is charged for, at least."""
    return int(_shapes_of(world, job)["gpus"].min() if job["shape_count"] else job["gpus"])


def _shapes_of(world: Any, job: Any) -> Any:
    return world.shapes[job["first_shape"] : job["first_shape"] + job["shape_count"]]


def _kinds_of(job: Any, count: int) -> list[int]:
    """The device types that a job takes."""
    if job["device_type"] >= 0:
        return [int(job["device_type"])]
    return [device_type for device_type in range(count) if int(job["device_type_mask"]) >> device_type & 1]


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a job's virtual cluster holds, and what it may hold."""

    used: int
    allowed: int


def quota_of(world: Any, row: int) -> QuotaUse | None:
    """The quota that a job is charged to; None: it has none."""
    number = int(world.jobs[row]["quota"])
    if number < 0:
        return None
    quota = world.quotas[number]
    return QuotaUse(int(quota["used"]), int(quota["allowed"]))


@dataclass(frozen=True, slots=True)
class Reason:
    """A decision's reason, as data and as a sentence."""

    code: str
    sentence: str
    tier: str | None = None
    seconds_left: float | None = None
    saves_s: float | None = None
    quota: QuotaUse | None = None


def explain(
    job: Any,
    now: float,
    tiers: Sequence[str],
    quota: QuotaUse | None = None,
    shapes: Sequence[str] = (),
    *,
    lacks_all: bool = False,
) -> Reason:
    """The reason in a job's record, as a sentence.

    `quota` is that of its virtual cluster, `shapes` name the shapes of all jobs; `lacks_all`: too few devices are free
    for each of its own.
    """
    code = int(job["reason"])
    holds_out, until, saves = int(job["waits_for_tier"]), float(job["until_s"]), float(job["saves_s"])
    tier = tiers[holds_out] if 0 <= holds_out < len(tiers) else None
    left = until - now if now <= until < math.inf else None
    # what it waits for should be there by now
    late = (
        now - until if until < now and code in (ReasonCode.LOOKS_AHEAD, ReasonCode.WAITS_FOR_SHAPE) else None
    )
    if late is not None:
        saves = 0.0  # computed for a wait until then
    own = shapes if shapes and job["shape_count"] else ()
    if code == ReasonCode.OVER_QUOTA:
        asks = _either(job, own) if own else str(int(job["gpus"]))
        return Reason(CODES[code], _over_quota(asks, quota), quota=quota)
    sentence = _sentence(code, int(job["gpus"]), tier, left, saves)
    if late is not None:
        sentence = f"one {tier} should have been free {format_wait(late)} ago, and it still waits for it"
        if own and code == ReasonCode.WAITS_FOR_SHAPE:
            sentence = _waits_too_long(job, tier, late, own)
    elif own:
        sentence = _of_shape(job, code, tier, left, saves, own, lacks_all) or sentence
    return Reason(CODES[code], sentence, tier, left, saves or None)


def subject(job: Any, *, lacks_all: bool = False) -> tuple[int, ...]:
    """What the reason in a job's record is about: its code, and the shapes that the sentence names."""
    code = int(job["reason"])
    if not job["shape_count"]:
        return (code,)
    if code == ReasonCode.WAITS_FOR_SHAPE:
        return code, int(job["shape"]), int(job["other_shape"])
    if code in _OF_ONE_SHAPE and not (code == ReasonCode.NO_ROOM and lacks_all):
        return code, int(job["shape"])
    return (code,)


_OF_ONE_SHAPE = (
    ReasonCode.NO_ROOM,
    ReasonCode.TOO_SPREAD,
    ReasonCode.HELD_FOR_OTHER,
    ReasonCode.LINKS_BUSY,
)


def _of_shape(
    job: Any,
    code: int,
    tier: str | None,
    left: float | None,
    saves: float,
    shapes: Sequence[str],
    lacks_all: bool,
) -> str | None:
    """The sentence for a job with shapes, where it differs from that of a gang."""
    shape = shapes[int(job["shape"])]
    if code == ReasonCode.WAITS_FOR_SHAPE:
        return _waits_for_shape(job, tier, left, saves, shapes)
    if code == ReasonCode.NO_ROOM and (lacks_all or job["shape_count"] == 1):
        return f"too few devices are free for {_either(job, shapes)}"
    words: dict[int, str] = {
        ReasonCode.NO_ROOM: f"too few devices are free for {shape}, which it waits for",
        ReasonCode.TOO_SPREAD: f"enough devices are free for {shape}, but not within one {tier}: it waits for one"
        + _soon(left)
        + _gain(saves),
        ReasonCode.HELD_FOR_OTHER: f"the devices for {shape} are reserved for another job",
        ReasonCode.LINKS_BUSY: f"it waits for {shape}: other jobs send too much over the links of the free places "
        f"within one {tier}",
    }
    return words.get(code)


def _either(job: Any, shapes: Sequence[str]) -> str:
    """`8 A100-40 or 8 V100-16`; of more than three shapes their number."""
    first, count = int(job["first_shape"]), int(job["shape_count"])
    if count > _NAMED:
        return f"any of its {count} alternatives"
    *others, last = shapes[first : first + count]
    return f"{', '.join(others)} or {last}" if others else last


def _waits_for_shape(
    job: Any, tier: str | None, left: float | None, saves: float, shapes: Sequence[str]
) -> str:
    """What it could start as now, and what it waits for instead."""
    soon = f" {format_wait(left)}" if left is not None else ""
    waiting = f"waiting{soon} for {shapes[int(job['shape'])]} within one {tier}"
    other = int(job["other_shape"])
    if other < 0:
        return f"none of its shapes fits; {waiting} is best"
    if saves >= _LEAST_GAIN_S:
        later = format_wait(saves)
        return f"it could start now on {shapes[other]}, and would finish {later} later than by {waiting}"
    if left is None:
        return f"it could start now on {shapes[other]}, but its work costs over 10 % more there; {waiting}"
    return f"it could start now on {shapes[other]}, but others wait for those devices; it is {waiting}"


def _waits_too_long(job: Any, tier: str | None, late: float, shapes: Sequence[str]) -> str:
    """The same where what it waits for should be free by now: what was expected of waiting is not true any more."""
    waits = f"it waits for {shapes[int(job['shape'])]} within one {tier}, expected {format_wait(late)} ago"
    other = int(job["other_shape"])
    return waits if other < 0 else f"it could start now on {shapes[other]}; {waits}"


def _over_quota(asks: str, quota: QuotaUse | None) -> str:
    if quota is None:
        return "its virtual cluster has used up its quota"
    return f"its virtual cluster holds {quota.used} of its {quota.allowed} devices, and it asks for {asks}"


def _soon(left: float | None) -> str:
    return f" for up to {format_wait(left)} more" if left is not None else ""


def _gain(saves: float) -> str:
    return f"; that saves it {format_wait(saves)}" if saves >= _LEAST_GAIN_S else ""


def _sentence(code: int, gpus: int, tier: str | None, left: float | None, saves: float) -> str:
    soon, gain = _soon(left), _gain(saves)
    expected = format_wait(left or 0.0)
    words: dict[int, str] = {
        ReasonCode.NONE: "nothing has been decided yet",
        ReasonCode.NO_ROOM: f"fewer than {gpus} devices are free" if gpus > 1 else "no device is free",
        ReasonCode.TOO_SPREAD: f"enough devices are free, but not within one {tier}: it waits for one{soon}{gain}",
        ReasonCode.BEHIND: "the job ahead of it does not fit, and no job may overtake it",
        ReasonCode.HELD_FOR_OTHER: "the devices that would fit are reserved for another job",
        ReasonCode.LOOKS_AHEAD: f"one {tier} should be free in {expected}, and waiting for it is cheaper{gain}",
        ReasonCode.LINKS_BUSY: f"other jobs send too much over the links of the free places within one {tier}",
        ReasonCode.WAITS_FOR_SHAPE: f"it could start now in another shape, but waiting {expected} for one {tier} "
        f"is better{gain}",
        ReasonCode.CHOSEN: f"of the devices and places that it accepts, these within one {tier} are best now",
        ReasonCode.RESHAPED: f"another of its shapes became better, within one {tier}{gain}",
        ReasonCode.NEAREST: f"it fits within one {tier}",
        ReasonCode.SPREAD: f"no nearer place is free, and it does not wait for one: it takes one {tier}",
        ReasonCode.CHEAPER_THAN_WAITING: f"running spread over one {tier} costs less than waiting for a nearer place",
        ReasonCode.BACKFILLED: "it does not delay the job that its place is reserved for: it ends in time, or takes "
        "devices that job does not need",
        ReasonCode.MADE_ROOM: f"other jobs made room for it within one {tier}: it gains more than that cost them{gain}",
        ReasonCode.MOVED_UP: f"a nearer place within one {tier} came free{gain}",
        ReasonCode.HELD_FOR_IT: f"one {tier} was reserved for it, since it had waited longest",
        ReasonCode.STEPPED_ASIDE: f"it moved to another place within one {tier}, so that a blocked job fits",
        ReasonCode.OUTRANKED: "preempted by a higher-ranked job",
        ReasonCode.MADE_WAY: "it made way for a job that gains more than that costs",
        ReasonCode.HOST_LOST: "a machine it ran on was lost",
    }
    return words[code]
