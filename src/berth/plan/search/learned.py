"""The learned scheduler: a recurrent policy that gets better at one problem, round after round.

A round draws plans from the policy, evaluates those not seen before, and moves the policy towards what was
good: REINFORCE with a moving-average baseline, plus imitation of the best plans seen. What each part is worth
was measured; docs/design/learner.md has the figures. `Recipe` switches every part off and on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from berth.extras import require
from berth.plan.evaluate import Evaluated, Objective, Types
from berth.plan.problem import Problem
from berth.plan.search.greedy import constructed
from berth.plan.search.learned_features import features
from berth.plan.search.learned_memory import Memory
from berth.plan.search.method import Budget, Method, Outcome, Progress, Search
from berth.plan.search.moves import Moves, badness

if TYPE_CHECKING:
    from berth.plan.search.learned_policy import Cell, Policy, Sight

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of the learner, and their strengths; 0 or False leaves a part out."""

    plans: int = 32  # evaluated per round
    learning_rate: float = 3e-3
    baseline: float = 0.1  # how quickly the moving average of rewards follows
    entropy: float = 0.02  # reward for undecided choices, falling to 0 over the budget
    graded: bool = True  # infeasible plans are told how far they fall short
    elites: int = 8  # best plans seen that are imitated
    imitation: float = 1.0  # their weight beside REINFORCE's
    repairs: int = 8  # of a round's evaluations: good plans with one run of layers changed
    pretrained: bool = True  # weights learned on other problems
    heated: bool = True  # sampling gets hotter when it repeats itself
    greedy: bool = True  # the greedy plan is among the first to be imitated
    reinforce: float = 1.0  # weight of REINFORCE; 0: imitation only


RECIPE = Recipe()
_INFEASIBLE = -3.0  # reward of a plan that just fails: like one that costs e^3 = 20 times the reference
_CLIP = 1.0  # longest step of the gradient
_OVERSAMPLE = 2  # plans drawn for each that may be evaluated: repetitions cost nothing
_NEW_WANTED = 0.5  # share of drawn plans that should be new
_HEAT, _HOTTEST = 1.15, 8.0
_IDLE_ROUNDS = 40  # rounds without anything new, after which the space is taken as exhausted


def learned(
    cell: Cell,
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: Objective | None = None,
    start: Types | None = None,
    recipe: Recipe = RECIPE,
) -> Outcome:
    """Searches until the budget is spent, or until nothing new can be found."""
    require("torch", f"rl-{cell}")
    from berth.plan.threads import single_thread

    search = Search(problem, budget, progress, objective, start)
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if moves.stuck:
        return search.nowhere(f"rl-{cell}")
    with single_thread():  # matrices this small are slower on several, and sums would depend on their number
        learner = Learner(cell, search, moves, recipe)
        learner.begin()
        most = -(-budget.evaluations // recipe.plans)  # a round that finds little new is not made up for
        while search.left and learner.idle < _IDLE_ROUNDS and learner.rounds < most:
            learner.round()
            search.report()
    note = "" if search.left == 0 else "found nothing new any more"
    return search.outcome(f"rl-{cell}", note=note)


class Learner:
    """A policy at work on one problem."""

    def __init__(self, cell: Cell, search: Search, moves: Moves, recipe: Recipe) -> None:
        import torch

        from berth.plan.search.learned_policy import Policy, Sight
        from berth.plan.search.learned_weights import load

        self.search, self.moves, self.recipe = search, moves, recipe
        self.memory = Memory(search, recipe.elites)
        self.generator = torch.Generator().manual_seed(search.budget.seed)
        self.policy: Policy = Policy(cell, self.generator)
        if recipe.pretrained:
            load(self.policy, cell)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=recipe.learning_rate)
        self.sight: Sight = Sight.of(features(search.problem))
        self.rewards = Rewards(recipe)
        self.heat = 1.0
        self.idle = self.rounds = 0

    def begin(self) -> None:
        """Plans that others made: the one to begin with, the greedy one."""
        if self.search.start is not None:
            self.memory.judge(self.search.start[None])
        elif self.recipe.greedy:
            plan, _ = constructed(self.search, self.moves)
            self.memory.judge(plan[None])

    def round(self) -> None:
        """Draw, evaluate, repair, learn: a round spends its evaluations, whatever was drawn before."""
        before = self.search.evaluate.evaluations
        plans, found = self._drawn()
        if self.recipe.repairs:
            drawn = self.search.evaluate.evaluations - before
            self._repair(plans, found, self.recipe.plans - drawn)
        if len(plans):
            self._learn(plans, found)
        self.rounds += 1
        self.idle = 0 if self.search.evaluate.evaluations > before else self.idle + 1

    def _drawn(self) -> tuple[Types, Evaluated]:
        """Plans of the policy that have been evaluated, now or earlier; as often as they were drawn."""
        wanted = self.recipe.plans - self.recipe.repairs
        drawn = self.policy.sample(self.sight, wanted * _OVERSAMPLE, self.generator, self.heat).numpy()
        if self.recipe.heated:
            new = self.memory.new_share(drawn)
            self.heat = min(self.heat * _HEAT, _HOTTEST) if new < _NEW_WANTED else max(self.heat / _HEAT, 1.0)
        return self.memory.judge(drawn, at_most=wanted)

    def _repair(self, plans: Types, found: Evaluated, room: int) -> None:
        """One run of layers changed: in the best of this round, and in the best of all rounds."""
        best = self.memory.elites
        if not len(best):
            return
        sources = best[self.moves.draw.integers(0, len(best), room * _OVERSAMPLE)]
        if len(plans):
            sources[::2] = plans[int(np.argmin(badness(found)))]
        self.memory.judge(self.moves.changed_runs(sources), at_most=room)

    def _learn(self, plans: Types, found: Evaluated) -> None:
        import torch

        recipe = self.recipe
        weights = recipe.reinforce * self.rewards.advantages(found) / len(plans)
        elites = self.memory.elites if recipe.imitation else plans[:0]
        if len(elites):
            ranks = np.exp(-2.0 * np.arange(len(elites)) / recipe.elites)
            weights = np.concatenate([weights, recipe.imitation * ranks / ranks.sum()])
        taught = torch.from_numpy(np.concatenate([plans, elites]))
        logs, entropy = self.policy(self.sight, taught, self.heat)
        spent = self.search.evaluate.evaluations / self.search.budget.evaluations
        bonus = recipe.entropy * (1 - spent) * entropy[:, : len(plans)].mean(dim=1).sum()
        loss = -(torch.from_numpy(weights).float() * logs.sum(dim=0)).sum() - bonus
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), _CLIP)
        self.optimizer.step()


class Rewards:
    """R = -log(cost / reference); the reference is the median of the first feasible plans."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.reference: float | None = None
        self.mean: float | None = None

    def advantages(self, found: Evaluated) -> Floats:
        """Rewards against the moving average, over their spread."""
        reward = self._rewards(found)
        now = float(reward.mean())
        rate = self.recipe.baseline
        self.mean = now if self.mean is None else (1 - rate) * self.mean + rate * now
        spread = float(reward.std())
        return (reward - self.mean) / spread if spread > 1e-9 else np.zeros(len(reward))

    def _rewards(self, found: Evaluated) -> Floats:
        feasible = np.isfinite(found.cost_usd)
        if self.reference is None and feasible.any():
            self.reference = float(np.median(found.cost_usd[feasible]))
        safe = np.where(feasible, found.cost_usd, 1.0) / (self.reference or 1.0)
        penalty = _INFEASIBLE - (found.shortfall if self.recipe.graded else 0.0)
        return np.where(feasible, -np.log(np.maximum(safe, 1e-300)), penalty)


METHODS: dict[str, Method] = {"rl-lstm": partial(learned, "lstm"), "rl-rnn": partial(learned, "rnn")}
