"""A cluster as plain data and back, complete: a journalled cluster needs no other file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from berth.cluster.model import Cluster, DeviceType, Machine, Tier


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster as JSON-compatible data."""
    return {
        "name": cluster.name,
        "device_types": [_device_type(kind) for kind in cluster.device_types],
        "tiers": [asdict(tier) for tier in cluster.tiers],
        "machines": [asdict(machine) for machine in cluster.machines],
        "groups": cluster.groups.tolist(),
        "group_names": [list(names) for names in cluster.group_names],
        "notes": list(cluster.notes),
    }


_LATER = ("precision", "fp32_flops", "link_bytes_per_s")  # clusters that were written earlier lack these


def _device_type(kind: DeviceType) -> dict[str, Any]:
    plain = asdict(kind)
    return {name: value for name, value in plain.items() if name not in _LATER or value is not None}


def cluster_from_dict(plain: dict[str, Any]) -> Cluster:
    """Return the cluster that `cluster_to_dict` wrote."""
    return Cluster(
        name=plain["name"],
        device_types=tuple(DeviceType(**kind) for kind in plain["device_types"]),
        tiers=tuple(Tier(**tier) for tier in plain["tiers"]),
        machines=tuple(
            Machine(**machine | {"devices": tuple((kind, count) for kind, count in machine["devices"])})
            for machine in plain["machines"]
        ),
        groups=np.array(plain["groups"], np.int32).reshape(len(plain["tiers"]), len(plain["machines"])),
        group_names=tuple(tuple(names) for names in plain["group_names"]),
        notes=tuple(plain["notes"]),
    )
