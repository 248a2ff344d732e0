"""Initial values of a row, drawn from its key and the seed.

They do not depend on the order of use or on the number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined
from berth.train.tables.hashing import GOLDEN, Keys, mix, salted, unit
from berth.train.tables.index import Places

Floats = NDArray[np.float32]

_UNIFORM, _NORMAL = 0, 1


@dataclass(frozen=True, slots=True)
class Initialiser:
    """Uniform in [-scale, scale), or normal with that standard deviation; scale 0 is all zeros."""

    kind: Literal["uniform", "normal"] = "uniform"
    scale: float = 0.01
    seed: int = 0


@inlined
def draw(stream: np.uint64, column: int, kind: int) -> float:
    """Return one number of a key's stream; normal ones by Box-Muller."""
    word = mix(stream + np.uint64(column) * GOLDEN)
    if kind == _UNIFORM:
        return 2.0 * unit(word) - 1.0
    other = unit(mix(~word))
    return np.sqrt(-2.0 * np.log(1.0 - unit(word))) * np.cos(2.0 * np.pi * other)


@entry
def _fill(
    data: Floats, width: int, dim: int, keys: Keys, places: Places, how: tuple[int, float, int]
) -> None:
    kind, scale, seed = how
    for number in range(len(keys)):
        stream = salted(keys[number], seed)
        base = np.int64(places[number]) * width
        for column in range(dim):
            data[base + column] = np.float32(scale * draw(stream, column, kind))


@entry
def _fill_state(data: Floats, width: int, dim: int, places: Places, state: Floats) -> None:
    for number in range(len(places)):
        base = np.int64(places[number]) * width + dim
        for column in range(width - dim):
            data[base + column] = state[column]


def fill_weights(out: Floats, which: Places, keys: Keys, how: Initialiser) -> None:
    """Write the initial weights of keys to some rows of `out`, [n, dim]."""
    kind = _UNIFORM if how.kind == "uniform" else _NORMAL
    dim = out.shape[1]
    _fill(out.reshape(-1), dim, dim, keys, which, (kind, float(how.scale), how.seed))


def fill(
    data: Floats, width: int, dim: int, keys: Keys, places: Places, how: Initialiser, state: Floats
) -> None:
    """Write the initial values of new rows: `dim` weights, then the optimiser state."""
    kind = _UNIFORM if how.kind == "uniform" else _NORMAL
    _fill(data, width, dim, keys, places, (kind, float(how.scale), how.seed))
    _fill_state(data, width, dim, places, state)
