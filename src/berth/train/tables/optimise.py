"""Optimisers of rows: weights and optimiser state of a row are updated in one pass.

The state follows the weights in the same record. All arithmetic is in single precision and in a fixed order, so equal
pushes give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from berth.errors import UnknownNameError
from berth.native.kernels import entry, inlined
from berth.train.tables.index import Places
from berth.train.tables.initialise import Floats
from berth.train.tables.memory import prefetch

Kind = Literal["sgd", "rowwise_adagrad", "adagrad", "adam", "momentum", "nesterov"]

_SGD, _ROWWISE, _ADAGRAD, _ADAM, _MOMENTUM, _NESTEROV = range(6)
_RATE, _EPSILON, _INITIAL, _BETA1, _BETA2, _LOWER, _UPPER, _DECAY = range(8)
NUMBERS = 8
_AHEAD = 16
_LINE = 16  # floats of a cache line


@dataclass(frozen=True, slots=True)
class Optimiser:
    """How a row is updated by a gradient.

    `rowwise_adagrad` keeps one number per row and scales by sqrt(initial / (initial + sum)), as Paddle's
    sparse rule does; `adagrad` is torch's; `adam` counts the steps of each row by itself. `momentum` and `nesterov` are
    for dense weights: SGD with the momentum `beta1`.
    """

    kind: Kind = "rowwise_adagrad"
    learning_rate: float = 0.05
    initial_accumulator: float = field(default=3.0)
    epsilon: float = 1e-10
    beta1: float = 0.9
    beta2: float = 0.999
    bounds: tuple[float, float] = (-np.inf, np.inf)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownNameError("optimiser of rows", self.kind, get_args(Kind))

    @property
    def code(self) -> int:
        """Return the kind as the kernels' number."""
        return get_args(Kind).index(self.kind)

    def first_state(self, dim: int) -> Floats:
        """Return the initial optimiser state of a row."""
        if self.kind == "sgd":
            return np.empty(0, np.float32)
        if self.kind == "rowwise_adagrad":
            return np.zeros(1, np.float32)
        if self.kind == "adagrad":
            return np.full(dim, self.initial_accumulator, np.float32)
        if self.kind in ("momentum", "nesterov"):
            return np.zeros(dim, np.float32)
        return np.zeros(2 * dim + 1, np.float32)  # two moments and the step count

    def numbers(self, weight_decay: float = 0.0) -> Floats:
        """Return the settings as an array for kernels; the weight decay, of Adam only, is a share of the weight."""
        settings = (self.learning_rate, self.epsilon, self.initial_accumulator, self.beta1, self.beta2)
        return np.array((*settings, *self.bounds, weight_decay), np.float32)


def sgd(learning_rate: float = 0.01) -> Optimiser:
    """Return stochastic gradient descent."""
    return Optimiser("sgd", learning_rate)


def rowwise_adagrad(learning_rate: float = 0.05, initial_accumulator: float = 3.0) -> Optimiser:
    """Return AdaGrad with one accumulator per row (4 bytes)."""
    return Optimiser("rowwise_adagrad", learning_rate, initial_accumulator)


def adagrad(learning_rate: float = 0.05, initial_accumulator: float = 0.0) -> Optimiser:
    """Return AdaGrad with one accumulator per weight, as torch's."""
    return Optimiser("adagrad", learning_rate, initial_accumulator)


def adam(learning_rate: float = 0.001) -> Optimiser:
    """Return Adam, with two moments per weight."""
    return Optimiser("adam", learning_rate, epsilon=1e-8)


@inlined
def bounded(weight: np.float32, lower: np.float32, upper: np.float32) -> np.float32:
    """Clip a weight; NaN stays NaN."""
    return lower if weight < lower else (upper if weight > upper else weight)


@inlined
def step_sgd(
    data: Floats, base: np.uint64, dim: np.uint64, grads: Floats, grad: np.uint64, numbers: Floats
) -> None:
    """Update a row by SGD."""
    rate, lower, upper = numbers[_RATE], numbers[_LOWER], numbers[_UPPER]
    for column in range(dim):
        weight = data[base + column] - rate * grads[grad + column]
        data[base + column] = bounded(weight, lower, upper)


@inlined
def step_rowwise(
    data: Floats, base: np.uint64, dim: np.uint64, grads: Floats, grad: np.uint64, numbers: Floats
) -> None:
    """One sum of mean squares for the whole row; the step uses the sum before this gradient."""
    initial, lower, upper = numbers[_INITIAL], numbers[_LOWER], numbers[_UPPER]
    rate = numbers[_RATE] * np.sqrt(initial / (initial + data[base + dim]))
    square = np.float32(0)
    for column in range(dim):
        slope = grads[grad + column]
        square += slope * slope
    for column in range(dim):
        weight = data[base + column] - rate * grads[grad + column]
        data[base + column] = bounded(weight, lower, upper)
    data[base + dim] += square / np.float32(dim)


@inlined
def step_adagrad(
    data: Floats, base: np.uint64, dim: np.uint64, grads: Floats, grad: np.uint64, numbers: Floats
) -> None:
    """A sum of squares for every weight; the step uses the sum with this gradient."""
    rate, epsilon = numbers[_RATE], numbers[_EPSILON]
    lower, upper = numbers[_LOWER], numbers[_UPPER]
    for column in range(dim):
        slope = grads[grad + column]
        total = data[base + dim + column] + slope * slope
        data[base + dim + column] = total
        weight = data[base + column] - rate * slope / (np.sqrt(total) + epsilon)
        data[base + column] = bounded(weight, lower, upper)


@inlined
def step_adam(
    data: Floats, base: np.uint64, dim: np.uint64, grads: Floats, grad: np.uint64, numbers: Floats
) -> None:
    """Kingma and Ba 2015, with the row's own count of steps."""
    rate, epsilon, beta1, beta2 = numbers[_RATE], numbers[_EPSILON], numbers[_BETA1], numbers[_BETA2]
    lower, upper, one = numbers[_LOWER], numbers[_UPPER], np.float32(1)
    first, second, count = base + dim, base + dim + dim, base + dim + dim + dim
    kept = one - rate * numbers[_DECAY]
    data[count] += one
    rate /= one - np.float32(np.float64(beta1) ** data[count])
    unbias = np.sqrt(one - np.float32(np.float64(beta2) ** data[count]))
    for column in range(dim):
        slope = grads[grad + column]
        mean = beta1 * data[first + column] + (one - beta1) * slope
        square = beta2 * data[second + column] + (one - beta2) * slope * slope
        data[first + column] = mean
        data[second + column] = square
        weight = kept * data[base + column] - rate * mean / (np.sqrt(square) / unbias + epsilon)
        data[base + column] = bounded(weight, lower, upper)


@inlined
def step_momentum(
    data: Floats, base: np.uint64, dim: np.uint64, grads: Floats, grad: np.uint64, numbers: Floats
) -> None:
    """SGD with momentum, as torch's."""
    rate, momentum = numbers[_RATE], numbers[_BETA1]
    lower, upper = numbers[_LOWER], numbers[_UPPER]
    for column in range(dim):
        velocity = momentum * data[base + dim + column] + grads[grad + column]
        data[base + dim + column] = velocity
        data[base + column] = bounded(data[base + column] - rate * velocity, lower, upper)


@inlined
def step_nesterov(
    data: Floats, base: np.uint64, dim: np.uint64, grads: Floats, grad: np.uint64, numbers: Floats
) -> None:
    """SGD with Nesterov's momentum, as torch's."""
    rate, momentum = numbers[_RATE], numbers[_BETA1]
    lower, upper = numbers[_LOWER], numbers[_UPPER]
    for column in range(dim):
        slope = grads[grad + column]
        velocity = momentum * data[base + dim + column] + slope
        data[base + dim + column] = velocity
        weight = data[base + column] - rate * (slope + momentum * velocity)
        data[base + column] = bounded(weight, lower, upper)


@entry
def apply(
    data: Floats,
    changed: NDArray[np.uint8],
    width: int,
    dim: int,
    places: Places,
    grads: Floats,
    kind: int,
    numbers: Floats,
) -> None:
    """Update each row with its gradient (`grads` is flat); negative places are skipped."""
    near = len(places) - _AHEAD
    # unsigned: no sign checks, so loops vectorise
    wide, weights = np.uint64(width), np.uint64(dim)
    for number in range(len(places)):
        if number < near and places[number + _AHEAD] >= 0:
            soon = np.int64(places[number + _AHEAD]) * width
            prefetch(changed, places[number + _AHEAD])
            for line in range(0, width, _LINE):
                prefetch(data, soon + line)
        if places[number] < 0:
            continue
        changed[places[number]] = 1
        base, grad = np.uint64(places[number]) * wide, np.uint64(number) * weights
        if kind == _ADAGRAD:
            step_adagrad(data, base, weights, grads, grad, numbers)
        elif kind == _ROWWISE:
            step_rowwise(data, base, weights, grads, grad, numbers)
        elif kind == _ADAM:
            step_adam(data, base, weights, grads, grad, numbers)
        elif kind == _MOMENTUM:
            step_momentum(data, base, weights, grads, grad, numbers)
        elif kind == _NESTEROV:
            step_nesterov(data, base, weights, grads, grad, numbers)
        else:
            step_sgd(data, base, weights, grads, grad, numbers)
