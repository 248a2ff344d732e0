"""One part of a gang as a held Slurm job: what it asks for, and the script that it runs.

Nothing that a user wrote reaches a shell: the command stands in the attempt's folder, and the script only starts the
supervisor that reads it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from berth.live.backend import BackendError, Launch
from berth.live.backends.slurm_commands import SlurmCommands
from berth.live.backends.slurm_json import SlurmJob, SlurmNode
from berth.live.folder import Folder
from berth.live.supervise import KEPT

_TIME_OPTIONS = ("--time", "-t")
LEAST_MIB = 1024  # of memory for one device; a node with less was not described
_JUST_ENDED_S = 10.0


class RefusedError(BackendError):
    """Slurm will never take it, and says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """How jobs are submitted here."""

    supervise: Path
    python: str
    partition: str | None = None
    options: tuple[str, ...] = ()  # for sbatch, such as --account

    @property
    def limits_time(self) -> bool:
        """Whether a time limit is given by whoever runs berth."""
        given = any(option.split("=")[0] in _TIME_OPTIONS for option in self.options)
        return given or "SBATCH_TIMELIMIT" in os.environ


@dataclass(frozen=True, slots=True)
class Part:
    """The members of a gang on one machine."""

    number: int
    machine: str
    devices: tuple[int, ...]
    memory_bytes: int


def parts_to_submit(order: Launch) -> list[Part]:
    """One for each machine, in the order in which the gang's ranks come to them."""
    found = []
    for number, machine in enumerate(dict.fromkeys(member.machine for member in order.members)):
        members = [member for member in order.members if member.machine == machine]
        devices = tuple(device for member in members for device in member.devices)
        found.append(Part(number, machine, devices, (order.memory_bytes or 0) * len(members)))
    return found


def submit(
    commands: SlurmCommands,
    site: Site,
    folder: Folder,
    part: Part,
    node: SlurmNode | None,
    headroom: Headroom | None,
    *,
    max_time: str | None = None,
) -> int:
    """The number of the held job. BackendError: it may have been taken or not; RefusedError: it never will be."""
    if node is None or headroom is None or max(part.devices) >= max(1, node.size):
        raise RefusedError(f"Slurm has no node {part.machine!r} with {max(part.devices) + 1} GPUs")
    argv = ("sbatch", *_request(site, folder, part, node, headroom, max_time))
    done = _tried(commands, argv, _script(site, folder, part.machine))
    try:
        return int(done.stdout.split(";")[0])
    except ValueError:
        raise BackendError(f"sbatch: expected the number of a job, got {done.stdout.strip()!r}") from None


def _tried(commands: SlurmCommands, argv: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
    """Runs sbatch, which ends with 1 whatever is wrong.

    It is refused for good if it fails twice while the controller answers a ping. A job that was taken although sbatch
    failed is found by its name, and is cancelled where there are two.
    """
    for _ in range(2):
        done = commands.run(*argv, text=script)
        if done.returncode == 0:
            return done
        if not commands.answers():
            raise BackendError(f"sbatch: {done.stderr.strip()}")
    raise RefusedError(done.stderr.strip())


def _request(
    site: Site, folder: Folder, part: Part, node: SlurmNode, headroom: Headroom, max_time: str | None
) -> list[str]:
    cpus, memory_mib = headroom.take(len(part.devices), part.memory_bytes)
    log = str(folder.path / f"part-{part.number}.slurm.log").replace("\\", "\\\\").replace("%", "%%")
    gpus = gres_of(node, part.devices)
    return [
        *site.options,
        *([f"--partition={site.partition}"] if site.partition else []),
        *([f"--gres={gpus}"] if gpus else []),
        *([f"--mem={memory_mib}M"] if memory_mib else []),
        *([f"--time={max_time}"] if max_time and not site.limits_time else []),
        *("--hold", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}"),
        *(f"--nodelist={node.name}", f"--job-name=berth:{folder.token}:{part.number}"),
        *(f"--export={','.join(KEPT)}", "--chdir=/", f"--output={log}", "--open-mode=append"),
    ]


def _script(site: Site, folder: Folder, machine: str) -> str:
    argv: Sequence[str] = (site.python, "-I", "-S", str(site.supervise), str(folder.path), machine)
    return (
        "#!/bin/sh\n"
        '[ "$CUDA_VISIBLE_DEVICES" != NoDevFiles ] || CUDA_VISIBLE_DEVICES=\n'  # Slurm's word for: by count alone
        f'exec {shlex.join(argv)} "$CUDA_VISIBLE_DEVICES"\n'
    )


def gres_of(node: SlurmNode, devices: Iterable[int]) -> str:
    """The GPUs to ask for, by type: devices are numbered through the types of a node in Slurm's order."""
    types = [kind for kind, count in node.gpus for _ in range(count)]
    chosen = [types[number] for number in devices if number < len(types)]
    counts = {kind: chosen.count(kind) for kind in dict.fromkeys(chosen)}
    return ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items())


@dataclass(slots=True)
class Headroom:
    """A node as it stands open to berth; parts that are submitted take their share out of it."""

    devices: int  # all of the node's
    external: int  # of them, those that others hold or make useless
    cpus: int  # that others leave
    memory_mib: int  # that others leave; 0: Slurm does not count it here
    cpus_free: int
    memory_free_mib: int

    def take(self, devices: int, memory_bytes: int = 0) -> tuple[int, int]:
        """Cores and memory to ask for with so many devices."""
        ours = max(1, self.devices - self.external)
        cpus = max(1, min(self.cpus * devices // ours, self.cpus_free))
        self.cpus_free -= cpus
        if not self.memory_mib:
            return cpus, 0
        wanted_mib = max(self.memory_mib * devices // ours, -(-memory_bytes // 2**20))
        memory_mib = max(1, min(wanted_mib, self.memory_free_mib))
        self.memory_free_mib -= memory_mib
        return cpus, memory_mib


def headroom_by_node(nodes: Iterable[SlurmNode], mine: Sequence[SlurmJob]) -> dict[str, Headroom]:
    """The headroom of each node, given berth's own jobs.

    What a node has in use and is not berth's is external, also where Slurm hides the jobs of others. The nodes were
    asked for first, so a job that has ended since still counts as berth's.
    """
    by_node: dict[str, list[SlurmJob]] = {}
    for job in mine:
        if not job.waits:
            by_node.setdefault(job.node, []).append(job)
    return {node.name: _headroom_of(node, by_node.get(node.name, [])) for node in nodes}


def _headroom_of(node: SlurmNode, mine: Sequence[SlurmJob]) -> Headroom:
    now = time.time()
    alive = [job for job in mine if not job.over]
    counted = [job for job in mine if not job.over or now - job.ended < _JUST_ENDED_S]
    cpus = node.cpus - max(0, node.cpus_used - sum(job.cpus for job in counted))
    memory = node.memory_mib - max(0, node.memory_used_mib - sum(job.memory_mib for job in counted))
    if node.memory_mib < LEAST_MIB * max(1, node.size):
        memory = 0
    headroom = Headroom(
        devices=max(1, node.size),
        external=0,
        cpus=cpus,
        memory_mib=memory,
        cpus_free=cpus - sum(job.cpus for job in alive),
        memory_free_mib=memory - sum(job.memory_mib for job in alive),
    )
    headroom.external = _external(node, headroom, sum(job.gpus for job in counted))
    return headroom


def _external(node: SlurmNode, headroom: Headroom, mine: int) -> int:
    """Devices that berth can't have."""
    if not node.size:
        return int(headroom.cpus < node.cpus)  # the node is one device: whole or not at all
    left = node.size - max(0, node.gpus_used - mine)
    if node.cpus >= node.size:
        left = min(left, headroom.cpus)
    if node.memory_mib >= LEAST_MIB * node.size:
        left = min(left, headroom.memory_mib // LEAST_MIB)
    return node.size - max(0, left)
