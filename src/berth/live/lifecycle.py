"""The life cycle of a job: its states, the events that change them, and why its attempts end.

    submitted        start               the last attempt ends
    ---------> queued -----> placed ------------------------------> finished, failed or cancelled
                 ^   <------   |  ^
                 | evict, lost |  | move
                 |             v
                 +--------- delayed
                   ready        (an attempt failed, or the cluster has no place for the job)

A placed job has an attempt that holds its devices; the attempt waits for earlier ones to leave, is launched, runs and
stops. The controller's state checks every change against `TRANSITIONS`; the history of a job and the view of a
finished simulation follow records with `JobTrack`. Events are named as in the journal (`records.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

QUEUED: Final = "queued"
DELAYED: Final = "delayed"
PLACED: Final = "placed"
FINISHED: Final = "finished"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
JobState = Literal["queued", "delayed", "placed", "finished", "failed", "cancelled"]

WAITS: Final = "waits"  # for earlier attempts to leave its devices
LAUNCHING: Final = "launching"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
AttemptState = Literal["waits", "launching", "running", "stopping"]
StopReason = Literal["evicted", "moved", "cancelled", "lost", "finished"]

Event = Literal["start", "move", "evict", "lost", "attempt-failed", "unplaceable", "ready"]
TRANSITIONS: Final[dict[str, tuple[JobState, JobState]]] = {
    "start": (QUEUED, PLACED),
    "move": (PLACED, PLACED),
    "evict": (PLACED, QUEUED),
    "lost": (PLACED, QUEUED),  # with a machine
    "attempt-failed": (PLACED, DELAYED),
    "unplaceable": (QUEUED, DELAYED),  # until the cluster changes
    "ready": (DELAYED, QUEUED),
}
SIMULATED: Final = {  # events of a simulation's log, as the journal names them
    "arrived": "submitted",
    "started": "start",
    "moved": "move",
    "evicted": "evict",
    "finished": "exited",
}


class HasState(Protocol):
    """A job, as far as its life cycle is concerned."""

    state: JobState
    since: float  # when it last began to wait


def transition(job: HasState, event: Event, *, since: float | None = None) -> None:
    """Change the state of a job; `since`: it waits from this time on."""
    before, after = TRANSITIONS[event]
    assert job.state == before, f"{event} of a job that is {job.state}"
    job.state = after
    if since is not None:
        job.since = since


@dataclass(slots=True)
class AttemptTrack:
    """An attempt as its job's records describe it; `start`, `left` and `end` are bodies of records."""

    start: dict[str, Any]
    placed_at: float
    began_at: float | None = None
    left_at: float | None = None
    left: dict[str, Any] | None = None
    ended_at: float | None = None
    end: dict[str, Any] | None = None


@dataclass(slots=True)
class JobTrack:
    """A job as its own records describe it. They do not name the loss of a machine, so nothing is checked."""

    state: JobState = QUEUED
    since: float = 0.0
    evictions: int = 0
    attempts: dict[str, AttemptTrack] = field(default_factory=dict)  # by token, in order

    @property
    def last(self) -> AttemptTrack | None:
        """Its last attempt."""
        return next(reversed(self.attempts.values()), None)

    def apply(self, kind: str, time: float, body: dict[str, Any]) -> None:
        """Follow one record of the job."""
        if kind == "submitted":
            self.since = time
        elif kind in ("start", "move", "evict"):
            if kind != "start" and self.last is not None:
                self.last.left_at, self.last.left = time, body
            self.state = TRANSITIONS[kind][1]
            if kind == "evict":
                self.since, self.evictions = time, self.evictions + 1
            else:
                self.attempts[body["token"]] = AttemptTrack(body, time)
        elif kind in ("started", "exited") and (attempt := self.attempts.get(body["token"])) is not None:
            if kind == "started":
                attempt.began_at = body.get("began", time)
            else:
                attempt.began_at = body.get("began", attempt.began_at)
                attempt.ended_at, attempt.end = body.get("ended", time), body


class Cause(StrEnum):
    """Why an attempt ended or can't start, as the journal has it. A value that is not known is shown as it is."""

    EXIT = "exit"
    COMMAND = "command-error"
    SIGNAL = "signal"
    MEMORY = "out-of-memory"
    STOPPED = "stopped"
    CANCELLED = "cancelled-by-engine"
    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted-by-engine"
    NODE_LOST = "node-lost"
    NOT_STARTED = "not-started"
    REFUSED = "refused"
    SUPERVISOR_LOST = "supervisor-lost"
    PARTITION_DOWN = "partition-down"
    UNREACHABLE = "backend-unreachable"
    MACHINES_MISSING = "machines-missing"
    UNKNOWN_ATTEMPTS = "unknown-attempts"
    POLICY_FAILED = "policy-failed"


_SENTENCES: dict[str, str] = {
    Cause.EXIT: "its command exited with an error",
    Cause.COMMAND: "its command can't be started",
    Cause.SIGNAL: "a process of it was killed by a signal",
    Cause.MEMORY: "it used more memory than it may",
    Cause.STOPPED: "berth stopped it",
    Cause.CANCELLED: "it was cancelled in the engine, not by berth",
    Cause.TIME_LIMIT: "it reached the engine's time limit",
    Cause.PREEMPTED: "the engine preempted it",
    Cause.NODE_LOST: "a machine of it was lost",
    Cause.NOT_STARTED: "not all of its processes started in time",
    Cause.REFUSED: "the engine refused it",
    Cause.SUPERVISOR_LOST: "its supervisor was killed",
    Cause.PARTITION_DOWN: "its partition starts no jobs",
}


def sentence(cause: str, detail: str = "") -> str:
    """Return a cause in words, with the detail that the back end gave."""
    words = _SENTENCES.get(cause, cause)
    return f"{words} ({detail})" if detail else words
