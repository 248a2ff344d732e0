"""Slurm's commands: what they show of jobs, nodes, partitions and switches, and what they are asked to do."""

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

_DISTURBING = ("SQUEUE_", "SINFO_", "SCANCEL_")  # in the environment they narrow what is shown or done
_NODES_BY_SCONTROL = (23, 2)  # `scontrol --json` is new in 23.02, and `sinfo --json` lists no nodes any more


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch, and all the nodes below it."""

    name: str
    level: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Where jobs are submitted to."""

    name: str
    max_time: str = "UNLIMITED"  # as Slurm writes it, such as 1-00:00:00
    state: str = "UP"  # else DOWN, DRAIN or INACTIVE


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

    @cached_property
    def version(self) -> tuple[int, int]:
        """The release of the commands, such as (22, 5)."""
        said = self.ask("scontrol", "--version")
        match = re.search(r"(\d+)\.(\d+)", said)
        if match is None:
            raise BackendError(
                f"scontrol --version: expected a release such as 23.11.4, got {said.strip()!r}"
            )
        return int(match[1]), int(match[2])

    def jobs(self) -> list[SlurmJob]:
        """Every job of this user that Slurm still knows, over or not; a release that ignores `--me` shows more."""
        argv = ("squeue", "--me", "--states=all", "--json")
        jobs = (parse_job(facts) for facts in parse_list(self.ask(*argv), "jobs", argv[0]))
        return [job for job in jobs if job.user_id == os.getuid()]

    def nodes(self) -> list[SlurmNode]:
        """Every node, with what is in use on it."""
        argv: Sequence[str] = ("sinfo", "--json")
        if self.version >= _NODES_BY_SCONTROL:
            argv = ("scontrol", "--details", "--json", "show", "nodes")
        return [parse_node(facts) for facts in parse_list(self.ask(*argv), "nodes", argv[0])]

    def switches(self) -> list[Switch]:
        """The tree above the nodes; empty where Slurm was told of none."""
        return list(parse_switches(self.run("scontrol", "show", "topology").stdout))

    def partition(self, name: str | None) -> Partition | None:
        """A partition by its name, or the one for jobs that name none; None: there is no such partition."""
        for line in self.ask("scontrol", "--oneliner", "show", "partition").splitlines():
            facts = parse_fields(line)
            found = facts.get("PartitionName")
            if found is not None and (found == name if name else facts.get("Default") == "YES"):
                return Partition(found, facts.get("MaxTime", "UNLIMITED"), facts.get("State", "UP"))
        return None

    def answers(self) -> bool:
        """Whether a Slurm controller, the first or a backup, answers."""
        return self.run("scontrol", "ping").returncode == 0

    def release(self, ids: Iterable[int]) -> bool:
        """Lets held jobs go; False: not all of them were."""
        listed = ",".join(str(number) for number in ids)
        return not listed or self.run("scontrol", "release", listed).returncode == 0

    def cancel(self, ids: Iterable[int], *options: str) -> None:
        """Ends jobs, or sends them a signal; those that are over already do not mind."""
        if listed := [str(number) for number in ids]:
            self.run("scancel", *options, *listed)


def parse_switches(text: str) -> Iterator[Switch]:
    """What `scontrol show topology` says."""
    for line in text.splitlines():
        facts = parse_fields(line)
        if "SwitchName" in facts:
            nodes = expand_hosts(facts.get("Nodes", ""))
            yield Switch(facts["SwitchName"], int(facts.get("Level", "0")), tuple(nodes))


def parse_fields(line: str) -> dict[str, str]:
    """`A=1 B=2` as a table."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def expand_hosts(text: str) -> list[str]:
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
