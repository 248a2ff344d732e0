"""The pure core: which job goes first, how far apart it may run, which jobs move for it, and why. No clock, no I/O.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.schedule.policies.registry import load_policy as load_policy
    from berth.schedule.policies.registry import policy_names as policy_names
    from berth.schedule.policy import Blocked as Blocked
    from berth.schedule.policy import Policy as Policy
    from berth.schedule.policy import Preempt as Preempt
    from berth.schedule.policy import Rules as Rules

_HOME = {
    "Blocked": "policy",
    "Policy": "policy",
    "Preempt": "policy",
    "Rules": "policy",
    "load_policy": "policies.registry",
    "policy_names": "policies.registry",
}

__all__ = [
    "Blocked",
    "Policy",
    "Preempt",
    "Rules",
    "load_policy",
    "policy_names",
]

__getattr__ = exports(__name__, _HOME)
