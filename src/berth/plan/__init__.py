"""Which kind of device runs each layer, and how many: cost, provisioning, searches, proofs.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.plan.build import problem_for as problem_for
    from berth.plan.choose import Asked as Asked
    from berth.plan.choose import find_plan as find_plan
    from berth.plan.plan import Plan as Plan
    from berth.plan.plan import Stage as Stage
    from berth.plan.problem import Problem as Problem
    from berth.plan.profile.files import load_layer_profile as load_layer_profile
    from berth.plan.search.method import Budget as Budget
    from berth.plan.search.method import Outcome as Outcome
    from berth.plan.wanted import Wanted as Wanted

_HOME = {
    "Asked": "choose",
    "Budget": "search.method",
    "Outcome": "search.method",
    "Plan": "plan",
    "Problem": "problem",
    "Stage": "plan",
    "Wanted": "wanted",
    "find_plan": "choose",
    "load_layer_profile": "profile.files",
    "problem_for": "build",
}

__all__ = [
    "Asked",
    "Budget",
    "Outcome",
    "Plan",
    "Problem",
    "Stage",
    "Wanted",
    "find_plan",
    "load_layer_profile",
    "problem_for",
]

__getattr__ = exports(__name__, _HOME)
