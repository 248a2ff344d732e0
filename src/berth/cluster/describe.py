"""A cluster as the description that `ClusterSpec` reads: what a plan states of the cluster that it was made for.

Names of machines and groups are left out, and equal neighbours are counted. Machines without devices are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from berth.cluster.catalogue import known_devices
from berth.cluster.expand import expand
from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster, DeviceType, Machine
from berth.cluster.spec import ClusterSpec
from berth.errors import InputError

Description = str | dict[str, Any]


def describe(cluster: Cluster) -> Description:
    """Return the description of a cluster; a pool, which has one tier, is described by its shape."""
    if len(cluster.tiers) == 1:
        return f"{cluster.devices}:{cluster.device_types[0].name}"
    tiers = [
        {
            "name": tier.name,
            "bandwidth": f"{tier.bytes_per_s!r}B/s",
            "latency": f"{tier.latency_s!r}s",
            "oversubscription": tier.oversubscription,
        }
        for tier in cluster.tiers
    ]
    used = [row for row, machine in enumerate(cluster.machines) if machine.size]
    found: dict[str, Any] = {"name": cluster.name, "tiers": tiers}
    if devices := dict(one for kind in cluster.device_types if (one := _facts(kind))[1]):
        found["devices"] = devices
    return found | _children(cluster, len(cluster.tiers) - 2, used)


def described(description: dict[str, Any]) -> Cluster:
    """Return the cluster that a description states."""
    try:
        spec = ClusterSpec.model_validate(description)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{place}: {first['msg']}", hint="write it as in a cluster's file") from None
    return expand(spec, "cluster")


def load_described(description: Description) -> Cluster:
    """Return the cluster of a description, or of a name: a shape, a preset or a file."""
    return load_cluster(description) if isinstance(description, str) else described(description)


def _facts(kind: DeviceType) -> tuple[str, dict[str, Any]]:
    """The name of a device type, and what the catalogue does not say of it."""
    entry = known_devices().get(kind.name)
    if entry is not None and entry.device == kind:
        return kind.name, {}
    written = {
        "memory_bytes": ("memory", "{}B"),
        "usd_per_hour": ("price", "${!r}/h"),
        "flops": ("flops", "{!r}FLOPS"),
        "precision": ("precision", "{}"),
        "fp32_flops": ("fp32", "{!r}FLOPS"),
        "memory_bytes_per_s": ("memory_bandwidth", "{!r}B/s"),
        "link_bytes_per_s": ("link", "{!r}B/s"),
    }
    known = {one.name: getattr(kind, one.name) for one in fields(kind)}
    texts = {
        key: form.format(known[name])
        for name, (key, form) in written.items()
        if known[name] not in (None, "")
    }
    return kind.name, {"kind": kind.kind, **texts}


def _children(cluster: Cluster, level: int, rows: Sequence[int]) -> dict[str, Any]:
    """The groups of a level, or at the lowest one the machines, among these machines."""
    if level == 0:
        return {"machines": _counted([_machine(cluster, cluster.machines[row]) for row in rows])}
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(int(cluster.groups[level][row]), []).append(row)
    inside = [_children(cluster, level - 1, group) for group in members.values()]
    return {"racks" if level == 1 else "groups": _counted(inside)}


def _machine(cluster: Cluster, machine: Machine) -> dict[str, Any]:
    optional = {
        "cores": machine.cores,
        "memory": machine.memory_bytes and f"{machine.memory_bytes}B",
        "nic": machine.nic_bytes_per_s and f"{machine.nic_bytes_per_s!r}B/s",
        "price": machine.usd_per_hour and f"${machine.usd_per_hour!r}/h",
    }
    devices = {cluster.device_types[kind].name: count for kind, count in machine.devices if count}
    return {"devices": devices} | {key: value for key, value in optional.items() if value}


def _counted(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Equal neighbours as one entry with a count."""
    found: list[tuple[dict[str, Any], int]] = []
    for entry in entries:
        if found and found[-1][0] == entry:
            found[-1] = entry, found[-1][1] + 1
        else:
            found.append((entry, 1))
    return [({"count": count} if count > 1 else {}) | entry for entry, count in found]
