"""The learned scheduler as published (HeterPS, arXiv 2111.10635): REINFORCE with a recurrent network, and nothing else.

From the source: an LSTM over the layers, a softmax over the device types, trained by reinforcement on the cost of the
plans. Weights are fresh from the seed, a moving average of the rewards is the baseline, and every plan drawn counts as
an evaluation, repeated ones too. Our choices, as the source does not state them: the features of a layer, 64 units, 32
plans per step of Adam, and the logarithm of the cost as reward, so that dollars cancel. Infeasible plans get the lowest
reward, less what they fall short. A type on which a layer may not run has no probability.

berth's own learner (learned.py) starts from pretrained weights and a greedy plan, and mutates good plans.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from berth.plan.evaluate import BatchEvaluation
from berth.plan.problem import COMPUTE, EXCHANGE, HELD_BYTES, IN, OUT, SERVED_BYTES, SHARDED_BYTES, Problem
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.method import AssignmentSearch, Search

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from berth.plan.search.learned_policy import Cell

Floats = NDArray[np.float64]

PLANS = 32  # drawn for each update
UNITS = 64
LEARNING_RATE = 1e-2
BASELINE = 0.1  # weight of the newest plans in the moving average of rewards
_INFEASIBLE = -3.0  # as if a plan cost e^3 = 20 times the first ones
_KINDS = 8  # bins for the kinds of layers, by a hash of their name
_FORBIDDEN = -1e9


def reinforce(cell: Cell, search: Search, space: AssignmentSpace) -> str:
    """Draw plans and update the network until the budget is spent; `start` is evaluated and not learned from."""
    from berth.plan.threads import single_thread

    search.evaluate_start()
    with single_thread():  # small matrices are slower on several threads, and sums depend on their number
        learner = _Learner(cell, search.problem, search.budget.seed)
        while search.remaining:
            plans = learner.draw(min(PLANS, search.remaining))
            learner.update(plans, search.evaluate(plans.numpy()))
            search.report_progress()
    return ""


class _Learner:
    """A network with fresh weights, its optimiser and the baseline."""

    def __init__(self, cell: Cell, problem: Problem, seed: int) -> None:
        import torch

        self.generator = torch.Generator().manual_seed(seed)
        self.layers = torch.from_numpy(layer_features(problem)).float().unsqueeze(1)  # [layer, 1, feature]
        mask = np.where(problem.allowed, 0.0, _FORBIDDEN)
        self.mask = torch.from_numpy(mask).float()
        self.walk, self.head = _fresh(cell, self.layers.shape[2], len(problem.types), self.generator)
        weights = [*self.walk.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE)
        self.reference = self.baseline = float("nan")

    def log_probabilities(self) -> Tensor:
        """Return the logarithm of each type's probability, [layer, type]."""
        state, _ = self.walk(self.layers)
        scores: Tensor = self.head(state).squeeze(1) + self.mask
        return scores.log_softmax(dim=-1)

    def draw(self, count: int) -> Tensor:
        """Return plans drawn from the policy, [plan, layer]."""
        import torch

        with torch.no_grad():
            shares = self.log_probabilities().exp()
        return torch.multinomial(shares, count, replacement=True, generator=self.generator).T.contiguous()

    def update(self, plans: Tensor, found: BatchEvaluation) -> None:
        """Make plans with a reward above the baseline more likely, the others less."""
        import torch

        reward = self._rewards(found)
        mean = float(reward.mean())
        if np.isnan(self.baseline):
            self.baseline = mean
        advantage = torch.from_numpy(reward - self.baseline).float()
        self.baseline += BASELINE * (mean - self.baseline)
        chosen = self.log_probabilities().gather(1, plans.T).sum(dim=0)
        loss = -(advantage * chosen).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def _rewards(self, found: BatchEvaluation) -> Floats:
        feasible = np.isfinite(found.cost_usd)
        if np.isnan(self.reference) and feasible.any():
            self.reference = float(np.median(found.cost_usd[feasible]))
        reference = 1.0 if np.isnan(self.reference) else self.reference
        cost = np.where(feasible, found.cost_usd, reference) / reference
        return np.where(feasible, -np.log(np.maximum(cost, 1e-300)), _INFEASIBLE - found.shortfall)


def _fresh(cell: Cell, width: int, types: int, generator: torch.Generator) -> tuple[nn.RNNBase, nn.Linear]:
    """Return a recurrent network and a linear layer with weights from the generator."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):  # constructors use the global generator
        walk: nn.RNNBase = (nn.LSTM if cell == "lstm" else nn.RNN)(width, UNITS)
        head = nn.Linear(UNITS, types)
    for weights in (*walk.parameters(), *head.parameters()):
        nn.init.uniform_(weights, -(UNITS**-0.5), UNITS**-0.5, generator=generator)
    return walk, head


def layer_features(problem: Problem) -> Floats:
    """Return what the network sees of each layer: its position and kind, computation, data, output and bytes held.

    Figures are logarithms over the model's layers, centred and divided by their spread, so units cancel.
    """
    layers = len(problem.layers)
    whole = problem.curves[..., -1]
    figures = [
        whole[:, :, COMPUTE].mean(axis=0),
        (np.maximum(whole[:, :, IN], whole[:, :, OUT]) + whole[:, :, EXCHANGE]).mean(axis=0),
        problem.cross.max(axis=2).mean(axis=0),
        problem.facts[:, :, (HELD_BYTES, SHARDED_BYTES, SERVED_BYTES)].max(axis=(0, 2)),
    ]
    kinds = np.zeros((layers, _KINDS))
    kinds[np.arange(layers), [zlib.crc32(kind.encode()) % _KINDS for kind in problem.kinds]] = 1.0
    position = np.arange(layers)[:, None] / layers
    return np.concatenate([position, kinds, np.stack([_standard(one) for one in figures], axis=1)], axis=1)


def _standard(values: Floats) -> Floats:
    """Return logarithms with mean 0 and spread 1; values of 0 count as a hundredth of the smallest other one."""
    positive = values[values > 0]
    if not len(positive):
        return np.zeros(len(values))
    logs = np.log(np.maximum(values, positive.min() / 100))
    spread = float(logs.std())
    return (logs - logs.mean()) / spread if spread > 1e-9 else np.zeros(len(values))


METHODS = {
    "reinforce-lstm": AssignmentSearch("reinforce-lstm", partial(reinforce, "lstm"), needs="torch"),
    "reinforce-rnn": AssignmentSearch("reinforce-rnn", partial(reinforce, "rnn"), needs="torch"),
}
