"""Slurm's JSON as typed data: jobs and nodes, in the shapes of Slurm 22.05, 23.02, 23.11, 24.05 and 24.11.

Releases represent the same value differently: a number is `8` or `{"set": true, "infinite": false, "number": 8}`, a
state is `"RUNNING"` or `["RUNNING", "COMPLETING"]`, an exit code is `256` or an object. A value that is missing, or has
a form that none of these releases uses, is a BackendError with the release and the key: a guess could place two jobs on
one GPU.
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
    node: str  # where it runs or must run; several as Slurm writes them
    gpus: int
    cpus: int
    memory_mib: int
    code: int  # exit code, once it has ended
    ended: float  # when it ended, or its latest end

    @property
    def waits(self) -> bool:
        """Whether the job is waiting and holds no resources."""
        return bool(self.states & _WAITING_STATES)

    @property
    def held(self) -> bool:
        """Whether the job waits to be released by its user."""
        return self.waits and self.reason == "JobHeldUser"

    @property
    def over(self) -> bool:
        """Whether none of its processes runs any more; while it is completing, some may."""
        return bool(self.states & _OVER_STATES) and "COMPLETING" not in self.states

    @property
    def node_failed(self) -> bool:
        """Whether its node was lost, so the state of its processes is unknown."""
        return bool(self.states & {"NODE_FAIL", "BOOT_FAIL"})

    @property
    def ours(self) -> tuple[str, int] | None:
        """The token and part number in its name, None if berth did not submit it."""
        match = _OURS.fullmatch(self.name)
        return (match[1], int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `sinfo` or `scontrol` shows it."""

    name: str
    address: str
    states: frozenset[str]
    partitions: tuple[str, ...]
    gpus: tuple[tuple[str, int], ...]  # type as Slurm writes it, and count
    gpus_used: int
    cpus: int
    cpus_used: int
    memory_mib: int
    memory_used_mib: int

    @property
    def size(self) -> int:
        """Number of GPUs of all types."""
        return sum(count for _, count in self.gpus)


class JsonObject:
    """One object of a JSON document, with its location for error messages."""

    def __init__(self, plain: Mapping[str, Any], path: str = "Slurm") -> None:
        self._plain, self._path = plain, path

    def text(self, *keys: str) -> str:
        """Return the first of these values that is not empty, else an empty string."""
        for key in keys:
            value = self._value(key)
            if value is None or isinstance(value, str | int):
                if value:
                    return str(value)
            else:
                raise self._unreadable(key, "a string", value)
        return ""

    def number(self, key: str) -> int:
        """Return a plain number, or the number of an object; 0 where it is not set."""
        value = self._value(key)
        if isinstance(value, Mapping) and "number" in value:
            value = value["number"] if value.get("set", True) and not value.get("infinite") else 0
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unreadable(key, "a number", value)
        return int(value)

    def words(self, key: str) -> frozenset[str]:
        """Return one word or a list of words, in capitals."""
        return frozenset(word.upper() for word in self.names(key))

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, also from a string with commas."""
        value = self._value(key)
        if isinstance(value, str):
            value = [word for word in value.split(",") if word]
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._unreadable(key, "a list of strings", value)
        return tuple(value)

    def inner(self, key: str) -> JsonObject | None:
        """Return a nested object, None where the value is not an object."""
        value = self._plain.get(key)
        return JsonObject(value, f"{self._path}.{key}") if isinstance(value, Mapping) else None

    def has(self, key: str) -> bool:
        """Whether the key exists."""
        return key in self._plain

    def _value(self, key: str) -> Any:
        if key not in self._plain:
            raise BackendError(f"{self._path}: no key {key!r}; berth can't read the JSON of this Slurm")
        return self._plain[key]

    def _unreadable(self, key: str, expected: str, value: Any) -> BackendError:
        shown = json.dumps(value)[:80]
        return BackendError(f"{self._path}.{key}: expected {expected}, got {shown}")


def parse_list(answer: str, key: str, command: str) -> Iterator[JsonObject]:
    """Return the objects of a list in the output of a command.

    Errors in the document count: a `squeue` that can't reach its controller exits with 0 and prints an empty list.
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
    """`Slurm 23.11.4`, if the document has the release."""
    meta = document.get("meta") or {}
    about = meta.get("slurm") or meta.get("Slurm") or {}
    return f"Slurm {about.get('release') or 'of unknown release'}"


def _error_text(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    number = error.get("error_number", error.get("errno"))
    words = [str(error[name]) for name in ("description", "error") if error.get(name)]
    return f"{': '.join(words) or 'an error'}{f' (error {number})' if number is not None else ''}"


def parse_job(data: JsonObject) -> SlurmJob:
    """Return a job from Slurm's JSON."""
    return SlurmJob(
        id=data.number("job_id"),
        name=data.text("name"),
        user_id=data.number("user_id"),
        states=data.words("job_state") | data.words("flags") & {"COMPLETING"},
        reason=data.text("state_reason"),
        node=data.text("nodes", "required_nodes"),
        gpus=sum(count for _, count in parse_gpus(data.text("tres_per_node"))),
        cpus=data.number("cpus"),
        memory_mib=data.number("memory_per_node"),
        code=_exit_code(data),
        ended=float(data.number("end_time")),
    )


def parse_node(data: JsonObject) -> SlurmNode:
    """Return a node from Slurm's JSON."""
    flags = data.words("state_flags") if data.has("state_flags") else frozenset()  # only in 22.05
    return SlurmNode(
        name=data.text("name"),
        address=data.text("address", "name"),
        states=data.words("state") | flags,
        partitions=data.names("partitions"),
        gpus=tuple(parse_gpus(data.text("gres"))),
        gpus_used=sum(count for _, count in parse_gpus(data.text("gres_used"))),
        cpus=data.number("cpus"),
        cpus_used=data.number("alloc_cpus"),
        memory_mib=data.number("real_memory"),
        memory_used_mib=data.number("alloc_memory"),
    )


def parse_gpus(text: str) -> list[tuple[str, int]]:
    """Return `gpu:a100:8(S:0-1),gpu:2` as types and counts."""
    return [(match[1] or "", int(match[2])) for match in _GPUS.finditer(text)]


def _exit_code(data: JsonObject) -> int:
    """The exit code, or 128 plus the signal that ended the process."""
    status = data.inner("exit_code")
    if status is None:
        plain = data.number("exit_code")  # as wait(2) has it
        code, signal = plain >> 8, plain & 0x7F
    else:
        code = status.number("return_code")
        ended_by = status.inner("signal")
        signal = 0 if ended_by is None else ended_by.number("id" if ended_by.has("id") else "signal_id")
    return code or (128 + signal if signal else 0)
