"""What jobs that ask for GPUs can use of a cluster: its GPUs; where it has none, everything."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from berth.cluster.model import Cluster


def usable_types(cluster: Cluster) -> tuple[int, ...]:
    """Numbers of the device types that jobs run on."""
    gpus = tuple(index for index, kind in enumerate(cluster.device_types) if kind.kind == "gpu")
    return gpus or tuple(range(len(cluster.device_types)))


@lru_cache(maxsize=16)
def gpu_part(cluster: Cluster) -> Cluster:
    """The cluster without the devices that no job runs on, and a note that says so.

    All machines stay, with their numbers, if only to fail or to be drained; the types are numbered anew.
    """
    kept = {index: number for number, index in enumerate(usable_types(cluster))}
    left_out = {
        kind.name: cluster.count_of(index)
        for index, kind in enumerate(cluster.device_types)
        if index not in kept
    }
    if not left_out:
        return cluster
    machines = tuple(
        replace(
            machine, devices=tuple((kept[kind], count) for kind, count in machine.devices if kind in kept)
        )
        for machine in cluster.machines
    )
    named = ", ".join(f"{count:,} {name}" for name, count in left_out.items())
    return replace(
        cluster,
        device_types=tuple(cluster.device_types[index] for index in kept),
        machines=machines,
        notes=(*cluster.notes, f"left out, in the cost too, as jobs ask for GPUs: {named}"),
    )
