"""Submits one part of a gang as a held Slurm job: its resources and its script.

A user's command never reaches a shell: it is in the attempt's folder, and the script only starts the supervisor that
reads it.

By Slurm's defaults a job that asks for no memory gets all memory of a node, and one core. So a part asks for its
devices' share of what other users leave. If they hold so much of the cores or memory that a GPU can't be used, that GPU
counts as theirs.
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
from berth.live.supervise.part import KEPT

_TIME_OPTIONS = ("--time", "-t")
LEAST_MIB = 1024  # memory per device; a node with less has no memory configured
_JUST_ENDED_S = 10.0


class RefusedError(BackendError):
    """Slurm refuses the job permanently; the message is Slurm's."""


@dataclass(frozen=True, slots=True)
class Site:
    """How jobs are submitted at this site."""

    supervise: Path
    python: str
    partition: str | None = None
    options: tuple[str, ...] = ()  # for sbatch, such as --account

    @property
    def limits_time(self) -> bool:
        """Whether the operator sets a time limit."""
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
    """Return one part per machine, in rank order."""
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
    """Submit a held job and return its id. On BackendError the outcome is unknown; RefusedError is permanent."""
    last = max(part.devices, default=0)
    if node is None or headroom is None or last >= max(1, node.size):
        raise RefusedError(f"Slurm has no node {part.machine!r} with {last + 1} GPUs")
    argv = ("sbatch", *_request(site, folder, part, node, headroom, max_time))
    done = _sbatch(commands, argv, _script(site, folder, part.machine))
    try:
        return int(done.stdout.split(";")[0])
    except ValueError:
        raise BackendError(f"sbatch: expected a job id, got {done.stdout.strip()!r}") from None


def _sbatch(commands: SlurmCommands, argv: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
    """Run sbatch, which exits with 1 for any error.

    The refusal is permanent if it fails twice while the controller answers a ping. A job that was accepted although
    sbatch failed is found by its name, and cancelled if it is a duplicate.
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
        '[ "$CUDA_VISIBLE_DEVICES" != NoDevFiles ] || CUDA_VISIBLE_DEVICES=\n'  # set by Slurm where it only counts GPUs
        f'exec {shlex.join(argv)} "$CUDA_VISIBLE_DEVICES"\n'
    )


def gres_of(node: SlurmNode, devices: Iterable[int]) -> str:
    """Return the GPUs to request, by type: devices are numbered through a node's types in Slurm's order."""
    types = [kind for kind, count in node.gpus for _ in range(count)]
    chosen = [types[number] for number in devices if number < len(types)]
    counts = {kind: chosen.count(kind) for kind in dict.fromkeys(chosen)}
    return ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items())


@dataclass(slots=True)
class Headroom:
    """What berth may use of a node; submitted parts take their share."""

    devices: int  # of the node
    external: int  # held or made unusable by others
    cpus: int  # not used by others
    memory_mib: int  # not used by others; 0: Slurm does not track it
    cpus_free: int
    memory_free_mib: int

    def take(self, devices: int, memory_bytes: int = 0) -> tuple[int, int]:
        """Return the cores and memory to request with this number of devices."""
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
    """Return the headroom of each node, given berth's own jobs.

    Resources in use that are not berth's are external, also where Slurm hides other users' jobs. The nodes were read
    before the jobs, so a job that has just ended still counts as berth's.
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
    """The number of devices that berth can't use."""
    if not node.size:
        return int(headroom.cpus < node.cpus)  # the node is one device
    left = node.size - max(0, node.gpus_used - mine)
    if node.cpus >= node.size:
        left = min(left, headroom.cpus)
    if node.memory_mib >= LEAST_MIB * node.size:
        left = min(left, headroom.memory_mib // LEAST_MIB)
    return node.size - max(0, left)
