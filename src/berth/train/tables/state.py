"""A table as plain arrays, to save, send, reshard and load.

Keys ascend, so equal tables give equal arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.train.tables.hashing import Keys, shard_of
from berth.train.tables.initialise import Floats

PART_BYTES = 32 << 20  # rows of a table per message


@dataclass(frozen=True, slots=True)
class State:
    """A whole table, or its changes since the last save."""

    whole: bool
    day: int
    keys: Keys
    records: Floats  # [key, weights + optimiser state + decay columns]
    removed: Keys  # since the last save; empty in a whole state
    waiting_keys: Keys  # pending admission
    waiting: NDArray[np.int32]  # their counters


_TOGETHER = (("keys", "records"), ("removed",), ("waiting_keys", "waiting"))


def split(state: State, shards: int) -> list[State]:
    """Return the part of a state of each shard."""
    parts: list[dict[str, Any]] = [{} for _ in range(shards)]
    for names in _TOGETHER:
        owner = shard_of(getattr(state, names[0]), shards)
        for shard, part in enumerate(parts):
            part.update({name: getattr(state, name)[owner == shard] for name in names})
    return [replace(state, **part) for part in parts]


def join(states: Sequence[State]) -> State:
    """Return one state from those of all shards."""
    first = states[0]
    columns: dict[str, Any] = {}
    for names in _TOGETHER:
        order = np.argsort(np.concatenate([getattr(state, names[0]) for state in states]), kind="stable")
        for name in names:
            columns[name] = np.concatenate([getattr(state, name) for state in states])[order]
    return replace(first, day=max(state.day for state in states), **columns)


def split_state(state: State, max_bytes: int) -> Iterator[State]:
    """Yield parts of at most `max_bytes` of rows, in loading order; keys pending admission come last."""
    width = state.records.shape[1] if state.records.ndim == 2 else 1
    rows = max(max_bytes // (4 * width + 8), 1)
    starts = range(0, max(len(state.keys), 1), rows)
    for start in starts:
        piece, is_last = slice(start, start + rows), start == starts[-1]
        yield State(
            state.whole and not start,
            state.day,
            state.keys[piece],
            state.records[piece],
            state.removed if not start else state.removed[:0],
            state.waiting_keys if is_last else state.waiting_keys[:0],
            state.waiting if is_last else state.waiting[:0],
        )


def arrays_of(state: State) -> dict[str, NDArray[np.generic]]:
    """Return a state as named arrays."""
    return {field.name: np.asarray(getattr(state, field.name)) for field in fields(state)}


def from_arrays(arrays: dict[str, NDArray[np.generic]]) -> State:
    """Return the state in named arrays."""
    values: dict[str, Any] = {field.name: arrays[field.name] for field in fields(State)}
    return State(**{**values, "whole": bool(values["whole"]), "day": int(values["day"])})
