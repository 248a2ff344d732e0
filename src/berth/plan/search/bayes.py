"""Bayesian optimisation: optuna's tree-structured Parzen estimator, one categorical choice per layer.

The estimator is fitted to all trials of a study for every plan it proposes, so a long study slows down. A study
therefore ends after a few hundred trials, and the next one starts with the best of them: 2,000 evaluations in less
than half the time (CTRDNN, 5 types), and better plans, because a study that repeats itself ends too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.method import AssignmentSearch, Search

if TYPE_CHECKING:
    import optuna

_TRIALS = 400  # of one study
_KEPT = 100  # best trials that the next study starts with
_STUDIES = 10_000  # upper bound on studies, so that their seeds differ


def bayes(search: Search, space: AssignmentSpace) -> str:
    """Propose and evaluate one plan at a time: about five milliseconds each, a thousand times an evaluation."""
    import optuna

    choices: dict[str, optuna.distributions.BaseDistribution] = {
        str(layer): optuna.distributions.CategoricalDistribution(
            [int(device) for device in np.flatnonzero(row)]
        )
        for layer, row in enumerate(search.problem.allowed)
    }
    kept: list[optuna.trial.FrozenTrial] = []
    studies = 0
    with _silent():
        while search.remaining:
            sampler = optuna.samplers.TPESampler(seed=search.budget.seed * _STUDIES + studies)
            study = optuna.create_study(sampler=sampler)
            study.add_trials(kept)
            if search.start is not None and not studies:
                study.enqueue_trial({str(layer): int(device) for layer, device in enumerate(search.start)})
            for _ in range(_TRIALS - len(kept)):
                if not search.remaining:
                    break
                trial = study.ask(choices)
                plan = np.array([trial.params[layer] for layer in choices], np.int64)
                study.tell(trial, float(cost_score(search.evaluate(plan))[0]))
                search.report_progress()
            kept = sorted(study.trials, key=_score)[:_KEPT]
            studies += 1
    ended = search.evaluate.evaluations < search.budget.evaluations
    return "the time ended before the evaluations" if ended else ""


def _score(trial: optuna.trial.FrozenTrial) -> float:
    return np.inf if trial.value is None else trial.value


@contextmanager
def _silent() -> Iterator[None]:
    """Silence optuna, which logs a line per trial."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


METHODS = {"bayes": AssignmentSearch("bayes", bayes, needs="optuna")}
