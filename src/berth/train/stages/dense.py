"""Dense weights and their optimiser by the names and numbers of the whole model, whoever holds which part.

So a checkpoint does not know how a model was cut, and one that was cut otherwise can go on from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class Part:
    """State as torch's own `state_dict` gives it: of a model or an optimiser, or of a part of it."""

    state: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """As torch's modules and optimisers answer."""
        return self.state


def weights_of_stage(whole: nn.Module, prefixes: Iterable[str]) -> dict[str, Tensor]:
    """Those of some layers, by their names in the whole model."""
    wanted = tuple(prefixes)
    return {name: value for name, value in whole.state_dict().items() if name.startswith(wanted)}


def optimiser_of_stage(whole: nn.Module, optimiser: torch.optim.Optimizer | None) -> dict[str, Any]:
    """An optimiser's state, its weights numbered as in the whole model."""
    if optimiser is None:
        return {"state": {}, "param_groups": []}
    numbers = _numbers(whole)
    mine = [weight for group in optimiser.param_groups for weight in group["params"]]
    told = optimiser.state_dict()
    state = {numbers[id(mine[local])]: facts for local, facts in told["state"].items()}
    groups = [
        {**group, "params": [numbers[id(mine[local])] for local in group["params"]]}
        for group in told["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def joined(whole: nn.Module, parts: Iterable[tuple[dict[str, Tensor], dict[str, Any]]]) -> tuple[Part, Part]:
    """The whole model's weights and optimiser from those of its stages."""
    weights: dict[str, Tensor] = {}
    state: dict[int, Any] = {}
    options: dict[str, Any] = {}
    for some, optimiser in parts:
        weights |= some
        state |= {int(number): facts for number, facts in optimiser["state"].items()}
        for group in optimiser["param_groups"]:
            options = {**group}
    options["params"] = list(range(len(_numbers(whole))))
    ordered = {name: weights[name] for name in whole.state_dict()}
    return Part(ordered), Part({"state": dict(sorted(state.items())), "param_groups": [options]})


def take_part(whole: nn.Module, optimiser: torch.optim.Optimizer | None, saved: dict[str, Any]) -> None:
    """Puts what a whole optimiser had stored for these weights into the optimiser of some of them."""
    if optimiser is None:
        return
    numbers = _numbers(whole)
    mine = [weight for group in optimiser.param_groups for weight in group["params"]]
    known = {int(number): facts for number, facts in saved["state"].items()}
    state = {
        local: known[numbers[id(weight)]] for local, weight in enumerate(mine) if numbers[id(weight)] in known
    }
    options = {**saved["param_groups"][0], "params": list(range(len(mine)))}
    optimiser.load_state_dict({"state": state, "param_groups": [options]})


def _numbers(whole: nn.Module) -> dict[int, int]:
    trained = [weight for weight in whole.parameters() if weight.requires_grad]
    return {id(weight): number for number, weight in enumerate(trained)}
