"""Contention on shared links: iteration times, kept up to date as jobs come and go.

    links = SharedLinks(fabric)
    links.add(7, traffic, placement)    # the jobs whose iterations changed
    links.seconds(7)
    links.remove(7)

The definition of contention is in `_contention_kernels`: this class runs it as it is, and the simulator's event
loop runs it compiled.
"""

from __future__ import annotations

import numpy as np

from berth.errors import InputError
from berth.network import _contention_kernels as kernels
from berth.network.fabric import Fabric
from berth.network.flow import alone_s, flow_of
from berth.network.placement import Placement
from berth.network.sharing import LinkShares
from berth.network.traffic import Traffic


class SharedLinks:
    """Jobs on one network. Jobs are small whole numbers that the caller chooses."""

    def __init__(self, fabric: Fabric, jobs: int = 64) -> None:
        self._fabric = fabric
        self._shares = LinkShares(fabric.arrays.capacity, jobs, 4 * jobs * max(1, fabric.tiers)).state
        self._flows = kernels.new_flows(jobs)
        self._loads = kernels.new_loads(len(fabric.arrays.capacity))
        self._alone: dict[int, float] = {}

    def add(self, job: int, traffic: Traffic, placement: Placement) -> list[int]:
        """Bring a job onto its links; return the jobs whose iterations changed, itself included."""
        if job in self._alone or not 0 <= job < len(self._flows.seconds):
            raise InputError(f"job {job} is on the links already, or beyond {len(self._flows.seconds) - 1}")
        flow = flow_of(traffic, placement, self._fabric)
        self._alone[job] = alone_s(traffic, flow)
        if not len(flow.links):
            return [job]
        kernels.describe(
            self._flows,
            job,
            float(traffic.compute_s),
            float(traffic.forward),
            float(traffic.overlap),
            flow.volume_bytes,
            flow.alone_comm_s,
        )
        used = flow.weights > 0
        changed = kernels.join(
            self._shares, self._flows, self._loads, job, flow.links[used], flow.weights[used]
        )
        return [int(other) for other in changed]

    def remove(self, job: int) -> list[int]:
        """Take a job off its links; return the other jobs whose iterations changed."""
        if job not in self._alone:
            raise InputError(f"job {job} is not on the links")
        del self._alone[job]
        if self._flows.volume[job] == 0:
            return []
        return [int(other) for other in kernels.leave(self._shares, self._flows, self._loads, job)]

    def seconds(self, job: int) -> float:
        """Return the seconds of one iteration of a job now."""
        alone = self._alone[job]
        return float(self._flows.seconds[job]) if self._flows.volume[job] > 0 else alone

    def alone_s(self, job: int) -> float:
        """Return the seconds of one iteration of a job while no other job sends."""
        return self._alone[job]


def beside(traffic: Traffic, placement: Placement, fabric: Fabric, others: int) -> float:
    """Return the seconds of an iteration next to `others` identical gangs on the same links."""
    links = SharedLinks(fabric, others + 1)
    for job in range(others + 1):
        links.add(job, traffic, placement)
    return float(np.mean([links.seconds(job) for job in range(others + 1)]))
