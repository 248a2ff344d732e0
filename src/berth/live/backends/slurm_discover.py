"""A Slurm cluster that is described nowhere: its nodes, its GPUs and its switches as berth's tiers.

Switches become groups: those above the nodes racks, those above them pods, and one tier joins everything. What Slurm
was not told of is not guessed: a node below no switch is near to nobody, and without a topology there is the machine
and the network. Where no node has a GPU, every node is one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from berth.cluster.model import Cluster, DeviceType, Machine
from berth.cluster.tiers import default_tiers
from berth.errors import InputError
from berth.live.backends.device_names import device_named, possible
from berth.live.backends.slurm_commands import Switch
from berth.live.backends.slurm_json import SlurmNode
from berth.units import format_count

FOUND = "slurm"  # the name of a cluster that nobody described
WHOLE_NODE = "node"  # the type of the one device of a node, where Slurm counts no GPUs


def discover(nodes: Sequence[SlurmNode], switches: Iterable[Switch], name: str = FOUND) -> Cluster:
    """The cluster that these nodes are."""
    notes: list[str] = []
    nodes = _usable(nodes, notes)
    kinds: dict[str, DeviceType] = {}
    machines = tuple(_machine(node, kinds) for node in nodes)
    notes += [_unclear(kind) for kind in kinds if possible(kind)]
    names = [node.name for node in nodes]
    rows, group_names = [np.arange(len(nodes), dtype=np.int32)], [tuple(names)]
    for level in _levels(names, list(switches)):
        numbers = {group: number for number, group in enumerate(dict.fromkeys(level))}
        rows.append(np.array([numbers[group] for group in level], np.int32))
        group_names.append(tuple(numbers))
    if len(rows) == 1:
        notes.append("Slurm was told of no topology: all nodes are taken to be equally far")
    if len(rows) == 1 or len(group_names[-1]) > 1:
        rows.append(np.zeros(len(nodes), np.int32))
        group_names.append((name,))
    return Cluster(
        name=name,
        device_types=tuple(kinds.values()),
        tiers=default_tiers(len(rows)),
        machines=machines,
        groups=np.stack(rows),
        group_names=tuple(group_names),
        notes=tuple(notes),
    )


def _usable(nodes: Sequence[SlurmNode], notes: list[str]) -> list[SlurmNode]:
    if not nodes:
        raise InputError("Slurm shows no node that jobs could run on", hint="name a partition that has some")
    with_gpus = [node for node in nodes if node.size]
    if not with_gpus:
        notes.append("no node has a GPU that Slurm counts: every node is one device")
        return list(nodes)
    if len(with_gpus) < len(nodes):
        notes.append(f"{format_count(len(nodes) - len(with_gpus), 'node')} without a GPU: left out")
    return with_gpus


def _machine(node: SlurmNode, kinds: dict[str, DeviceType]) -> Machine:
    counts: dict[int, int] = {}
    for written, count in node.gpus or ((WHOLE_NODE, 1),):
        kind = DeviceType(WHOLE_NODE, kind="cpu") if written == WHOLE_NODE else device_named(written)
        kinds.setdefault(kind.name, kind)
        index = list(kinds).index(kind.name)
        counts[index] = counts.get(index, 0) + count
    memory_bytes = node.memory_mib * 2**20 if node.memory_mib > 1 else None  # 1: it was not written
    return Machine(node.name, tuple(counts.items()), node.cpus or None, memory_bytes)


def _unclear(kind: str) -> str:
    choices = " or ".join(possible(kind))
    return (
        f"gpu:{kind} may be {choices}: speed, memory and price are unknown unless --cluster states the type"
    )


def _levels(names: Sequence[str], switches: Sequence[Switch]) -> list[list[str]]:
    """For each level of switches the group of each node, nearest level first."""
    below, levels = list(names), []
    for level in sorted({switch.level for switch in switches}):
        above = {node: switch.name for switch in switches if switch.level == level for node in switch.nodes}
        # a group that ends below this level stands alone in it
        below = [above.get(name, group) for name, group in zip(names, below, strict=True)]
        levels.append(below)
    return levels
