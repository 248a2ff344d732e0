"""A placement: which machines a job holds devices on, and how many on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from berth.arrays import IntArray
from berth.cluster.model import Cluster
from berth.errors import InputError


@dataclass(frozen=True, eq=False)
class Placement:
    """Machines in ascending order, each once, and at least one device on each."""

    machines: IntArray
    counts: IntArray

    @classmethod
    def of_counts(cls, counts: Mapping[int, int]) -> Placement:
        """Return the placement of `{machine: devices}`."""
        machines = sorted(counts)
        devices = [counts[machine] for machine in machines]
        if not machines or min(devices) < 1 or machines[0] < 0:
            raise InputError("a placement needs at least one device on every machine it names")
        return cls(np.array(machines, dtype=np.int32), np.array(devices, dtype=np.int32))

    @property
    def devices(self) -> int:
        """Devices on all machines."""
        return int(self.counts.sum())

    def groups(self, cluster: Cluster) -> tuple[int, ...]:
        """Return how many groups it touches at each level: machines, racks, ...; 1 at the top."""
        return tuple(len(np.unique(level[self.machines])) for level in cluster.groups)

    def tier(self, cluster: Cluster) -> int:
        """Return the nearest tier that holds all of it."""
        return self.groups(cluster).index(1)

    def check(self, cluster: Cluster) -> None:
        """Raise an InputError if the placement does not fit the cluster."""
        if int(self.machines.max()) >= len(cluster.machines):
            raise InputError(
                f"machine {int(self.machines.max())} is not in cluster {cluster.name!r}",
                hint=f"its machines are numbered 0 to {len(cluster.machines) - 1}",
            )
        over = self.counts > cluster.sizes[self.machines]
        if over.any():
            machine = int(self.machines[over.argmax()])
            raise InputError(
                f"{int(self.counts[over.argmax()])} devices on {cluster.machines[machine].name}, "
                f"which has {int(cluster.sizes[machine])}"
            )
