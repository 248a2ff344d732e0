"""A finished simulation as journal records, so that the dashboard shows both.

A log has the number of devices of a gang on each machine; they are numbered here, lowest first, as a live controller
would. Time series are sampled at equal intervals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.cluster.serialize import cluster_from_dict
from berth.errors import InputError
from berth.live.api.series import Sample
from berth.live.devices import Devices
from berth.live.job import Seat
from berth.live.lifecycle import PLACED, SIMULATED, AttemptTrack, JobTrack
from berth.simulate.events import read_events, read_facts

_SAMPLES = 1_200
_MACHINE = {  # event: (why, is it so now)
    "failed": ("lost", True),
    "repaired": ("lost", False),
    "drained": ("drained", True),
    "undrained": ("drained", False),
}


@dataclass(slots=True)
class Finished:
    """A finished simulation."""

    cluster: Cluster
    policy: str
    trace: str
    records: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)  # of each record
    of_job: dict[str, list[int]] = field(default_factory=dict)  # records, by their place in the list
    samples: list[Sample] = field(default_factory=list)
    busiest: int = 0  # records until most devices were held
    end_s: float = 0.0


def read_simulation(path: Path, cluster: str | None = None) -> Finished:
    """Read an event log; `cluster` replaces the one in the file."""
    frame = read_events(path)
    facts = read_facts(path) or {}
    if cluster is None and "cluster" not in facts:
        raise InputError("does not name its cluster", where=str(path), hint="name it with --cluster")
    known = load_cluster(cluster) if cluster is not None else cluster_from_dict(facts["cluster"])
    found = Finished(known, facts.get("policy", "unknown policy"), facts.get("trace", path.name))
    jobs = facts.get("jobs") or {"job_id": [], "user": [], "model": []}
    about = {
        name: (user or "", model or "")
        for name, user, model in zip(jobs["job_id"], jobs["user"], jobs["model"], strict=True)
    }
    _Walk(found, about, str(path)).walk(frame)
    return found


class _Walk:
    """One pass over the log, with the devices of each job."""

    def __init__(self, found: Finished, about: dict[str, tuple[str, str]], where: str) -> None:
        cluster = found.cluster
        self._found, self._about, self._where = found, about, where
        self._machines = {machine.name: index for index, machine in enumerate(cluster.machines)}
        self._tiers = {tier.name: level for level, tier in enumerate(cluster.tiers)}
        self._kinds = {kind.name: index for index, kind in enumerate(cluster.device_types)}
        self._prices = [kind.usd_per_hour for kind in cluster.device_types]
        self._devices = Devices(cluster)
        self._seats: dict[str, list[Seat]] = {}
        self._tries: Counter[str] = Counter()
        self._waiting: dict[str, float] = {}  # start of each wait, the longest first
        self._waiting_sum = 0.0
        self._held = [0] * len(cluster.device_types)
        self._most = 0
        self._unavailable: dict[int, set[str]] = {}

    def walk(self, frame: pl.DataFrame) -> None:
        """Process every event in order."""
        found = self._found
        times = frame["time_s"].to_list()
        found.end_s = times[-1] if times else 0.0
        due = list(np.linspace(times[0], found.end_s, _SAMPLES)) if times else []
        next_ = 0
        for row in frame.iter_rows(named=True):
            while next_ < len(due) and due[next_] < row["time_s"]:
                found.samples.append(self._sample(float(due[next_])))
                next_ += 1
            self._event(row)
        if times:
            found.samples.append(self._sample(found.end_s))

    def _event(self, row: dict[str, Any]) -> None:
        event, time = row["event"], row["time_s"]
        if event in _MACHINE:
            why, is_ = _MACHINE[event]
            machine = self._machine(row["machine"])
            (set.add if is_ else set.discard)(self._unavailable.setdefault(machine, set()), why)
            self._write(time, "machine", None, row, {"machine": machine, "why": why, "is": is_})
            return
        job, kind = row["job"], SIMULATED[event]
        body: dict[str, Any] = {}
        self._leave(job)
        if kind == "submitted":
            user, model = self._about.get(job, ("", ""))
            self._waits(job, time)
            body = {"user": user, "spec": {"name": model or job, "gpus": row["gpus"]}}
        elif kind == "evict":
            self._waits(job, time)
        elif kind == "exited":
            body = {"token": f"{job}.{self._tries[job]}", "codes": [0]}
        else:
            self._waits_no_more(job)
            body = self._take(job, row)
        self._write(time, kind, job, row, body)

    def _write(
        self, time: float, kind: str, job: str | None, row: dict[str, Any], body: dict[str, Any]
    ) -> None:
        found = self._found
        if job is not None:
            found.of_job.setdefault(job, []).append(len(found.records))
        found.reasons.append(row["reason"])
        seq = len(found.records) + 1
        found.records.append({"seq": seq, "time": time, "kind": kind, "job": job} | body)

    def _waits(self, job: str, time: float) -> None:
        self._waiting[job] = time
        self._waiting_sum += time

    def _waits_no_more(self, job: str) -> None:
        self._waiting_sum -= self._waiting.pop(job, 0.0)

    def _take(self, job: str, row: dict[str, Any]) -> dict[str, Any]:
        kind = self._kinds.get(row["device"], 0)
        seats = self._seats[job] = []
        for place in row["places"] or []:
            name, _, count = place.rpartition(":")
            machine = self._machine(name)
            if len(self._devices.free(machine, kind)) < int(count):
                raise InputError(f"{place} is more than is free there", where=self._where)
            seats.append(self._devices.pick(machine, kind, int(count)))
            self._devices.give(job, seats[-1:])
        self._held[kind] += row["gpus"]
        self._tries[job] += 1
        if sum(self._held) > self._most:
            self._most, self._found.busiest = sum(self._held), len(self._found.records) + 1
        tier, plain = self._tiers.get(row["tier"], 0), [seat.to_list() for seat in seats]
        return {"token": f"{job}.{self._tries[job]}", "seats": plain, "tier": tier}

    def _leave(self, job: str) -> None:
        seats = self._seats.pop(job, [])
        self._devices.take_back(job, seats)
        self._devices.left(job, seats)
        for seat in seats:
            self._held[seat.device_type] -= len(seat.devices)

    def _machine(self, name: str) -> int:
        if name not in self._machines:
            raise InputError(
                f"machine {name!r} is not in {self._found.cluster.name}",
                where=self._where,
                hint="name the cluster of the simulation with --cluster",
            )
        return self._machines[name]

    def _sample(self, time: float) -> Sample:
        waiting, busy = len(self._waiting), sum(self._held)
        sizes = self._found.cluster.machines
        unavailable = sum(sizes[machine].size for machine, why in self._unavailable.items() if why)
        known = [price for price in self._prices if price is not None]
        return Sample(
            time=time,
            busy=busy,
            free=max(0, self._found.cluster.devices - busy - unavailable),
            unavailable=unavailable,
            external=0,
            queued=waiting,
            running=len(self._seats),
            mean_wait_s=max(0.0, time - self._waiting_sum / waiting) if waiting else 0.0,
            longest_wait_s=time - next(iter(self._waiting.values()), time),
            holding=0,
            saves_s=0.0,
            usd_per_hour=float(np.dot(known, self._held)) if len(known) == len(self._prices) else None,
            timers={},
        )


def state_at_busiest(found: Finished) -> dict[str, Any]:
    """Return placements and queue at the busiest moment, in the form of a live cluster's state."""
    records = found.records[: found.busiest]
    submitted: dict[str, dict[str, Any]] = {}
    jobs: dict[str, JobTrack] = {}
    unavailable: dict[str, list[str]] = {}
    for record in records:
        kind, name = record["kind"], record["job"]
        if kind == "machine":
            why = unavailable.setdefault(str(record["machine"]), [])
            (why.append if record["is"] else why.remove)(record["why"])
        elif kind == "exited":
            jobs.pop(name, None)
        else:
            if kind == "submitted":
                submitted[name], jobs[name] = record, JobTrack()
            jobs[name].apply(kind, record["time"], record)
    rows = [_job_row(submitted[name], job) for name, job in jobs.items()]
    return {
        "seq": found.busiest,
        "time": records[-1]["time"] if records else 0.0,
        "jobs": {key: [row[key] for row in rows] for key in _job_row(_NO_JOB, JobTrack())},
        "attempts": [_attempt_row(job.last) for job in jobs.values() if job.state == PLACED and job.last],
        "unavailable": {machine: why for machine, why in unavailable.items() if why},
        "external": {},
    }


_NO_JOB: dict[str, Any] = {"job": "", "time": 0.0, "user": "", "spec": {"name": "", "gpus": 0}}


def _job_row(submitted: dict[str, Any], job: JobTrack) -> dict[str, Any]:
    return {
        "id": submitted["job"],
        "name": submitted["spec"]["name"],
        "user": submitted["user"],
        "gpus": submitted["spec"]["gpus"],
        "priority": 0,
        "restarts": 0,
        "state": "running" if job.state == PLACED else job.state,
        "submitted": submitted["time"],
        "since": job.since,
        "evictions": job.evictions,
        "failures": 0,
    }


def _attempt_row(attempt: AttemptTrack) -> dict[str, Any]:
    keys = ("job", "token", "tier", "time", "seats")
    return {key: attempt.start[key] for key in keys} | {"began": attempt.placed_at}
