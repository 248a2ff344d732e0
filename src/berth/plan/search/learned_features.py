"""The input features of the learned policy: dimensionless, so that it transfers to other problems.

Everything is relative to the problem itself: times to the slowest stage time allowed, prices to the cost of the whole
model with every layer on its cheapest type. Features describe a layer on a type, never the index of a type: the policy
works for any number of types and layers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.plan.problem import (
    COMPUTE,
    EXCHANGE,
    HELD_BYTES,
    IN,
    OPTIMISER_S,
    OUT,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
    Problem,
)

Floats = NDArray[np.float64]

PLACE = 18  # features of a layer on a type
KINDS = 8  # bins for the kinds of layers, by a hash of their name
LAYER = 2 + KINDS  # features of a layer
_TINY = 1e-30
_RING = 8  # replicas whose all-reduce the features show


@dataclass(frozen=True, slots=True)
class Features:
    """Arrays by layer and type; `serial` and `allowed` follow the stage that a plan is building."""

    place: NDArray[np.float32]  # [layer, type, PLACE]
    layer: NDArray[np.float32]  # [layer, LAYER]
    serial: NDArray[np.float32]  # [layer, type, 2]: serial computation and data, relative to tau
    allowed: NDArray[np.bool_]  # [layer, type]


def features(problem: Problem) -> Features:
    """Return the features of a problem."""
    arrays = problem.arrays
    tau = arrays.slowest
    layers = _layers_on_types(problem)
    cs, cp, ds, dp = layers.compute_serial, layers.compute_shared, layers.data_serial, layers.data_shared
    replicas, rate = layers.replicas, layers.usd_per_hour
    cheapest = np.where(problem.allowed, rate, np.inf).min(axis=1, keepdims=True)
    cheapest = np.where(np.isfinite(cheapest), cheapest, rate.min(axis=1, keepdims=True))
    total = cheapest.sum()
    crossing = arrays.price * layers.cross_s / tau / total
    held = layers.held_bytes
    relative_cost = _log(rate / cheapest)
    place = [
        relative_cost,
        _following(relative_cost, 1),
        _following(relative_cost, 2),
        _log(_suffix(rate) / _suffix(np.broadcast_to(cheapest, rate.shape))),
        _log(rate / total),
        _clip(cs / tau),
        _clip(ds / tau),
        _following(_clip(cs / tau), 1),
        _following(_clip(ds / tau), 1),
        _clip(_suffix(np.maximum(cs, ds)) / tau) / 2,
        _reach(cs / tau, ds / tau),
        _log((cp + _TINY) / (dp + _TINY)),
        np.broadcast_to(_log(arrays.price / total), rate.shape),
        _log(crossing + _TINY),
        _before(_log(crossing + _TINY)),
        _log(np.maximum(replicas, 1.0) / np.maximum(arrays.limit, 0.1)),
        _log((held + 1.0) / arrays.memory),
        np.full(rate.shape, arrays.fixed / (arrays.fixed + total)),
    ]
    return Features(
        place=np.stack(place, axis=-1).astype(np.float32),
        layer=_of_layers(problem),
        serial=np.stack([_clip(cs / tau), _clip(ds / tau)], axis=-1).astype(np.float32),
        allowed=problem.allowed,
    )


@dataclass(frozen=True, slots=True)
class LayersOnTypes:
    """Each layer alone on each type, with its cheapest place for tables: [layer, type], seconds of one step."""

    compute_serial: Floats  # what remains however many replicas share the batch
    compute_shared: Floats
    data_serial: Floats
    data_shared: Floats
    cross_s: Floats
    held_bytes: Floats
    replicas: Floats  # fractional, at the longest step allowed
    usd_per_hour: Floats  # of these replicas and their servers


def _layers_on_types(problem: Problem) -> LayersOnTypes:
    arrays, facts = problem.arrays, problem.facts
    tau, devices = arrays.slowest, arrays.type_of
    none, whole = problem.curves[..., 0], _at_batch(problem)
    ring = _ring_s(problem)
    cs = none[:, :, COMPUTE] + facts[:, :, OPTIMISER_S]
    cp = whole[:, :, COMPUTE] - none[:, :, COMPUTE]
    ds = np.maximum(none[:, :, IN], none[:, :, OUT]) + none[:, :, EXCHANGE]
    dp = np.maximum(whole[:, :, IN], whole[:, :, OUT]) + whole[:, :, EXCHANGE] - ds
    ds = ds + ring
    replicas = np.maximum(cp / np.maximum(tau - cs, 1e-3 * tau), dp / np.maximum(tau - ds, 1e-3 * tau))
    served = facts[:, :, SERVED_BYTES]
    load = np.maximum(whole[:, :, SERVER_CPU], whole[:, :, SERVER_NIC]) / tau
    servers = np.where(served > 0, np.maximum(load, served / arrays.host_memory), 0.0)
    rate = arrays.price[devices][:, None] * replicas + arrays.host_price * servers + _TINY
    cross = problem.cross.max(axis=2) * problem.batch
    cross = cross + np.where(cross > 0, arrays.message[:, :1], 0.0)
    held = facts[:, :, HELD_BYTES] + facts[:, :, SHARDED_BYTES]
    best = np.stack(  # [layer, type]: the row of the cheapest choice
        [
            np.flatnonzero(devices == device)[rate[devices == device].argmin(axis=0)]
            for device in range(len(problem.types))
        ],
        axis=1,
    )
    rows = np.arange(len(problem.layers))[:, None]
    return LayersOnTypes(*(one[best, rows] for one in (cs, cp, ds, dp, cross, held, replicas, rate)))


def _at_batch(problem: Problem) -> Floats:
    """Return the curves for a call of the whole batch, [choice, layer, curve]; the last slope continues."""
    grid, curves = problem.grid, problem.curves
    point = int(np.clip(np.searchsorted(grid, problem.batch, "right") - 1, 0, len(grid) - 2))
    share = (problem.batch - grid[point]) / (grid[point + 1] - grid[point])
    at: Floats = curves[..., point] + (curves[..., point + 1] - curves[..., point]) * share
    return at


def _ring_s(problem: Problem) -> Floats:
    """Return the seconds of an all-reduce of each layer among a few replicas, [choice, layer]."""
    arrays = problem.arrays
    row = min(_RING, arrays.ring.shape[2] - 1)
    per_byte, once = arrays.ring[arrays.type_of, 0, row], arrays.ring[arrays.type_of, 1, row]
    synced = problem.facts[:, :, SYNC_BYTES]
    seconds: Floats = np.where(synced > 0, synced * per_byte[:, None] + once[:, None], 0.0)
    return seconds


def _log(ratio: Floats) -> Floats:
    clipped: Floats = np.clip(np.log(np.maximum(ratio, _TINY)), -8.0, 8.0) / 4
    return clipped


def _clip(fraction: Floats) -> Floats:
    return np.minimum(fraction, 2.0)


def _following(values: Floats, steps: int) -> Floats:
    """Return the values of the layer `steps` later; the last layer's if there is none."""
    return values[np.minimum(np.arange(len(values)) + steps, len(values) - 1)]


def _before(values: Floats) -> Floats:
    return np.concatenate([np.full_like(values[:1], -2.0), values[:-1]])


def _suffix(values: Floats) -> Floats:
    """Return the sums over the layer and all later ones."""
    return np.cumsum(values[::-1], axis=0)[::-1]


def _reach(compute: Floats, data: Floats) -> Floats:
    """Return the share of layers that a stage starting here can hold before its serial time is too long."""
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
