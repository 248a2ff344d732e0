"""Sparse tables: rows by 64-bit key, made on first touch, that grow without collisions and beyond memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.tables.hashing import shard_of
    from berth.train.tables.initialise import Initialiser
    from berth.train.tables.optimise import Optimiser, adagrad, adam, rowwise_adagrad, sgd
    from berth.train.tables.statistics import Statistics, shard_skew
    from berth.train.tables.table import Table

_HOMES = {
    "Initialiser": "initialise",
    "Optimiser": "optimise",
    "Statistics": "statistics",
    "Table": "table",
    "adagrad": "optimise",
    "adam": "optimise",
    "rowwise_adagrad": "optimise",
    "sgd": "optimise",
    "shard_of": "hashing",
    "shard_skew": "statistics",
}

__all__ = [
    "Initialiser",
    "Optimiser",
    "Statistics",
    "Table",
    "adagrad",
    "adam",
    "rowwise_adagrad",
    "sgd",
    "shard_of",
    "shard_skew",
]

__getattr__ = exports(__name__, _HOMES)
