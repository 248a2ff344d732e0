"""Discovers a Slurm cluster: its nodes and GPUs, and its switches as tiers.

Switches become groups: those above the nodes racks, those above them pods, and one tier joins everything. Nothing is
guessed: a node below no switch is a group of its own, and without a topology the tiers are machine and network. Where
no node has a GPU, every node is one device.
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

FOUND = "slurm"  # the name of a discovered cluster
WHOLE_NODE = "node"  # the device type of a node without GPUs


def discover(nodes: Sequence[SlurmNode], switches: Iterable[Switch], name: str = FOUND) -> Cluster:
    """Return the cluster made of these nodes."""
    notes: list[str] = []
    nodes = _usable(nodes, notes)
    types: dict[str, DeviceType] = {}
    machines = tuple(_machine(node, types) for node in nodes)
    notes += [_unclear(kind) for kind in types if possible(kind)]
    names = [node.name for node in nodes]
    rows, group_names = [np.arange(len(nodes), dtype=np.int32)], [tuple(names)]
    for level in _levels(names, list(switches)):
        numbers = {group: number for number, group in enumerate(dict.fromkeys(level))}
        rows.append(np.array([numbers[group] for group in level], np.int32))
        group_names.append(tuple(numbers))
    if len(rows) == 1:
        notes.append("Slurm has no topology configured: all nodes are treated as equally distant")
    if len(rows) == 1 or len(group_names[-1]) > 1:
        rows.append(np.zeros(len(nodes), np.int32))
        group_names.append((name,))
    return Cluster(
        name=name,
        device_types=tuple(types.values()),
        tiers=default_tiers(len(rows)),
        machines=machines,
        groups=np.stack(rows),
        group_names=tuple(group_names),
        notes=tuple(notes),
    )


def _usable(nodes: Sequence[SlurmNode], notes: list[str]) -> list[SlurmNode]:
    if not nodes:
        raise InputError("Slurm has no node that jobs could run on", hint="choose a partition that has nodes")
    with_gpus = [node for node in nodes if node.size]
    if not with_gpus:
        notes.append("no node has a GPU that Slurm counts: every node is one device")
        return list(nodes)
    if len(with_gpus) < len(nodes):
        notes.append(f"{format_count(len(nodes) - len(with_gpus), 'node')} without a GPU: left out")
    return with_gpus


def _machine(node: SlurmNode, types: dict[str, DeviceType]) -> Machine:
    counts: dict[int, int] = {}
    for written, count in node.gpus or ((WHOLE_NODE, 1),):
        kind = DeviceType(WHOLE_NODE, kind="cpu") if written == WHOLE_NODE else device_named(written)
        types.setdefault(kind.name, kind)
        index = list(types).index(kind.name)
        counts[index] = counts.get(index, 0) + count
    memory_bytes = node.memory_mib * 2**20 if node.memory_mib > 1 else None  # 1: not configured
    return Machine(node.name, tuple(counts.items()), node.cpus or None, memory_bytes)


def _unclear(kind: str) -> str:
    choices = " or ".join(possible(kind))
    return (
        f"gpu:{kind} may be {choices}: speed, memory and price are unknown unless --cluster states the type"
    )


def _levels(names: Sequence[str], switches: Sequence[Switch]) -> list[list[str]]:
    """By level of switches, nearest first: the group of each node."""
    below, levels = list(names), []
    for level in sorted({switch.level for switch in switches}):
        above = {node: switch.name for switch in switches if switch.level == level for node in switch.nodes}
        # a group without a switch at this level forms its own
        below = [above.get(name, group) for name, group in zip(names, below, strict=True)]
        levels.append(below)
    return levels
