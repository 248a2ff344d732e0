"""Iteration times of a job at every useful spread, and its sensitivity to distance."""

from __future__ import annotations

from dataclasses import dataclass

from berth.arrays import IntArray
from berth.network.fabric import Fabric
from berth.network.iteration import Iteration, iteration_time
from berth.network.measured import Measured
from berth.network.placement import Placement
from berth.network.spread import Spread, realise, spreads
from berth.network.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Distance:
    """A job at one spread; `slowdown` is against the nearest one."""

    spread: Spread
    placement: Placement
    iteration: Iteration
    slowdown: float


def distances(
    traffic: Traffic,
    devices: int,
    fabric: Fabric,
    measured: Measured | None = None,
    usable: IntArray | None = None,
) -> list[Distance]:
    """Return a job of `devices` devices at each of the cluster's `spreads`, nearest first."""
    found: list[Distance] = []
    for spread in spreads(fabric.cluster, devices, usable):
        placement = realise(fabric.cluster, spread, usable)
        assert placement is not None  # `spreads` names only what can be realised
        iteration = iteration_time(traffic, placement, fabric, measured)
        nearest_s = found[0].iteration.seconds if found else iteration.seconds
        slowdown = iteration.seconds / nearest_s if nearest_s > 0 else 1.0
        found.append(Distance(spread, placement, iteration, slowdown))
    return found


def sensitivity(
    traffic: Traffic,
    devices: int,
    fabric: Fabric,
    measured: Measured | None = None,
    usable: IntArray | None = None,
) -> float:
    """Return how many times longer an iteration takes at the widest spread than at the nearest; 1: no effect.

    Nearest is the fewest machines that hold the job, widest one device per machine over as many racks as
    there are. It can be below 1 if every further machine adds a network card.
    """
    return distances(traffic, devices, fabric, measured, usable)[-1].slowdown
