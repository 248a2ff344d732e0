"""What each kind of request does to the tables of a server, and what it is answered with."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from berth.errors import BerthError, InputError, WireError
from berth.train.faults import moment
from berth.train.servers.channel import Room
from berth.train.servers.codec import CODECS, decode, dtype_of, encode
from berth.train.servers.messages import Port, exactly, filled, head_of, next_of, state_arrays, state_of
from berth.train.servers.order import Order
from berth.train.servers.shard import Shard
from berth.train.servers.specs import from_json
from berth.train.servers.wire import Array, Flag, Frame, Kind, Layout, pack_json, read_json
from berth.train.sparse import TableSpec
from berth.train.tables import State

MOST_DEFERRED_BYTES = 1 << 30  # pushes of one worker that wait for the end of a step

_EXCLUSIVE = (Kind.PART, Kind.LET_GO, Kind.HOLD)


@dataclass(slots=True)
class Request:
    """A frame that waits to be done."""

    frame: Frame
    port: Port
    since_s: float
    at_day_end: bool = False


@dataclass(slots=True)
class Worker:
    """What a server knows of a rank, whatever becomes of its connection."""

    rank: int
    queue: deque[Request] = field(default_factory=deque)
    accepted: int = 0  # the last request that was taken; numbers begin at 1
    failed: dict[int, BerthError] = field(default_factory=dict)  # of the last: should the answer be lost
    step: int = 0  # as the worker counts them
    steps: deque[list[tuple[Any, ...]]] = field(default_factory=lambda: deque([[]]))  # deferred, by step
    deferred_bytes: int = 0


class Deeds:
    """The tables, and what workers have pushed that waits for the end of a step."""

    def __init__(
        self, shard: Shard, order: Order, workers: list[Worker], more_facts: Callable[[], dict[str, Any]]
    ) -> None:
        self.held_by: int | None = None  # the rank that saves the tables
        self._began_cpu_s = time.process_time()  # what starting took is not counted
        self._shard = shard
        self._order = order
        self._workers = workers
        self._more_facts = more_facts
        self._parts: Iterator[State] | None = None
        self._days = 0

    def do(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        """Do a request; payload and flags of the answer."""
        if self.held_by == worker.rank and request.frame.kind not in _EXCLUSIVE:
            raise InputError("a worker that is saving the tables does nothing else meanwhile")
        return self._BY_KIND[request.frame.kind](self, worker, request)

    def let_go(self) -> None:
        """Whoever saved the tables is done, or gone."""
        self.held_by, self._parts = None, None

    def _open(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        facts = read_json(exactly(request.frame.arrays(), 1)[0])
        if not isinstance(facts, list):
            raise WireError("tables are described in a list")
        numbers = self._shard.open([from_json(spec) for spec in facts])
        return filled(request.port, [np.array(numbers, np.int32)]), Flag.NONE

    def _pull(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        arrays = iter(request.frame.arrays())
        sections = []
        for number, code in head_of(arrays):
            spec = self._spec(number)
            keys = next_of(arrays, np.int64)
            times = next_of(arrays, np.int32) if spec.counts_pulls else None
            if times is not None and len(times) != len(keys):
                raise WireError("each key was asked for some number of times")
            sections.append((number, CODECS[code], keys, times, spec.dim))
        layout = Layout([(dtype_of(codec), (len(keys), dim)) for _, codec, keys, _, dim in sections])
        room = request.port.reserve(layout.length)
        for view, (number, codec, keys, times, dim) in zip(layout.views(room.payload), sections, strict=True):
            rows = view if codec == "fp32" else np.empty((len(keys), dim), np.float32)
            if request.frame.flags & Flag.PEEK:
                self._shard.peek(number, keys, rows)
            elif times is None:
                self._shard.pull(number, keys, rows)
            else:
                self._pull_counted(worker, request, number, keys, times, rows)
            if codec != "fp32":
                encode(codec, rows, view)
        return room, Flag.NONE

    def _pull_counted(
        self, worker: Worker, request: Request, number: int, keys: Array, times: Array, rows: Array
    ) -> None:
        """Where keys are admitted by count, those of a step are counted in the order of ranks."""
        if request.frame.flags & Flag.AGAIN:
            times = np.zeros_like(times)  # they were counted the first time
        if self._order.defers:
            self._defer(worker, ("ask", number, keys.copy(), times.copy()), keys.nbytes)
        else:
            self._shard.ask(number, keys, times)
        self._shard.pull(number, keys, rows, create=False)

    def _push(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        for number, keys, values, seen in self._pushed(request):
            if not self._order.defers:
                self._shard.push(number, keys, values, seen)
                continue
            kept = None if seen is None else seen.copy()
            self._defer(
                worker, ("push", number, keys.copy(), values.copy(), kept), keys.nbytes + values.nbytes
            )
        if request.frame.flags & Flag.END_STEP:
            self._end_step(worker)
        return None, Flag.NONE

    def _merge(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        for number, keys, values, _ in self._pushed(request):
            self._shard.merge(number, keys, values, 1.0 / self._order.workers)
        return None, Flag.NONE

    def _pushed(self, request: Request) -> list[tuple[int, Array, Array, Array | None]]:
        """The sections of a push, all of them checked before the first is done."""
        if not len(request.frame.payload):
            return []
        arrays, sections = iter(request.frame.arrays()), []
        for number, code in head_of(arrays):
            spec = self._spec(number)
            keys, values = next_of(arrays, np.int64), next(arrays, None)
            if (
                values is None
                or values.dtype != dtype_of(CODECS[code])
                or values.shape != (len(keys), spec.dim)
            ):
                raise WireError(f"{len(keys)} keys of table {spec.name!r} come with other values")
            seen = None
            if request.frame.kind == Kind.PUSH and spec.counts_clicks:
                seen = next_of(arrays, np.float32)
                if seen.shape != (len(keys), 2):
                    raise WireError("shows and clicks are two numbers for each key")
            sections.append((number, keys, decode(CODECS[code], values), seen))
        return sections

    def _defer(self, worker: Worker, deed: tuple[Any, ...], size: int) -> None:
        worker.deferred_bytes += size
        if worker.deferred_bytes > MOST_DEFERRED_BYTES:
            raise InputError(
                f"rank {worker.rank} has pushed {worker.deferred_bytes} bytes in steps that others have not ended",
                hint="call end_step after every step, or use fewer examples in a batch",
            )
        worker.steps[-1].append(deed)

    def _end_step(self, worker: Worker) -> None:
        moment("server: step ended")
        worker.steps.append([])
        if self._order.end_step(worker.rank) and self._order.defers:
            self._apply([deed for other in self._workers for deed in other.steps.popleft()])
            for other in self._workers:
                other.deferred_bytes = sum(
                    part.nbytes
                    for step in other.steps
                    for deed in step
                    for part in deed[2:]
                    if part is not None
                )
        elif not self._order.defers:
            worker.steps.popleft()

    def _apply(self, deeds: list[tuple[Any, ...]]) -> None:
        """A step of all ranks: a row learns once, from the sum of their gradients in the order of ranks."""
        pushed: dict[int, list[tuple[Any, ...]]] = {}
        for name, number, *arguments in deeds:
            if name == "ask":
                self._shard.ask(number, *arguments)
            else:
                pushed.setdefault(number, []).append(tuple(arguments))
        for number, parts in pushed.items():
            self._shard.push(number, *(_joined(column) for column in zip(*parts, strict=True)))

    def _warm(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        arrays = iter(request.frame.arrays())
        for number, _ in head_of(arrays):
            self._shard.warm(number, next_of(arrays, np.int64))
        return None, Flag.NONE

    def _end_day(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        if self._order.days[worker.rank] > self._days:
            self._days += 1
            self._shard.end_day()
        return None, Flag.NONE

    def _hold(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        self.held_by = worker.rank
        return None, Flag.NONE

    def _part(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        """The next part of a table; a request that names one begins it."""
        if self.held_by != worker.rank:
            raise InputError("tables are held before they are saved")
        if len(request.frame.payload):
            number = int(next_of(iter(request.frame.arrays()), np.int32)[0])
            changed_only = bool(request.frame.flags & Flag.CHANGED_ONLY)
            self._parts = self._shard.parts(number, changed_only=changed_only)
        part = next(self._parts, None) if self._parts else None
        return (None, Flag.LAST) if part is None else (filled(request.port, state_arrays(part)), Flag.NONE)

    def _let_go(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        self.let_go()
        return None, Flag.NONE

    def _load(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        head, *arrays = request.frame.arrays()
        self._shard.load(int(head[0]), state_of(exactly(arrays, 6)))
        return None, Flag.NONE

    def _statistics(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        shard = self._shard
        facts = {
            "tables": shard.statistics(),
            "cpu_s": time.process_time() - self._began_cpu_s,
            "keys_pulled": shard.keys_pulled,
            "keys_pushed": shard.keys_pushed,
            "steps": self._order.ended,
            **self._more_facts(),
        }
        return filled(request.port, [pack_json(facts)]), Flag.NONE

    def _spec(self, number: int) -> TableSpec:
        self._shard.table(number)
        return self._shard.specs[number]

    _BY_KIND: ClassVar[dict[Kind, Callable[..., tuple[Room | None, int]]]] = {
        Kind.OPEN: _open,
        Kind.PULL: _pull,
        Kind.PUSH: _push,
        Kind.MERGE: _merge,
        Kind.WARM: _warm,
        Kind.END_DAY: _end_day,
        Kind.HOLD: _hold,
        Kind.PART: _part,
        Kind.LET_GO: _let_go,
        Kind.LOAD: _load,
        Kind.STATISTICS: _statistics,
    }


def _joined(parts: tuple[Any, ...]) -> Any:
    """Arrays one behind the other; None where there are none."""
    if parts[0] is None:
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
