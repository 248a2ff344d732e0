"""Reconciliation of the controller's state with the back end: what has changed there, and what to order next.

`observed_changes` turns an observation into records. `desired_orders` lists the orders that bring the back end to the
state; orders are repeated until an observation shows their effect. `MachineLiveness` decides when a machine is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from berth.cluster.model import Cluster
from berth.live.backend import AttemptStatus, Forget, Launch, MachineStatus, Observation, Order, Stop
from berth.live.job import Attempt
from berth.live.lifecycle import LAUNCHING, RUNNING, STOPPING, WAITS, Cause
from berth.live.members import members_of, plan_text
from berth.live.records import CLOSED, LOST, Record
from berth.live.state import ControllerState

ANSWERS = 3  # in a row without the machine
MISSING_S = 10.0  # and for this long
MANY = 0.25  # if more than this share is missing at once, the answer may be wrong
MANY_MISSING_S = 120.0
LATE_S = 10.0  # by which a start is recorded later than it was, at most, while a controller runs
Blocked = Mapping[int, frozenset[int]]  # devices by machine


def observed_changes(
    state: ControllerState,
    seen: Observation,
    fenced: Set[str],
    now: float,
    doubtful: Set[str] = frozenset(),
    blocked: Blocked | None = None,
) -> Iterator[Record]:
    """Yield records of what is new in an observation; each must be applied before the next is requested.

    `fenced`: tokens that the back end had agreed to stop before it was observed: only these have certainly ended when
    they are not seen. `doubtful`: machines of unknown status. `blocked`: devices of attempts that the journal does not
    know.
    """
    blocked = blocked or {}
    for index, machine in enumerate(state.cluster.machines):
        if machine.name not in doubtful:
            yield from _machine(state, index, seen.machines.get(machine.name), now, blocked)
    for token in list(state.attempts):
        attempt = state.attempts.get(token)
        if attempt is None:
            continue
        gone = [
            state.cluster.machines[index].name
            for index in attempt.machines
            if LOST in state.unavailable[index]
        ]
        if record := _attempt(attempt, seen.attempts.get(token), fenced, now, ", ".join(gone)):
            yield record
    for index in blocked:  # ends of attempts may have freed some
        if (name := state.cluster.machines[index].name) not in doubtful:
            yield from _machine(state, index, seen.machines.get(name), now, blocked)


def _machine(
    state: ControllerState, index: int, seen: MachineStatus | None, now: float, blocked: Blocked
) -> Iterator[Record]:
    lost = seen is None or not seen.up
    for why, is_ in ((LOST, lost), (CLOSED, seen is not None and seen.drained)):
        if is_ != (why in state.unavailable[index]):
            yield Record(now, "machine", body={"machine": index, "why": why, "is": is_})
    if seen is None:
        return
    numbers = sorted(blocked.get(index, ()))
    devices, known = seen.external + len(numbers), state.external[index]
    changed = tuple(numbers) != state.devices.blocked.get(index, ())
    if changed or devices < known or (devices > known and (state.unavailable[index] or state.free_on(index))):
        body = {"machine": index, "devices": devices} | ({"numbers": numbers} if numbers else {})
        yield Record(now, "external", body=body)


def _attempt(
    attempt: Attempt, seen: AttemptStatus | None, fenced: Set[str], now: float, gone: str
) -> Record | None:
    """Return the record of a change of an attempt; `gone`: its machines that are lost."""
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
        body: dict[str, Any] = {"token": attempt.token, "code": seen.code, "codes": list(seen.codes)}
        body |= {name: True for name, value in facts.items() if value}
        cause, detail = seen.cause, seen.detail
        if attempt.why == "lost" and cause in (None, Cause.STOPPED, Cause.SUPERVISOR_LOST):
            cause, detail = Cause.NODE_LOST, gone  # the reason for stopping it
        if cause is not None:
            body |= {"cause": cause.value} | ({"detail": detail} if detail else {})
        late = _late_start(attempt, seen, now)
        if seen.ended is not None:  # the clock of its machine may be wrong
            began = late.get("began", attempt.since if attempt.began is None else attempt.began)
            body["ended"] = min(now, max(began, seen.ended))
        return Record(now, "exited", attempt.job, body | late)
    if seen.state == "running" and attempt.began is None:
        body = {"token": attempt.token} | _late_start(attempt, seen, now)
        return Record(now, "started", attempt.job, body)
    return None


def _late_start(attempt: Attempt, seen: AttemptStatus, now: float) -> dict[str, float]:
    """Return when an attempt began, if that is well before its start was or is recorded: no controller ran then."""
    recorded = now if attempt.began is None else attempt.began
    if seen.began is None or recorded - seen.began < LATE_S:
        return {}
    return {"began": min(recorded, max(attempt.since, seen.began))}


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


def launches(state: ControllerState, now: float, blocked: Blocked) -> Iterator[Record]:
    """Yield the records of attempts whose devices have become free; they are launched once this is committed."""
    for attempt in list(state.attempts.values()):
        if attempt.state == WAITS and state.may_launch(attempt) and not overlaps(attempt, blocked):
            yield Record(now, "launch", attempt.job, {"token": attempt.token})


def desired_orders(state: ControllerState, seen: Mapping[str, AttemptStatus]) -> list[Order]:
    """Return the orders for the back end, given its last observation."""
    orders: list[Order] = []
    for token, attempt in state.attempts.items():
        found = seen.get(token)
        if attempt.state == LAUNCHING and found is None:
            orders.append(launch_of(state, attempt))
        elif found is not None and found.state == "ended":
            continue
        elif attempt.state == STOPPING or (attempt.state == RUNNING and found is None):
            orders.append(Stop(token, state.jobs[attempt.job].spec.grace))
    for token, found in seen.items():
        if token not in state.attempts:
            orders.append(Forget(token) if found.state == "ended" else Stop(token, 0.0))
    return orders


def launch_of(state: ControllerState, attempt: Attempt) -> Launch:
    """Return the order that starts an attempt."""
    job = state.jobs[attempt.job]
    return Launch(
        token=attempt.token,
        job=job.id,
        attempt=attempt.number,
        name=job.spec.name,
        user=job.user,
        argv=tuple(job.spec.argv),
        members=members_of(state, attempt),
        env=job.spec.env,
        cwd=job.spec.cwd,
        grace_s=job.spec.grace,
        memory_bytes=job.spec.memory,
        plan=plan_text(job.spec, attempt.shape),
    )


@dataclass(slots=True)
class _Missing:
    since: float
    answers: int = 0


class MachineLiveness:
    """Which machines are missing from the back end's answers, and which of them are lost.

    An answer may be empty or cut short, so one answer without a machine means nothing. A machine that is reported
    down is lost at once. One that is missing is lost after `ANSWERS` answers in a row over `MISSING_S`; if many are
    missing or down at once, over `MANY_MISSING_S`. Until then nothing is decided.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._missing: dict[str, _Missing] = {}
        self.doubtful: frozenset[str] = frozenset()
        self.many = False

    def update(
        self,
        machines: Collection[str],
        seen: Set[str],
        needed: Set[str],
        now: float,
        down: Set[str] = frozenset(),
    ) -> frozenset[str]:
        """Return the machines that are missing or down in this answer, but not lost yet.

        `machines`: all that are not lost. `needed`: those with attempts on them; one that was never up and is not
        needed may be lost at once. `down`: those seen that are not up.
        """
        there = seen - down
        self._known |= there
        gone = {name for name in machines if name not in there and (name in self._known or name in needed)}
        self._missing = {name: self._missing.get(name) or _Missing(now) for name in gone}
        for one in self._missing.values():
            one.answers += 1
        all_gone = 1 < len(gone) == len(machines) or 0 < len(gone - down) == len(machines)
        self.many = len(gone) > max(1, MANY * len(machines)) or all_gone
        patience_s = MANY_MISSING_S if self.many else MISSING_S
        self.doubtful = frozenset(
            name
            for name, one in self._missing.items()
            if (self.many or name not in down) and (one.answers < ANSWERS or now - one.since < patience_s)
        )
        return self.doubtful
