"""Jobs that start before a waiting job although they are behind it in the queue, and how: for a whole queue at once."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from berth.live.forecast import Forecast
from berth.schedule.reasons import BACKFILLED

IN_TIME, SPARE, FITS = "ends-in-time", "uses-spare-devices", "fits-sooner"
LISTED = 10  # a row lists this many overtakers, and counts the others
NAMED = 2  # a sentence names this many of each kind


@dataclass(frozen=True, slots=True)
class Group:
    """Overtakers that do so in the same way."""

    how: str
    count: int
    first: tuple[str, ...]  # at most NAMED, the first to start first


@dataclass(frozen=True, slots=True)
class Overtakers:
    """All overtakers of one job; the first to start first."""

    count: int = 0
    first: tuple[tuple[str, str], ...] = ()  # (job, how), at most LISTED
    groups: tuple[Group, ...] = ()


def overtakers(order: Sequence[str], told: Forecast) -> dict[str, Overtakers]:
    """By job, for those of a queue that are overtaken.

    The queue is walked once from its end, with the starts of what lies behind kept in order. What is kept of a job is
    bounded, so the time grows with the length of the queue, not with its square.
    """
    backfills: dict[str, list[tuple[float, int]]] = {}
    for place, name in enumerate(order):
        if name in told.starts and told.reasons[name] == BACKFILLED and name in told.reserved:
            backfills.setdefault(told.reserved[name], []).append((told.starts[name], place))
    found: dict[str, Overtakers] = {}
    behind: list[tuple[float, int]] = []  # start and place in the queue
    for place in range(len(order) - 1, -1, -1):
        name = order[place]
        start = told.starts.get(name, math.inf)
        if count := bisect_left(behind, (start,)):
            passes = sorted(one for one in backfills.get(name, ()) if one[1] > place and one[0] < start)
            found[name] = _of_one(
                order, told, name, behind[: min(count, LISTED + len(passes))], count, passes
            )
        if start < math.inf:
            insort(behind, (start, place))
    return found


def _of_one(
    order: Sequence[str],
    told: Forecast,
    name: str,
    first: Sequence[tuple[float, int]],
    count: int,
    passes: Sequence[tuple[float, int]],
) -> Overtakers:
    """`first` of `count` overtakers, and those that backfill (`passes`)."""
    start = told.starts.get(name, -math.inf)
    how = {place: IN_TIME if told.ends.get(order[place], math.inf) <= start else SPARE for _, place in passes}
    others = [one for one in first if one[1] not in how]
    kinds = {
        FITS: (count - len(passes), others),
        IN_TIME: (list(how.values()).count(IN_TIME), [one for one in passes if how[one[1]] == IN_TIME]),
        SPARE: (list(how.values()).count(SPARE), [one for one in passes if how[one[1]] == SPARE]),
    }
    ordered = sorted((some[0], kind, size, some) for kind, (size, some) in kinds.items() if some)
    return Overtakers(
        count,
        tuple((order[place], how.get(place, FITS)) for _, place in first[:LISTED]),
        tuple(Group(kind, size, _names(order, some[:NAMED])) for _, kind, size, some in ordered),
    )


def _names(order: Sequence[str], places: Iterable[tuple[float, int]]) -> tuple[str, ...]:
    return tuple(order[place] for _, place in places)
