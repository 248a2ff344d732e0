"""Weighted choices, written like `vgg16=2,resnet50=1`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from berth.arrays import FloatArray, Int64Array
from berth.errors import InputError
from berth.units import number_between


@dataclass(frozen=True, slots=True)
class WeightedChoice:
    """Choices with their shares, which add up to 1."""

    choices: tuple[str, ...]
    shares: tuple[float, ...]

    @staticmethod
    def of(weights: Mapping[str, float]) -> WeightedChoice:
        """Return the choices with shares from weights of any sum; a choice of weight 0 is left out."""
        kept = {choice: weight for choice, weight in weights.items() if weight > 0}
        total = math.fsum(kept.values())
        return WeightedChoice(tuple(kept), tuple(weight / total for weight in kept.values()))

    def pick(self, uniform: FloatArray) -> Int64Array:
        """Return the index of the choice for each number in [0, 1)."""
        edges = np.cumsum(np.asarray(self.shares))[:-1]
        return np.searchsorted(edges, uniform, side="right").astype(np.int64)


def parse_weights(text: str, what: str) -> dict[str, float]:
    """`a=2,b=1` -> {"a": 2.0, "b": 1.0}; a name alone has weight 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, written = (piece.strip() for piece in part.partition("="))
        weight = _weight(written, part, what) if "=" in part else 1.0
        if not name or name in weights:
            raise InputError(
                f"{what} {text!r}: " + (f"{name!r} is given twice" if name else "a name is missing"),
                hint="write name=weight, separated by commas",
            )
        weights[name] = weight
    if not any(weights.values()):
        raise InputError(f"{what} {text!r}: all weights are 0", hint="give one a weight above 0")
    return weights


def _weight(written: str, part: str, what: str) -> float:
    weight = number_between(written, 0.0, sys.float_info.max)
    if weight is None:
        raise InputError(
            f"{what} {part.strip()!r}: {written!r} is not a weight", hint="a weight is a number from 0 up"
        )
    return weight
