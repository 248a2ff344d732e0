"""One job's history: what it waited for and why, where it ran, which jobs moved, what that cost.

The log says what happened to the job; why it waited is in its record only while it waits. So the run is
played twice: the second time it is stopped after every event of the job's waits, and the record is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.cluster.gpus import usable_types
from berth.cluster.model import Cluster
from berth.errors import InputError, UnknownNameError
from berth.network.fabric import Fabric
from berth.network.placement import Placement
from berth.schedule.policy import Policy
from berth.schedule.reasons import (
    QuotaUse,
    Reason,
    explain,
    explained_record,
    lacks_devices,
    quota_of,
    subject,
)
from berth.schedule.records import SMALL_GANG, Array, JobStatus, World
from berth.simulate.engine_state import Event, NetworkMode
from berth.simulate.explain_alternatives import Alternative, alternatives_of, name_and_devices
from berth.simulate.jobs import iteration_s
from berth.simulate.outcome import unfinished_note
from berth.simulate.run import NETWORKS, Run, Setting, simulate
from berth.simulate.timeline import Attempts, attempts, machines_of
from berth.workload.binding import absent_types
from berth.workload.profiles import load_profile
from berth.workload.shapes import Work
from berth.workload.trace import Trace

_LOOKS = 5_000  # at most, per wait


@dataclass(frozen=True, slots=True)
class Because:
    """One of the reasons of a wait, and how long it held."""

    reason: Reason
    seconds: float


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happened to the job: waited, started, moved, evicted, finished."""

    time_s: float
    what: str
    sentence: str = ""
    seconds: float = 0.0  # how long a wait took, or how long it ran before this
    because: tuple[Because, ...] = ()
    places: tuple[tuple[str, int], ...] = ()  # machines and devices on each
    tier: str | None = None
    slowdown: float | None = None  # of an iteration against the nearest place, no other job sending
    others: tuple[str, ...] = ()  # jobs that moved for it, or that it made way for
    cost_s: float = 0.0  # GPU-seconds
    shape: str | None = None  # the alternative in which it runs or ran


@dataclass(frozen=True, slots=True)
class Rack:
    """A rack's devices of one type as the job found them."""

    name: str
    device: str
    devices: int
    free: int
    most_in_one: int  # free devices of its emptiest machine


@dataclass(frozen=True)
class Story:
    """All of it."""

    job: str
    gpus: int | None  # None, like the next two: it has alternatives, which differ in this
    model: str | None
    work_s: float | None
    work: Work | None  # of a job with alternatives
    alternatives: tuple[Alternative, ...]
    deadline_s: float | None  # after its submission
    submit_s: float
    chapters: tuple[Chapter, ...]
    found: tuple[Rack, ...]  # when it first started
    waited_s: float
    jct_s: float | None  # None: it never finishes
    lost_gpu_s: float
    exposed_gpu_s: float


def explain_job(
    trace: Trace, cluster: Cluster, policy: Policy, setting: Setting, job: str, name: str
) -> Story:
    """The story of the job called `job`, or of the n-th as `#n`, counted from 0 by submission."""
    row = row_of(trace, job)
    run = simulate(trace, cluster, policy, setting, name=name)
    _check_explainable(run, row)
    watch = _Watch(row, _waits(run, row), _event_times(run))
    simulate(trace, cluster, policy, setting, name=name, watch=watch)
    tried = attempts(run)
    record, offer = run.records[row], run.trace.offers.get(str(trace.job_ids[row]))
    return Story(
        job=str(trace.job_ids[row]),
        gpus=int(record["gpus"]) if offer is None else None,
        model=str(run.jobs.models[row]) if offer is None else None,
        work_s=float(record["work_s"]) if offer is None else None,
        work=None if offer is None else offer.work,
        alternatives=alternatives_of(run, row),
        deadline_s=None if offer is None else offer.deadline_s,
        submit_s=float(record["arrival_s"]),
        chapters=tuple(_chapters(run, tried, trace, row, watch)),
        found=racks_at(run, tried, _first_start_s(run, row), _device_types_of(run, row)),
        waited_s=float(record["waited_s"]),
        jct_s=float(record["end_s"] - record["arrival_s"]) if record["state"] == JobStatus.DONE else None,
        lost_gpu_s=float(run.accounts[row]["lost_gpu_s"]),
        exposed_gpu_s=float(run.accounts[row]["exposed_comm_gpu_s"]),
    )


def _device_types_of(run: Run, row: int) -> tuple[int, ...]:
    """The device types on which a job can run."""
    record = run.records[row]
    if not record["shape_count"]:
        return usable_types(run.cluster)
    shapes = run.world.shapes[record["first_shape"] : record["first_shape"] + record["shape_count"]]
    return tuple(np.flatnonzero(shapes["need"].any(axis=0)).tolist())


def _first_start_s(run: Run, row: int) -> float:
    """When the job first started; the end of the run if it never did."""
    first = float(run.records[row]["first_start_s"])
    return first if first >= 0 else float(run.clock[0]["now"])


def _check_explainable(run: Run, row: int) -> None:
    """Refuses jobs to which nothing happens, or the same forever."""
    job, gpus = str(run.trace.job_ids[row]), int(run.trace.num_gpu[row])
    if job in run.jobs.too_large and (offer := run.trace.offers.get(job)) is not None:
        absent = [absent_types(shape, run.cluster) for shape in offer.alternatives]
        names = ", ".join(dict.fromkeys(name for found in absent for name in found))
        raise InputError(
            f"job {job} can never start: "
            + (
                f"all its alternatives ask for devices that the cluster lacks: {names}"
                if all(absent)
                else "none of its alternatives fits the cluster"
            ),
            hint=f"{run.cluster.name} has {', '.join(kind.name for kind in run.cluster.device_types)}",
        )
    if job in run.jobs.too_large:
        raise InputError(
            f"job {job} asks for {gpus} GPUs of one kind: it can never start",
            hint=f"{run.cluster.name} has {run.cluster.devices:,} devices",
        )
    if job in run.jobs.over_quota:
        raise InputError(f"job {job} asks for {gpus} GPUs, more than its virtual cluster may hold")
    if run.livelock and job in run.unfinished:
        raise InputError(unfinished_note(run) or "")


def row_of(trace: Trace, job: str) -> int:
    """Which row of the trace is the job called so, or the n-th as `#n`."""
    ids = trace.job_ids
    if job in ids:
        return ids.index(job)
    if job.startswith("#") and job[1:].isdecimal() and int(job[1:]) < len(ids):
        return int(job[1:])
    error = UnknownNameError("job", job, ids if len(ids) <= 10_000 else [], where=trace.source)
    if job.startswith("#") and job[1:].isdecimal():
        error.hint = f"jobs by position are #0 to #{len(ids) - 1}"
    elif "did you mean" not in (error.hint or ""):
        error.hint = f"its first jobs are {', '.join(ids[:3])}; the n-th is #n, counted from 0"
    raise error


def _waits(run: Run, row: int) -> list[tuple[float, float]]:
    """From when to when the job waited."""
    log = run.log[run.log["job"] == row]
    begin = [float(entry["time"]) for entry in log if entry["what"] in (Event.ARRIVED, Event.EVICTED)]
    end = [float(entry["time"]) for entry in log if entry["what"] == Event.STARTED]
    never = [math.inf] * (len(begin) - len(end))  # of a job that waits when all is over
    return list(zip(begin, [*end, *never], strict=True))


def _event_times(run: Run) -> NDArray[np.float64]:
    """Times of all that the engine counts as events, in order."""
    ends = run.log["time"][run.log["what"] == Event.FINISHED]
    faults = run.log["time"][run.log["what"] > Event.FINISHED]
    return np.sort(np.concatenate([ends, faults, run.records["arrival_s"]]))


@dataclass(frozen=True, slots=True)
class _Look:
    """What was known of a waiting job at one moment."""

    time_s: float
    record: Array
    quota: QuotaUse | None
    lacks_all: bool


@dataclass(slots=True)
class _Watch:
    """Reads the job's record after every event of its waits; hand it to `simulate`."""

    row: int
    waits: Sequence[tuple[float, float]]
    events: NDArray[np.float64]
    looks: list[_Look] = field(default_factory=list)

    def __call__(self, world: World, clock: Array) -> int:
        now, job = float(clock[0]["now"]), world.jobs[self.row]
        done = int(clock[0]["events"])
        for begin, end in self.waits:
            if done == 0 or now < begin:
                before = int(np.searchsorted(self.events, begin))
                return max(1, before - done) if before > done else 1
            if now < end:
                if job["state"] == JobStatus.WAITING:
                    record = explained_record(world, self.row).copy()
                    quota, lacks_all = quota_of(world, self.row), lacks_devices(world, self.row)
                    self.looks.append(_Look(now, record, quota, lacks_all))
                inside = np.searchsorted(self.events, end) - np.searchsorted(self.events, begin)
                return max(1, int(inside) // _LOOKS)
        return 1 << 40

    def because(self, begin: float, end: float, run: Run, last: float | None = None) -> tuple[Because, ...]:
        """The reasons that held within a wait, longest first, each as it was when it first applied.

        Of a wait without end, those up to `last`.
        """
        tiers = [tier.name for tier in run.cluster.tiers]
        shapes = [name_and_devices(one.shape) for one in run.jobs.shapes.bound]
        looks = [look for look in self.looks if begin <= look.time_s < end]
        total: dict[tuple[int, ...], float] = {}
        first: dict[tuple[int, ...], Reason] = {}
        stops = [look.time_s for look in looks[1:]] + [end if last is None else last]
        for look, stop in zip(looks, stops, strict=False):
            about = subject(look.record, lacks_all=look.lacks_all)
            if about not in first:
                first[about] = explain(
                    look.record, look.time_s, tiers, look.quota, shapes, lacks_all=look.lacks_all
                )
            total[about] = total.get(about, 0.0) + stop - look.time_s
        found = [Because(first[about], seconds) for about, seconds in total.items() if seconds > 0 or last]
        return tuple(sorted(found, key=lambda one: -one.seconds))


def _chapters(run: Run, tried: Attempts, trace: Trace, row: int, watch: _Watch) -> list[Chapter]:
    tiers = [tier.name for tier in run.cluster.tiers]
    mine = np.flatnonzero(tried.job == row)
    chapters: list[Chapter] = []
    attempt, since = -1, 0.0
    for entry in run.log[run.log["job"] == row]:
        time, what = float(entry["time"]), int(entry["what"])
        if what == Event.ARRIVED:
            since = time
            continue
        if what == Event.STARTED and time > since:
            because = watch.because(since, time, run)
            chapters.append(Chapter(since, "waited", seconds=time - since, because=because))
        if what in (Event.STARTED, Event.MOVED):
            attempt += 1
            chapters.append(_start(run, tried, trace, entry, int(mine[attempt]), tiers))
            continue
        chapters.append(_stop(run, tried, trace, entry, int(mine[attempt])))
        since = time
    if run.records[row]["state"] == JobStatus.WAITING:
        now = float(run.clock[0]["now"])
        because = watch.because(since, math.inf, run, now)
        chapters.append(Chapter(since, "never started", seconds=now - since, because=because))
    return chapters


def _start(run: Run, tried: Attempts, trace: Trace, entry: Any, at: int, tiers: Sequence[str]) -> Chapter:
    machines, gpus = machines_of(run, tried, at)
    record = run.records[int(entry["job"])]
    again = tried.start_s[at] > record["first_start_s"]
    charged = int(tried.gpus[at])
    restore_s = _restore_s(run, charged) if again else 0.0
    names = [run.cluster.machines[machine].name for machine in machines]
    return Chapter(
        float(entry["time"]),
        Event(entry["what"]).name.lower(),
        _reason_of(entry, tiers).sentence,
        places=tuple(zip(names, (int(count) for count in gpus), strict=True)),
        tier=tiers[int(entry["tier"])],
        slowdown=_slowdown(run, tried, at),
        others=_ids(trace, _neighbours(run, tried, at, float(entry["time"]), stopped=True)),
        cost_s=restore_s * charged,
        shape=_shape_of(run, tried, at),
    )


def _shape_of(run: Run, tried: Attempts, at: int) -> str | None:
    """The name of an attempt's shape; None for a plain gang on a cluster of one type."""
    return run.jobs.shapes.names[int(tried.shape[at])] if tried.shape[at] >= 0 else None


def _slowdown(run: Run, tried: Attempts, at: int) -> float:
    """How many times longer an iteration takes on these machines, alone, than at the nearest place."""
    row, network = int(tried.job[at]), NETWORKS[run.setting.network]
    record, (machines, gpus) = run.records[row], machines_of(run, tried, at)
    if tried.shape[at] >= 0:
        return float(run.world.shapes[int(tried.shape[at])]["slowdown"][int(tried.tier[at])])
    if network == NetworkMode.OFF or record["gpus"] == 1:
        return 1.0
    kind = int(run.log_places[tried.places[at]]["device_type"])
    traffic = load_profile(str(run.jobs.models[row])).traffic(run.cluster.device_types[kind])
    placement = Placement.of_counts(dict(zip(machines.tolist(), gpus.tolist(), strict=True)))
    there = iteration_s(traffic, placement, Fabric(run.cluster, run.setting.congestion), network)
    return there / float(run.jobs.traffic[int(record["traffic_row"]) + kind]["near_s"])


def _stop(run: Run, tried: Attempts, trace: Trace, entry: Any, at: int) -> Chapter:
    time, what = float(entry["time"]), int(entry["what"])
    ran_s, shape = time - float(tried.start_s[at]), _shape_of(run, tried, at)
    if what == Event.FINISHED:
        return Chapter(time, "finished", seconds=ran_s, shape=shape)
    tiers = [tier.name for tier in run.cluster.tiers]
    others = _ids(trace, _neighbours(run, tried, at, time, stopped=False))
    sentence = _reason_of(entry, tiers).sentence
    return Chapter(time, "evicted", sentence, seconds=ran_s, others=others, shape=shape)


def _reason_of(entry: Any, tiers: Sequence[str]) -> Reason:
    """The reason in a log entry."""
    facts = {
        "reason": entry["reason"],
        "waits_for_tier": entry["tier"],
        "until_s": entry["until"],
        "saves_s": entry["saves"],
        "gpus": entry["gpus"],
    }
    return explain(facts, float(entry["time"]), tiers)


def _restore_s(run: Run, gpus: int) -> float:
    rules = run.world.rules[0]  # a policy may set its own eviction cost
    return float(rules["eviction_s"] if gpus <= SMALL_GANG else rules["eviction_large_s"])


def _neighbours(run: Run, tried: Attempts, at: int, time: float, *, stopped: bool) -> list[int]:
    """Jobs evicted (or started) at this moment on a machine of this attempt."""
    if stopped:
        rows = np.flatnonzero((tried.stop_s == time) & (tried.ended_by == Event.EVICTED))
    else:
        rows = np.flatnonzero(tried.start_s == time)
    mine = set(machines_of(run, tried, at)[0].tolist())
    return [
        int(tried.job[other])
        for other in rows
        if tried.job[other] != tried.job[at] and mine & set(machines_of(run, tried, int(other))[0].tolist())
    ]


def _ids(trace: Trace, rows: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(trace.job_ids[row]) for row in rows)


def racks_at(run: Run, tried: Attempts, time: float, types: Sequence[int]) -> tuple[Rack, ...]:
    """What was free of some types in each rack just before a moment's starts, ends of that moment included."""
    free = np.zeros((len(run.cluster.machines), len(run.cluster.device_types)), np.int64)
    for number, machine in enumerate(run.cluster.machines):
        for kind, count in machine.devices:
            free[number, kind] += count
    size = free.copy()
    for at in np.flatnonzero((tried.start_s < time) & (tried.stop_s > time)):
        held = run.log_places[tried.places[at] : tried.places[at] + tried.count[at]]
        np.add.at(free, (held["machine"], held["device_type"]), -held["gpus"])
    level = run.cluster.rack_level
    found = []
    for kind in types:
        device = run.cluster.device_types[kind].name
        for number, name in enumerate(run.cluster.group_names[level]):
            inside = (run.cluster.groups[level] == number) & (size[:, kind] > 0)
            if inside.any():
                here = free[inside, kind]
                found.append(
                    Rack(name, device, int(size[inside, kind].sum()), int(here.sum()), int(here.max()))
                )
    return tuple(found)
