"""What a server does with requests: a queue for each worker, and the mode's rules for whose turn it is.

A worker's requests are done in the order they were made. The first of a queue may have to wait: for the end of a
step, for the end of a day, or while the tables are being saved. Nothing here knows of sockets or clocks, so a
test can play any interleaving by hand.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from berth.errors import BerthError, InputError, ServerError, WaitError, WireError
from berth.train.servers.channel import Room
from berth.train.servers.codec import CODECS, decode, dtype_of, encode
from berth.train.servers.messages import (
    SILENT,
    Port,
    error_facts,
    exactly,
    filled,
    head_of,
    next_of,
    state_arrays,
    state_of,
)
from berth.train.servers.order import Order
from berth.train.servers.shard import Shard
from berth.train.servers.specs import counts_pulls, from_json, sees_shows
from berth.train.servers.wire import Array, Flag, Frame, Kind, Layout, pack_json, read_json
from berth.train.tables import State

MOST_DEFERRED_BYTES = 1 << 30  # pushes of one worker that wait for the end of a step
MOST_QUEUED = 256  # requests of one worker

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
    step: int = 0  # as the worker counts them
    steps: deque[list[tuple[Any, ...]]] = field(default_factory=lambda: deque([[]]))  # deferred, by step
    deferred_bytes: int = 0


class Desk:
    """All requests of all workers."""

    def __init__(self, shard: Shard, order: Order, more_facts: Callable[[], dict[str, Any]] = dict) -> None:
        self.shard = shard
        self.more_facts = more_facts  # for the statistics
        self.order = order
        self.workers = [Worker(rank) for rank in range(order.workers)]
        self._held_by: int | None = None
        self._parts: Iterator[State] | None = None
        self._days = 0

    def submit(self, rank: int, frame: Frame, port: Port, now_s: float) -> None:
        """Take a request; one that was taken before is not done a second time."""
        worker = self.workers[rank]
        if frame.request <= worker.accepted:
            self._repeated(worker, frame, port)
            return
        if len(worker.queue) >= MOST_QUEUED:
            raise WireError(f"rank {rank} has {MOST_QUEUED} requests waiting and sends more")
        worker.accepted = frame.request
        worker.step = frame.step
        worker.queue.append(Request(frame, port, now_s))

    def run(self, now_s: float) -> None:
        """Do all that can be done, in the order of ranks."""
        moved = True
        while moved:
            moved = False
            for worker in self.workers:
                while worker.queue and not self._missing(worker):
                    request = worker.queue.popleft()
                    self._do(worker, request)
                    if worker.queue:
                        worker.queue[0].since_s = now_s
                    moved = True

    def waits_since_s(self) -> float | None:
        """Since when the longest waiting worker waits."""
        return min((worker.queue[0].since_s for worker in self.workers if worker.queue), default=None)

    def give_up(self, before_s: float, known: dict[int, str]) -> None:
        """Answer those who wait since before then that they wait in vain, and for whom; `known` is about them."""
        for worker in self.workers:
            if worker.queue and worker.queue[0].since_s <= before_s:
                request = worker.queue.popleft()
                missing = self._missing_for(worker, request)
                names = ", ".join(f"rank {rank} ({known.get(rank, 'never seen')})" for rank in missing)
                what = f"step {request.frame.step} of rank {worker.rank} waits in vain for {names}"
                _answer_error(request, WaitError(what))

    def lost(self, rank: int, port: Port) -> None:
        """A connection is gone: pulls that wait are asked anew, pushes stay, tables are let go."""
        worker = self.workers[rank]
        for request in list(worker.queue):
            if request.port is port:
                request.port = _NOWHERE
        if self._held_by == rank:
            self._let_go()

    def _missing(self, worker: Worker) -> list[int]:
        request = worker.queue[0]
        if request.frame.kind == Kind.END_DAY and not request.at_day_end:
            request.at_day_end = True
            self.order.end_day(worker.rank)
        return self._missing_for(worker, request)

    def _missing_for(self, worker: Worker, request: Request) -> list[int]:
        """The ranks a request waits for: none if it may be done."""
        if self._held_by is not None and self._held_by != worker.rank:
            return [self._held_by]
        kind = request.frame.kind
        if kind in (Kind.PULL, Kind.HOLD):
            return self.order.missing_for_pull(worker.rank)
        if kind == Kind.END_DAY:
            return self.order.missing_for_pull(worker.rank) or self.order.missing_for_day(worker.rank)
        return []

    def _repeated(self, worker: Worker, frame: Frame, port: Port) -> None:
        for request in worker.queue:
            if request.frame.request == frame.request:
                request.port = port
                return
        if frame.kind == Kind.PULL:
            frame.flags |= Flag.AGAIN
            self._do(worker, Request(frame, port, 0.0))
        elif frame.kind in (Kind.PUSH, Kind.MERGE, Kind.END_DAY, Kind.LOAD, Kind.WARM):
            port.send(Kind.DONE, frame.request)
        else:
            _answer_error(
                Request(frame, port, 0.0), ServerError("the connection broke while the tables were saved")
            )
            port.release(frame)

    def _do(self, worker: Worker, request: Request) -> None:
        """Do a request and answer it; what is wrong with it is told to the worker."""
        try:
            if self._held_by == worker.rank and request.frame.kind not in _EXCLUSIVE:
                raise InputError("a worker that is saving the tables does nothing else meanwhile")
            room, flags = self._DEEDS[request.frame.kind](self, worker, request)
            if request.frame.kind not in SILENT or request.frame.flags & Flag.CONFIRM:
                request.port.send(Kind.DONE, request.frame.request, room, flags=flags)
        except BerthError as error:
            _answer_error(request, error)
        except Exception as error:  # noqa: BLE001 - a bug must not take all other workers down
            traceback.print_exc()
            _answer_error(request, ServerError(f"the server stumbled: {type(error).__name__}: {error}"))
        request.port.release(request.frame)

    def _open(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        facts = read_json(exactly(request.frame.arrays(), 1)[0])
        if not isinstance(facts, list):
            raise WireError("tables are described in a list")
        numbers = self.shard.open([from_json(spec) for spec in facts])
        return filled(request.port, [np.array(numbers, np.int32)]), Flag.NONE

    def _pull(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        arrays = iter(request.frame.arrays())
        sections = []
        for number, code in head_of(arrays):
            spec = self._spec(number)
            keys = next_of(arrays, np.int64)
            times = next_of(arrays, np.int32) if counts_pulls(spec) else None
            if times is not None and len(times) != len(keys):
                raise WireError("each key was asked for some number of times")
            sections.append((number, CODECS[code], keys, times, spec.dim))
        layout = Layout([(dtype_of(codec), (len(keys), dim)) for _, codec, keys, _, dim in sections])
        room = request.port.reserve(layout.length)
        for view, (number, codec, keys, times, dim) in zip(layout.views(room.payload), sections, strict=True):
            rows = view if codec == "fp32" else np.empty((len(keys), dim), np.float32)
            if times is None:
                self.shard.pull(number, keys, rows)
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
        if self.order.defers:
            self._defer(worker, ("ask", number, keys.copy(), times.copy()), keys.nbytes)
        else:
            self.shard.ask(number, keys, times)
        self.shard.pull(number, keys, rows, create=False)

    def _push(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        for number, keys, values, seen in self._pushed(request):
            if not self.order.defers:
                self.shard.push(number, keys, values, seen)
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
            self.shard.merge(number, keys, values, 1.0 / self.order.workers)
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
            if request.frame.kind == Kind.PUSH and sees_shows(spec):
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
        worker.steps.append([])
        if self.order.end_step(worker.rank) and self.order.defers:
            for other in self.workers:
                self._apply(other.steps.popleft())
                other.deferred_bytes = sum(
                    part.nbytes
                    for step in other.steps
                    for deed in step
                    for part in deed[2:]
                    if part is not None
                )
        elif not self.order.defers:
            worker.steps.popleft()

    def _apply(self, deeds: list[tuple[Any, ...]]) -> None:
        for name, *arguments in deeds:
            if name == "ask":
                self.shard.ask(*arguments)
            else:
                self.shard.push(*arguments)

    def _warm(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        arrays = iter(request.frame.arrays())
        for number, _ in head_of(arrays):
            self.shard.warm(number, next_of(arrays, np.int64))
        return None, Flag.NONE

    def _end_day(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        if self.order.days[worker.rank] > self._days:
            self._days += 1
            self.shard.end_day()
        return None, Flag.NONE

    def _hold(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        self._held_by = worker.rank
        return None, Flag.NONE

    def _part(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        """The next part of a table; a request that names one begins it."""
        if self._held_by != worker.rank:
            raise InputError("tables are held before they are saved")
        if len(request.frame.payload):
            number = int(next_of(iter(request.frame.arrays()), np.int32)[0])
            changed_only = bool(request.frame.flags & Flag.CHANGED_ONLY)
            self._parts = self.shard.parts(number, changed_only=changed_only)
        part = next(self._parts, None) if self._parts else None
        return (None, Flag.LAST) if part is None else (filled(request.port, state_arrays(part)), Flag.NONE)

    def _let_go(
        self, worker: Worker | None = None, request: Request | None = None
    ) -> tuple[Room | None, int]:
        self._held_by, self._parts = None, None
        return None, Flag.NONE

    def _load(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        head, *arrays = request.frame.arrays()
        self.shard.load(int(head[0]), state_of(exactly(arrays, 6)))
        return None, Flag.NONE

    def _statistics(self, worker: Worker, request: Request) -> tuple[Room | None, int]:
        shard = self.shard
        facts = {
            "tables": shard.statistics(),
            "keys_pulled": shard.keys_pulled,
            "keys_pushed": shard.keys_pushed,
            "steps": self.order.ended,
            **self.more_facts(),
        }
        return filled(request.port, [pack_json(facts)]), Flag.NONE

    def _spec(self, number: int) -> Any:
        self.shard.table(number)
        return self.shard.specs[number]

    _DEEDS: ClassVar[dict[Kind, Callable[..., tuple[Room | None, int]]]] = {
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


class _Nowhere:
    """The port of a worker whose connection is gone."""

    def reserve(self, length: int) -> Room:
        return Room(np.empty(length, np.uint8))

    def send(
        self, kind: Kind, request: int, room: Room | None = None, *, flags: int = Flag.NONE, step: int = 0
    ) -> None:
        pass

    def release(self, frame: Frame) -> None:
        pass


_NOWHERE = _Nowhere()


def _answer_error(request: Request, error: BerthError) -> None:
    room = filled(request.port, [pack_json(error_facts(error))])
    request.port.send(Kind.ERROR, request.frame.request, room)
