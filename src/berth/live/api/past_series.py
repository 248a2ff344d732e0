"""Numbers over time from the journal, for the time before this start of the controller.

Records are applied to counts alone: which devices are held, which jobs wait and since when. What only a running
scheduler knows (timers, what waiting saves) is left out.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from berth.cluster.model import Cluster
from berth.live.api.series import Sample
from berth.live.records import LOST, Record, read
from berth.live.spec import JobSpec

_DEFAULT_RESTARTS: int = JobSpec.model_fields["restarts"].default
_RECORDS = "SELECT time, kind, job, body FROM journal WHERE seq >= ? AND seq < ? ORDER BY seq"
_PAUSE_EVERY, _PAUSE_S = 500, 0.002  # records: the controller works meanwhile
Held = list[tuple[int, int, int]]  # machine, device type, devices


class Counts:
    """Devices and jobs after the records applied so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: dict[str, Held] = {}
        self._tokens: dict[str, str] = {}  # of the attempt that holds devices, by job
        self._waiting: dict[str, float] = {}  # since when, the longest first
        self._since_sum = 0.0
        self._restarts: dict[str, int] = {}  # failures that a job may still have
        self._by_machine = [0] * len(cluster.machines)
        self._by_type = [0] * len(cluster.device_types)
        self._closed: dict[int, set[str]] = {}
        self._external: dict[int, int] = {}

    def apply(self, record: Record) -> None:
        """Follow one record."""
        kind, job, now, body = record.kind, record.job, record.time, record.body
        if kind == "machine":
            self._machine(int(body["machine"]), body["why"], bool(body["is"]), now)
        elif kind == "external":
            self._external[int(body["machine"])] = int(body["devices"])
        elif job is None:
            return
        elif kind == "submitted":
            self._restarts[job] = int(body["spec"].get("restarts", _DEFAULT_RESTARTS))
            self._wait(job, now)
        elif kind in ("start", "move"):
            self._leave(job)
            self._take(job, body)
        elif kind == "evict":
            self._leave(job)
            self._wait(job, now)
        elif kind == "exited":
            self._exit(job, body, now)
        elif kind == "ready" and job in self._restarts:
            self._wait(job, now)
        elif kind == "cancelled":
            self._end(job)

    def _machine(self, machine: int, why: str, is_: bool, now: float) -> None:
        (set.add if is_ else set.discard)(self._closed.setdefault(machine, set()), why)
        if is_ and why == LOST:
            lost = [job for job, held in self._held.items() if any(one[0] == machine for one in held)]
            for job in lost:
                self._leave(job)
                self._wait(job, now)

    def _take(self, job: str, body: dict[str, Any]) -> None:
        self._since_sum -= self._waiting.pop(job, 0.0)
        self._held[job] = [
            (int(machine), int(kind), len(numbers)) for machine, kind, numbers, *_ in body["seats"]
        ]
        self._tokens[job] = body["token"]
        self._count(self._held[job], 1)

    def _leave(self, job: str) -> None:
        self._count(self._held.pop(job, []), -1)
        self._tokens.pop(job, None)

    def _count(self, held: Held, sign: int) -> None:
        for machine, kind, devices in held:
            self._by_machine[machine] += sign * devices
            self._by_type[kind] += sign * devices

    def _wait(self, job: str, now: float) -> None:
        self._since_sum += now - self._waiting.pop(job, 0.0)
        self._waiting[job] = now

    def _exit(self, job: str, body: dict[str, Any], now: float) -> None:
        codes = body.get("codes") or []
        if job not in self._restarts:
            return
        if body.get("done") or (codes and not any(codes) and not body.get("stopped")):
            self._end(job)
        elif self._tokens.get(job) == body["token"]:
            self._restarts[job] -= 0 if body.get("lost") else 1
            self._leave(job)
            if self._restarts[job] < 0:
                self._end(job)
            else:
                self._wait(job, now)

    def _end(self, job: str) -> None:
        self._leave(job)
        self._since_sum -= self._waiting.pop(job, 0.0)
        self._restarts.pop(job, None)

    def sample(self, now: float) -> Sample:
        """Return the numbers at a time after the last record."""
        machines, waiting = self._cluster.machines, len(self._waiting)
        closed = [machine for machine, why in self._closed.items() if why]
        unavailable = sum(machines[one].size - self._by_machine[one] for one in closed)
        external = sum(count for machine, count in self._external.items() if not self._closed.get(machine))
        busy = sum(self._by_type)
        prices = [kind.usd_per_hour for kind in self._cluster.device_types]
        known = [price for price in prices if price is not None]
        return Sample(
            time=now,
            busy=busy,
            free=max(0, self._cluster.devices - busy - unavailable - external),
            unavailable=unavailable,
            external=external,
            queued=waiting,
            running=len(self._held),
            mean_wait_s=max(0.0, now - self._since_sum / waiting) if waiting else 0.0,
            longest_wait_s=now - next(iter(self._waiting.values()), now),
            holding=0,
            saves_s=0.0,
            usd_per_hour=sum(price * held for price, held in zip(known, self._by_type, strict=True))
            if len(known) == len(prices)
            else None,
            timers={},
        )


def past_samples(
    db: sqlite3.Connection, cluster: Cluster, first: int, before: int, since: float, bucket_s: float
) -> Iterator[Sample]:
    """Yield one sample for each bucket of time after `since` in which something happened, oldest first."""
    counts = Counts(cluster)
    last: float | None = None
    for number, (moment, kind, job, line) in enumerate(db.execute(_RECORDS, (first, before)), 1):
        if last is not None and moment // bucket_s != last // bucket_s and last >= since:
            yield counts.sample(last)
        if kind not in ("pass", "learned", "launch"):
            counts.apply(read(moment, kind, job, line))
        last = moment
        if number % _PAUSE_EVERY == 0:
            time.sleep(_PAUSE_S)
    if last is not None and last >= since:
        yield counts.sample(last)
