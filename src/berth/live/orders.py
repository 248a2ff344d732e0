"""Wanted against seen: what happened since, and what the back end should do next.

`happened` turns an observation into records. `wanted` lists the orders that bring the back end to what the books
say; it may repeat itself until an observation shows that it was heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from berth.cluster.model import Cluster
from berth.live.backend import Forget, Launch, MachineSeen, Member, Observation, Order, Seen, Stop
from berth.live.books import Books
from berth.live.causes import Cause
from berth.live.job import LAUNCHING, RUNNING, STOPPING, WAITS, Attempt
from berth.live.records import CLOSED, LOST, Record

Blocked = Mapping[int, frozenset[int]]  # devices by machine


def happened(
    books: Books,
    seen: Observation,
    fenced: Set[str],
    now: float,
    doubtful: Set[str] = frozenset(),
    blocked: Blocked | None = None,
) -> Iterator[Record]:
    """What an observation tells that the books do not know; each is to be folded before the next is asked for.

    `fenced`: tokens that the back end had agreed to stop before it was observed. Only of those is it certain that they
    are gone when they are not seen. `doubtful`: machines of which nothing is known. `blocked`: devices of attempts that
    the journal does not know.
    """
    blocked = blocked or {}
    for index, machine in enumerate(books.cluster.machines):
        if machine.name not in doubtful:
            yield from _machine(books, index, seen.machines.get(machine.name), now, blocked)
    for token in list(books.attempts):
        attempt = books.attempts.get(token)
        if attempt is None:
            continue
        gone = [books.cluster.machines[index].name for index in attempt.machines if LOST in books.shut[index]]
        if record := _attempt(attempt, seen.attempts.get(token), fenced, now, ", ".join(gone)):
            yield record
    for index in blocked:  # ends of attempts may have freed some
        if (name := books.cluster.machines[index].name) not in doubtful:
            yield from _machine(books, index, seen.machines.get(name), now, blocked)


def _machine(
    books: Books, index: int, seen: MachineSeen | None, now: float, blocked: Blocked
) -> Iterator[Record]:
    lost = seen is None or not seen.up
    for why, is_ in ((LOST, lost), (CLOSED, seen is not None and seen.drained)):
        if is_ != (why in books.shut[index]):
            yield Record(now, "machine", body={"machine": index, "why": why, "is": is_})
    if seen is None:
        return
    numbers = sorted(blocked.get(index, ()))
    devices, known = seen.foreign + len(numbers), books.foreign[index]
    changed = tuple(numbers) != books.devices.blocked.get(index, ())
    if changed or devices < known or (devices > known and (books.shut[index] or books.free_on(index))):
        body = {"machine": index, "devices": devices} | ({"numbers": numbers} if numbers else {})
        yield Record(now, "foreign", body=body)


def _attempt(attempt: Attempt, seen: Seen | None, fenced: Set[str], now: float, gone: str) -> Record | None:
    """What became of an attempt; `gone`: its machines that are lost."""
    if attempt.state == WAITS:
        return None
    if seen is None:
        if attempt.token not in fenced:
            return None
        unseen = Cause.NODE_LOST if attempt.why == "lost" else Cause.STOPPED
        end = {"token": attempt.token, "codes": [], "lost": True, "cause": unseen.value}
        return Record(now, "exited", attempt.job, end)
    if seen.state == "ended":
        facts = {"stopped": seen.stopped, "done": seen.done, "lost": seen.lost}
        told = {name: True for name, value in facts.items() if value}
        body: dict[str, Any] = {"token": attempt.token, "code": seen.code, "codes": list(seen.codes)}
        body |= told
        cause, detail = seen.cause, seen.detail
        if attempt.why == "lost" and cause in (None, Cause.STOPPED, Cause.SUPERVISOR_LOST):
            cause, detail = Cause.NODE_LOST, gone  # that is why it was stopped
        if cause is not None:
            body |= {"cause": cause.value} | ({"detail": detail} if detail else {})
        return Record(now, "exited", attempt.job, body)
    if seen.state == "running" and attempt.began is None:
        return Record(now, "started", attempt.job, {"token": attempt.token})
    return None


def blocked_devices(cluster: Cluster, where: Iterable[Mapping[str, Sequence[int]] | None]) -> Blocked | None:
    """Return the devices that attempts may hold, given what the back end knows of each; None: it may be any device.

    Of a machine that is known without its devices, all are blocked.
    """
    index = {machine.name: at for at, machine in enumerate(cluster.machines)}
    found: dict[int, frozenset[int]] = {}
    for places in where:
        if places is None:
            return None
        for name, numbers in places.items():
            if (at := index.get(name)) is not None:
                found[at] = found.get(at, frozenset()) | set(numbers or range(cluster.machines[at].size))
    return found


def overlaps(attempt: Attempt, blocked: Blocked) -> bool:
    """Whether an attempt has one of these devices."""
    return any(not blocked.get(seat.machine, frozenset()).isdisjoint(seat.devices) for seat in attempt.seats)


def launches(books: Books, now: float, blocked: Blocked) -> Iterator[Record]:
    """Attempts whose devices have become free: they are launched as soon as this is on record."""
    for attempt in list(books.attempts.values()):
        if attempt.state == WAITS and books.may_launch(attempt) and not overlaps(attempt, blocked):
            yield Record(now, "launch", attempt.job, {"token": attempt.token})


def wanted(books: Books, seen: Mapping[str, Seen]) -> list[Order]:
    """What the back end should do, given what it last showed."""
    orders: list[Order] = []
    for token, attempt in books.attempts.items():
        found = seen.get(token)
        if attempt.state == LAUNCHING and found is None:
            orders.append(launch_of(books, attempt))
        elif found is not None and found.state == "ended":
            continue
        elif attempt.state == STOPPING or (attempt.state == RUNNING and found is None):
            orders.append(Stop(token, books.jobs[attempt.job].spec.grace))
    for token, found in seen.items():
        if token not in books.attempts:
            orders.append(Forget(token) if found.state == "ended" else Stop(token, 0.0))
    return orders


def launch_of(books: Books, attempt: Attempt) -> Launch:
    """The order that starts an attempt."""
    job = books.jobs[attempt.job]
    return Launch(
        token=attempt.token,
        job=job.id,
        attempt=attempt.number,
        name=job.spec.name,
        user=job.user,
        argv=tuple(job.spec.argv),
        members=members_of(books, attempt),
        env=job.spec.env,
        cwd=job.spec.cwd,
        grace_s=job.spec.grace,
        memory_bytes=job.spec.memory,
    )


def members_of(books: Books, attempt: Attempt) -> tuple[Member, ...]:
    """The processes of a gang: one for each device, or for each machine, in the order of its seats."""
    per_machine: dict[int, list[int]] = {}
    for seat in attempt.seats:
        per_machine.setdefault(seat.machine, []).extend(seat.devices)
    members: list[Member] = []
    for machine, devices in per_machine.items():
        name = books.cluster.machines[machine].name
        if books.jobs[attempt.job].spec.per == "machine":
            members.append(Member(len(members), 0, name, tuple(devices)))
        else:
            for local, device in enumerate(devices):
                members.append(Member(len(members), local, name, (device,)))
    return tuple(members)
