"""The policy: a recurrent network over the layers that scores each device type.

Its input at each layer includes the type of the previous layer and how full that stage is. Types are scored one by one
with the same weights, from the layer's features on that type and the network's state, so that weights learned on one
problem fit any other. Attribute names are those of the shipped weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from berth.plan.search.learned_features import LAYER, PLACE, Features

Cell = Literal["lstm", "rnn"]

HIDDEN = 32
# same type as before; serial computation and data of the stage with this layer; either is too long
_STAGE = 4
FORBIDDEN = -1e9


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """Features as tensors, [layer, problem, type, feature]; a single problem serves any number of plans."""

    place: Tensor
    layer: Tensor  # [layer, problem, feature]
    serial: Tensor
    mask: Tensor  # 0, or minus infinity where a layer may not run

    @classmethod
    def of(cls, seen: Features) -> PolicyInputs:
        """Return the inputs of one problem."""
        mask = np.where(seen.allowed, 0.0, FORBIDDEN).astype(np.float32)
        arrays = (seen.place, seen.layer, seen.serial, mask)
        place, layer, serial, mask_ = (torch.from_numpy(array).unsqueeze(1) for array in arrays)
        return cls(place, layer, serial, mask_)


class Policy(nn.Module):
    """Scores the types, layer after layer."""

    def __init__(self, cell: Cell, generator: torch.Generator) -> None:
        super().__init__()
        self.is_lstm = cell == "lstm"
        with torch.random.fork_rng(devices=[]):  # constructors use the global generator
            self.walk: nn.RNNBase = (nn.LSTM if self.is_lstm else nn.RNN)(LAYER + PLACE + _STAGE, HIDDEN)
            self.place = nn.Linear(PLACE + _STAGE, HIDDEN)
            self.state = nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.score = nn.Linear(HIDDEN, 1, bias=False)
        for weights in self.parameters():
            bound = 1 / math.sqrt(HIDDEN)
            nn.init.uniform_(weights, -bound, bound, generator=generator)
        self.stay = nn.Parameter(torch.tensor(1.0))  # bonus for the type of the previous layer

    def forward(self, inputs: PolicyInputs, plans: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the entropy of each choice of the plans: [layer, plan]."""
        chosen = plans.T.unsqueeze(-1)
        stage = _stages(inputs, plans)
        state, _ = self.walk(_inputs(inputs, plans, stage))
        places = inputs.place.expand(*stage.shape[:3], PLACE)
        inner = self.place(torch.cat([places, stage], dim=-1)) + self.state(state).unsqueeze(2)
        scores = self.score(torch.tanh(inner)).squeeze(-1) + self.stay * stage[..., 0]
        logs = functional.log_softmax((scores + inputs.mask) / temperature, dim=-1)
        entropy = -(logs.exp() * logs).sum(dim=-1)
        return logs.gather(-1, chosen).squeeze(-1), entropy

    @torch.no_grad()
    def sample(
        self, inputs: PolicyInputs, count: int, generator: torch.Generator, temperature: float = 1.0
    ) -> Tensor:
        """Sample plans of one problem, [plan, layer], with the numbers of `forward` but without gradients."""
        layers, _, num_types, _ = inputs.place.shape
        step = _Step(self)
        place = functional.linear(inputs.place[:, 0], self.place.weight[:, :PLACE], self.place.bias)
        noise = torch.rand(layers, count, num_types, generator=generator).clamp_(1e-9, 1 - 1e-7)
        gumbel = -torch.log(-torch.log(noise))
        into_stage = self.place.weight[:, PLACE:].T
        state, memory = torch.zeros(count, HIDDEN), torch.zeros(count, HIDDEN)
        rows = torch.arange(count)
        before = torch.full((count,), -1)
        fill = torch.zeros(count, 2)
        seen = torch.zeros(count, PLACE + _STAGE)
        plans = torch.empty(layers, count, dtype=torch.long)
        types = torch.arange(num_types)
        for layer in range(layers):
            own = inputs.layer[layer].expand(count, LAYER)
            state, memory = step(torch.cat([own, seen], dim=1), state, memory)
            stage = _stage(inputs.serial[layer, 0], fill, types == before[:, None])
            inner = place[layer] + stage @ into_stage + (state @ self.state.weight.T).unsqueeze(1)
            scores = torch.tanh(inner) @ self.score.weight[0] + self.stay * stage[..., 0] + inputs.mask[layer]
            before = (scores / temperature + gumbel[layer]).argmax(dim=1)
            plans[layer] = before
            mine = stage[rows, before]
            fill = mine[:, 1:3]
            seen = torch.cat([inputs.place[layer, 0, before], mine], dim=1)
        return plans.T.contiguous()


class _Step:
    """One step of the recurrent network: nn.LSTM takes whole sequences, but sampling goes layer by layer."""

    def __init__(self, policy: Policy) -> None:
        weights = dict(policy.walk.named_parameters())
        self.is_lstm = policy.is_lstm
        self.into = weights["weight_ih_l0"].T
        self.again = weights["weight_hh_l0"].T
        self.bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]

    def __call__(self, seen: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gates = torch.addmm(torch.addmm(self.bias, seen, self.into), state, self.again)
        if not self.is_lstm:
            return torch.tanh(gates), memory
        enter, forget, cell, output = gates.chunk(4, dim=1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(cell)
        return torch.sigmoid(output) * torch.tanh(memory), memory


def _stage(serial: Tensor, fill: Tensor, same: Tensor) -> Tensor:
    """Return [plan, type, _STAGE]: the stage that a layer would be in on each type."""
    continues = same.unsqueeze(-1).float()
    filled = (serial + continues * fill.unsqueeze(1)).clamp(max=2.0)
    over = (filled > 1.0).any(dim=-1, keepdim=True).float()
    return torch.cat([continues, filled, over], dim=-1)


def _stages(inputs: PolicyInputs, plans: Tensor) -> Tensor:
    """Return [layer, plan, type, _STAGE]: the same for all layers of known plans."""
    layers, _, num_types, _ = inputs.place.shape
    rows = torch.arange(len(plans))
    types = torch.arange(num_types)
    before = torch.full((len(plans),), -1)
    fill = torch.zeros(len(plans), 2)
    stages = []
    for layer in range(layers):
        stage = _stage(inputs.serial[layer], fill, types == before[:, None])
        before = plans[:, layer]
        fill = stage[rows, before, 1:3]
        stages.append(stage)
    return torch.stack(stages)


def _inputs(inputs: PolicyInputs, plans: Tensor, stage: Tensor) -> Tensor:
    """Return [layer, plan, feature]: the layer, and the placement of the previous layer."""
    layers, problems, _, _ = inputs.place.shape
    chosen = plans.T[:, :, None, None]
    places = inputs.place.expand(-1, len(plans), -1, -1) if problems == 1 else inputs.place
    place = places.gather(2, chosen.expand(-1, -1, 1, PLACE)).squeeze(2)
    mine = stage.gather(2, chosen.expand(-1, -1, 1, _STAGE)).squeeze(2)
    before = functional.pad(torch.cat([place, mine], dim=-1)[:-1], (0, 0, 0, 0, 1, 0))
    return torch.cat([inputs.layer.expand(layers, len(plans), LAYER), before], dim=-1)
