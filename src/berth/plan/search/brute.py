"""Every assignment of types within the budget. The evaluator cuts each into stages, so this is not a proof."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Assignments
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.method import AssignmentSearch, Search

_BATCH = 256  # assignments evaluated between two looks at the clock


def brute(search: Search, space: AssignmentSpace) -> str:
    """Evaluate all assignments in order; if the budget ends first, the note says how many."""
    done = 0
    while done < space.size and search.remaining:
        count = min(_BATCH, search.remaining, space.size - done)
        search.evaluate(_numbered(space, done, count))
        search.report_progress()
        done += count
    if done == space.size:
        return f"all {space.size:,} assignments"
    return f"stopped after {done:,} of {space.size:,} assignments ({done / space.size:.1g})"


def _numbered(space: AssignmentSpace, first: int, count: int) -> Assignments:
    """Return assignments first .. first + count - 1, numbered with one digit per layer.

    The number may exceed a machine word; only its last digits change within a batch.
    """
    plans = np.empty((count, space.layers), np.int64)
    rest = np.arange(count, dtype=np.int64)
    for layer in range(space.layers - 1, -1, -1):
        base = int(space.choices_per_layer[layer])
        rest = rest + first % base
        plans[:, layer] = space.choices[layer, rest % base]
        rest, first = rest // base, first // base
    return plans


METHODS = {"brute": AssignmentSearch("brute", brute)}
