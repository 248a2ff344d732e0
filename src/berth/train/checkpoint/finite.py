"""Rows that became NaN or infinite: a checkpoint with such rows is not written, so that the last good one is kept."""

from __future__ import annotations

import numpy as np

from berth.train.tables import State


class NotFiniteError(ArithmeticError):
    """Rows to be saved have weights that are NaN or infinite."""


def check_rows(table: str, state: State, dim: int) -> None:
    """Raise `NotFiniteError` if a weight is NaN or infinite; the optimiser state beside the weights may be."""
    if not state.records.size:
        return
    good = np.isfinite(state.records[:, :dim]).all(axis=1)
    if not good.all():
        key = int(state.keys[int(np.argmin(good))])
        raise NotFiniteError(f"rows of table {table} are not finite, for example that of key {key}")
