"""What frames say beyond arrays: parts of tables, errors, the sections of a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from berth.errors import BerthError, InputError, RefusedError, ServerError, WaitError, WireError
from berth.train.servers.channel import Room
from berth.train.servers.codec import CODECS
from berth.train.servers.wire import Array, Flag, Frame, Kind, Layout
from berth.train.tables import State


class Port(Protocol):
    """Where answers go."""

    def reserve(self, length: int) -> Room:
        """Memory for an answer."""
        ...

    def send(
        self, kind: Kind, request: int, room: Room | None = None, *, flags: int = Flag.NONE, step: int = 0
    ) -> None:
        """An answer; lost if the worker is gone."""
        ...

    def release(self, frame: Frame) -> None:
        """A request is no longer needed."""
        ...


PART_BYTES = 32 << 20  # of rows of a table that are saved or loaded at once
SILENT = (Kind.PUSH, Kind.MERGE, Kind.WARM)  # answered only if something is wrong, or on request
_STATE_KINDS = "".join(np.dtype(kind).char for kind in ("i8", "i8", "f4", "i8", "i8", "i4"))


def state_arrays(state: State) -> list[Array]:
    """A part of a table as it travels."""
    day = np.array([state.whole, state.day], np.int64)
    return [day, state.keys, state.records, state.removed, state.waiting_keys, state.waiting]


def state_of(arrays: list[Array]) -> State:
    """The part that `state_arrays` was made from; copied, as the frame's memory is used again."""
    day, keys, records, removed, waiting_keys, waiting = (array.copy() for array in arrays)
    if "".join(array.dtype.char for array in arrays) != _STATE_KINDS or len(day) != 2:
        raise WireError("these arrays are not a part of a table")
    if records.ndim != 2 or len(records) != len(keys) or len(waiting) != len(waiting_keys):
        raise WireError("the columns of a table's part differ in length")
    return State(bool(day[0]), int(day[1]), keys, records, removed, waiting_keys, waiting)


def cut(state: State, most_bytes: int) -> Iterator[State]:
    """Parts whose rows take at most so many bytes, to be loaded in this order; those who wait come last."""
    width = state.records.shape[1] if state.records.ndim == 2 else 1
    rows = max(most_bytes // (4 * width + 8), 1)
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


def error_facts(error: BerthError) -> dict[str, str]:
    """An error as it travels."""
    return {"kind": type(error).__name__, "what": str(error)}


def error_of(facts: dict[str, str]) -> BerthError:
    """The error that a server has told."""
    known = (InputError, RefusedError, WaitError, WireError)
    kind = {kind.__name__: kind for kind in known}.get(facts.get("kind", ""), ServerError)
    return kind(facts.get("what", "something went wrong there"))


def filled(port: Port, arrays: list[Array]) -> Room:
    """Arrays copied into memory for an answer."""
    layout = Layout([(array.dtype, array.shape) for array in arrays])
    room = port.reserve(layout.length)
    for view, array in zip(layout.views(room.payload), arrays, strict=True):
        view[...] = array
    return room


def head_of(arrays: Iterator[Array]) -> list[list[int]]:
    """(table, codec) of each section."""
    head = next_of(arrays, np.int32)
    if head.ndim != 2 or head.shape[1] != 2:
        raise WireError("the sections of a request are not told as table and codec")
    sections: list[list[int]] = head.tolist()
    for _, code in sections:
        if not 0 <= code < len(CODECS):
            raise WireError(f"rows travel in no codec {code}")
    return sections


def next_of(arrays: Iterator[Array], dtype: type[np.generic]) -> Array:
    """The next array, which is of this kind."""
    array = next(arrays, None)
    if array is None or array.dtype != dtype:
        raise WireError(f"a request lacks an array of {np.dtype(dtype).name}")
    return array


def exactly(arrays: list[Array], count: int) -> list[Array]:
    """So many arrays and no more."""
    if len(arrays) != count:
        raise WireError(f"{count} arrays were expected, {len(arrays)} came")
    return arrays
