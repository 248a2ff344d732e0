"""The network model: collectives over any number of tiers, shared links, measured tables.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.network.distances import sensitivity as sensitivity
    from berth.network.fabric import Fabric as Fabric
    from berth.network.iteration import Iteration as Iteration
    from berth.network.iteration import iteration_time as iteration_time
    from berth.network.measured import read_measured as read_measured
    from berth.network.placement import Placement as Placement
    from berth.network.sharing import LinkShares as LinkShares
    from berth.network.spread import Spread as Spread
    from berth.network.spread import spreads as spreads
    from berth.network.step_time import StepTimeModel as StepTimeModel
    from berth.network.traffic import Traffic as Traffic

_HOME = {
    "Fabric": "fabric",
    "Iteration": "iteration",
    "LinkShares": "sharing",
    "Placement": "placement",
    "Spread": "spread",
    "StepTimeModel": "step_time",
    "Traffic": "traffic",
    "iteration_time": "iteration",
    "read_measured": "measured",
    "sensitivity": "distances",
    "spreads": "spread",
}

__all__ = list(_HOME)

__getattr__ = exports(__name__, _HOME)
