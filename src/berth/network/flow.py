"""A job as the links see it: what it loads them with, how fast it could go, and what a rate means for it.

A job's rate is in bytes per second on its most loaded link; its other links carry `weight` times that. The
cap is the rate it reaches while nobody else sends. Stages of one iteration follow each other, but to the
links a job is a steady flow of its average load: which stage meets which stage of another job is not asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from berth.cluster.model import IntArray
from berth.network import _flow_kernels as kernels
from berth.network._kernels import overlapped_s
from berth.network.fabric import Fabric, FloatArray
from berth.network.placement import Placement
from berth.network.traffic import Traffic


@dataclass(frozen=True, eq=False, slots=True)
class Flow:
    """One job's load on the links it crosses; no links if it stays inside a machine."""

    links: IntArray
    weights: FloatArray  # load per unit of rate; the most loaded link has 1
    cap: float  # bytes/s beyond which it gains nothing; 0 without links
    volume_bytes: float  # per iteration, on the most loaded link
    fixed_s: float  # communication of one iteration that no link can change: inside machines, latencies

    def comm_s(self, rate: float) -> float:
        """Seconds that one iteration communicates at a rate; for ever at rate 0."""
        if not len(self.links):
            return self.fixed_s
        return self.fixed_s + (self.volume_bytes / rate if rate > 0 else math.inf)


def flow_of(traffic: Traffic, placement: Placement, fabric: Fabric) -> Flow:
    """What a job loads the links with under a placement."""
    return _flow(traffic, placement, fabric, kernels.TREE if traffic.collective == "tree" else kernels.RING)


def shared_iteration_s(traffic: Traffic, flow: Flow, rate: float) -> float:
    """Seconds of one iteration while the links give the job this rate."""
    return float(
        overlapped_s(
            float(traffic.compute_s),
            flow.comm_s(min(rate, flow.cap)),
            float(traffic.overlap),
            float(traffic.forward),
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
