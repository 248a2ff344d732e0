"""Commands of users: each is checked against the controller's state and becomes records or an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from berth.errors import InputError, UnknownNameError
from berth.live import views
from berth.live.demand import (
    bind_requested,
    device_types_of,
    fits,
    nearest_tier_of,
    type_index,
)
from berth.live.job import Job
from berth.live.records import DRAINED, Record
from berth.live.spec import JobSpec, spec_from_dict, submission
from berth.live.state import ControllerState
from berth.live.store import Store
from berth.units import format_count
from berth.workload.shapes import Offer


@dataclass(frozen=True, slots=True)
class Answer:
    """The records of a command, and its answer once they are committed."""

    records: tuple[Record, ...]
    value: dict[str, Any]


Command = Callable[[ControllerState, Store, float], Answer]


class ConflictError(InputError):
    """A request that conflicts with the current state."""


class MissingError(InputError):
    """A name that does not exist."""


def submit(spec: JobSpec, user: str, job: str | None = None) -> Command:
    """Submit a job. With an id of its own, submitting it again changes nothing."""
    body = submission(spec, user)

    def run(state: ControllerState, store: Store, now: float) -> Answer:
        if job is not None and (known := _known(state, store, job)) is not None:
            if spec_from_dict(known["spec"]).to_dict() != body["spec"] or known["user"] != user:
                raise ConflictError(f"job {job} already exists with a different spec")
            active = state.jobs.get(job)
            shown = known["state"] if active is None else views.state_of(state, active)
            return Answer((), {"job": job, "state": shown, "new": False})
        check_fits(state, spec)
        name = job or _next_id(state, store)
        record = Record(now, "submitted", name, body)
        return Answer((record,), {"job": name, "state": "queued", "new": True})

    return run


def _known(state: ControllerState, store: Store, job: str) -> dict[str, Any] | None:
    ended = (one for one in state.ended if one.id == job)  # in this step
    found = state.jobs.get(job) or next(ended, None)
    return found.to_dict() if found is not None else store.ended_job(job)


def _next_id(state: ControllerState, store: Store) -> str:
    number = store.ids.after(state.submitted)
    while _known(state, store, f"j{number}") is not None:
        number = store.ids.after(number)
    return f"j{number}"


def check_fits(state: ControllerState, spec: JobSpec) -> None:
    """Refuse a job that can never run, with the reason."""
    if spec.run is None:
        raise InputError("the job has no command", hint="a plan is read by `berth submit`, not by the API")
    if spec.offer is not None:
        _check_offer_fits(state, spec.offer)
        return
    cluster = state.cluster
    kinds = state.setup.device_type_names
    for name in [spec.kind] if spec.kind else spec.any_of or []:
        if type_index(state.setup, name) is None:
            raise UnknownNameError(f"device type in {cluster.name}", name, kinds)
    for tier in filter(None, (spec.required, spec.preferred)):
        if tier not in state.setup.tiers:
            raise UnknownNameError(f"tier in {cluster.name}", tier, state.setup.tiers)
    if nearest_tier_of(state.setup, spec) is None:
        suitable = device_types_of(state.setup, spec)
        have = ", ".join(f"{cluster.count_of(kind)} {kinds[kind]}" for kind in suitable)
        others = [name for kind, name in enumerate(kinds) if kind not in suitable]
        more = f"; {' and '.join(others)} only with --device" if others and not spec.kind else ""
        raise ConflictError(
            f"{spec.gpus} devices are asked for, and {cluster.name} has at most {have}",
            hint=f"a gang's devices are all of one type{more}",
        )
    if not fits(state.setup, spec):
        wanted = format_count(spec.gpus, "device")
        raise ConflictError(f"no {spec.required} of {cluster.name} ever holds {wanted} of one type")


def _check_offer_fits(state: ControllerState, offer: Offer) -> None:
    """Refuse alternatives that the cluster can never hold, or a deadline that none meets."""
    try:
        bind_requested(offer, state.cluster)
    except InputError as error:
        raise ConflictError(error.what, hint=error.hint) from None


def cancel(job: str) -> Command:
    """Cancel a job."""

    def run(state: ControllerState, store: Store, now: float) -> Answer:
        found = active(state, store, job)
        if found.ends_as is not None:
            return Answer((), {"job": job, "state": found.ends_as})
        return Answer((Record(now, "cancelled", job),), {"job": job, "state": "cancelled"})

    return run


def cancel_all(jobs: Sequence[str]) -> Command:
    """Cancel several jobs; those that have ended are unchanged."""

    def run(state: ControllerState, store: Store, now: float) -> Answer:
        records: list[Record] = []
        rows: list[dict[str, Any]] = []
        for job in dict.fromkeys(jobs):
            try:
                answer = cancel(job)(state, store, now)
            except ConflictError:
                ended = _known(state, store, job)
                assert ended is not None
                answer = Answer((), {"job": job, "state": ended["state"], "already_ended": True})
            records += answer.records
            rows.append(answer.value)
        return Answer(tuple(records), {"jobs": rows})

    return run


def prioritise(job: str, priority: int) -> Command:
    """Change the priority of a job; higher goes first."""

    def run(state: ControllerState, store: Store, now: float) -> Answer:
        if active(state, store, job).ends_as is not None:
            raise ConflictError(f"job {job} is being stopped")
        record = Record(now, "prioritised", job, {"priority": priority})
        return Answer((record,), {"job": job, "priority": priority})

    return run


def drain(machine: str, *, back: bool = False, by: str | None = None) -> Command:
    """Drain a machine (running jobs continue), or undrain it; `by`: the user who asked."""

    def run(state: ControllerState, store: Store, now: float) -> Answer:
        index = machine_index(state, machine)
        value = {"machine": machine, "drained": not back}
        if (DRAINED in state.unavailable[index]) == (not back):
            return Answer((), value)
        body = {"machine": index, "why": DRAINED, "is": not back} | ({"by": by} if by else {})
        record = Record(now, "machine", body=body)
        return Answer((record,), value)

    return run


def learn(key: str, tier: int, step_s: float) -> Command:
    """Record the measured step time of jobs with this key at a tier; the measured one may have ended."""

    def run(state: ControllerState, store: Store, now: float) -> Answer:
        del state, store
        body = {"key": key, "tier": tier, "step_s": step_s}
        return Answer((Record(now, "learned", None, body),), body)

    return run


def active(state: ControllerState, store: Store, job: str) -> Job:
    """Return a job that has not ended, by its id."""
    found = state.jobs.get(job)
    if found is None:
        over = _known(state, store, job)
        if over is not None:
            raise ConflictError(f"job {job} is over: {over['state']}")
        raise MissingError(f"there is no job {job!r}")
    return found


def machine_index(state: ControllerState, name: str) -> int:
    """Return the index of a machine."""
    for index, machine in enumerate(state.cluster.machines):
        if machine.name == name:
            return index
    raise UnknownNameError("machine", name, (machine.name for machine in state.cluster.machines))
