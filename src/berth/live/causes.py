"""Causes: why an attempt ended or does not start, and what keeps the controller from deciding, over any back end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """What ended an attempt, or holds it up. The journal has the value; a value it does not know is shown as it is."""

    EXIT = "exit"
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


_SENTENCES: dict[str, str] = {
    Cause.EXIT: "its command exited with an error",
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
    """A cause in words, with what the back end said about it."""
    words = _SENTENCES.get(cause, cause)
    return f"{words} ({detail})" if detail else words


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What keeps jobs from starting, whatever the policy decides."""

    cause: Cause
    sentence: str
    devices: Mapping[int, frozenset[int]] | None = None  # by machine, if only these are concerned

    def plain(self) -> dict[str, Any]:
        """As data."""
        return {"cause": str(self.cause), "sentence": self.sentence}
