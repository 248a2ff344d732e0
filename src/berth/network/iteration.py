"""The time of one iteration under a placement: computation, communication, and their overlap.

    it(p) = f c + (((1 - f) c)^y + comm(p)^y)^(1/y)

The forward share f of the computation hides nothing. y = 1 adds up, a large y hides the shorter behind the
longer; with f = 0 the form is that of Pollux (OSDI 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from berth.network import _kernels as kernels
from berth.network.fabric import Fabric
from berth.network.placement import Placement
from berth.network.traffic import Traffic

if TYPE_CHECKING:
    from berth.network.measured import Measured

TimeSource = Literal["formula", "scaled", "measured"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration under a placement; `source` says whether its seconds were measured or modelled."""

    seconds: float
    compute_s: float
    comm_s: float  # before overlap
    exposed_s: float  # what communication adds to the computation
    tier: int  # the nearest that holds the whole placement
    source: TimeSource = "formula"


def iteration_time(
    traffic: Traffic, placement: Placement, fabric: Fabric, measured: Measured | None = None
) -> Iteration:
    """Return the iteration of a job under a placement; measurements of the job take precedence."""
    placement.check(fabric.cluster)
    comm_s = communication_s(traffic, placement, fabric)
    seconds = _overlapped_s(traffic, comm_s)
    source: TimeSource = "formula"
    if measured is not None:
        seconds, source = measured.seconds(traffic, placement, fabric, seconds)
    compute_s = min(traffic.compute_s, seconds)
    return Iteration(seconds, compute_s, comm_s, seconds - compute_s, placement.tier(fabric.cluster), source)


def communication_s(traffic: Traffic, placement: Placement, fabric: Fabric) -> float:
    """Seconds that one iteration communicates, overlap left out; 0 on a single device."""
    if placement.devices == 1:
        return 0.0
    return float(
        kernels.communication_s(
            float(traffic.all_reduce_bytes),
            float(traffic.all_to_all_bytes),
            float(traffic.server_bytes),
            traffic.collective == "tree",
            placement.machines,
            placement.counts,
            fabric.arrays,
        )
    )


def formula_s(traffic: Traffic, placement: Placement, fabric: Fabric) -> float:
    """The modelled iteration, whatever was measured."""
    return _overlapped_s(traffic, communication_s(traffic, placement, fabric))


def _overlapped_s(traffic: Traffic, comm_s: float) -> float:
    return float(
        kernels.overlapped_s(float(traffic.compute_s), comm_s, float(traffic.overlap), float(traffic.forward))
    )
