"""Runs Slurm's commands to read jobs, nodes, partitions and switches, and to release and cancel jobs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from berth.live.backend import BackendError
from berth.live.backends.slurm_json import SlurmJob, SlurmNode, parse_job, parse_list, parse_node

_IGNORED_ENV = ("SQUEUE_", "SINFO_", "SCANCEL_")  # these variables would filter the output
_NODES_BY_SCONTROL = (23, 2)  # `sinfo --json` lists no nodes since 23.02, and `scontrol --json` is new there


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch and all nodes below it."""

    name: str
    level: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition that jobs are submitted to."""

    name: str
    max_time: str = "UNLIMITED"  # as Slurm writes it, such as 1-00:00:00
    state: str = "UP"  # else DOWN, DRAIN or INACTIVE


class SlurmCommands:
    """Runs Slurm's commands, without a shell and with a timeout."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s

    def run(self, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command; raise BackendError only if it can't be started or does not end in time."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(_IGNORED_ENV)}
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
            raise BackendError(f"{argv[0]} did not answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise BackendError(f"{argv[0]}: {error}") from None

    def ask(self, *argv: str) -> str:
        """Return the output of a command; raise BackendError if it fails."""
        done = self.run(*argv)
        if done.returncode:
            raise BackendError(f"{argv[0]}: {done.stderr.strip() or f'code {done.returncode}'}")
        return done.stdout

    @cached_property
    def version(self) -> tuple[int, int]:
        """The release of Slurm, such as (22, 5)."""
        output = self.ask("scontrol", "--version")
        match = re.search(r"(\d+)\.(\d+)", output)
        if match is None:
            raise BackendError(
                f"scontrol --version: expected a release such as 23.11.4, got {output.strip()!r}"
            )
        return int(match[1]), int(match[2])

    def jobs(self) -> list[SlurmJob]:
        """Return all jobs of this user that Slurm still lists, also ended ones. Some releases ignore `--me`."""
        argv = ("squeue", "--me", "--states=all", "--json")
        jobs = (parse_job(facts) for facts in parse_list(self.ask(*argv), "jobs", argv[0]))
        return [job for job in jobs if job.user_id == os.getuid()]

    def nodes(self) -> list[SlurmNode]:
        """Return all nodes with their allocated resources."""
        argv: Sequence[str] = ("sinfo", "--json")
        if self.version >= _NODES_BY_SCONTROL:
            argv = ("scontrol", "--details", "--json", "show", "nodes")
        return [parse_node(facts) for facts in parse_list(self.ask(*argv), "nodes", argv[0])]

    def switches(self) -> list[Switch]:
        """Return the switches; none if no topology is configured."""
        return list(parse_switches(self.run("scontrol", "show", "topology").stdout))

    def partition(self, name: str | None) -> Partition | None:
        """Return a partition by name, or the default partition; None if it does not exist."""
        for line in self.ask("scontrol", "--oneliner", "show", "partition").splitlines():
            facts = parse_fields(line)
            found = facts.get("PartitionName")
            if found is not None and (found == name if name else facts.get("Default") == "YES"):
                return Partition(found, facts.get("MaxTime", "UNLIMITED"), facts.get("State", "UP"))
        return None

    def answers(self) -> bool:
        """Whether a Slurm controller, primary or backup, answers."""
        return self.run("scontrol", "ping").returncode == 0

    def release(self, ids: Iterable[int]) -> bool:
        """Release held jobs; return whether all were released."""
        listed = ",".join(str(number) for number in ids)
        return not listed or self.run("scontrol", "release", listed).returncode == 0

    def cancel(self, ids: Iterable[int], *options: str) -> None:
        """Cancel jobs, or send them a signal; jobs that have ended are ignored."""
        if listed := [str(number) for number in ids]:
            self.run("scancel", *options, *listed)


def parse_switches(text: str) -> Iterator[Switch]:
    """Yield the switches in the output of `scontrol show topology`."""
    for line in text.splitlines():
        facts = parse_fields(line)
        if "SwitchName" in facts:
            nodes = expand_hosts(facts.get("Nodes", ""))
            yield Switch(facts["SwitchName"], int(facts.get("Level", "0")), tuple(nodes))


def parse_fields(line: str) -> dict[str, str]:
    """Return `A=1 B=2` as a dict."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def expand_hosts(text: str) -> list[str]:
    """Return the names in a host list such as `n[00-02,7],login`."""
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
