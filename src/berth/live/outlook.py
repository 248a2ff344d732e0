"""What a waiting job waits for, from one forecast: what it needs, which end allows its start, what overtakes it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from berth.live import views
from berth.live.alternatives import Alternative, alternatives_of, instead
from berth.live.demand import device_types_of
from berth.live.forecast import Forecast, forecast, overdue_s
from berth.live.job import Job
from berth.live.lifecycle import QUEUED
from berth.live.state import ControllerState
from berth.schedule.reasons import ReasonCode
from berth.units import format_count, format_wait
from berth.workload.binding import BoundShape

IN_TIME, SPARE, FITS = "ends-in-time", "uses-spare-devices", "fits-sooner"
LISTED = 10  # a row lists this many overtakers, and counts the others
RUNNING_FIELDS = ("expected_start", "expected_end", "overdue_s")  # the others are about waiting
NAMED = 2  # a sentence names this many of each kind
_PASSES = {  # by how, and whether there are several
    (IN_TIME, False): "will be overtaken by {}: backfill, it ends before this job can start",
    (IN_TIME, True): "will be overtaken by {}: backfill, they end before this job can start",
    (SPARE, False): "will be overtaken by {}: backfill, on devices that this job does not need",
    (SPARE, True): "will be overtaken by {}: backfill, on devices that this job does not need",
    (FITS, False): "will be overtaken by {}, which fits sooner",
    (FITS, True): "will be overtaken by {}, which fit sooner",
}


@dataclass(frozen=True, slots=True)
class Need:
    """What a waiting job needs, and what the cluster has at the time of the forecast."""

    gpus: int
    free: int  # of the device type that has most
    in_service: int  # the most that one group of the farthest tier allowed has on machines that take jobs
    tier: str  # that tier
    closed: tuple[str, ...]  # machines that take no jobs
    near: str | None = None  # the tier that it waits for, if a farther one is allowed too
    near_free: int = 0  # the most that one group of that tier has free
    alternatives: tuple[Alternative, ...] = ()  # of a job that has some
    shape: str | None = None  # the alternative that it waits for


class Outlook:
    """A forecast, and facts of the state that it was made from."""

    def __init__(self, state: ControllerState, now: float, *, pending: bool, events: int) -> None:
        """Play a state, which is used up."""
        waiting = views.queue(state)
        self.names = {job.id: job.spec.name for job in state.jobs.values()}
        self.overdue = {job.id: late for job in state.jobs.values() if (late := overdue_s(state, job, now))}
        self._needs = needs_of(state, [job for job in waiting if job.state == QUEUED])
        self.expected: Forecast = forecast(state, now=now, pending=pending, events=events)
        self._overtakers = overtakers([job.id for job in waiting], self.expected)

    def row(self, name: str, now: float) -> dict[str, Any]:
        """Return the fields of a job's row: for a waiting job what it waits for, for a running one its end."""
        expected = self.expected
        found: dict[str, Any] = {
            "expected_start": expected.starts.get(name),
            "expected_end": expected.expected_ends.get(name),
            "overdue_s": self.overdue.get(name),
        }
        if name not in self._needs:
            return found
        passed = self.overtakers_of(name)
        return found | {
            "blocker": self.sentence(name, now),
            "starts_after": expected.after.get(name, []),
            "start_overdue_s": self._late_s(name),
            "displaces": expected.displaced.get(name, []),
            "overtaken_by": [{"job": other, "how": how} for other, how in passed.first],
            "overtakers": passed.count,
        }

    def sentence(self, name: str, now: float) -> str:
        """`needs 32 devices; 18 are free, enough in 3h58m when llm-pre ends`, and what starts before it."""
        need = self._needs[name]
        if need.in_service < need.gpus:
            return _too_few(need)
        parts = [f"needs {self._wanted(name, need)}{self._start(name, now)}"]
        parts += [text] if (text := self._instead(name, need, now)) is not None else []
        groups = self.overtakers_of(name).groups
        parts += [_PASSES[one.how, one.count > 1].format(self._list(one.first, one.count)) for one in groups]
        return "; ".join(parts)

    def _wanted(self, name: str, need: Need) -> str:
        """`32 devices; 18 are free`; where it waits for a nearer place than it must have, `32 devices in one rack`."""
        devices, free = format_count(need.gpus, "device"), need.free
        if need.alternatives:
            target = self.expected.shapes.get(name, need.shape)
            return next((one.devices for one in need.alternatives if one.name == target), devices)
        if need.near is not None and self.expected.tiers.get(name, need.near) == need.near:
            best = f"; {free} free, at most {need.near_free} in one" if free else "; none is free"
            return f"{devices} in one {need.near}{best}"
        return f"{devices}; {free} {'is' if free == 1 else 'are'} free"

    def _instead(self, name: str, need: Need, now: float) -> str | None:
        """What the alternatives would give that fit now, compared with what the job waits for."""
        expected = self.expected
        target = expected.shapes.get(name, need.shape)
        return instead(need.alternatives, target, now, expected.starts.get(name), expected.ends.get(name))

    def overtakers_of(self, name: str) -> Overtakers:
        """Return the jobs behind this one in the queue that start before it."""
        return self._overtakers.get(name, Overtakers())

    def _start(self, name: str, now: float) -> str:
        expected = self.expected
        if name not in expected.starts:
            if expected.complete:
                return ", and no end of a running job frees enough devices"
            return "; no estimate: too many jobs ahead of it"
        left_s = expected.starts[name] - now
        when = f"in {format_wait(left_s)}" if left_s >= 1.0 else "now"
        if expected.displaced[name]:
            return f"; starts {when} in place of {self._list(expected.displaced[name])}"
        if after := expected.after[name]:
            end = f"when {self._list(after)} {'ends' if len(after) == 1 else 'end'}"
            if (late_s := self._late_s(name)) is None:
                return f"; starts {when} {end}"
            more = format_wait(max(0.0, left_s))
            return f"; starts {end} ({format_wait(late_s)} overdue, {more} more assumed)"
        return f"; starts {when}"

    def _late_s(self, name: str) -> float | None:
        """Return for how long a job has been overdue whose end allows the start of this one; None: none is."""
        late = [self.overdue[job] for job in self.expected.after.get(name, ()) if job in self.overdue]
        return max(late, default=None)

    def _list(self, names: Sequence[str], count: int | None = None) -> str:
        """Return the first of `count` jobs by name, and how many more there are."""
        more = (len(names) if count is None else count) - NAMED
        shown = ", ".join(self._called(name) for name in names[:NAMED])
        return shown + (f" and {more} more" if more > 0 else "")

    def _called(self, name: str) -> str:
        """Return the id of a job, with its name if it has one."""
        return name if self.names.get(name, "job") in ("job", name) else f"{name} ({self.names[name]})"


def never(played: ControllerState, job: Job, expected: Forecast) -> str:
    """Return why a job did not start in a forecast."""
    need = needs_of(played, [job])[job.id]
    if need.in_service < need.gpus:
        return _too_few(need)
    return (
        "no end of a running job frees enough devices"
        if expected.complete
        else "too many jobs are ahead of it"
    )


def _too_few(need: Need) -> str:
    have = f"the machines in service have {need.in_service} within one {need.tier}"
    wanted = format_count(need.gpus, "device")
    if need.alternatives:
        wanted = " or ".join(dict.fromkeys(one.devices for one in need.alternatives))
        have = f"the machines in service never have that within one {need.tier}"
    shown = ", ".join(need.closed[:NAMED]) + (" ..." if len(need.closed) > NAMED else "")
    closed = f"; out of service: {shown}" if need.closed else ""
    return f"needs {wanted}, and {have}{closed}"


def needs_of(state: ControllerState, jobs: Sequence[Job]) -> dict[str, Need]:
    """Return by job what it needs and what the cluster has."""
    closed = tuple(
        machine.name for machine, shut in zip(state.cluster.machines, state.unavailable, strict=True) if shut
    )
    capacity: dict[tuple[tuple[int, ...], int], tuple[int, int, int]] = {}  # many jobs ask for the same
    needs: dict[str, Need] = {}
    for job in jobs:
        asked = device_types_of(state.setup, job.spec), int(state.world.jobs[job.row]["widest_tier"])
        if asked not in capacity:
            capacity[asked] = _capacity(state, *asked)
        free, most, _ = capacity[asked]
        if alternatives := tuple(alternatives_of(state, job)):
            size, tier = views.size_of(state, job), state.setup.tiers[asked[1]]
            shape = state.shape_at(job)
            name = None if shape is None else shape.shape.name
            fits = any(_in_service(state, one) for one in state.shapes_of(job))
            most = size if fits else 0
            needs[job.id] = Need(size, free, most, tier, closed, alternatives=alternatives, shape=name)
            continue
        needs[job.id] = Need(job.spec.gpus, free, most, state.setup.tiers[asked[1]], closed)
        near = _tier_waited_for(state, job)
        if near < asked[1]:
            if (wanted := (asked[0], near)) not in capacity:
                capacity[wanted] = _capacity(state, *wanted)
            needs[job.id] = replace(
                needs[job.id], near=state.setup.tiers[near], near_free=capacity[wanted][2]
            )
    return needs


def _in_service(state: ControllerState, one: BoundShape) -> bool:
    """Return whether a group of the farthest tier allowed has enough devices in service, of every type."""
    hosts = state.world.hosts[state.world.hosts["down"] == 0]
    groups = hosts["group"][:, one.widest_tier]
    devices = np.zeros((int(groups.max(initial=0)) + 1, len(one.need)), int)
    np.add.at(devices, (groups, hosts["device_type"]), hosts["size"])
    return bool((devices >= np.array(one.need)).all(axis=1).any())


def _tier_waited_for(state: ControllerState, job: Job) -> int:
    """Return the tier that a job waits for at first; the widest if it takes any place, or if that is not known."""
    record, world = state.world.jobs[job.row], state.world
    if world.rules[0]["relax_locality"]:
        return int(record["nearest_tier"])
    reached = record["explained_s"] == world.state[0]["now"]
    return int(record["waits_for_tier"] if reached else record["widest_tier"])


def _capacity(state: ControllerState, kinds: Sequence[int], tier: int) -> tuple[int, int, int]:
    """Return the free devices of the type with most, and of the groups of a tier the most in service and free."""
    hosts = state.world.hosts
    free = most = most_free = 0
    for kind in kinds:
        here = hosts[(hosts["down"] == 0) & (hosts["device_type"] == kind)]
        if len(here):
            free = max(free, int(here["free"].sum()))
            groups = here["group"][:, tier]
            most = max(most, int(np.bincount(groups, weights=here["size"]).max()))
            most_free = max(most_free, int(np.bincount(groups, weights=here["free"]).max()))
    return free, most, most_free


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that overtake in the same way."""

    how: str
    count: int
    first: tuple[str, ...]  # at most NAMED, the first to start first


@dataclass(frozen=True, slots=True)
class Overtakers:
    """All overtakers of one job, by their start."""

    count: int = 0
    first: tuple[tuple[str, str], ...] = ()  # (job, how), at most LISTED
    groups: tuple[Group, ...] = ()


def overtakers(order: Sequence[str], expected: Forecast) -> dict[str, Overtakers]:
    """Return the overtakers of each job of a queue that is overtaken.

    The queue is scanned once from its end, with the starts of the jobs behind in order. What is kept of a job is
    bounded, so the time is near linear in the length of the queue.
    """
    backfills: dict[str, list[tuple[float, int]]] = {}
    for place, name in enumerate(order):
        if (
            name in expected.starts
            and expected.reasons[name] == ReasonCode.BACKFILLED
            and name in expected.reserved
        ):
            backfills.setdefault(expected.reserved[name], []).append((expected.starts[name], place))
    found: dict[str, Overtakers] = {}
    behind: list[tuple[float, int]] = []  # start and place in the queue
    for place in range(len(order) - 1, -1, -1):
        name = order[place]
        start = expected.starts.get(name, math.inf)
        if count := bisect_left(behind, (start,)):
            passes = sorted(one for one in backfills.get(name, ()) if one[1] > place and one[0] < start)
            found[name] = _of_one(
                order, expected, name, behind[: min(count, LISTED + len(passes))], count, passes
            )
        if start < math.inf:
            insort(behind, (start, place))
    return found


def _of_one(
    order: Sequence[str],
    expected: Forecast,
    name: str,
    first: Sequence[tuple[float, int]],
    count: int,
    passes: Sequence[tuple[float, int]],
) -> Overtakers:
    """`first` of `count` overtakers, and those that backfill (`passes`)."""
    start = expected.starts.get(name, -math.inf)
    how = {
        place: IN_TIME if expected.ends.get(order[place], math.inf) <= start else SPARE for _, place in passes
    }
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
