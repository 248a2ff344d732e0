"""Records of a table by key, for a cache above it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.train.tables import decay as decay_rules
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY
from berth.train.tables.initialise import Floats
from berth.train.tables.table import Table


def has_rows(table: Table, keys: Keys) -> NDArray[np.bool_]:
    """Return which keys have a row, in memory or in a file."""
    return table.store.index.find(keys)[0] != EMPTY


def read_records(table: Table, keys: Keys, columns: int) -> Floats:
    """Return the first columns of the records of keys that have one: weights, then optimiser state."""
    out = np.empty((len(keys), columns), np.float32)
    for part in table.store.pieces(len(keys)):
        table.store.rows.read_weights(table.store.locate(keys[part])[0], out[part])
    return out


def write_records(table: Table, keys: Keys, records: Floats) -> None:
    """Replace the first columns of the records of keys that have one."""
    rows = table.store.rows
    for part in table.store.pieces(len(keys)):
        places = table.store.locate(keys[part])[0]
        rows.data.reshape(-1, rows.width)[places, : records.shape[1]] = records[part]
        rows.changed[places] = 1


def add_views(table: Table, keys: Keys, views: Floats) -> None:
    """Add shows and clicks, [n, 2], to unique keys that have a row, and note that they were used today."""
    assert table.decay is not None
    rows = table.store.rows
    for part in table.store.pieces(len(keys)):
        places = table.store.locate(keys[part])[0]
        flat = np.ascontiguousarray(views[part]).reshape(-1)
        decay_rules.add_views(
            rows.data, rows.width, places, flat, float(table.day), table.decay.decay_per_day
        )
        rows.changed[places] = 1
