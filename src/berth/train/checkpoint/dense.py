"""State of dense weights, optimiser, scheduler and random generators as plain arrays."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from berth.errors import InputError
from berth.train.checkpoint.arrays import Arrays


class HasState(Protocol):
    """A module, an optimiser, or anything with a state dict."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does."""
        ...


def dense_state(
    model: HasState, optimiser: HasState | None, scheduler: HasState | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return (arrays, meta), copied so that training can continue."""
    arrays: dict[str, NDArray[Any]] = {}
    meta = {
        "model": _packed(dict(model.state_dict()), "model", arrays),
        "optimiser": _packed(optimiser.state_dict(), "optimiser", arrays) if optimiser is not None else None,
        "scheduler": _packed(scheduler.state_dict(), "scheduler", arrays) if scheduler is not None else None,
        "random": _packed(_random_state(), "random", arrays),
    }
    return arrays, meta


def load_dense(
    model: nn.Module,
    optimiser: torch.optim.Optimizer | None,
    arrays: Arrays,
    meta: dict[str, Any],
    scheduler: LRScheduler | None = None,
) -> None:
    """Load a saved state into model, optimiser, scheduler and generators."""
    load_weights(model, arrays, meta)
    if optimiser is not None and meta["optimiser"] is not None:
        optimiser.load_state_dict(unpacked(meta["optimiser"], arrays))
    if scheduler is not None and meta.get("scheduler") is not None:
        scheduler.load_state_dict(unpacked(meta["scheduler"], arrays))
    state = unpacked(meta["random"], arrays)
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002 - a user's model may draw from it


def load_weights(model: nn.Module, arrays: Arrays, meta: dict[str, Any]) -> None:
    """Load the dense weights into a model."""
    try:
        model.load_state_dict(weights_of(arrays, meta))
    except RuntimeError as error:
        raise InputError(f"the checkpoint is of a different model: {error}") from None


def weights_of(arrays: Arrays, meta: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the dense weights as a torch state dict."""
    weights: dict[str, torch.Tensor] = unpacked(meta["model"], arrays)
    return weights


def _random_state() -> dict[str, Any]:
    name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).view(np.int32).copy()), place, has_gauss, gauss),
    }


def _packed(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the tree as JSON values, with tensors moved to `arrays`."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().clone().reshape(-1).view(torch.uint8)
        arrays[path] = raw.numpy()
        return {"tensor": path, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if isinstance(value, dict):
        items = [[key, _packed(part, f"{path}/{key}", arrays)] for key, part in value.items()]
        return {"counts" if isinstance(value, Counter) else "items": items}
    if isinstance(value, tuple | list):
        parts = [_packed(part, f"{path}/{number}", arrays) for number, part in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"{path} is a {type(value).__name__}, which a checkpoint can't store")


def unpacked(value: Any, arrays: Arrays) -> Any:
    """Return the tree that was packed."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        raw, dtype = torch.from_numpy(arrays[value["tensor"]]), getattr(torch, value["dtype"])
        # empty tensors have no bytes
        tensor = (raw.view(dtype) if len(raw) else raw.to(dtype)).reshape(value["shape"])
        return tensor.numpy().view(np.uint32) if value["tensor"] == "random/numpy/1" else tensor
    if "counts" in value:
        return Counter(dict(value["counts"]))
    if "items" in value:
        return {key: unpacked(part, arrays) for key, part in value["items"]}
    if "tuple" in value:
        return tuple(unpacked(part, arrays) for part in value["tuple"])
    return [unpacked(part, arrays) for part in value["list"]]
