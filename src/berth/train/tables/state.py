"""A table as plain arrays: to be saved, sent, split over another number of shards, and loaded.

Keys ascend, so the same table gives the same arrays whatever happened in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.train.tables.hashing import Keys, shard_of
from berth.train.tables.initialise import Floats


@dataclass(frozen=True, slots=True)
class State:
    """All of a table, or what changed since it was last saved."""

    whole: bool
    day: int
    keys: Keys
    records: Floats  # [key, weights + optimiser's state + life]
    removed: Keys  # since the last save; empty in a whole state
    waiting_keys: Keys  # not admitted yet
    waiting: NDArray[np.int32]  # what is known of them


_TOGETHER = (("keys", "records"), ("removed",), ("waiting_keys", "waiting"))


def split(state: State, shards: int) -> list[State]:
    """The parts of a state that belong to each of so many shards."""
    parts: list[dict[str, Any]] = [{} for _ in range(shards)]
    for names in _TOGETHER:
        owner = shard_of(getattr(state, names[0]), shards)
        for shard, part in enumerate(parts):
            part.update({name: getattr(state, name)[owner == shard] for name in names})
    return [replace(state, **part) for part in parts]


def join(states: Sequence[State]) -> State:
    """One state from those of all shards."""
    first = states[0]
    columns: dict[str, Any] = {}
    for names in _TOGETHER:
        order = np.argsort(np.concatenate([getattr(state, names[0]) for state in states]), kind="stable")
        for name in names:
            columns[name] = np.concatenate([getattr(state, name) for state in states])[order]
    return replace(first, day=max(state.day for state in states), **columns)


def arrays_of(state: State) -> dict[str, NDArray[np.generic]]:
    """The state as named arrays, as `numpy.savez` takes them."""
    return {field.name: np.asarray(getattr(state, field.name)) for field in fields(state)}


def from_arrays(arrays: dict[str, NDArray[np.generic]]) -> State:
    """The state that `arrays_of` was made from."""
    values: dict[str, Any] = {field.name: arrays[field.name] for field in fields(State)}
    return State(**{**values, "whole": bool(values["whole"]), "day": int(values["day"])})
