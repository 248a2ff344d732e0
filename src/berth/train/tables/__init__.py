"""Sparse tables: rows by 64-bit key, created on first use, without collisions, larger than memory if needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.tables.admission import Admission
    from berth.train.tables.decay import DecayPolicy
    from berth.train.tables.hashing import shard_of
    from berth.train.tables.initialise import Initialiser
    from berth.train.tables.optimise import Optimiser, adagrad, adam, rowwise_adagrad, sgd
    from berth.train.tables.state import State, arrays_of, from_arrays, join, split
    from berth.train.tables.statistics import Statistics, shard_skew
    from berth.train.tables.table import Table

_HOMES = {
    "Admission": "admission",
    "DecayPolicy": "decay",
    "State": "state",
    "arrays_of": "state",
    "from_arrays": "state",
    "join": "state",
    "split": "state",
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
    "Admission",
    "DecayPolicy",
    "Initialiser",
    "Optimiser",
    "State",
    "Statistics",
    "Table",
    "adagrad",
    "adam",
    "arrays_of",
    "from_arrays",
    "join",
    "rowwise_adagrad",
    "sgd",
    "shard_of",
    "shard_skew",
    "split",
]

__getattr__ = exports(__name__, _HOMES)
