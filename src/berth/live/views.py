"""What people are shown: the books as plain data, the same for the terminal, the API and the page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from berth.live.backend import Observation
from berth.live.books import Books
from berth.live.causes import Hindrance, sentence
from berth.live.job import DELAYED, LAUNCHING, PLACED, QUEUED, RUNNING, STOPPING, WAITS, Attempt, Job
from berth.live.orders import overlaps
from berth.live.spec import JobSpec
from berth.live.wants import kinds_of
from berth.schedule.reasons import CODES, HELD_FOR_OTHER, Reason, bring_up_to_date, explain
from berth.units import format_count

_DETAILS = ("run", "env", "cwd", "step_pattern")  # of a job: for its owner only


def state_of(books: Books, job: Job) -> str:
    """One word for where a job stands."""
    if job.ends_as is not None:
        return "stopping"
    if job.state != PLACED:
        stopping = any(books.attempts[token].state == STOPPING for token in job.alive)
        return "evicting" if job.state == QUEUED and stopping else job.state
    assert job.token is not None
    return {WAITS: "starting", LAUNCHING: "starting", RUNNING: "running"}[books.attempts[job.token].state]


def job_row(books: Books, job: Job, *, details: bool = True) -> dict[str, Any]:
    """A job in a list."""
    return job_facts(books, job) | {"spec": spec_row(job.spec, details=details)}


def spec_row(spec: JobSpec, *, details: bool) -> dict[str, Any]:
    """What was asked for a job; its details are for its owner only."""
    return {name: value for name, value in spec.plain().items() if details or name not in _DETAILS}


def job_facts(books: Books, job: Job) -> dict[str, Any]:
    """The same without its spec, which does not change and may be written out without the controller's lock."""
    record = books.world.jobs[job.row]
    row: dict[str, Any] = {
        "id": job.id,
        "name": job.spec.name,
        "user": job.user,
        "state": state_of(books, job),
        "gpus": job.spec.gpus,
        "priority": job.spec.priority,
        "submitted": job.submitted,
        "since": job.since,
        "attempts": job.attempts,
        "evictions": job.evictions,
        "failures": job.failures,
        "remaining_s": float(record["estimated_remaining_s"]),
        "last_end": last_end(job),
    }
    if job.token is not None:
        row |= attempt_facts(books, books.attempts[job.token])
    return row


def last_end(job: Job) -> dict[str, Any] | None:
    """Why the last attempt of a job ended; None: none has, or nothing is known."""
    if job.cause is None:
        return None
    return {"cause": job.cause, "detail": job.detail, "sentence": sentence(job.cause, job.detail)}


def held_up(books: Books, job: Job, seen: Observation | None, hindrances: list[Hindrance]) -> Reason | None:
    """What keeps a job from starting beside the policy: the state of the back end, or of its own launch there."""
    if job.ends_as is not None or job.state == DELAYED:
        return None
    if job.token is not None:
        if books.attempts[job.token].state == RUNNING:
            return None
        found = seen.attempts.get(job.token) if seen is not None else None
        if found is not None and found.cause is not None:
            return Reason(str(found.cause), sentence(found.cause, found.detail))
    first = next((one for one in hindrances if _concerns(books, job, one)), None)
    return Reason(str(first.cause), first.sentence) if first is not None else None


def _concerns(books: Books, job: Job, hindrance: Hindrance) -> bool:
    """Whether a hindrance keeps this job from starting; one of some devices does if it would start with them."""
    if hindrance.devices is None:
        return True
    if job.token is not None:
        return overlaps(books.attempts[job.token], hindrance.devices)
    kinds = kinds_of(books.setup, job.spec)
    free = sum(int(host["free"]) for host in books.world.hosts if int(host["device_type"]) in kinds)
    blocked = sum(
        books.devices.count_blocked(machine, kind) for machine in hindrance.devices for kind in kinds
    )
    return free < job.spec.gpus <= free + blocked


def attempt_facts(books: Books, attempt: Attempt) -> dict[str, Any]:
    """Where an attempt is."""
    names, kinds = books.cluster.machines, books.cluster.device_types
    return {
        "token": attempt.token,
        "attempt": attempt.number,
        "tier": books.setup.tiers[attempt.tier],
        "placed": attempt.since,
        "began": attempt.began,
        "places": [
            {"machine": names[s.machine].name, "kind": kinds[s.kind].name, "devices": list(s.devices)}
            for s in attempt.seats
        ],
    }


def over_row(facts: dict[str, Any], *, details: bool = True) -> dict[str, Any]:
    """A job that is over, out of the store."""
    spec = facts["spec"]
    if not details:
        spec = {name: value for name, value in spec.items() if name not in _DETAILS}
    return {
        "id": facts["id"],
        "name": spec.get("name", "job"),
        "user": facts["user"],
        "state": facts["state"],
        "gpus": spec.get("gpus", 1),
        "priority": spec.get("priority", 0),
        "submitted": facts["submitted"],
        "first_start": facts["first_start"],
        "ended": facts["ended"],
        "code": facts["code"],
        "cause": facts.get("cause"),
        "detail": facts.get("detail", ""),
        "ran_s": facts.get("ran_s"),
        "attempts": facts["attempts"],
        "evictions": facts["evictions"],
        "failures": facts["failures"],
        "spec": spec,
    }


def queue(books: Books) -> list[Job]:
    """Those who wait, most deserving first."""
    state = books.world.state[0]
    rows = books.world.waiting[state["queue_start"] : state["queue_stop"]]
    return [job for row in rows if (job := books.rows[int(row)]) is not None]


def reason_of(books: Books, job: Job, now: float) -> Reason:
    """Why a job waits, or runs where it does, as of the last pass."""
    if job.ends_as is not None:
        return Reason("stopping", f"it is {job.ends_as} once its processes have left")
    if job.state == DELAYED:
        if job.not_before == math.inf:
            return Reason("does-not-fit", "this cluster has no place that ever holds it")
        left_s = max(0.0, job.not_before - now)
        failed = (
            f"its last attempt failed: {sentence(job.cause, job.detail)}"
            if job.cause
            else "its last attempt failed"
        )
        return Reason("delayed", f"{failed}; it is tried again soon", seconds_left=left_s)
    if job.state == QUEUED:
        bring_up_to_date(books.world, job.row)
    reason = explain(books.world.jobs[job.row], now, books.setup.tiers)
    holder = int(books.world.state[0]["last_reserved"])
    if reason.code == CODES[HELD_FOR_OTHER] and holder >= 0 and (other := books.rows[holder]) is not None:
        return replace(reason, sentence=f"the devices that would fit are reserved for {other.id}")
    return reason


def reason_row(reason: Reason) -> dict[str, Any]:
    """A reason as data."""
    return {
        "code": reason.code,
        "sentence": reason.sentence,
        "tier": reason.tier,
        "seconds_left": reason.seconds_left,
        "saves_s": reason.saves_s,
    }


def why(books: Books, job: Job, now: float) -> dict[str, Any]:
    """All that explains where a job stands: the reason, its place in the queue, and what is free in each rack."""
    reason = reason_of(books, job, now)
    told: dict[str, Any] = {"job": job.id, "state": state_of(books, job), "gpus": job.spec.gpus}
    told["priority"] = job.spec.priority
    told["reason"] = reason_row(reason)
    told["last_end"] = last_end(job)
    if job.state == QUEUED and job.ends_as is None:
        told["position"] = [other.id for other in queue(books)].index(job.id) + 1
        told["free"] = free_by_group(books, job)
        told["summary"] = summary(told["free"], job.spec.gpus, books.setup.tiers[group_level(books)])
        told["waits_for_release"] = [token for token in job.alive if books.attempts[token].state == STOPPING]
    elif job.token is not None:
        attempt = books.attempts[job.token]
        told |= attempt_facts(books, attempt)
        if attempt.state == WAITS:
            ahead = books.ahead_of(attempt) or [token for token in job.alive if token != attempt.token]
            told["waits_for_release"] = ahead
    record = books.world.jobs[job.row]
    told["slowdown_by_tier"] = {
        name: float(record["slowdown"][tier])
        for tier, name in enumerate(books.setup.tiers)
        if tier >= record["nearest_tier"]
    }
    told["timer_by_tier_s"] = {
        name: _finite(record["delay_timer_s"][tier]) for tier, name in enumerate(books.setup.tiers)
    }
    return told


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def group_level(books: Books) -> int:
    """The level of racks; of machines, where there are none."""
    return 1 if len(books.cluster.tiers) > 2 else 0


def free_by_group(books: Books, job: Job | None = None) -> list[dict[str, Any]]:
    """Devices in each rack (machine, where there are no racks): all, free, and free in its emptiest machine."""
    cluster = books.cluster
    level = group_level(books)
    wanted = range(len(books.setup.kinds)) if job is None else kinds_of(books.setup, job.spec)
    total, free, largest = (np.zeros(len(cluster.group_names[level]), int) for _ in range(3))
    on_machine = np.zeros(len(cluster.machines), int)
    for host in books.world.hosts:
        if int(host["device_type"]) in wanted:
            group = int(host["group"][level])
            total[group] += host["size"]
            free[group] += host["free"]
            on_machine[int(host["machine"])] += host["free"]
    np.maximum.at(largest, cluster.groups[level], on_machine)
    return [
        {
            "name": name,
            "devices": int(total[at]),
            "free": int(free[at]),
            "most_on_one_machine": int(largest[at]),
        }
        for at, name in enumerate(cluster.group_names[level])
    ]


def summary(groups: list[dict[str, Any]], gpus: int, word: str) -> str:
    """`16 devices are free, but in three racks`, in a sentence."""
    free = sum(group["free"] for group in groups)
    spread = sum(1 for group in groups if group["free"])
    if free < gpus == 1:
        return "no device that would do is free"
    if free < gpus:
        return f"{free} of the {format_count(gpus, 'device')} it needs {'is' if free == 1 else 'are'} free"
    largest = max(group["free"] for group in groups)
    if largest < gpus:
        return f"{free} devices are free, but in {format_count(spread, word)} with at most {largest} in one"
    if free == 1:
        return f"1 device is free, in one {word}"
    return f"{free} devices are free, {largest} of them in one {word}"


def machines(books: Books) -> list[dict[str, Any]]:
    """Every machine, and who is on it."""
    cluster = books.cluster
    kinds = cluster.device_types
    given = books.devices.holders()
    found = []
    for index, machine in enumerate(cluster.machines):
        holders = given.get(index, {})
        found.append(
            {
                "name": machine.name,
                "groups": [
                    cluster.group_names[level][cluster.groups[level][index]]
                    for level in range(1, len(cluster.tiers) - 1)
                ],
                "devices": {kinds[kind].name: count for kind, count in machine.devices},
                "size": machine.size,
                "free": books.free_on(index),
                "shut": list(books.shut[index]),
                "foreign": books.foreign[index],
                "jobs": {str(number): books.attempts[token].job for number, token in sorted(holders.items())},
            }
        )
    return found


def counts(books: Books) -> dict[str, int]:
    """How many jobs are in each state, and devices: all, free, and those that nobody may use."""
    found = {"queued": 0, "delayed": 0, "placed": 0}
    for job in books.jobs.values():
        found[job.state] = found.get(job.state, 0) + 1
    total, free = books.cluster.devices, int(books.world.state[0]["free"])
    given = books.devices.holders()  # what runs on a machine that was drained goes on
    shut = sum(
        machine.size - len(given.get(index, ()))
        for index, machine in enumerate(books.cluster.machines)
        if books.shut[index]
    )
    return found | {"devices": total, "free": free, "shut": shut}
