"""Planning: a device type and a number of replicas for each stage of a model, at the lowest cost.

Importing this package is cheap; each name is imported from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.plan.plan import Plan as Plan
    from berth.plan.plan import Stage as Stage
    from berth.plan.problem import Problem as Problem
    from berth.plan.profile.files import load_layer_profile as load_layer_profile
    from berth.plan.request import PlanRequest as PlanRequest
    from berth.plan.search.method import Budget as Budget
    from berth.plan.search.method import Outcome as Outcome
    from berth.plan.solve import SearchOptions as SearchOptions
    from berth.plan.solve import find_plan as find_plan
    from berth.plan.world_problem import problem_for as problem_for

_HOME = {
    "SearchOptions": "solve",
    "Budget": "search.method",
    "Outcome": "search.method",
    "Plan": "plan",
    "Problem": "problem",
    "Stage": "plan",
    "PlanRequest": "request",
    "find_plan": "solve",
    "load_layer_profile": "profile.files",
    "problem_for": "world_problem",
}

__all__ = [
    "Budget",
    "Outcome",
    "Plan",
    "PlanRequest",
    "Problem",
    "SearchOptions",
    "Stage",
    "find_plan",
    "load_layer_profile",
    "problem_for",
]

__getattr__ = exports(__name__, _HOME)
