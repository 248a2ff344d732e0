"""The pure core: which job goes first, how far apart it may run, which jobs move for it, and why. No clock, no I/O.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.schedule.policies.constant import array as array
    from berth.schedule.policies.constant import choice as choice
    from berth.schedule.policies.constant import duration as duration
    from berth.schedule.policies.constant import number as number
    from berth.schedule.policies.registry import load_policy as load_policy
    from berth.schedule.policies.registry import policy_names as policy_names
    from berth.schedule.policy import Policy as Policy
    from berth.schedule.rules import Blocked as Blocked
    from berth.schedule.rules import Defragment as Defragment
    from berth.schedule.rules import Migrate as Migrate
    from berth.schedule.rules import PreemptByGain as PreemptByGain
    from berth.schedule.rules import PreemptByOrder as PreemptByOrder
    from berth.schedule.rules import Reserve as Reserve
    from berth.schedule.rules import Rules as Rules
    from berth.schedule.rules import StaticOrder as StaticOrder
    from berth.schedule.views import ClusterView as ClusterView
    from berth.schedule.views import JobView as JobView
    from berth.schedule.views import WaitStatsView as WaitStatsView

_HOME = {
    "Blocked": "rules",
    "ClusterView": "views",
    "Defragment": "rules",
    "JobView": "views",
    "Migrate": "rules",
    "Policy": "policy",
    "PreemptByGain": "rules",
    "PreemptByOrder": "rules",
    "Reserve": "rules",
    "Rules": "rules",
    "StaticOrder": "rules",
    "WaitStatsView": "views",
    "array": "policies.constant",
    "choice": "policies.constant",
    "duration": "policies.constant",
    "load_policy": "policies.registry",
    "number": "policies.constant",
    "policy_names": "policies.registry",
}

__all__ = [
    "Blocked",
    "ClusterView",
    "Defragment",
    "JobView",
    "Migrate",
    "Policy",
    "PreemptByGain",
    "PreemptByOrder",
    "Reserve",
    "Rules",
    "StaticOrder",
    "WaitStatsView",
    "array",
    "choice",
    "duration",
    "load_policy",
    "number",
    "policy_names",
]

__getattr__ = exports(__name__, _HOME)
