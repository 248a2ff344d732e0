"""Random assignments: the baseline for every search."""

from __future__ import annotations

import numpy as np

from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.method import AssignmentSearch, Search

_BATCH = 256


def random(search: Search, space: AssignmentSpace) -> str:
    """Draw half of the assignments layer by layer and half in runs of layers, since the former have few long stages."""
    search.evaluate_start()
    while search.remaining:
        count = min(_BATCH, search.remaining)
        search.evaluate(
            np.concatenate([space.random_uniform(count // 2), space.random_runs(count - count // 2)])
        )
        search.report_progress()
    return ""


METHODS = {"random": AssignmentSearch("random", random)}
