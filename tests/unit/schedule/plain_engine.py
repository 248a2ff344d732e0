"""A scheduler and its event loop in plain Python, written from the documentation and without berth's code.

Machines of one type in one flat network that costs nothing. All times are whole numbers, so that sums are exact
and every figure can be compared with `==`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Job:
    """One job: what it asks for, how far it is, and what it has cost."""

    row: int
    arrival: float
    gpus: int
    work: float
    vc: str | None = None
    priority: int = 0
    left: float = 0.0
    state: str = "future"
    places: dict[int, int] = field(default_factory=dict)
    since: float = 0.0  # queued since
    started: float = 0.0
    restored: float = 0.0  # until then it restores
    updated: float = 0.0
    saved_left: float = 0.0
    saved_at: float = 0.0
    first_start: float = -1.0
    end: float = 0.0
    waited: float = 0.0
    attained: float = 0.0
    lost: float = 0.0
    redone: float = 0.0
    evictions: int = 0


@dataclass(frozen=True)
class Discipline:
    """Who goes first, and what becomes of those behind a job that does not fit: skip, stop or backfill."""

    order: Callable[[Job, float], float] = lambda job, now: job.arrival
    blocked: str = "skip"
    preempts: bool = False
    period: float = 0.0


class PlainEngine:
    """Runs jobs on machines to the end."""

    def __init__(
        self,
        rows: Sequence[Sequence[Any]],
        machines: Sequence[int],
        discipline: Discipline,
        *,
        restore: tuple[float, float] = (0.0, 0.0),  # of gangs up to eight devices, and above
        checkpoint: float = 0.0,
        faults: Sequence[tuple[float, int, str]] = (),
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        self.jobs = [Job(n, row[0], row[1], row[2], *row[3:]) for n, row in enumerate(rows)]
        for job in self.jobs:
            job.left = job.work
        self.sizes, self.free, self.down = list(machines), list(machines), [0] * len(machines)
        self.rule, self.restore, self.checkpoint = discipline, restore, checkpoint
        self.faults, self.quotas = sorted(faults), dict(quotas or {})
        self.next_round = 0.0
        self.now, self.wake, self.idle_wanted, self.evictions = 0.0, math.inf, 0.0, 0

    def run(self) -> PlainEngine:
        """Plays everything that happens."""
        while (now := self.next_event()) < math.inf:
            waiting = self.of("waiting")
            if waiting and sum(self.free) >= min(job.gpus for job in waiting):
                self.idle_wanted += (now - self.now) * sum(self.free)
            self.now = now
            for job in self.of("running"):
                if self.finish_of(job) <= now:
                    self.leave(job)
                    job.state, job.end, job.left = "done", now, 0.0
            while self.faults and self.faults[0][0] <= now:
                self.fault(*self.faults.pop(0)[1:])
            for job in self.of("future"):
                if job.arrival <= now:
                    job.state, job.since = "waiting", job.arrival
            self.wake = math.inf
            if self.of("waiting"):
                self.decide()
        return self

    def next_event(self) -> float:
        """When something happens next."""
        times = [self.wake, *(job.arrival for job in self.of("future"))]
        times += [self.finish_of(job) for job in self.of("running")]
        if self.faults and any(job.state != "done" for job in self.jobs):
            times.append(self.faults[0][0])
        return min(times)

    def of(self, state: str) -> list[Job]:
        """Jobs in a state, in the order of the policy."""
        found = [job for job in self.jobs if job.state == state]
        return sorted(
            found, key=lambda job: (-job.priority, self.rule.order(job, self.now), job.arrival, job.row)
        )

    def finish_of(self, job: Job) -> float:
        """When a running job is done."""
        return max(job.updated, job.restored) + job.left

    def settle(self, job: Job) -> None:
        """Brings the progress of a running job up to date, and its checkpoints."""
        if self.checkpoint:
            while job.saved_at + self.checkpoint <= self.now:
                job.saved_at += self.checkpoint
                job.saved_left = job.left - max(0.0, job.saved_at - max(job.updated, job.restored))
        job.left -= max(0.0, self.now - max(job.updated, job.restored))
        job.attained += (self.now - job.updated) * job.gpus
        job.updated = self.now

    def leave(self, job: Job) -> None:
        """Takes a job off its devices."""
        self.settle(job)
        job.lost -= max(0.0, job.restored - self.now) * job.gpus  # restoring that was cut short
        for machine, count in job.places.items():
            if not self.down[machine]:
                self.free[machine] += count
        job.places = {}

    def evict(self, job: Job) -> None:
        """Puts a running job back into the queue."""
        self.leave(job)
        job.state, job.since = "waiting", self.now
        job.evictions += 1
        self.evictions += 1

    def start(self, job: Job, places: dict[int, int]) -> None:
        """Puts a waiting job on devices; where it ran before it restores first."""
        for machine, count in places.items():
            self.free[machine] -= count
        job.places, job.state = places, "running"
        job.waited += self.now - job.since
        job.started = job.updated = job.restored = self.now
        if job.first_start < 0:
            job.first_start = self.now
        else:
            cost = self.cost(job)
            job.restored += cost
            job.lost += cost * job.gpus
        job.saved_left, job.saved_at = job.left, job.restored

    def cost(self, job: Job) -> float:
        """Seconds that a restart takes."""
        return self.restore[0] if job.gpus <= 8 else self.restore[1]

    def fault(self, machine: int, what: str) -> None:
        """A machine fails, is repaired, is drained or comes back."""
        if what in ("fail", "drain"):
            self.down[machine] += 1
            self.free[machine] = 0
            for job in self.of("running") if what == "fail" else ():
                if machine in job.places:
                    self.settle(job)
                    job.lost += max(0.0, self.now - job.saved_at) * job.gpus
                    job.redone += job.saved_left - job.left
                    saved = job.saved_left
                    self.evict(job)
                    job.left = saved
        else:
            self.down[machine] -= 1
            if not self.down[machine]:
                used = sum(job.places.get(machine, 0) for job in self.of("running"))
                self.free[machine] = self.sizes[machine] - used

    def place(self, gpus: int) -> dict[int, int] | None:
        """The fullest machine that holds a gang; else full machines, and the rest where it fits tightest."""
        if sum(self.free) < gpus:
            return None
        taken: dict[int, int] = {}
        while gpus:
            left = {m: free - taken.get(m, 0) for m, free in enumerate(self.free)}
            holds = [m for m in left if left[m] >= gpus]
            machine = min(holds, key=lambda m: left[m]) if holds else max(left, key=lambda m: left[m])
            count = min(gpus, left[machine])
            taken[machine] = taken.get(machine, 0) + count
            gpus -= count
        return taken

    def over_quota(self, job: Job) -> bool:
        """Whether a start would exceed the quota of its virtual cluster."""
        used = sum(other.gpus for other in self.of("running") if other.vc == job.vc)
        return job.vc in self.quotas and used + job.gpus > self.quotas[job.vc]

    def decide(self) -> None:
        """One pass over the queue."""
        if not self.rule.preempts:
            self.fill(self.rule.blocked)
            return
        if self.rule.period and self.now < self.next_round:
            self.fill("skip")
        else:
            self.reconsider()
            if self.rule.period:
                self.next_round = (self.now // self.rule.period + 1) * self.rule.period
        if self.rule.period and self.of("running"):
            self.wake = self.next_round

    def fill(self, blocked: str) -> None:
        """Starts the jobs that fit, in order."""
        closed: set[str | None] = set()
        waits: list[Job] = []
        reserved: tuple[float, int] | None = None  # until when, and devices to spare
        for job in self.of("waiting"):
            if blocked == "skip" and not self.rule.preempts and reserved is None and waits:
                below = [one for one in waits if one.priority > job.priority and not self.over_quota(one)]
                reserved = self.reservation(below[0]) if below else None
            held_back = self.over_quota(job) or job.vc in closed
            if not held_back and (places := self.place(job.gpus)) is not None:
                starts = True
                if reserved is not None:
                    restart = self.cost(job) if job.first_start >= 0 else 0.0
                    in_time = self.now + restart + job.left <= reserved[0]
                    starts = in_time or job.gpus <= reserved[1]
                    if starts and not in_time:
                        reserved = (reserved[0], reserved[1] - job.gpus)
                if starts:
                    self.start(job, places)
                    continue
            waits.append(job)
            if held_back and blocked != "skip" and not self.rule.preempts:
                closed.add(job.vc)
            elif blocked == "stop":
                return
            elif blocked == "backfill" and reserved is None:
                reserved = self.reservation(job)

    def reservation(self, job: Job) -> tuple[float, int]:
        """When enough of what runs has ended for a job, and how many devices are free beyond it then."""
        ends = sorted((max(self.now, one.restored) + one.left, one.gpus) for one in self.updated_running())
        free = sum(self.free)
        until = self.now
        for end, _ in ends:
            if free >= job.gpus:
                break
            until = end
            free = sum(self.free) + sum(gpus for other, gpus in ends if other <= until)
        return until, free - job.gpus

    def updated_running(self) -> list[Job]:
        """The running jobs, up to date."""
        running = self.of("running")
        for job in running:
            self.settle(job)
        return running

    def reconsider(self) -> None:
        """Goes over all jobs, waiting and running, in order: each that fits runs, on devices that are only counted."""
        running, waiting = self.updated_running(), self.of("waiting")
        free = sum(self.free) + sum(job.gpus for job in running)
        used = dict.fromkeys(self.quotas, 0)
        keep: list[Job] = []
        ranked = sorted(
            [*running, *waiting],
            key=lambda job: (-job.priority, self.rule.order(job, self.now), job.arrival, job.row),
        )
        for job in ranked:
            if job.gpus > free or (job.vc in self.quotas and used[job.vc] + job.gpus > self.quotas[job.vc]):
                continue
            keep.append(job)
            free -= job.gpus
            if job.vc in used:
                used[job.vc] += job.gpus
        for job in running:
            if job not in keep:
                self.evict(job)
        for job in keep:
            if job.state == "waiting":
                self.start(job, self.place(job.gpus) or {})
