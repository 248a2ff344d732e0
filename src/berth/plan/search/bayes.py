"""Bayesian optimisation: optuna's tree-structured Parzen estimator, one categorical choice per layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from berth.errors import InputError
from berth.plan.evaluate import Objective, Types
from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Outcome, Progress, Search
from berth.plan.search.moves import Moves, badness


def bayes(
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: Objective | None = None,
    start: Types | None = None,
) -> Outcome:
    """One plan after the other, so time is likely to end before evaluations: a model is fitted for each."""
    try:
        import optuna
    except ImportError as missing:
        raise InputError(
            "bayes needs optuna, which is not installed", hint="pip install 'berth[plan]'"
        ) from missing
    search = Search(problem, budget, progress, objective, start)
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if moves.stuck:
        return search.nowhere("bayes")
    choices = [[int(kind) for kind in np.flatnonzero(row)] for row in problem.allowed]
    with _silent():
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=budget.seed))
        if start is not None:
            study.enqueue_trial({str(layer): int(kind) for layer, kind in enumerate(start)})
        while search.left:
            trial = study.ask()
            plan = [trial.suggest_categorical(str(layer), kinds) for layer, kinds in enumerate(choices)]
            study.tell(trial, float(badness(search.evaluate(np.array(plan, np.int64)))[0]))
            search.report()
    ended = search.evaluate.evaluations < budget.evaluations
    return search.outcome("bayes", note="the time ended before the evaluations" if ended else "")


@contextmanager
def _silent() -> Iterator[None]:
    """optuna writes a line per trial unless told otherwise."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


METHODS = {"bayes": bayes}
