"""A run replayed from its log alone: what each job holds after every event, without the simulator's state.

Nothing here is shared with the scheduler: places, tiers and distances are computed again from the cluster,
in plain Python. What does not add up is noted as a violation, and the counting goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from berth.cluster.gpus import usable_types
from berth.cluster.model import Cluster
from berth.workload.binding import BoundShape, bind_fitting, nearest_tier_of
from berth.workload.trace import Trace

_NEAREST = ("nearest", "made-room", "held-for-it")
_FARTHER = ("spread", "cheaper-than-waiting")
_CHOSEN = "chosen"  # among alternatives
_LOST_ITS_PLACE = ("outranked", "made-way", "host-lost")


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen, and did."""

    time_s: float
    who: str
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.time_s:.3f}s {self.who}: {self.what} [{self.rule}]"


@dataclass(slots=True)
class Attempt:
    """One stay of a job in one place."""

    start_s: float
    tier: int
    device: str
    places: dict[str, int]
    gpus: int = 0  # that it is charged for
    shape: str | None = None
    held: dict[tuple[str, str], int] = field(default_factory=dict)  # by machine and device type
    end_s: float = -1.0
    ended_by: str = ""
    reason: str = ""  # why it ended, where it did not finish


@dataclass(slots=True)
class Story:
    """What the log says about a job."""

    gpus: int
    floor: int | None
    arrived_s: float = -1.0
    finished_s: float = -1.0
    waits_since_s: float = -1.0
    waited_s: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    runs: bool = False
    shapes: dict[str, BoundShape] = field(default_factory=dict)  # by name; none: a plain gang

    def take(self, shape: BoundShape, gpus: int) -> None:
        """From now on the job is in this shape."""
        self.gpus, self.floor = gpus, shape.nearest_tier


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run says that it ended: without these jobs, and why."""

    unfinished: frozenset[str] = frozenset()
    livelock: bool = False  # it was stopped while jobs took each other's place
    strict: bool = False  # no job overtakes the first that waits


class LogReplay:
    """Plays a log event by event; `violations` and `stories` are what it leaves."""

    def __init__(
        self,
        cluster: Cluster,
        trace: Trace,
        quotas: Mapping[str, int] | None = None,
        farther: bool = False,
        gangs_choose: bool = False,
    ) -> None:
        self._farther = farther
        self.cluster = cluster
        self.violations: list[Violation] = []
        self._tiers = {tier.name: level for level, tier in enumerate(cluster.tiers)}
        self._machines = {machine.name: number for number, machine in enumerate(cluster.machines)}
        self._size = {
            (machine.name, cluster.device_types[kind].name): count
            for machine in cluster.machines
            for kind, count in machine.devices
        }
        floors = {gpus: self._floor(gpus) for gpus in set(trace.num_gpu.tolist())}
        self._quotas = dict(quotas or {})
        self._vc = dict(zip(trace.job_ids, trace.frame["vc"].to_list(), strict=True)) if quotas else {}
        self.stories = {
            job: Story(gpus, floors[gpus] if gpus <= self._allowed(job, gpus) else None)
            for job, gpus in zip(trace.job_ids, trace.num_gpu.tolist(), strict=True)
        }
        self._usable = [cluster.device_types[kind].name for kind in usable_types(cluster)]
        for job, offer in trace.offers.items():
            self.stories[job].shapes = {one.shape.name: one for one in bind_fitting(offer, cluster)}
            fewest = min(map(self._gpus_of, self.stories[job].shapes.values()), default=1 << 40)
            fits = fewest <= self._allowed(job, fewest) and self.stories[job].shapes
            self.stories[job].floor = 0 if fits else None
        self._gangs_choose = (bool(trace.offers) or gangs_choose) and len(
            self._usable
        ) > 1  # among device types
        self._charged: Counter[str] = Counter()  # devices held by virtual cluster
        self._submitted = dict(zip(trace.job_ids, trace.submit_s.tolist(), strict=True))
        self._used: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[str] = Counter()
        self._drained: Counter[str] = Counter()
        self._now = 0.0
        self._reasons: Counter[str] = Counter()  # of this moment
        self._losers: list[tuple[str, set[str]]] = []  # jobs that lost a host at this moment, and their hosts
        self._vacated: set[str] = set()  # machines that others left at this moment to make room
        self._roomed: list[tuple[str, set[str]]] = []  # jobs that had room made, and where
        self._failing: set[str] = set()

    def play(self, log: pl.DataFrame, ending: Ending | None = None) -> None:
        """Counts the whole log and then what it leaves open."""
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "arrived": self._arrived,
            "started": self._started,
            "moved": self._moved,
            "evicted": self._evicted,
            "finished": self._finished,
            "failed": self._machine_failed,
            "repaired": lambda event: self._put_back(self._failed, event["machine"]),
            "drained": lambda event: self._drained.update([event["machine"]]),
            "undrained": lambda event: self._put_back(self._drained, event["machine"]),
        }
        for event in log.iter_rows(named=True):
            self._moment(event["time_s"])
            handlers[event["event"]](event)
        self._close_moment()
        self._check_ending(ending or Ending())

    def _check_ending(self, ending: Ending) -> None:
        """Who is not finished must be named, and must have had no chance: nothing runs, and it does not fit."""
        left = {job: story for job, story in self.stories.items() if _is_left(story)}
        for job, story in left.items():
            state = "runs" if story.runs else "waits" if story.arrived_s >= 0 else "has not arrived"
            if job not in ending.unfinished or (state != "waits" and not ending.livelock):
                self._wrong(job, "lost", f"it {state} when the log ends")
        for job in ending.unfinished - left.keys():
            self._wrong(job, "lost", "it is said never to finish, and the log says otherwise")
        fitting = [job for job in left if not ending.livelock and self._has_room(job)]
        if ending.strict and len(fitting) < len(left):
            return
        for job in fitting:
            self._wrong(job, "lost", "it waits when the log ends, though it has room")

    def _has_room(self, job: str) -> bool:
        """Whether machines that are up have enough free devices for a job within its nearest tier."""
        story, free = self.stories[job], Counter[tuple[int, str]]()
        if story.shapes:
            return any(self._shape_has_room(job, shape) for shape in story.shapes.values())
        for (name, device), size in self._size.items():
            if not self._failed[name] and not self._drained[name]:
                group = int(self.cluster.groups[story.floor or 0][self._machines[name]])
                free[group, device] += size - self._used[name, device]
        charged = self._charged[self._vc[job]] if job in self._vc else 0
        within = charged + story.gpus <= self._allowed(job, charged + story.gpus)
        return within and max(free.values(), default=0) >= story.gpus

    def _shape_has_room(self, job: str, shape: BoundShape) -> bool:
        """The same for a shape without tied parts; where ties can be met is not decided here."""
        free: Counter[tuple[int, str]] = Counter()
        for (name, device), size in self._size.items():
            if not self._failed[name] and not self._drained[name]:
                group = int(self.cluster.groups[shape.nearest_tier][self._machines[name]])
                free[group, device] += size - self._used[name, device]
        gpus = self._gpus_of(shape)
        charged = self._charged[self._vc[job]] if job in self._vc else 0
        need = {kind.name: n for kind, n in zip(self.cluster.device_types, shape.need, strict=True) if n}
        fits = any(all(free[group, name] >= n for name, n in need.items()) for group, _ in free)
        return not shape.tied and fits and charged + gpus <= self._allowed(job, charged + gpus)

    def _gpus_of(self, shape: BoundShape) -> int:
        """What a shape is charged for: its GPUs, or all devices if it has none."""
        devices = dict(zip((kind.name for kind in self.cluster.device_types), shape.need, strict=True))
        return sum(devices[name] for name in self._usable) or sum(shape.need)

    def _allowed(self, job: str, unless: int) -> int:
        """The quota of a job's virtual cluster, or `unless` if it has none."""
        return self._quotas.get(self._vc.get(job) or "", unless)

    def _wrong(self, who: str, rule: str, what: str) -> None:
        self.violations.append(Violation(self._now, who, rule, what))

    # Jobs

    def _arrived(self, event: dict[str, Any]) -> None:
        story = self._story(event)
        if story.arrived_s >= 0:
            self._wrong(event["job"], "lost", "it arrives twice")
        if event["time_s"] != self._submitted[event["job"]]:
            self._wrong(event["job"], "order", "it does not arrive when it was submitted")
        if story.floor is None:
            self._wrong(event["job"], "lost", "it can never run, and was not refused")
        story.arrived_s = story.waits_since_s = event["time_s"]

    def _started(self, event: dict[str, Any]) -> None:
        story = self._story(event)
        if story.arrived_s < 0 or story.finished_s >= 0 or story.runs:
            state = "runs" if story.runs else "is over" if story.finished_s >= 0 else "has not arrived"
            self._wrong(event["job"], "attempts", f"it starts while it {state}")
        story.waited_s += event["time_s"] - story.waits_since_s
        self._take_places(event, story)
        self._check_start_reason(event, story)
        if event["reason"] == "made-room":
            self._roomed.append((event["job"], set(story.attempts[-1].places)))

    def _moved(self, event: dict[str, Any]) -> None:
        story = self._story(event)
        if not story.runs:
            self._wrong(event["job"], "attempts", "it is moved while it does not run")
            return
        before = story.attempts[-1]
        if event["reason"] == "stepped-aside":
            self._vacated |= set(story.attempts[-1].places)
        self._leave_places(event, story)
        self._take_places(event, story)
        self._reasons[event["reason"]] += 1
        if not self._may_move(event["reason"], before, story.attempts[-1]):
            self._wrong(event["job"], "reason", f"{event['reason']}, but its new place is no better")

    def _may_move(self, reason: str, before: Attempt, after: Attempt) -> bool:
        """Whether a job that moves up is nearer, or more balanced; one that steps aside no farther, unless allowed."""
        if reason == "stepped-aside":
            return self._farther or after.tier <= before.tier
        if reason == "reshaped":
            return after.shape is not None or after.device != before.device or after.tier < before.tier
        rounder = after.tier == before.tier and _imbalance(after) < _imbalance(before)
        return reason == "moved-up" and (after.tier < before.tier or rounder)

    def _evicted(self, event: dict[str, Any]) -> None:
        story = self._story(event)
        if not story.runs:
            self._wrong(event["job"], "attempts", "it is evicted while it does not run")
            return
        self._leave_places(event, story)
        story.waits_since_s = event["time_s"]
        self._reasons[event["reason"]] += 1
        if event["reason"] not in _LOST_ITS_PLACE:
            self._wrong(event["job"], "reason", f"{event['reason']} is not a reason to lose a place")
        if event["reason"] == "made-way":
            self._vacated |= set(story.attempts[-1].places)
        if event["reason"] == "host-lost":
            self._losers.append((event["job"], set(story.attempts[-1].places)))

    def _finished(self, event: dict[str, Any]) -> None:
        story = self._story(event)
        if not story.runs or story.finished_s >= 0:
            self._wrong(event["job"], "attempts", "it finishes while it does not run")
            return
        self._leave_places(event, story)
        story.finished_s = event["time_s"]

    def _story(self, event: dict[str, Any]) -> Story:
        story = self.stories[event["job"]]
        if story.shapes and event["event"] in ("started", "moved"):
            self._in_shape(event, story)
        elif story.shapes:
            return story  # while it waits, the log names the shape that it waits for
        if event["gpus"] != story.gpus:
            self._wrong(
                event["job"], "gang", f"it asked for {story.gpus} devices, the log says {event['gpus']}"
            )
        return story

    def _in_shape(self, event: dict[str, Any], story: Story) -> None:
        """A job with alternatives starts in one of them."""
        shape = story.shapes.get(event["shape"] or "")
        if shape is None:
            self._wrong(event["job"], "shape", f"it has no shape {event['shape']!r} that fits")
        elif event["event"] == "started" or story.runs:
            story.take(shape, self._gpus_of(shape))

    # Places

    def _take_places(self, event: dict[str, Any], story: Story) -> None:
        """A gang takes its places: whole, of one type, on machines that are up and have them."""
        job, device = event["job"], event["device"]
        places, held = self._parse(event["places"] or []), _held(event)
        if story.shapes:
            self._check_parts(event, story.shapes.get(event["shape"] or ""), held)
        elif sum(places.values()) != story.gpus:
            self._wrong(job, "gang", f"{story.gpus} devices were asked for, {sum(places.values())} are held")
        for (machine, kind), count in held.items():
            self._used[machine, kind] += count
            used, size = self._used[machine, kind], self._size.get((machine, kind), 0)
            if used > size:
                self._wrong(job, "held-twice", f"{used} of {size} {kind} on {machine} are held")
            if self._failed[machine] or self._drained[machine]:
                state = "failed" if self._failed[machine] else "drained"
                self._wrong(job, "down", f"it is put on {machine}, which is {state}")
        tier = self._tier_of(places)
        if self._tiers.get(event["tier"]) != tier:
            self._wrong(job, "tier", f"its places are at level {tier}, the log says {event['tier']}")
        self._charge(job, story.gpus)
        shape = event["shape"] if story.shapes else None
        story.attempts.append(Attempt(event["time_s"], tier, device, places, story.gpus, shape, held))
        story.runs = True

    def _leave_places(self, event: dict[str, Any], story: Story) -> None:
        attempt = story.attempts[-1]
        attempt.end_s, attempt.ended_by, attempt.reason = event["time_s"], event["event"], event["reason"]
        for key, count in attempt.held.items():
            self._used[key] -= count
        self._charge(event["job"], -attempt.gpus)
        story.runs = False

    def _check_parts(
        self, event: dict[str, Any], shape: BoundShape | None, held: dict[tuple[str, str], int]
    ) -> None:
        """No part is partial: every type is held as often as the shape says, and tied parts lie within their tier."""
        if shape is None:
            return
        total: Counter[str] = Counter()
        for (_, kind), count in held.items():
            total[kind] += count
        need = {kind.name: n for kind, n in zip(self.cluster.device_types, shape.need, strict=True) if n}
        if dict(total) != need:
            self._wrong(event["job"], "gang", f"{need} were asked for, {dict(total)} are held")
        tied = _tied_places(event)
        for part in shape.tied:
            places = tied.get(part.part, {})
            if self._tiers.get(event["tier"], 0) <= part.tier:
                continue
            if sum(places.values()) != sum(part.need):
                self._wrong(event["job"], "gang", f"part {part.part} holds {sum(places.values())} devices")
            elif self._tier_of(places) > part.tier:
                self._wrong(
                    event["job"], "gang", f"part {part.part} is not within one group of level {part.tier}"
                )

    def _charge(self, job: str, gpus: int) -> None:
        """A virtual cluster never holds more than its quota."""
        name = self._vc.get(job)
        if name not in self._quotas:
            return
        self._charged[name] += gpus
        if gpus > 0 and self._charged[name] > self._quotas[name]:
            held = f"{name} holds {self._charged[name]} devices of {self._quotas[name]}"
            self._wrong(job, "quota", held)

    def _parse(self, texts: list[str]) -> dict[str, int]:
        places: Counter[str] = Counter()
        for text in texts:
            machine, _, count = text.rpartition(":")
            places[machine] += int(count)
        return dict(places)

    def _tier_of(self, places: dict[str, int]) -> int:
        """The nearest level at which all machines are in one group."""
        numbers = [self._machines[machine] for machine in places]
        for level in range(len(self.cluster.tiers)):
            if len({int(self.cluster.groups[level][number]) for number in numbers}) == 1:
                return level
        return len(self.cluster.tiers)

    def _floor_on(self, device: str, gpus: int) -> int:
        """The nearest tier that can ever hold a gang on devices of one type; -1: none."""
        need = tuple(gpus * (kind.name == device) for kind in self.cluster.device_types)
        floor = nearest_tier_of(self.cluster, need, ())
        return -1 if floor is None else floor

    def _floor(self, gpus: int) -> int | None:
        """The nearest level with a group that holds `gpus` devices of one type that gangs run on."""
        usable = usable_types(self.cluster)
        for level in range(len(self.cluster.tiers)):
            held: Counter[tuple[int, int]] = Counter()
            for number, machine in enumerate(self.cluster.machines):
                for kind, count in machine.devices:
                    held[int(self.cluster.groups[level][number]), kind] += count * (kind in usable)
            if max(held.values(), default=0) >= gpus:
                return level
        return None

    # Machines

    def _machine_failed(self, event: dict[str, Any]) -> None:
        machine = event["machine"]
        self._failed[machine] += 1
        self._failing.add(machine)
        for (name, device), count in self._used.items():
            if name == machine and count:
                self._wrong(machine, "down", f"it failed, and {count} of its {device} are still held")

    def _put_back(self, down: Counter[str], machine: str) -> None:
        down[machine] -= 1
        if down[machine] < 0:
            self._wrong(machine, "down", "it is put back before it was taken away")

    # Moments

    def _moment(self, now: float) -> None:
        if now < self._now:
            self._wrong("log", "order", f"time goes back from {self._now} to {now}")
        if now != self._now:
            self._close_moment()
            self._now = now

    def _close_moment(self) -> None:
        """What belongs together must have happened together."""
        reasons = self._reasons
        if bool(reasons["made-room"]) != bool(reasons["made-way"] + reasons["stepped-aside"]):
            self._wrong("log", "reason", "a job made way and no job had room made for it, or the reverse")
        for job, machines in self._roomed:
            if not machines & self._vacated:
                self._wrong(job, "reason", "room was made for it, and it runs where no job made any")
        if reasons["outranked"] and not reasons["start"]:
            self._wrong("log", "reason", "a job was outranked, and no job took its place")
        for job, hosts in self._losers:
            if not hosts & self._failing:
                self._wrong(job, "reason", "it lost a host, and none of its hosts failed")
        self._reasons.clear()
        self._losers.clear()
        self._vacated.clear()
        self._roomed.clear()
        self._failing.clear()

    def _check_start_reason(self, event: dict[str, Any], story: Story) -> None:
        tier, reason = self._tiers.get(event["tier"], -1), event["reason"]
        self._reasons[reason] += 1
        self._reasons["start"] += 1
        floor = -1 if story.floor is None else story.floor
        if self._gangs_choose and not story.shapes:
            floor = self._floor_on(event["device"], story.gpus)
        farther = tier > floor or (reason == "cheaper-than-waiting" and self._thinner(story.attempts[-1]))
        if (reason in _NEAREST and tier != floor) or (reason in _FARTHER and not farther):
            self._wrong(
                event["job"], "reason", f"{reason}, but it runs at level {tier}, the nearest is {floor}"
            )
        elif reason not in (*_NEAREST, *_FARTHER, "backfilled") and not (
            reason == _CHOSEN and (story.shapes or self._gangs_choose)
        ):
            self._wrong(event["job"], "reason", f"{reason} is not a reason to start")

    def _thinner(self, attempt: Attempt) -> bool:
        """Whether a gang is less balanced than on as few empty machines as possible, of any type."""
        largest = max(self._size.values())
        gpus = sum(attempt.places.values())
        machines = -(-gpus // largest)
        return _imbalance(attempt) > (machines - 1) / (machines * (gpus // machines))


def _held(event: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Devices by machine and type that an event names."""
    held: Counter[tuple[str, str]] = Counter()
    places = event["places"] or []
    for text, kind in zip(places, event["types"] or [event["device"]] * len(places), strict=True):
        machine, _, count = text.rpartition(":")
        held[machine, kind.partition("@")[0]] += int(count)
    return dict(held)


def _tied_places(event: dict[str, Any]) -> dict[int, dict[str, int]]:
    """Devices by tied part and machine that an event names."""
    found: dict[int, dict[str, int]] = {}
    for text, kind in zip(event["places"] or [], event["types"] or [], strict=False):
        machine, _, count = text.rpartition(":")
        if part := kind.partition("@")[2]:
            machines = found.setdefault(int(part), {})
            machines[machine] = machines.get(machine, 0) + int(count)
    return found


def _is_left(story: Story) -> bool:
    return story.floor is not None and story.finished_s < 0


def _imbalance(attempt: Attempt) -> float:
    """What an all-reduce over these machines suffers from: how many they are, how few devices the smallest has."""
    parts = attempt.places.values()
    return (len(parts) - 1) / (len(parts) * min(parts))
