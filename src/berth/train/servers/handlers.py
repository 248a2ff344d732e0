"""Handlers of a server's requests: what each does to the tables, and its response."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from berth.errors import BerthError, InputError, WireError
from berth.train.fault_points import fault_point
from berth.train.servers.protocol import (
    CODECS,
    Array,
    Flag,
    Frame,
    Kind,
    Layout,
    copy_arrays,
    decode,
    dtype_of,
    encode,
    layout_of,
    pack_json,
    read_json,
    state_from_arrays,
    state_to_arrays,
)
from berth.train.servers.shard import Shard, StepTracker
from berth.train.servers.transport import PayloadBuffer
from berth.train.shards.files import can_write
from berth.train.shards.shard_save import ShardSave
from berth.train.sparse import TableSpec
from berth.train.tables import State
from berth.train.tables.optimise import NUMBERS

MAX_DEFERRED_BYTES = 1 << 30  # pushes of one worker that wait for the end of the step

Response = tuple[PayloadBuffer | None, int]  # payload and flags

_EXCLUSIVE = (Kind.PART, Kind.UNLOCK, Kind.LOCK, Kind.PROBE, Kind.SAVE)


class Port(Protocol):
    """Where responses are sent."""

    def reserve(self, length: int) -> PayloadBuffer:
        """Return memory for a response."""
        ...

    def send(
        self,
        kind: Kind,
        request: int,
        buffer: PayloadBuffer | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
    ) -> None:
        """Send a response; it is lost if the connection is closed."""
        ...

    def release(self, frame: Frame) -> None:
        """Release the memory of a request."""
        ...


@dataclass(slots=True)
class Request:
    """A request that waits to be handled."""

    frame: Frame
    port: Port
    waiting_since_s: float
    at_day_end: bool = False


@dataclass(slots=True)
class Worker:
    """The server's state of one rank; it survives reconnects."""

    rank: int
    queue: deque[Request] = field(default_factory=deque)
    accepted: int = 0  # the last accepted request; numbers start at 1
    failed: dict[int, BerthError] = field(default_factory=dict)  # kept in case a response is lost
    step: int = 0  # as reported by the worker
    steps: deque[list[tuple[Any, ...]]] = field(default_factory=lambda: deque([[]]))  # deferred, by step
    deferred_bytes: int = 0


class Handlers:
    """The tables, and the pushes that wait for the end of a step."""

    def __init__(
        self,
        shard: Shard,
        tracker: StepTracker,
        workers: list[Worker],
        extra_statistics: Callable[[], dict[str, Any]],
    ) -> None:
        self.locked_by: int | None = None  # the rank that is saving the tables
        self._began_cpu_s = time.process_time()  # excludes startup
        self._shard = shard
        self._tracker = tracker
        self._workers = workers
        self._extra_statistics = extra_statistics
        self._parts: Iterator[State] | None = None
        self._days = 0

    def handle(self, worker: Worker, request: Request) -> Response:
        """Handle a request; returns its response."""
        if self.locked_by == worker.rank and request.frame.kind not in _EXCLUSIVE:
            raise InputError("a worker that is saving the tables can't send other requests")
        return self._BY_KIND[request.frame.kind](self, worker, request)

    def unlock(self) -> None:
        """Release the lock of the rank that saved the tables."""
        self.locked_by, self._parts = None, None
        if self._shard.save is not None and self._shard.save.streamed:
            self._shard.save.cancel()  # the worker was lost: rows must not change under the thread

    def _open(self, worker: Worker, request: Request) -> Response:
        documents = read_json(expect_arrays(request.frame.arrays(), 1)[0])
        if not isinstance(documents, list):
            raise WireError("invalid table description: expected a list of tables")
        try:
            specs = [TableSpec.from_json(document) for document in documents]
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"invalid table description: {error}") from error
        numbers = self._shard.open(specs)
        return filled_buffer(request.port, [np.array(numbers, np.int32)]), Flag.NONE

    def _pull(self, worker: Worker, request: Request) -> Response:
        arrays = iter(request.frame.arrays())
        if request.frame.flags & Flag.RECORDS:
            return self._pull_records(request, arrays)
        sections = []
        for number, code in read_sections(arrays):
            spec = self._spec(number)
            keys = next_array(arrays, np.int64)
            times = next_array(arrays, np.int32) if spec.counts_pulls else None
            if times is not None and len(times) != len(keys):
                raise WireError("a counted pull needs one count per key")
            sections.append((number, CODECS[code], keys, times, spec.dim))
        layout = Layout([(dtype_of(codec), (len(keys), dim)) for _, codec, keys, _, dim in sections])
        buffer = request.port.reserve(layout.length)
        for view, (number, codec, keys, times, dim) in zip(
            layout.views(buffer.payload), sections, strict=True
        ):
            rows = view if codec == "fp32" else np.empty((len(keys), dim), np.float32)
            if request.frame.flags & Flag.PEEK:
                self._shard.peek(number, keys, rows)
            elif times is None:
                self._shard.pull(number, keys, rows)
            else:
                self._pull_counted(worker, request, number, keys, times, rows)
            if codec != "fp32":
                encode(codec, rows, view)
        return buffer, Flag.NONE

    def _pull_records(self, request: Request, arrays: Iterator[Array]) -> Response:
        [[number, _]] = read_sections(arrays)
        keys, width = next_array(arrays, np.int64), self._shard.table(number).width
        layout = Layout([(np.dtype(np.float32), (len(keys), width))])
        buffer = request.port.reserve(layout.length)
        self._shard.records(number, keys, layout.views(buffer.payload)[0])
        return buffer, Flag.NONE

    def _pull_counted(
        self, worker: Worker, request: Request, number: int, keys: Array, times: Array, rows: Array
    ) -> None:
        """Pull from a table with admission by count: the keys of a step are counted in rank order."""
        if request.frame.flags & Flag.RETRY:
            times = np.zeros_like(times)  # already counted
        if self._tracker.defers:
            self._defer(worker, ("count", number, keys.copy(), times.copy()), keys.nbytes)
        else:
            self._shard.count_requests(number, keys, times)
        self._shard.pull(number, keys, rows, create=False)

    def _push(self, worker: Worker, request: Request) -> Response:
        for number, keys, values, views in self._pushed(request):
            if not self._tracker.defers:
                self._shard.push(number, keys, values, views)
                continue
            kept = None if views is None else views.copy()
            self._defer(
                worker, ("push", number, keys.copy(), values.copy(), kept), keys.nbytes + values.nbytes
            )
        if request.frame.flags & Flag.END_STEP:
            self._end_step(worker)
        return None, Flag.NONE

    def _merge(self, worker: Worker, request: Request) -> Response:
        for number, keys, values, state in self._pushed(request):
            self._shard.merge(number, keys, values, state, 1.0 / self._tracker.workers)
        return None, Flag.NONE

    def _pushed(self, request: Request) -> list[tuple[int, Array, Array, Array | None]]:
        """Return the sections of a push; all are checked before the first is applied."""
        if not len(request.frame.payload):
            return []
        arrays, sections = iter(request.frame.arrays()), []
        for number, code in read_sections(arrays):
            spec = self._spec(number)
            keys, values = next_array(arrays, np.int64), next(arrays, None)
            if (
                values is None
                or values.dtype != dtype_of(CODECS[code])
                or values.shape != (len(keys), spec.dim)
            ):
                raise WireError(f"table {spec.name!r}: values do not match {len(keys)} keys")
            views = None
            if request.frame.kind == Kind.PUSH and spec.counts_clicks:
                views = next_array(arrays, np.float32)
                if views.shape != (len(keys), 2):
                    raise WireError("shows and clicks must be two numbers per key")
            elif request.frame.kind == Kind.PUSH and spec.is_dense:
                views = next_array(arrays, np.float32)
                if views.shape != (NUMBERS,):
                    raise WireError("gradients of dense weights need the settings of their optimiser")
            elif request.frame.kind == Kind.MERGE and not spec.is_dense:
                views = self._merged_state(number, keys, arrays)
            sections.append((number, keys, decode(CODECS[code], values), views))
        return sections

    def _merged_state(self, number: int, keys: Array, arrays: Iterator[Array]) -> Array | None:
        """Return the changes of the optimiser state that a merge carries, if the table has such a state."""
        table = self._shard.table(number)
        if table.width == table.dim:
            return None
        state = next_array(arrays, np.float32)
        if state.shape != (len(keys), table.width - table.dim):
            raise WireError(f"the optimiser state does not match {len(keys)} keys")
        return state

    def _defer(self, worker: Worker, operation: tuple[Any, ...], size: int) -> None:
        worker.deferred_bytes += size
        if worker.deferred_bytes > MAX_DEFERRED_BYTES:
            raise InputError(
                f"rank {worker.rank} pushed {worker.deferred_bytes} bytes in steps that other ranks have not ended",
                hint="call end_step after every step, or use fewer examples in a batch",
            )
        worker.steps[-1].append(operation)

    def _end_step(self, worker: Worker) -> None:
        fault_point("server: step ended")
        worker.steps.append([])
        if self._tracker.end_step(worker.rank) and self._tracker.defers:
            self._apply([operation for other in self._workers for operation in other.steps.popleft()])
            for other in self._workers:
                other.deferred_bytes = sum(
                    part.nbytes
                    for step in other.steps
                    for operation in step
                    for part in operation[2:]
                    if part is not None
                )
        elif not self._tracker.defers:
            worker.steps.popleft()

    def _apply(self, operations: list[tuple[Any, ...]]) -> None:
        """Apply one step of all ranks: each row is updated once, with the gradients summed in rank order."""
        pushed: dict[int, list[tuple[Any, ...]]] = {}
        for name, number, *arguments in operations:
            if name == "count":
                self._shard.count_requests(number, *arguments)
            else:
                pushed.setdefault(number, []).append(tuple(arguments))
        for number, parts in pushed.items():
            self._shard.push(number, *(_concatenate(column) for column in zip(*parts, strict=True)))

    def _prefetch(self, worker: Worker, request: Request) -> Response:
        arrays = iter(request.frame.arrays())
        for number, _ in read_sections(arrays):
            self._shard.prefetch(number, next_array(arrays, np.int64))
        return None, Flag.NONE

    def _end_day(self, worker: Worker, request: Request) -> Response:
        if self._tracker.days[worker.rank] > self._days:
            self._days += 1
            self._shard.end_day()
        return None, Flag.NONE

    def _lock(self, worker: Worker, request: Request) -> Response:
        self.locked_by = worker.rank
        return None, Flag.NONE

    def _part(self, worker: Worker, request: Request) -> Response:
        """Return the next part of a table; a request with a payload starts a new table."""
        if self.locked_by != worker.rank:
            raise InputError("tables must be locked before they are saved")
        if len(request.frame.payload):
            number = int(next_array(iter(request.frame.arrays()), np.int32)[0])
            changed_only = bool(request.frame.flags & Flag.CHANGED_ONLY)
            self._parts = self._shard.parts(number, changed_only=changed_only)
        part = next(self._parts, None) if self._parts else None
        return (
            (None, Flag.LAST)
            if part is None
            else (filled_buffer(request.port, state_to_arrays(part)), Flag.NONE)
        )

    def _unlock(self, worker: Worker, request: Request) -> Response:
        self.unlock()
        return None, Flag.NONE

    def _probe(self, worker: Worker, request: Request) -> Response:
        wanted = read_json(expect_arrays(request.frame.arrays(), 1)[0])
        return filled_buffer(request.port, [pack_json(can_write(wanted))]), Flag.NONE

    def _save(self, worker: Worker, request: Request) -> Response:
        """Start writing the tables to files; returns the error of the system, if there is one."""
        if self.locked_by != worker.rank:
            raise InputError("tables must be locked before they are saved")
        if self._shard.save is not None:
            self._shard.save.cancel()
        failed = None
        try:
            self._shard.save = ShardSave(self._shard, read_json(expect_arrays(request.frame.arrays(), 1)[0]))
        except OSError as error:
            failed = [error.errno, error.strerror]
        return filled_buffer(request.port, [pack_json(failed)]), Flag.NONE

    def _load(self, worker: Worker, request: Request) -> Response:
        head, *arrays = request.frame.arrays()
        self._shard.load(int(head[0]), state_from_arrays(expect_arrays(arrays, 6)))
        return None, Flag.NONE

    def _statistics(self, worker: Worker, request: Request) -> Response:
        shard = self._shard
        facts = {
            "tables": shard.statistics(),
            "cpu_s": time.process_time() - self._began_cpu_s,
            "keys_pulled": shard.keys_pulled,
            "keys_pushed": shard.keys_pushed,
            "steps": self._tracker.ended,
            **self._extra_statistics(),
        }
        return filled_buffer(request.port, [pack_json(facts)]), Flag.NONE

    def _spec(self, number: int) -> TableSpec:
        self._shard.table(number)
        return self._shard.specs[number]

    _BY_KIND: ClassVar[dict[Kind, Callable[..., Response]]] = {
        Kind.OPEN: _open,
        Kind.PULL: _pull,
        Kind.PUSH: _push,
        Kind.MERGE: _merge,
        Kind.PREFETCH: _prefetch,
        Kind.END_DAY: _end_day,
        Kind.LOCK: _lock,
        Kind.PART: _part,
        Kind.UNLOCK: _unlock,
        Kind.LOAD: _load,
        Kind.PROBE: _probe,
        Kind.SAVE: _save,
        Kind.STATISTICS: _statistics,
    }


def _concatenate(parts: tuple[Any, ...]) -> Any:
    """Return the concatenated arrays, or None if there are none."""
    if parts[0] is None:
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def filled_buffer(port: Port, arrays: list[Array]) -> PayloadBuffer:
    """Return a response buffer with copies of the arrays."""
    layout = layout_of(arrays)
    buffer = port.reserve(layout.length)
    copy_arrays(arrays, layout.views(buffer.payload))
    return buffer


def read_sections(arrays: Iterator[Array]) -> list[list[int]]:
    """Return (table, codec) of each section of a request."""
    head = next_array(arrays, np.int32)
    if head.ndim != 2 or head.shape[1] != 2:
        raise WireError("section header must be pairs of table and codec")
    sections: list[list[int]] = head.tolist()
    for _, code in sections:
        if not 0 <= code < len(CODECS):
            raise WireError(f"unknown codec {code}")
    return sections


def next_array(arrays: Iterator[Array], dtype: type[np.generic]) -> Array:
    """Return the next array, checking its type."""
    array = next(arrays, None)
    if array is None or array.dtype != dtype:
        raise WireError(f"request lacks an array of {np.dtype(dtype).name}")
    return array


def expect_arrays(arrays: list[Array], count: int) -> list[Array]:
    """Return the arrays if there are exactly `count`."""
    if len(arrays) != count:
        raise WireError(f"expected {count} arrays, got {len(arrays)}")
    return arrays
