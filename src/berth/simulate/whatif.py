"""What if: the same trace on a cluster with more racks, faster links, or other devices.

Each what-if is a function from facts to facts, and says in a note what it did.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from berth.cluster.catalogue import device_type
from berth.cluster.expand import MAX_DEVICES
from berth.cluster.model import Cluster, Machine
from berth.errors import InputError, UnknownNameError
from berth.units import format_bandwidth, format_count

NIC = "nic"  # answers to --link beside the tiers: what all devices of a machine share


def add_racks(cluster: Cluster, racks: int) -> Cluster:
    """`count` more racks like the last one; machines, where the cluster has no racks."""
    if racks < 1:
        raise InputError(f"--add-racks: 1 or more (given: {racks})")
    if len(cluster.tiers) == 1:
        raise InputError(f"{cluster.name} is a pool and has no racks", hint="write it as racks: 4x20x8")
    level = 1 if len(cluster.tiers) > 2 else 0
    last = cluster.groups[level][-1]
    copied = np.flatnonzero(cluster.groups[level] == last)
    if cluster.devices + racks * int(cluster.sizes[copied].sum()) > MAX_DEVICES:
        raise InputError(f"--add-racks {racks}: berth takes {MAX_DEVICES:,} devices")
    names = [list(level_names) for level_names in cluster.group_names]
    machines, columns = list(cluster.machines), [cluster.groups]
    for _ in range(racks):
        column = cluster.groups[:, copied].copy()
        column[0] = np.arange(len(machines), len(machines) + len(copied))
        if level == 1:
            column[1] = len(names[1])
            names[1].append(_next_name(names[1][last], names[1]))
        for machine in copied:
            name = _next_name(cluster.machines[machine].name, names[0], names[1][-1] if level else None)
            names[0].append(name)
            machines.append(replace(cluster.machines[machine], name=name))
        columns.append(column)
    word = cluster.tiers[level].name
    note = f"what if: {format_count(racks, 'more ' + word)} like {cluster.group_names[level][last]}"
    if level == 0:
        note += " (the cluster has no racks, so machines were added)"
    return replace(
        cluster,
        machines=tuple(machines),
        groups=np.concatenate(columns, axis=1).astype(np.int32),
        group_names=tuple(tuple(level_names) for level_names in names),
        notes=(*cluster.notes, note),
    )


def _next_name(name: str, taken: list[str], inside: str | None = None) -> str:
    """The next free number at the end of a name: r3 -> r4; a machine takes its new rack's name in front."""
    if inside is not None:
        own = f"{inside}-{name.rsplit('-', 1)[-1]}"
        if own not in taken:
            return own
    match = re.fullmatch(r"(.*?)(\d+)", name)
    stem, number = (match[1], int(match[2])) if match else (f"{name}-", 1)
    known = set(taken)
    while f"{stem}{number}" in known:
        number += 1
    return f"{stem}{number}"


def scale_link(cluster: Cluster, text: str) -> Cluster:
    """`network=2x`: the bandwidth of a tier (or of every machine's `nic`) times a factor."""
    name, _, factor_text = text.partition("=")
    factor = _factor(text, factor_text)
    if name == NIC:
        return _scale_nics(cluster, factor)
    known = [tier.name for tier in cluster.tiers]
    if name not in known:
        raise UnknownNameError(f"tier in {cluster.name}", name, [*known, NIC])
    at = known.index(name)
    faster = replace(cluster.tiers[at], bytes_per_s=cluster.tiers[at].bytes_per_s * factor)
    notes = [f"what if: {name} at {format_bandwidth(faster.bytes_per_s)} per device ({factor:g}x)"]
    if at > 0 and _nics_limit(cluster, faster.bytes_per_s):
        notes.append(f"machines' NICs carry less than that; --link {NIC}={factor:g}x scales them too")
    tiers = (*cluster.tiers[:at], faster, *cluster.tiers[at + 1 :])
    return replace(cluster, tiers=tiers, notes=(*cluster.notes, *notes))


def _factor(text: str, factor: str) -> float:
    try:
        value = float(factor.strip().lower().removesuffix("x"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"--link {text}: no factor above zero", hint="write it like network=2x or rack=0.5x")
    return value


def _scale_nics(cluster: Cluster, factor: float) -> Cluster:
    if all(machine.nic_bytes_per_s is None for machine in cluster.machines):
        raise InputError(f"no machine of {cluster.name} has a NIC of its own", hint="scale a tier instead")
    machines = tuple(
        replace(m, nic_bytes_per_s=None if m.nic_bytes_per_s is None else m.nic_bytes_per_s * factor)
        for m in cluster.machines
    )
    return replace(cluster, machines=machines, notes=(*cluster.notes, f"what if: NICs at {factor:g}x"))


def _nics_limit(cluster: Cluster, bytes_per_s: float) -> bool:
    return any(
        machine.nic_bytes_per_s is not None and machine.nic_bytes_per_s < machine.size * bytes_per_s
        for machine in cluster.machines
    )


def replace_device(cluster: Cluster, name: str) -> Cluster:
    """Every GPU of the cluster becomes one of this type; other devices stay.

    Durations follow by the setting's reference device, which then is one of the old cluster.
    """
    new = device_type(name)
    if new.kind != "gpu":
        raise InputError(f"--device {name}: is not a GPU")
    others = [index for index, kind in enumerate(cluster.device_types) if kind.kind != "gpu"]
    types = (new, *(cluster.device_types[index] for index in others))
    number = {index: at + 1 for at, index in enumerate(others)}
    machines = tuple(_with_device(machine, number) for machine in cluster.machines)
    old = ", ".join(kind.name for kind in cluster.device_types if kind.kind == "gpu")
    note = f"what if: {new.name} instead of {old}"
    return replace(cluster, device_types=types, machines=machines, notes=(*cluster.notes, note))


def _with_device(machine: Machine, number: dict[int, int]) -> Machine:
    """The machine with all its GPUs of type 0, and its other devices under their new numbers."""
    gpus = sum(count for kind, count in machine.devices if kind not in number)
    kept = [(number[kind], count) for kind, count in machine.devices if kind in number]
    return replace(machine, devices=tuple(([(0, gpus)] if gpus else []) + kept))
