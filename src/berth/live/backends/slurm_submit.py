"""One part of a gang as a held Slurm job: what it asks for, and the script that it runs.

Nothing that a user wrote reaches a shell: the command stands in the attempt's folder, and the script only starts the
supervisor that reads it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from berth.live.backend import BackendError, Launch
from berth.live.backends.slurm_json import SlurmNode
from berth.live.backends.slurm_read import SlurmCommands
from berth.live.backends.slurm_room import Room
from berth.live.folder import Folder
from berth.live.supervise import KEPT

_TIME_OPTIONS = ("--time", "-t")


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
    room: Room | None,
    *,
    max_time: str | None = None,
) -> int:
    """The number of the held job. BackendError: it may have been taken or not; RefusedError: it never will be."""
    if node is None or room is None or max(part.devices) >= max(1, node.size):
        raise RefusedError(f"Slurm has no node {part.machine!r} with {max(part.devices) + 1} GPUs")
    argv = ("sbatch", *_request(site, folder, part, node, room, max_time))
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
    site: Site, folder: Folder, part: Part, node: SlurmNode, room: Room, max_time: str | None
) -> list[str]:
    cpus, memory_mib = room.take(len(part.devices), part.memory_bytes)
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
