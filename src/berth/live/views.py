"""The controller's state as JSON data, for the command line, the API and the dashboard."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from berth.cluster.model import Cluster
from berth.live.alternatives import alternatives_of
from berth.live.backend import Blocker, Observation
from berth.live.demand import device_types_of
from berth.live.job import Attempt, Job
from berth.live.lifecycle import (
    DELAYED,
    LAUNCHING,
    PLACED,
    QUEUED,
    RUNNING,
    STOPPING,
    WAITS,
    Cause,
    sentence,
)
from berth.live.reconcile import overlaps
from berth.live.spec import JobSpec
from berth.live.state import ControllerState
from berth.schedule.reasons import CODES, Reason, ReasonCode, explain, explained_record, lacks_devices
from berth.units import format_count
from berth.workload.binding import device_index
from berth.workload.shapes import devices_text

_JOB_FIELDS = ("id", "user", "submitted", "attempts", "evictions", "failures")
_SPEC_DEFAULTS = {"name": "job", "gpus": 1, "priority": 0}
_END_DEFAULTS = {"cause": None, "detail": "", "ran_s": None}  # older versions have none
_DETAILS = ("run", "env", "cwd", "step_pattern")  # for the owner of a job only


def state_of(state: ControllerState, job: Job) -> str:
    """Return the state of a job in one word."""
    if job.ends_as is not None:
        return "stopping"
    if job.state != PLACED:
        stopping = any(state.attempts[token].state == STOPPING for token in job.alive)
        return "evicting" if job.state == QUEUED and stopping else job.state
    assert job.token is not None
    return {WAITS: "starting", LAUNCHING: "starting", RUNNING: "running"}[state.attempts[job.token].state]


def job_row(state: ControllerState, job: Job, now: float, *, details: bool = True) -> dict[str, Any]:
    """Return a job as a row of a list."""
    return job_facts(state, job, now) | {"spec": spec_row(job.spec, details=details)}


def spec_row(spec: JobSpec, *, details: bool) -> dict[str, Any]:
    """Return the spec of a job without its plans; its details are for its owner only."""
    hidden = ("plans",) if details else ("plans", *_DETAILS)
    return {name: value for name, value in spec.to_dict().items() if name not in hidden}


def remaining_s(state: ControllerState, job: Job, now: float) -> float:
    """Return how long a job is expected to work yet at the speed of its nearest place, as of now."""
    record = state.world.jobs[job.row]
    left_s = float(record["estimated_remaining_s"])
    if job.token is None:
        return left_s
    since = max(float(record["updated_s"]), float(record["restored_at_s"]))
    return max(0.0, left_s - max(0.0, now - since) * float(record["speed"]))


def job_facts(state: ControllerState, job: Job, now: float) -> dict[str, Any]:
    """Return a row without its spec, which does not change and needs no lock."""
    row = {name: getattr(job, name) for name in _JOB_FIELDS}
    row |= {name: getattr(job.spec, name) for name in _SPEC_DEFAULTS}
    if (shape := state.shape_at(job)) is not None:
        row |= {**size_row(state, job), "shape": shape.shape.name}
    row |= {
        "state": state_of(state, job),
        "since": job.since,
        "remaining_s": remaining_s(state, job, now),
        "last_end": last_end(job),
    }
    if job.token is not None:
        row |= attempt_facts(state, state.attempts[job.token])
    return row


def last_end(job: Job) -> dict[str, Any] | None:
    """Return why the last attempt of a job ended; None if none has, or the cause is not known."""
    if job.cause is None:
        return None
    return {"cause": job.cause, "detail": job.detail, "sentence": sentence(job.cause, job.detail)}


def launch_blocker(
    state: ControllerState, job: Job, seen: Observation | None, blockers: list[Blocker]
) -> Reason | None:
    """Return what keeps a job from starting besides the policy: the back end, or its own launch there."""
    if job.ends_as is not None or job.state == DELAYED:
        return None
    if job.token is not None:
        if state.attempts[job.token].state == RUNNING:
            return None
        found = seen.attempts.get(job.token) if seen is not None else None
        if found is not None and found.cause is not None:
            return Reason(str(found.cause), sentence(found.cause, found.detail))
    first = next((one for one in blockers if _concerns(state, job, one)), None)
    return Reason(str(first.cause), first.sentence) if first is not None else None


def _concerns(state: ControllerState, job: Job, blocker: Blocker) -> bool:
    """Return whether a blocker keeps this job from starting; one of some devices does if it would fit with them."""
    if blocker.cause == Cause.POLICY_FAILED:
        return job.token is None  # what has a place starts there
    if blocker.devices is None:
        return True
    if job.token is not None:
        return overlaps(state.attempts[job.token], blocker.devices)
    kinds = device_types_of(state.setup, job.spec)
    free = sum(int(host["free"]) for host in state.world.hosts if int(host["device_type"]) in kinds)
    blocked = sum(state.devices.count_blocked(machine, kind) for machine in blocker.devices for kind in kinds)
    return free < size_of(state, job) <= free + blocked


def size_of(state: ControllerState, job: Job) -> int:
    """Return the devices of a job: of its gang, or of the shape in which it runs or waits."""
    shape = state.shape_at(job)
    return job.spec.gpus if shape is None else shape.size


def attempt_facts(state: ControllerState, attempt: Attempt) -> dict[str, Any]:
    """Return the placement of an attempt."""
    names, kinds = state.cluster.machines, state.cluster.device_types
    return {
        "token": attempt.token,
        "attempt": attempt.number,
        "tier": state.setup.tiers[attempt.tier],
        "placed": attempt.since,
        "began": attempt.began,
        "places": [
            {"machine": names[s.machine].name, "kind": kinds[s.device_type].name, "devices": list(s.devices)}
            for s in attempt.seats
        ],
    } | ({} if attempt.shape is None else {"shape": attempt.shape})


def size_row(state: ControllerState, job: Job) -> dict[str, int]:
    """Return the devices of a job: of its gang, or GPUs and cores of the shape in which it runs or waits."""
    shape = state.shape_at(job)
    return {"gpus": job.spec.gpus} if shape is None else gpus_and_cores(state.cluster, shape.shape.devices)


def gpus_and_cores(cluster: Cluster, devices: Mapping[str, int]) -> dict[str, int]:
    """Return devices of several types counted apart: `{"gpus": 4, "cores": 8}`."""
    found = {"gpus": 0, "cores": 0}
    for name, count in devices.items():
        index = device_index(cluster, name)
        is_core = index is not None and cluster.device_types[index].kind == "cpu"
        found["cores" if is_core else "gpus"] += count
    return found


def ended_row(cluster: Cluster, facts: dict[str, Any], *, details: bool = True) -> dict[str, Any]:
    """Return an ended job of the store as a row."""
    hidden = ("plans",) if details else ("plans", *_DETAILS)
    spec = {name: value for name, value in facts["spec"].items() if name not in hidden}
    row = {name: facts[name] for name in (*_JOB_FIELDS, "state", "first_start", "ended", "code")}
    row |= {name: spec.get(name, default) for name, default in _SPEC_DEFAULTS.items()}
    row |= {name: facts.get(name, default) for name, default in _END_DEFAULTS.items()}
    if shape := next(
        (one for one in spec.get("alternatives", ()) if one.get("name") == facts.get("shape")), None
    ):
        total: Counter[str] = Counter()
        for part in shape["parts"]:
            total.update(part["devices"])
        row |= {**gpus_and_cores(cluster, total), "shape": shape["name"]}
    return row | {"spec": spec}


def queue(state: ControllerState) -> list[Job]:
    """Return the waiting jobs in queue order."""
    counters = state.world.state[0]
    rows = state.world.waiting[counters["queue_start"] : counters["queue_stop"]]
    return [job for row in rows if (job := state.rows[int(row)]) is not None]


def reason_of(state: ControllerState, job: Job, now: float) -> Reason:
    """Return why a job waits, or runs where it does, as of the last pass."""
    if job.ends_as is not None:
        return Reason("stopping", f"it is {job.ends_as} once its processes have ended")
    if job.state == DELAYED:
        if job.not_before == math.inf:
            return Reason("does-not-fit", "this cluster can never hold it")
        left_s = max(0.0, job.not_before - now)
        failed = (
            f"its last attempt failed: {sentence(job.cause, job.detail)}"
            if job.cause
            else "its last attempt failed"
        )
        return Reason("delayed", f"{failed}; it is retried soon", seconds_left=left_s)
    queued = job.state == QUEUED
    record = explained_record(state.world, job.row) if queued else state.world.jobs[job.row]
    lacks_all = queued and lacks_devices(state.world, job.row)
    shapes = _shape_names(state, job)
    reason = explain(record, now, state.setup.tiers, shapes=shapes, lacks_all=lacks_all)
    holder = int(state.world.reservation[0]["last_holder"])
    if (
        reason.code == CODES[ReasonCode.HELD_FOR_OTHER]
        and holder >= 0
        and (other := state.rows[holder]) is not None
    ):
        return replace(reason, sentence=f"the devices that would fit are reserved for {other.id}")
    return reason


def _shape_names(state: ControllerState, job: Job) -> list[str]:
    """Return the devices of a job's shapes, at their numbers among all shapes; none for a gang."""
    record = state.world.jobs[job.row]
    if not record["shape_count"]:
        return []
    return [""] * int(record["first_shape"]) + [
        devices_text(one.shape.devices) for one in state.shapes_of(job)
    ]


def reason_row(reason: Reason) -> dict[str, Any]:
    """Return a reason as JSON data."""
    names = ("code", "sentence", "tier", "seconds_left", "saves_s")
    return {name: getattr(reason, name) for name in names}


def why(state: ControllerState, job: Job, now: float) -> dict[str, Any]:
    """Return the explanation of a job's state: the reason, its queue position, and the free devices of each rack."""
    reason = reason_of(state, job, now)
    answer: dict[str, Any] = {"job": job.id, "state": state_of(state, job), **size_row(state, job)}
    answer["priority"] = job.spec.priority
    answer["reason"] = reason_row(reason)
    answer["last_end"] = last_end(job)
    if job.state == QUEUED and job.ends_as is None:
        answer["position"] = [other.id for other in queue(state)].index(job.id) + 1
        if job.spec.offer is not None:
            answer["free"] = free_by_type(state, job)
        else:
            answer["free"] = free_by_group(state, job)
            rack = state.setup.tiers[state.cluster.rack_level]
            answer["summary"] = summary(answer["free"], job.spec.gpus, rack)
        answer["waits_for_release"] = [
            token for token in job.alive if state.attempts[token].state == STOPPING
        ]
    elif job.token is not None:
        attempt = state.attempts[job.token]
        answer |= attempt_facts(state, attempt)
        if attempt.state == WAITS:
            ahead = state.ahead_of(attempt) or [token for token in job.alive if token != attempt.token]
            answer["waits_for_release"] = ahead
    if job.spec.offer is not None:
        answer["alternatives"] = [one.row(state.setup.tiers) for one in alternatives_of(state, job)]
    record = state.world.jobs[job.row]
    answer["slowdown_by_tier"] = {
        name: float(record["slowdown"][tier])
        for tier, name in enumerate(state.setup.tiers)
        if tier >= record["nearest_tier"]
    }
    answer["timer_by_tier_s"] = {
        name: _finite(record["delay_timer_s"][tier]) for tier, name in enumerate(state.setup.tiers)
    }
    return answer


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def free_by_type(state: ControllerState, job: Job) -> list[dict[str, Any]]:
    """Return the devices of each group that has some, for each type by itself that a job can use."""
    names = state.setup.device_type_names
    return [
        {**row, "type": names[kind]}
        for kind in device_types_of(state.setup, job.spec)
        for row in free_by_group(state, kinds=(kind,))
        if row["devices"]
    ]


def free_by_group(
    state: ControllerState, job: Job | None = None, *, kinds: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Return the devices of each rack (machine, if there are none): all, free, and free on its emptiest machine.

    Of `kinds`, else of the types that a job can use, else of all.
    """
    cluster = state.cluster
    level = cluster.rack_level
    if kinds is not None:
        wanted: Sequence[int] = kinds
    else:
        every = range(len(state.setup.device_type_names))
        wanted = every if job is None else device_types_of(state.setup, job.spec)
    total, free, largest = (np.zeros(len(cluster.group_names[level]), int) for _ in range(3))
    on_machine = np.zeros(len(cluster.machines), int)
    for host in state.world.hosts:
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
    """Return a sentence such as `16 devices are free, but in three racks`."""
    free = sum(group["free"] for group in groups)
    spread = sum(1 for group in groups if group["free"])
    if free < gpus == 1:
        return "no suitable device is free"
    if free < gpus:
        return f"{free} of the {format_count(gpus, 'device')} it needs {'is' if free == 1 else 'are'} free"
    largest = max(group["free"] for group in groups)
    if largest < gpus:
        return f"{free} devices are free, but in {format_count(spread, word)} with at most {largest} in one"
    if free == 1:
        return f"1 device is free, in one {word}"
    return f"{free} devices are free, {largest} of them in one {word}"


def machines(state: ControllerState) -> list[dict[str, Any]]:
    """Return every machine, with the jobs on it."""
    cluster = state.cluster
    kinds = cluster.device_types
    given = state.devices.holders()
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
                "free": state.free_on(index),
                "unavailable": list(state.unavailable[index]),
                "external": state.external[index],
                "jobs": {str(number): state.attempts[token].job for number, token in sorted(holders.items())},
            }
        )
    return found


def counts(state: ControllerState) -> dict[str, int]:
    """Return the number of jobs in each state, and of devices: all, free, and unavailable."""
    found = {"queued": 0, "delayed": 0, "placed": 0}
    for job in state.jobs.values():
        found[job.state] = found.get(job.state, 0) + 1
    total, free = state.cluster.devices, int(state.world.state[0]["free"])
    given = state.devices.holders()  # jobs on a drained machine continue
    shut = sum(
        machine.size - len(given.get(index, ()))
        for index, machine in enumerate(state.cluster.machines)
        if state.unavailable[index]
    )
    return found | {"devices": total, "free": free, "unavailable": shut}
