"""Dense weights and optimiser state of stages, by the names and numbers of the whole model.

So a checkpoint does not depend on the stages, and a run with other stages can resume from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class StateDict:
    """State of a model or optimiser, as a torch `state_dict`."""

    state: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return self.state


def stage_weights(whole: nn.Module, prefixes: Iterable[str]) -> dict[str, Tensor]:
    """Return the weights of some layers, by their names in the whole model."""
    wanted = tuple(prefixes)
    return {name: value for name, value in whole.state_dict().items() if name.startswith(wanted)}


def stage_optimiser_state(whole: nn.Module, optimiser: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Return the optimiser state of a stage, with weights numbered as in the whole model."""
    if optimiser is None:
        return {"state": {}, "param_groups": []}
    numbers = _numbers(whole)
    own = [weight for group in optimiser.param_groups for weight in group["params"]]
    state_dict_ = optimiser.state_dict()
    state = {numbers[id(own[local])]: values for local, values in state_dict_["state"].items()}
    groups = [
        {**group, "params": [numbers[id(own[local])] for local in group["params"]]}
        for group in state_dict_["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def merge_stages(
    whole: nn.Module, parts: Iterable[tuple[dict[str, Tensor], dict[str, Any]]]
) -> tuple[StateDict, StateDict]:
    """Return weights and optimiser state of the whole model from those of its stages."""
    weights: dict[str, Tensor] = {}
    state: dict[int, Any] = {}
    options: dict[str, Any] = {}
    for some, optimiser in parts:
        weights |= some
        state |= {int(number): values for number, values in optimiser["state"].items()}
        for group in optimiser["param_groups"]:
            options = {**group}
    options["params"] = list(range(len(_numbers(whole))))
    ordered = {name: weights[name] for name in whole.state_dict()}
    return StateDict(ordered), StateDict({"state": dict(sorted(state.items())), "param_groups": [options]})


def load_stage_optimiser(
    whole: nn.Module, optimiser: torch.optim.Optimizer | None, saved: dict[str, Any]
) -> None:
    """Load the state of a stage's weights from that of the whole optimiser."""
    if optimiser is None:
        return
    numbers = _numbers(whole)
    own = [weight for group in optimiser.param_groups for weight in group["params"]]
    by_number = {int(number): values for number, values in saved["state"].items()}
    state = {
        local: by_number[numbers[id(weight)]]
        for local, weight in enumerate(own)
        if numbers[id(weight)] in by_number
    }
    options = {**saved["param_groups"][0], "params": list(range(len(own)))}
    optimiser.load_state_dict({"state": state, "param_groups": [options]})


def _numbers(whole: nn.Module) -> dict[int, int]:
    trained = [weight for weight in whole.parameters() if weight.requires_grad]
    return {id(weight): number for number, weight in enumerate(trained)}
