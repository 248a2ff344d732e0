"""The cluster model: devices, machines and tiers.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.cluster.catalogue import CatalogueEntry as CatalogueEntry
    from berth.cluster.catalogue import known_devices as known_devices
    from berth.cluster.load import load_cluster as load_cluster
    from berth.cluster.load import presets as presets
    from berth.cluster.model import Cluster as Cluster
    from berth.cluster.model import DeviceType as DeviceType
    from berth.cluster.model import Machine as Machine
    from berth.cluster.model import Tier as Tier
    from berth.cluster.topology_csv import read_topology as read_topology

_HOME = {
    "CatalogueEntry": "catalogue",
    "Cluster": "model",
    "DeviceType": "model",
    "Machine": "model",
    "Tier": "model",
    "known_devices": "catalogue",
    "load_cluster": "load",
    "presets": "load",
    "read_topology": "topology_csv",
}

__all__ = list(_HOME)

__getattr__ = exports(__name__, _HOME)
