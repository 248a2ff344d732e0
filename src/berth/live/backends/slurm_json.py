"""Slurm's JSON as typed facts: jobs and nodes, in the shapes of Slurm 22.05, 23.02, 23.11, 24.05 and 24.11.

Releases write the same fact differently: a number is `8` or `{"set": true, "infinite": false, "number": 8}`, a state is
`"RUNNING"` or `["RUNNING", "COMPLETING"]`, an exit code is `256` or an object. A fact that is missing, or written in a
way that none of these releases has, is a BackendError with the release and the key: a guess could place two jobs on one
GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from berth.live.backend import BackendError

_GPUS = re.compile(r"\bgpu(?:[:=]([^:=,()]+))?[:=](\d+)(?=[(,]|$)")
_OURS = re.compile(r"berth:([A-Za-z0-9._-]+):(\d+)")
_WAITING_STATES = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_OVER_STATES = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as `squeue` shows it."""

    id: int
    name: str
    user_id: int
    states: frozenset[str]
    reason: str
    node: str  # where it is, or must be; several stand as Slurm writes them
    gpus: int
    cpus: int
    memory_mib: int
    code: int  # exit code, once it is over
    ended: float  # when it ended, or will at the latest

    @property
    def waits(self) -> bool:
        """It holds nothing yet."""
        return bool(self.states & _WAITING_STATES)

    @property
    def held(self) -> bool:
        """It waits for whoever submitted it to let it go."""
        return self.waits and self.reason == "JobHeldUser"

    @property
    def over(self) -> bool:
        """Nothing of it runs any more; while it is completing, something may."""
        return bool(self.states & _OVER_STATES) and "COMPLETING" not in self.states

    @property
    def node_failed(self) -> bool:
        """Its node went away, and nobody knows what became of its processes."""
        return bool(self.states & {"NODE_FAIL", "BOOT_FAIL"})

    @property
    def ours(self) -> tuple[str, int] | None:
        """The token and the part in its name, if berth could have submitted it."""
        match = _OURS.fullmatch(self.name)
        return (match[1], int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `sinfo` or `scontrol` shows it."""

    name: str
    address: str
    states: frozenset[str]
    partitions: tuple[str, ...]
    gpus: tuple[tuple[str, int], ...]  # type as Slurm writes it, and how many
    gpus_used: int
    cpus: int
    cpus_used: int
    memory_mib: int
    memory_used_mib: int

    @property
    def size(self) -> int:
        """GPUs of all types."""
        return sum(count for _, count in self.gpus)


class JsonObject:
    """One object of an answer; it knows where it is, for the message when a fact can't be read."""

    def __init__(self, plain: Mapping[str, Any], where: str = "Slurm") -> None:
        self._plain, self._where = plain, where

    def text(self, *keys: str) -> str:
        """The first of these that is not empty; empty where Slurm has nothing to say."""
        for key in keys:
            value = self._value(key)
            if value is None or isinstance(value, str | int):
                if value:
                    return str(value)
            else:
                raise self._unreadable(key, "a string", value)
        return ""

    def number(self, key: str) -> int:
        """A plain number, or an object with one; 0 where it is not set."""
        value = self._value(key)
        if isinstance(value, Mapping) and "number" in value:
            value = value["number"] if value.get("set", True) and not value.get("infinite") else 0
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unreadable(key, "a number", value)
        return int(value)

    def words(self, key: str) -> frozenset[str]:
        """One word or a list of them, in capitals."""
        return frozenset(word.upper() for word in self.names(key))

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings; a string is a list of one, or several with commas between."""
        value = self._value(key)
        if isinstance(value, str):
            value = [word for word in value.split(",") if word]
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._unreadable(key, "a list of strings", value)
        return tuple(value)

    def inner(self, key: str) -> JsonObject | None:
        """An object within; None where there is a plain value instead."""
        value = self._plain.get(key)
        return JsonObject(value, f"{self._where}.{key}") if isinstance(value, Mapping) else None

    def has(self, key: str) -> bool:
        """Whether the key is there at all."""
        return key in self._plain

    def _value(self, key: str) -> Any:
        if key not in self._plain:
            raise BackendError(f"{self._where}: no key {key!r}; berth can't read the JSON of this Slurm")
        return self._plain[key]

    def _unreadable(self, key: str, expected: str, value: Any) -> BackendError:
        shown = json.dumps(value)[:80]
        return BackendError(f"{self._where}.{key}: expected {expected}, got {shown}")


def parse_list(answer: str, key: str, command: str) -> Iterator[JsonObject]:
    """The objects of an answer's list. An answer with an error in it is no answer.

    A `squeue` that can't reach its controller ends with code 0 and an empty list.
    """
    try:
        document = json.loads(answer)
    except ValueError as error:
        raise BackendError(f"{command} returned invalid JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise BackendError(f"{command} returned {json.dumps(document)[:80]}, not an object")
    where = f"{command} ({_release(document)})"
    if errors := document.get("errors"):
        raise BackendError(f"{where}: {_error_text(errors[0])}")
    if not isinstance(document.get(key), list):
        found = ", ".join(sorted(document)) or "nothing"
        raise BackendError(f"{where}: no list {key!r}, only {found}; berth can't read the JSON of this Slurm")
    return (JsonObject(plain, f"{where}: {key}[{at}]") for at, plain in enumerate(document[key]))


def _release(document: Mapping[str, Any]) -> str:
    """`Slurm 23.11.4`, as far as the answer says."""
    meta = document.get("meta") or {}
    about = meta.get("slurm") or meta.get("Slurm") or {}
    return f"Slurm {about.get('release') or 'of unknown release'}"


def _error_text(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    number = error.get("error_number", error.get("errno"))
    words = [str(error[name]) for name in ("description", "error") if error.get(name)]
    return f"{': '.join(words) or 'an error'}{f' (error {number})' if number is not None else ''}"


def parse_job(facts: JsonObject) -> SlurmJob:
    """A job out of Slurm's JSON."""
    return SlurmJob(
        id=facts.number("job_id"),
        name=facts.text("name"),
        user_id=facts.number("user_id"),
        states=facts.words("job_state") | facts.words("flags") & {"COMPLETING"},
        reason=facts.text("state_reason"),
        node=facts.text("nodes", "required_nodes"),
        gpus=sum(count for _, count in parse_gpus(facts.text("tres_per_node"))),
        cpus=facts.number("cpus"),
        memory_mib=facts.number("memory_per_node"),
        code=_exit_code(facts),
        ended=float(facts.number("end_time")),
    )


def parse_node(facts: JsonObject) -> SlurmNode:
    """A node out of Slurm's JSON."""
    flags = (
        facts.words("state_flags") if facts.has("state_flags") else frozenset()
    )  # a list of its own in 22.05
    return SlurmNode(
        name=facts.text("name"),
        address=facts.text("address", "name"),
        states=facts.words("state") | flags,
        partitions=facts.names("partitions"),
        gpus=tuple(parse_gpus(facts.text("gres"))),
        gpus_used=sum(count for _, count in parse_gpus(facts.text("gres_used"))),
        cpus=facts.number("cpus"),
        cpus_used=facts.number("alloc_cpus"),
        memory_mib=facts.number("real_memory"),
        memory_used_mib=facts.number("alloc_memory"),
    )


def parse_gpus(text: str) -> list[tuple[str, int]]:
    """`gpu:a100:8(S:0-1),gpu:2` as types and counts."""
    return [(match[1] or "", int(match[2])) for match in _GPUS.finditer(text)]


def _exit_code(facts: JsonObject) -> int:
    """Of a process: its code, or 128 and the signal that ended it."""
    status = facts.inner("exit_code")
    if status is None:
        plain = facts.number("exit_code")  # as wait(2) has it
        code, signal = plain >> 8, plain & 0x7F
    else:
        code = status.number("return_code")
        ended_by = status.inner("signal")
        signal = 0 if ended_by is None else ended_by.number("id" if ended_by.has("id") else "signal_id")
    return code or (128 + signal if signal else 0)
