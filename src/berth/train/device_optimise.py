"""Optimisers of rows in device memory: `tables/optimise.py` in plain torch operations, for any backend.

Every operation is a separate one, rounded to single precision, in the order of the kernels there. So a row gets the
same bits wherever it is updated, if division and square root of the device are correctly rounded.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from berth.train.devices import BUILT_IN
from berth.train.tables.initialise import Floats
from berth.train.tables.optimise import Optimiser

_FIRST_POWERS = 1024


class RowUpdate:
    """Updates rows of weights and their optimiser state in place."""

    def __init__(self, optimiser: Optimiser, dim: int, device: torch.device) -> None:
        self._device, self._dim = device, dim
        self._step = getattr(self, f"_{optimiser.kind}")
        names = ("rate", "epsilon", "initial", "beta1", "beta2", "lower", "upper", "decay")
        self._numbers = dict(zip(names, map(float, optimiser.numbers()), strict=True))
        self._rounds_roots = device.type in BUILT_IN
        self._is_adam = optimiser.kind == "adam"
        self._max_count = 0  # no row has been updated more often
        self._powers = torch.empty((0, 2))

    def loads(self, records: Floats) -> None:
        """Take note of the step counts of rows that are about to be copied to the device."""
        if self._is_adam and len(records):
            self._max_count = max(self._max_count, int(records[:, -1].max()))

    def __call__(self, weights: Tensor, state: Tensor, places: Tensor, gradients: Tensor) -> None:
        """Update the rows at `places`, which are unique."""
        if not len(places):
            return
        old, old_state = weights.index_select(0, places), state.index_select(0, places)
        new, new_state = self._step(old, old_state, gradients)
        weights.index_copy_(0, places, self._bounded(new))
        if new_state is not old_state:
            state.index_copy_(0, places, new_state)

    def _root(self, values: Tensor) -> Tensor:
        """Return square roots, correctly rounded: torch's for the CPU are not, GPUs' are."""
        return torch.sqrt(values) if self._rounds_roots else torch.sqrt(values.double()).float()

    def _number(self, value: float) -> Tensor:
        """Return a number on the device: torch divides by Python's numbers, and those by tensors, by reciprocals."""
        return torch.full((), value, dtype=torch.float32, device=self._device)

    def _bounded(self, weights: Tensor) -> Tensor:
        lower, upper = self._numbers["lower"], self._numbers["upper"]
        if lower > -math.inf:
            weights = weights.masked_fill(weights < lower, lower)
        return weights.masked_fill(weights > upper, upper) if upper < math.inf else weights

    def _sgd(self, weights: Tensor, state: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        return weights - self._numbers["rate"] * slopes, state

    def _rowwise_adagrad(self, weights: Tensor, state: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        initial, rate = self._numbers["initial"], self._numbers["rate"]
        rates = rate * self._root(self._number(initial) / (initial + state))
        squares = slopes * slopes
        total = squares[:, 0]  # 0 + the first is the first
        for column in range(1, self._dim):  # in this order, as the kernel: a reduction would have another
            total = total + squares[:, column]
        return weights - rates * slopes, state + (total / self._number(self._dim))[:, None]

    def _adagrad(self, weights: Tensor, state: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        total = state + slopes * slopes
        step = self._numbers["rate"] * slopes / (self._root(total) + self._numbers["epsilon"])
        return weights - step, total

    def _adam(self, weights: Tensor, state: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        beta1, beta2 = self._numbers["beta1"], self._numbers["beta2"]
        rest1, rest2 = (float(np.float32(1) - np.float32(beta)) for beta in (beta1, beta2))
        mean, square, counts = state.split((self._dim, self._dim, 1), dim=1)
        counts = counts + 1.0
        powers = self._powers_of(counts)
        rate = self._number(self._numbers["rate"]) / (1.0 - powers[:, :1])
        unbias = self._root(1.0 - powers[:, 1:])
        mean = beta1 * mean + rest1 * slopes
        square = beta2 * square + rest2 * slopes * slopes
        step = rate * mean / (self._root(square) / unbias + self._numbers["epsilon"])
        return weights - step, torch.cat([mean, square, counts], dim=1)

    def _powers_of(self, counts: Tensor) -> Tensor:
        """Return beta1 ** count and beta2 ** count, from a table: devices have no common `pow` in double precision."""
        self._max_count += 1
        betas = self._numbers["beta1"], self._numbers["beta2"]
        largest = int(min(self._max_count, _vanished(max(betas))))
        if largest >= len(self._powers):
            size = max(_FIRST_POWERS, 2 * largest)
            table = np.array([[math.pow(beta, step) for beta in betas] for step in range(size)])
            self._powers = torch.from_numpy(table.astype(np.float32)).to(self._device)
        return self._powers.index_select(0, counts[:, 0].long().clamp(max=len(self._powers) - 1))


def _vanished(beta: float) -> float:
    """Return a count from which on beta ** count is 0 in single precision."""
    return math.ceil(-150.0 / math.log2(beta)) if 0.0 < beta < 1.0 else math.inf
