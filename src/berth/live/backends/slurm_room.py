"""What others leave of a node: GPUs, cores and memory that berth's jobs may ask for.

A job that asks for no memory is given all of a node's, and one core, by Slurm's defaults; so a part of a gang asks for
its devices' share of what is there for berth. Where others hold so many cores or so much memory that a GPU could not be
used, that GPU counts as theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from berth.live.backends.slurm_json import SlurmJob, SlurmNode

LEAST_MIB = 1024  # of memory for one device; a node with less was not described
_JUST_ENDED_S = 10.0


@dataclass(slots=True)
class Room:
    """A node as it stands open to berth; parts that are submitted take their share out of it."""

    devices: int  # all of the node's
    foreign: int  # of them, those that others hold or make useless
    cpus: int  # that others leave
    memory_mib: int  # that others leave; 0: Slurm does not count it here
    cpus_free: int
    memory_free_mib: int

    def take(self, devices: int, memory_bytes: int = 0) -> tuple[int, int]:
        """Cores and memory to ask for with so many devices."""
        ours = max(1, self.devices - self.foreign)
        cpus = max(1, min(self.cpus * devices // ours, self.cpus_free))
        self.cpus_free -= cpus
        if not self.memory_mib:
            return cpus, 0
        wanted_mib = max(self.memory_mib * devices // ours, -(-memory_bytes // 2**20))
        memory_mib = max(1, min(wanted_mib, self.memory_free_mib))
        self.memory_free_mib -= memory_mib
        return cpus, memory_mib


def rooms_of(nodes: Iterable[SlurmNode], mine: Sequence[SlurmJob]) -> dict[str, Room]:
    """The room of each node, given berth's own jobs.

    What a node has in use and is not berth's is foreign, also where Slurm hides the jobs of others. The nodes were
    asked for first, so a job that has ended since still counts as berth's.
    """
    by_node: dict[str, list[SlurmJob]] = {}
    for job in mine:
        if not job.waits:
            by_node.setdefault(job.node, []).append(job)
    return {node.name: _room(node, by_node.get(node.name, [])) for node in nodes}


def _room(node: SlurmNode, mine: Sequence[SlurmJob]) -> Room:
    now = time.time()
    alive = [job for job in mine if not job.over]
    counted = [job for job in mine if not job.over or now - job.ended < _JUST_ENDED_S]
    cpus = node.cpus - max(0, node.cpus_used - sum(job.cpus for job in counted))
    memory = node.memory_mib - max(0, node.memory_used_mib - sum(job.memory_mib for job in counted))
    if node.memory_mib < LEAST_MIB * max(1, node.size):
        memory = 0
    room = Room(
        devices=max(1, node.size),
        foreign=0,
        cpus=cpus,
        memory_mib=memory,
        cpus_free=cpus - sum(job.cpus for job in alive),
        memory_free_mib=memory - sum(job.memory_mib for job in alive),
    )
    room.foreign = _foreign(node, room, sum(job.gpus for job in counted))
    return room


def _foreign(node: SlurmNode, room: Room, mine: int) -> int:
    """Devices that berth can't have."""
    if not node.size:
        return int(room.cpus < node.cpus)  # the node is one device: whole or not at all
    left = node.size - max(0, node.gpus_used - mine)
    if node.cpus >= node.size:
        left = min(left, room.cpus)
    if node.memory_mib >= LEAST_MIB * node.size:
        left = min(left, room.memory_mib // LEAST_MIB)
    return node.size - max(0, left)
