"""Every assignment, as far as the budget goes: the proof by exhaustion that small problems allow."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Types
from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Outcome, Progress, Search
from berth.plan.search.moves import Moves

_BATCH = 4096


def brute(problem: Problem, budget: Budget, progress: Progress | None = None) -> Outcome:
    """All of them in order; if the budget ends first, the note says how far it came."""
    search = Search(problem, budget, progress)
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if moves.stuck:
        return search.nowhere("brute")
    done = 0
    while done < moves.total and search.left:
        count = min(_BATCH, search.left, moves.total - done)
        search.evaluate(_numbered(moves, done, count))
        search.report()
        done += count
    if done == moves.total:
        best = search.evaluate.best_usd
        bound = best if np.isfinite(best) else 0.0
        return search.outcome("brute", lower_bound_usd=bound, note=f"all {moves.total:,} assignments")
    share = done / moves.total
    return search.outcome("brute", note=f"refused to go on after {done:,} of {moves.total:,} ({share:.1g})")


def _numbered(moves: Moves, first: int, count: int) -> Types:
    """Assignments first .. first + count - 1 in the order of a number whose digits are the layers' choices.

    The number may exceed any machine word; only its last digits change within a batch.
    """
    plans = np.empty((count, moves.layers), np.int64)
    rest = np.arange(count, dtype=np.int64)
    for layer in range(moves.layers - 1, -1, -1):
        base = int(moves.count[layer])
        rest = rest + first % base
        plans[:, layer] = moves.choices[layer, rest % base]
        rest, first = rest // base, first // base
    return plans


METHODS = {"brute": brute}
