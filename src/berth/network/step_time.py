"""The fitted step-time model: predicts, and is stored as YAML.

None is a distance that was not measured; its predictions are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from berth.arrays import FloatArray, Int64Array
from berth.errors import InputError, UnknownNameError
from berth.spec import Seconds, Spec, load, write_text

FORWARD = 1 / 3  # share of the computation that ends before the first gradient exists
OVERLAP = 6.0  # y of (c^y + comm^y)^(1/y): nearly all that the rest covers is hidden

NUMBERS = {
    "base": "computation, whatever the batch",
    "per_batch": "computation per reference batch",
    "per_batch_squared": "computation per its square",
    "within_machine": "communication in one machine",
    "network": "communication over 3 machines or more",
    "two_machines": "times that, over exactly 2 machines",
    "growth": "exponent: slower with every GPU",
}
TIMES = tuple(number for number in NUMBERS if number not in ("two_machines", "growth"))


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Step times of one model under any placement; `batch` is the reference batch per GPU, if known."""

    name: str
    base: float
    per_batch: float = 0.0
    per_batch_squared: float = 0.0
    within_machine: float | None = None
    network: float | None = None
    two_machines: float = 1.0
    growth: float = 0.0
    batch: float | None = None

    def predict(self, gpus: ArrayLike, machines: ArrayLike, batch: ArrayLike | None = None) -> FloatArray:
        """Return the modelled seconds of a step (no batch: at the reference one); NaN where a number is unknown."""
        load = np.ones(1) if batch is None or self.batch is None else np.asarray(batch) / self.batch
        values = [getattr(self, number) for number in NUMBERS]
        numbers = [math.nan if value is None else float(value) for value in values]
        return step_s(numbers, np.asarray(gpus), np.asarray(machines), load)

    @classmethod
    def load(cls, path: str | Path, name: str | None = None) -> StepTimeModel:
        """Read one model from a file that `berth network fit --out` wrote; a single one needs no name."""
        models = load(path, _File).models
        if name is None and len(models) > 1:
            raise InputError(
                f"holds {len(models)} models", where=str(path), hint=f"name one of: {', '.join(models)}"
            )
        chosen = next(iter(models)) if name is None else name
        if chosen not in models:
            raise UnknownNameError("fitted model", chosen, models, where=str(path))
        return cls(name=chosen, **models[chosen].model_dump())


class _Numbers(Spec):
    """One model in the file."""

    base: Seconds
    per_batch: Seconds = 0.0
    per_batch_squared: Seconds = 0.0
    within_machine: Seconds | None = None
    network: Seconds | None = None
    two_machines: float = Field(default=1.0, gt=0)
    growth: float = Field(default=0.0, ge=0)
    batch: float | None = Field(default=None, gt=0)


class _File(Spec):
    models: dict[str, _Numbers] = Field(min_length=1)


def save_models(models: Iterable[StepTimeModel], path: str | Path) -> None:
    """Write models as YAML without their unknown numbers."""
    import yaml

    data = {"models": {model.name: _written(model) for model in models}}
    text = "# Fitted by `berth network fit`: modelled step times.\n" + yaml.safe_dump(data, sort_keys=False)
    write_text(path, text)


def _written(model: StepTimeModel) -> dict[str, str | float]:
    values = {number: getattr(model, number) for number in (*NUMBERS, "batch")}
    known = {number: value for number, value in values.items() if value is not None}
    return {number: f"{value:.9g}s" if number in TIMES else value for number, value in known.items()}


def step_s(numbers: Sequence[float], gpus: Int64Array, machines: Int64Array, load: FloatArray) -> FloatArray:
    """The formula of `berth.network.fit`, with the numbers in the order of NUMBERS."""
    base, per_batch, squared, within, network, two, growth = numbers
    compute = base + per_batch * load + squared * load**2
    between = np.where(machines == 2, network * two, network)
    factor = 2 * (gpus - 1) / gpus
    comm = np.where(gpus == 1, 0.0, factor * np.where(machines == 1, within, between))
    hiding = (1 - FORWARD) * compute
    overlapped = hiding * (1 + (comm / hiding) ** OVERLAP) ** (1 / OVERLAP)
    result: FloatArray = gpus**growth * (FORWARD * compute + overlapped)
    return result
