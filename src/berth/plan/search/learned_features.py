"""What the learned policy sees of a problem: numbers without units, so that it can be carried to another problem.

Everything is measured against the problem itself: times against the slowest stage time allowed, prices
against what the whole model would cost if every layer ran where that layer is cheapest. Features belong to
a layer on a type, never to a type's place in the list: the policy works for any number of types and layers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.plan.problem import Problem
from berth.plan.tables import (
    COMPUTE_SERIAL,
    COMPUTE_SHARED,
    DATA_SERIAL,
    DATA_SHARED,
    REPLICATED,
    SHARDED,
)

Floats = NDArray[np.float64]

PLACE = 18  # features of a layer on a type
KINDS = 8  # kinds of layers fall into so many bins by a hash of their name
LAYER = 2 + KINDS  # features of a layer
_TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Features:
    """Arrays by layer and type; `serial` and `allowed` follow the stage that a plan is building."""

    place: NDArray[np.float32]  # [layer, type, PLACE]
    layer: NDArray[np.float32]  # [layer, LAYER]
    serial: NDArray[np.float32]  # [layer, type, 2]: computation and data that no units take away, over tau
    allowed: NDArray[np.bool_]  # [layer, type]


def features(problem: Problem) -> Features:
    """The features of a problem."""
    tables = problem.tables
    tau = tables.slowest
    cs, cp, ds, dp = (
        tables.layer[:, :, column].T for column in (COMPUTE_SERIAL, COMPUTE_SHARED, DATA_SERIAL, DATA_SHARED)
    )
    # Dollars per hour of a layer by itself, in fractions of units, at the slowest stage time allowed.
    units = np.maximum(cp / np.maximum(tau - cs, 1e-3 * tau), dp / np.maximum(tau - ds, 1e-3 * tau))
    rate = tables.price * units + _TINY
    cheapest = np.where(problem.allowed, rate, np.inf).min(axis=1, keepdims=True)
    cheapest = np.where(np.isfinite(cheapest), cheapest, rate.min(axis=1, keepdims=True))
    total = cheapest.sum()
    crossing = tables.price * tables.cross[:, None] / tau / total
    held = (tables.layer[:, :, REPLICATED] + tables.layer[:, :, SHARDED]).T
    dearness = _log(rate / cheapest)
    place = [
        dearness,
        _behind(dearness, 1),
        _behind(dearness, 2),
        _log(_suffix(rate) / _suffix(np.broadcast_to(cheapest, rate.shape))),
        _log(rate / total),
        _clip(cs / tau),
        _clip(ds / tau),
        _behind(_clip(cs / tau), 1),
        _behind(_clip(ds / tau), 1),
        _clip(_suffix(np.maximum(cs, ds)) / tau) / 2,
        _reach(cs / tau, ds / tau),
        _log((cp + _TINY) / (dp + _TINY)),
        np.broadcast_to(_log(tables.price / total), rate.shape),
        _log(crossing + _TINY),
        _before(_log(crossing + _TINY)),
        _log(np.maximum(units, 1.0) / np.maximum(tables.limit, 0.1)),
        _log((held + 1.0) / tables.memory),
        np.full(rate.shape, tables.fixed / (tables.fixed + total)),
    ]
    return Features(
        place=np.stack(place, axis=-1).astype(np.float32),
        layer=_of_layers(problem),
        serial=np.stack([_clip(cs / tau), _clip(ds / tau)], axis=-1).astype(np.float32),
        allowed=problem.allowed,
    )


def _log(ratio: Floats) -> Floats:
    clipped: Floats = np.clip(np.log(np.maximum(ratio, _TINY)), -8.0, 8.0) / 4
    return clipped


def _clip(fraction: Floats) -> Floats:
    return np.minimum(fraction, 2.0)


def _behind(values: Floats, steps: int) -> Floats:
    """The values of the layer that many steps behind; the last layer's where there is none."""
    return values[np.minimum(np.arange(len(values)) + steps, len(values) - 1)]


def _before(values: Floats) -> Floats:
    return np.concatenate([np.full_like(values[:1], -2.0), values[:-1]])


def _suffix(values: Floats) -> Floats:
    """Sums over the layer and all behind it."""
    return np.cumsum(values[::-1], axis=0)[::-1]


def _reach(compute: Floats, data: Floats) -> Floats:
    """The share of all layers that a stage beginning here can hold before its serial time is too long."""
    layers, kinds = compute.shape
    reach = np.zeros((layers, kinds))
    for first in range(layers):
        inside = (np.cumsum(compute[first:], axis=0) < 1.0) & (np.cumsum(data[first:], axis=0) < 1.0)
        reach[first] = inside.sum(axis=0) / layers
    return reach


def _of_layers(problem: Problem) -> NDArray[np.float32]:
    layers = len(problem.layers)
    rows = np.zeros((layers, LAYER), np.float32)
    rows[:, 0] = np.arange(layers) / layers
    rows[:, 1] = layers / 32
    for row, kind in enumerate(problem.kinds):
        rows[row, 2 + zlib.crc32(kind.encode()) % KINDS] = 1.0
    return rows
