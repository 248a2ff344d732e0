"""Small clusters; each test states the figures it relies on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from berth.cluster.model import Cluster, DeviceType, Machine, Tier

TIERS = (
    Tier("machine", 300e9, 1e-6),
    Tier("rack", 25e9, 2e-6),
    Tier("network", 12.5e9, 5e-6, oversubscription=4.0),
)


def build_cluster(
    racks: Sequence[Sequence[int]],
    tiers: tuple[Tier, ...] = TIERS,
    nics: dict[int, float] | None = None,
    rack_of: Sequence[int] | None = None,
) -> Cluster:
    """`racks[r]` lists the sizes of rack r's machines; with two tiers the racks are one network."""
    sizes = [size for rack in racks for size in rack]
    machines = tuple(
        Machine(f"m{i}", ((0, n),), nic_bytes_per_s=(nics or {}).get(i)) for i, n in enumerate(sizes)
    )
    if rack_of is None:
        rack_of = [r for r, rack in enumerate(racks) for _ in rack]
    rows = [range(len(sizes)), rack_of, [0] * len(sizes)]
    names = [tuple(f"m{i}" for i in range(len(sizes))), tuple(f"r{i}" for i in range(len(racks))), ("all",)]
    if len(tiers) == 2:
        del rows[1], names[1]
    return Cluster(
        "test", (DeviceType("A100"),), tiers, machines, np.array(rows, dtype=np.int32), tuple(names)
    )


@pytest.fixture(name="build")
def _build() -> Callable[..., Cluster]:
    return build_cluster
