"""The load of a job on links in one iteration, and the time it takes on idle links.

A job sends at one rate, in bytes per second on its most loaded link; its other links carry `weight` times that.
What other jobs on the same links do to it: see contention.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from berth.arrays import FloatArray, IntArray
from berth.network import _flow_kernels as kernels
from berth.network._kernels import overlapped_s
from berth.network.fabric import Fabric
from berth.network.placement import Placement
from berth.network.traffic import Traffic


@dataclass(frozen=True, eq=False, slots=True)
class Flow:
    """One job's load on the links it crosses; no links if it stays inside one machine."""

    links: IntArray
    weights: FloatArray  # load per unit of rate; the most loaded link has 1
    cap: float  # bytes/s while it sends and no other job does; 0 without links
    volume_bytes: float  # per iteration, on the most loaded link
    fixed_s: float  # communication of one iteration that no link can change: inside machines, latencies

    @property
    def alone_comm_s(self) -> float:
        """Seconds that one iteration communicates while no other job sends."""
        return self.fixed_s + (self.volume_bytes / self.cap if len(self.links) else 0.0)


def flow_of(traffic: Traffic, placement: Placement, fabric: Fabric) -> Flow:
    """Return the load of a job on the links under a placement."""
    return _flow(traffic, placement, fabric, kernels.TREE if traffic.collective == "tree" else kernels.RING)


def alone_s(traffic: Traffic, flow: Flow) -> float:
    """Seconds of one iteration while no other job sends on the flow's links."""
    return float(
        overlapped_s(
            float(traffic.compute_s), flow.alone_comm_s, float(traffic.overlap), float(traffic.forward)
        )
    )


def _flow(traffic: Traffic, placement: Placement, fabric: Fabric, algorithm: int) -> Flow:
    placement.check(fabric.cluster)
    links, loads, sending_s, fixed_s = kernels.flow(
        float(traffic.all_reduce_bytes),
        float(traffic.all_to_all_bytes),
        float(traffic.server_bytes),
        algorithm,
        placement.machines,
        placement.counts,
        fabric.arrays,
    )
    if not loads.any():
        return Flow(links[:0], loads[:0], 0.0, 0.0, float(fixed_s))
    volume = float(loads.max())
    return Flow(links, loads / volume, volume / float(sending_s), volume, float(fixed_s))
