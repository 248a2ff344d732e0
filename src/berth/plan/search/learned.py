"""berth's own learned planner: a pretrained recurrent policy that is trained on one problem, round after round.

A round samples plans from the policy, evaluates those not seen before, and updates the policy: REINFORCE with a
moving-average baseline, plus imitation of the best plans seen. docs/design/learner.md has measurements of each part;
`LearnerConfig` switches them on and off. The learned scheduler as published is in reinforce.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from berth.plan.evaluate import Assignments, BatchEvaluation
from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.greedy import construct_greedily
from berth.plan.search.learned_cache import EvaluationCache
from berth.plan.search.learned_features import features
from berth.plan.search.method import AssignmentSearch, Method, Search

if TYPE_CHECKING:
    from berth.plan.search.learned_policy import Cell, Policy, PolicyInputs

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """The parts of the learner and their weights; 0 or False disables a part."""

    plans: int = 32  # evaluated per round
    learning_rate: float = 3e-3
    baseline: float = 0.1  # weight of the newest round in the moving average of rewards
    entropy: float = 0.02  # weight of the entropy bonus, falling to 0 over the budget
    graded_penalty: bool = True  # the penalty of infeasible plans includes their shortfall
    elites: int = 8  # number of best plans that are imitated
    imitation: float = 1.0  # their weight relative to REINFORCE
    mutations: int = 8  # of a round's evaluations: good plans with one run of layers changed
    pretrained: bool = True  # weights learned on other problems
    adaptive_temperature: bool = True  # raise the temperature when samples repeat
    greedy: bool = True  # imitate the greedy plan from the start
    reinforce: float = 1.0  # weight of REINFORCE; 0: imitation only


DEFAULT_CONFIG = LearnerConfig()
PRETRAINED = "pretrained on exact's answers"
_INFEASIBLE = -3.0  # reward of a plan that barely fails, as if it cost e^3 = 20 times the reference
_CLIP = 1.0  # maximum norm of the gradient
_OVERSAMPLE = 2  # plans sampled per evaluation: known plans cost no evaluation
_NEW_SHARE = 0.5  # share of sampled plans that should be new
_TEMPERATURE_STEP, _MAX_TEMPERATURE = 1.15, 8.0
_IDLE_ROUNDS = 40  # rounds without a new plan after which the search ends


def learned(cell: Cell, config: LearnerConfig = DEFAULT_CONFIG) -> Method:
    """Return the method with a policy of this kind."""
    return AssignmentSearch(f"berth-{cell}", partial(_learned, cell, config), needs="torch")


def _learned(cell: Cell, config: LearnerConfig, search: Search, space: AssignmentSpace) -> str:
    """Search until the budget is spent, or until no new plans are found."""
    from berth.plan.threads import single_thread

    with (
        single_thread()
    ):  # small matrices are slower on several threads, and sums would depend on their number
        learner = Learner(cell, search, space, config)
        learner.begin()
        most = -(-search.budget.evaluations // config.plans)  # rounds with few new plans are not repeated
        while search.remaining and learner.idle < _IDLE_ROUNDS and learner.rounds < most:
            learner.round()
            search.report_progress()
    notes = [PRETRAINED] if config.pretrained else []
    if search.remaining:
        notes.append("no new plans were found any more")
    return "; ".join(notes)


class Learner:
    """Trains a policy on one problem."""

    def __init__(self, cell: Cell, search: Search, space: AssignmentSpace, config: LearnerConfig) -> None:
        import torch

        from berth.plan.search.learned_policy import Policy, PolicyInputs
        from berth.plan.search.learned_weights import load

        self.search, self.space, self.config = search, space, config
        self.cache = EvaluationCache(search, config.elites)
        self.generator = torch.Generator().manual_seed(search.budget.seed)
        self.policy: Policy = Policy(cell, self.generator)
        if config.pretrained:
            load(self.policy, cell)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.inputs: PolicyInputs = PolicyInputs.of(features(search.problem))
        self.rewards = Rewards(config)
        self.temperature = 1.0
        self.idle = self.rounds = 0

    def begin(self) -> None:
        """Evaluate the start plan, or the greedy one."""
        if self.search.start is not None:
            self.cache.evaluate(self.search.start[None])
        elif self.config.greedy:
            plan, _ = construct_greedily(self.search, self.space)
            self.cache.evaluate(plan[None])

    def round(self) -> None:
        """Sample, evaluate, mutate, update; every round spends its number of evaluations."""
        before = self.search.evaluate.evaluations
        plans, found = self._sample()
        if self.config.mutations:
            drawn = self.search.evaluate.evaluations - before
            self._mutate(plans, found, self.config.plans - drawn)
        if len(plans):
            self._update(plans, found)
        self.rounds += 1
        self.idle = 0 if self.search.evaluate.evaluations > before else self.idle + 1

    def _sample(self) -> tuple[Assignments, BatchEvaluation]:
        """Return sampled plans that are evaluated, now or earlier, with repetitions."""
        wanted = self.config.plans - self.config.mutations
        drawn = self.policy.sample(
            self.inputs, wanted * _OVERSAMPLE, self.generator, self.temperature
        ).numpy()
        if self.config.adaptive_temperature:
            new = self.cache.new_share(drawn)
            self.temperature = (
                min(self.temperature * _TEMPERATURE_STEP, _MAX_TEMPERATURE)
                if new < _NEW_SHARE
                else max(self.temperature / _TEMPERATURE_STEP, 1.0)
            )
        return self.cache.evaluate(drawn, at_most=wanted)

    def _mutate(self, plans: Assignments, found: BatchEvaluation, room: int) -> None:
        """Change one run of layers, in the best plan of this round and in the best plans of all rounds."""
        best = self.cache.elites
        if not len(best):
            return
        sources = best[self.space.rng.integers(0, len(best), room * _OVERSAMPLE)]
        if len(plans):
            sources[::2] = plans[int(np.argmin(cost_score(found)))]
        self.cache.evaluate(self.space.mutate_runs(sources), at_most=room)

    def _update(self, plans: Assignments, found: BatchEvaluation) -> None:
        import torch

        config = self.config
        weights = config.reinforce * self.rewards.advantages(found) / len(plans)
        elites = self.cache.elites if config.imitation else plans[:0]
        if len(elites):
            ranks = np.exp(-2.0 * np.arange(len(elites)) / config.elites)
            weights = np.concatenate([weights, config.imitation * ranks / ranks.sum()])
        targets = torch.from_numpy(np.concatenate([plans, elites]))
        logs, entropy = self.policy(self.inputs, targets, self.temperature)
        spent = self.search.evaluate.evaluations / self.search.budget.evaluations
        bonus = config.entropy * (1 - spent) * entropy[:, : len(plans)].mean(dim=1).sum()
        loss = -(torch.from_numpy(weights).float() * logs.sum(dim=0)).sum() - bonus
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), _CLIP)
        self.optimizer.step()


class Rewards:
    """Rewards -log(cost / reference); the reference is the median cost of the first feasible plans."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config = config
        self.reference: float | None = None
        self.mean: float | None = None

    def advantages(self, found: BatchEvaluation) -> Floats:
        """Return rewards minus their moving average, divided by their standard deviation."""
        reward = self._rewards(found)
        now = float(reward.mean())
        rate = self.config.baseline
        self.mean = now if self.mean is None else (1 - rate) * self.mean + rate * now
        spread = float(reward.std())
        return (reward - self.mean) / spread if spread > 1e-9 else np.zeros(len(reward))

    def _rewards(self, found: BatchEvaluation) -> Floats:
        feasible = np.isfinite(found.cost_usd)
        if self.reference is None and feasible.any():
            self.reference = float(np.median(found.cost_usd[feasible]))
        safe = np.where(feasible, found.cost_usd, 1.0) / (self.reference or 1.0)
        penalty = _INFEASIBLE - (found.shortfall if self.config.graded_penalty else 0.0)
        return np.where(feasible, -np.log(np.maximum(safe, 1e-300)), penalty)


METHODS = {"berth-lstm": learned("lstm"), "berth-rnn": learned("rnn")}
