"""One collective under a placement: calls the kernels of `berth.network` for tests.

The volumes are those of `Traffic`: the bytes of the vector for an all-reduce, the bytes that each device sends for an
all-to-all, the bytes that each device pulls (and pushes) for parameter servers.
"""

from __future__ import annotations

from berth.arrays import IntArray
from berth.errors import InputError
from berth.network import _kernels as kernels
from berth.network.fabric import Fabric, FabricArrays
from berth.network.placement import Placement
from berth.network.traffic import Collective


def all_reduce_s(
    volume_bytes: float, placement: Placement, fabric: Fabric, collective: Collective = "ring"
) -> float:
    """Seconds to sum a vector over all devices; `ring` is the faster of hierarchical and flat."""
    if collective == "tree":
        return tree_s(volume_bytes, placement, fabric)
    return min(
        hierarchical_ring_s(volume_bytes, placement, fabric), flat_ring_s(volume_bytes, placement, fabric)
    )


def hierarchical_ring_s(volume_bytes: float, placement: Placement, fabric: Fabric) -> float:
    """A ring inside each machine, then between machines with the shards, then between racks, and back."""
    machines, fan, _ = kernels.nest(*_arguments(volume_bytes, placement, fabric))
    return float(kernels.hierarchical_ring_s(float(volume_bytes), machines, fan, fabric.arrays))


def flat_ring_s(volume_bytes: float, placement: Placement, fabric: Fabric) -> float:
    """Rings through all devices at once, one channel per device."""
    machines, fan, _ = kernels.nest(*_arguments(volume_bytes, placement, fabric))
    return float(kernels.flat_ring_s(float(volume_bytes), machines, fan, fabric.arrays))


def tree_s(volume_bytes: float, placement: Placement, fabric: Fabric) -> float:
    """Two binary trees: more bytes than a ring, far fewer steps."""
    machines, fan, _ = kernels.nest(*_arguments(volume_bytes, placement, fabric))
    return float(kernels.tree_s(float(volume_bytes), machines, fan, fabric.arrays))


def all_to_all_s(volume_bytes: float, placement: Placement, fabric: Fabric) -> float:
    """Seconds until every device has sent `volume_bytes`, evenly to all others."""
    machines, fan, within = kernels.nest(*_arguments(volume_bytes, placement, fabric))
    return float(kernels.all_to_all_s(float(volume_bytes), machines, fan, within, fabric.arrays))


def server_s(volume_bytes: float, placement: Placement, fabric: Fabric) -> float:
    """Seconds until every device has pulled and pushed `volume_bytes` through the job's own servers."""
    machines, fan, within = kernels.nest(*_arguments(volume_bytes, placement, fabric))
    return float(kernels.server_s(float(volume_bytes), machines, fan, within, fabric.arrays))


def _arguments(
    volume_bytes: float, placement: Placement, fabric: Fabric
) -> tuple[IntArray, IntArray, FabricArrays]:
    if not volume_bytes >= 0:
        raise InputError(f"a volume must be 0 bytes or more (given: {volume_bytes})")
    placement.check(fabric.cluster)
    return placement.machines, placement.counts, fabric.arrays
