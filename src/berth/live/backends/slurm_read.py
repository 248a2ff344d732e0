"""Slurm's commands as plain facts: its jobs, its nodes, its switches.

Numbers and states are written in two ways by Slurm's releases (`8` or `{"set": true, "number": 8}`, `"RUNNING"` or
`["RUNNING"]`); both are read. An answer with an error in it is no answer: a `squeue` that can't reach its controller
ends with code 0 and an empty list.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from berth.live.backend import BackendError

_GPUS = re.compile(r"\bgpu(?:[:=]([^:=,()]+))?[:=](\d+)(?=[(,]|$)")
_OURS = re.compile(r"berth:([A-Za-z0-9._-]+):(\d+)")
_DISTURBING = ("SQUEUE_", "SINFO_", "SCANCEL_")  # in the environment they narrow what is shown or done
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
        """The token and the part that it carries, if it was submitted by berth."""
        match = _OURS.fullmatch(self.name)
        return (match[1], int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `sinfo` shows it."""

    name: str
    address: str
    states: frozenset[str]
    partitions: tuple[str, ...]
    gpus: tuple[tuple[str, int], ...]  # Slurm's name of the type, or nothing, and how many
    gpus_used: int
    cpus: int
    cpus_used: int
    memory_mib: int
    memory_used_mib: int

    @property
    def size(self) -> int:
        """GPUs of all types."""
        return sum(count for _, count in self.gpus)


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch, and all the nodes below it."""

    name: str
    level: int
    nodes: tuple[str, ...]


class SlurmCommands:
    """Runs Slurm's commands, never through a shell and never without a limit in time."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s

    def run(self, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """The command, however it ended; BackendError: it can't be started, or did not end in time."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(_DISTURBING)}
        try:
            return subprocess.run(
                argv,
                input=text,
                env=env,
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BackendError(f"{argv[0]} gave no answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise BackendError(f"{argv[0]}: {error}") from None

    def ask(self, *argv: str) -> str:
        """What the command says; BackendError if it fails."""
        done = self.run(*argv)
        if done.returncode:
            raise BackendError(f"{argv[0]}: {done.stderr.strip() or f'code {done.returncode}'}")
        return done.stdout

    def jobs(self) -> list[SlurmJob]:
        """Every job that Slurm still knows, over or not."""
        return [job_of(facts) for facts in self._listed("jobs", "squeue", "--json")]

    def nodes(self) -> list[SlurmNode]:
        """Every node."""
        return [node_of(facts) for facts in self._listed("nodes", "sinfo", "--json")]

    def switches(self) -> list[Switch]:
        """The tree above the nodes; empty where Slurm was told of none."""
        return list(switches_of(self.run("scontrol", "show", "topology").stdout))

    def default_partition(self) -> str | None:
        """Where jobs go that name no partition."""
        for line in self.ask("scontrol", "--oneliner", "show", "partition").splitlines():
            facts = words_of(line)
            if facts.get("Default") == "YES":
                return facts["PartitionName"]
        return None

    def release(self, ids: Iterable[int]) -> bool:
        """Lets held jobs go; False: not all of them were."""
        listed = ",".join(str(number) for number in ids)
        return not listed or self.run("scontrol", "release", listed).returncode == 0

    def cancel(self, ids: Iterable[int], *options: str) -> None:
        """Ends jobs, or sends them a signal; those that are over already do not mind."""
        if listed := [str(number) for number in ids]:
            self.run("scancel", *options, *listed)

    def _listed(self, key: str, *argv: str) -> list[Mapping[str, Any]]:
        try:
            answer = json.loads(self.ask(*argv))
        except ValueError as error:
            raise BackendError(f"{argv[0]} said what is no JSON: {error}") from None
        if answer.get("errors"):
            raise BackendError(f"{argv[0]}: {answer['errors'][0].get('description', 'an error')}")
        if key not in answer:
            raise BackendError(f"{argv[0]} did not list its {key}")
        return list(answer[key])


def job_of(facts: Mapping[str, Any]) -> SlurmJob:
    """A job out of Slurm's JSON."""
    return SlurmJob(
        id=_number(facts["job_id"]),
        name=str(facts.get("name") or ""),
        states=_states(facts.get("job_state")) | _states(facts.get("flags")) & {"COMPLETING"},
        reason=str(facts.get("state_reason") or ""),
        node=str(facts.get("nodes") or facts.get("required_nodes") or ""),
        gpus=sum(count for _, count in gpus_of(facts.get("tres_per_node"))),
        cpus=_number(facts.get("cpus")),
        memory_mib=_number(facts.get("memory_per_node")),
        code=_exit_code(facts.get("exit_code")),
        ended=float(_number(facts.get("end_time"))),
    )


def node_of(facts: Mapping[str, Any]) -> SlurmNode:
    """A node out of Slurm's JSON."""
    return SlurmNode(
        name=str(facts["name"]),
        address=str(facts.get("address") or facts["name"]),
        states=_states(facts.get("state")) | _states(facts.get("state_flags")),
        partitions=tuple(facts.get("partitions") or ()),
        gpus=tuple(gpus_of(facts.get("gres"))),
        gpus_used=sum(count for _, count in gpus_of(facts.get("gres_used"))),
        cpus=_number(facts.get("cpus")),
        cpus_used=_number(facts.get("alloc_cpus")),
        memory_mib=_number(facts.get("real_memory")),
        memory_used_mib=_number(facts.get("alloc_memory")),
    )


def gpus_of(text: Any) -> list[tuple[str, int]]:
    """`gpu:a100:8(S:0-1),gpu:2` as types and counts."""
    return [(match[1] or "", int(match[2])) for match in _GPUS.finditer(text or "")]


def switches_of(text: str) -> Iterator[Switch]:
    """What `scontrol show topology` says."""
    for line in text.splitlines():
        facts = words_of(line)
        if "SwitchName" in facts:
            nodes = hosts_of(facts.get("Nodes", ""))
            yield Switch(facts["SwitchName"], int(facts.get("Level", "0")), tuple(nodes))


def words_of(line: str) -> dict[str, str]:
    """`A=1 B=2` as a table."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def hosts_of(text: str) -> list[str]:
    """`n[00-02,7],login` as names."""
    found: list[str] = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", entry)
        choices = [_numbers(piece) if at % 2 else [piece] for at, piece in enumerate(pieces)]
        found += ["".join(way) for way in product(*choices)]
    return found


def _numbers(text: str) -> Sequence[str]:
    found: list[str] = []
    for span in text.split(","):
        first, _, last = span.partition("-")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return found


def _states(value: Any) -> frozenset[str]:
    listed = [value] if isinstance(value, str) else value or []
    return frozenset(str(state).upper() for state in listed)


def _number(value: Any) -> int:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    return int(value or 0)


def _exit_code(value: Any) -> int:
    """Of a process: its code, or 128 and the signal that ended it."""
    if isinstance(value, Mapping) and "return_code" in value:
        code, signal = _number(value["return_code"]), _number(value.get("signal", {}).get("id"))
    else:
        code, signal = _number(value) >> 8, _number(value) & 0x7F
    return code or (128 + signal if signal else 0)
