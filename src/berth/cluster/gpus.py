"""The part of a cluster that jobs run on: its GPUs, or all devices if it has no GPU."""

from __future__ import annotations

from dataclasses import replace

from berth.cluster.memo import per_cluster
from berth.cluster.model import Cluster, DeviceType


def usable_types(cluster: Cluster) -> tuple[int, ...]:
    """Return the indices of the device types that jobs run on."""
    gpus = tuple(index for index, kind in enumerate(cluster.device_types) if kind.kind == "gpu")
    return gpus or tuple(range(len(cluster.device_types)))


@per_cluster
def gpu_part(cluster: Cluster, also: frozenset[str] = frozenset()) -> Cluster:
    """Return the cluster without the devices that no job runs on, with a note about them; `also`: types to keep.

    Types are numbered by speed, fastest first, so the order in the description does not matter. All machines stay,
    with their numbers: a machine without GPUs can still fail or be drained.
    """
    usable = sorted(usable_types(cluster), key=lambda index: _by_speed(cluster.device_types[index]))
    more = [
        index for index, kind in enumerate(cluster.device_types) if kind.name in also and index not in usable
    ]
    usable += sorted(more, key=lambda index: _by_speed(cluster.device_types[index]))
    number = {index: at for at, index in enumerate(usable)}
    machines = tuple(
        replace(
            machine, devices=tuple(sorted((number[kind], n) for kind, n in machine.devices if kind in number))
        )
        for machine in cluster.machines
    )
    left_out = {
        kind.name: cluster.count_of(index)
        for index, kind in enumerate(cluster.device_types)
        if index not in number
    }
    if usable == list(range(len(cluster.device_types))) and machines == cluster.machines:
        return cluster
    named = ", ".join(f"{count:,} {name}" for name, count in left_out.items())
    note = [f"left out, in the cost too, as jobs ask for GPUs: {named}"] if left_out else []
    return replace(
        cluster,
        device_types=tuple(cluster.device_types[index] for index in usable),
        machines=machines,
        notes=(*cluster.notes, *note),
    )


def _by_speed(device: DeviceType) -> tuple[float, str]:
    """Sort key: fastest first, unknown speed last, then by name."""
    return -(device.flops or 0.0), device.name
