"""What a server does with requests: a queue for each worker, and the mode's rules for whose turn it is.

A worker's requests are done in the order they were made. The first of a queue may have to wait: for the end of a
step, for the end of a day, or while the tables are being saved. Nothing here knows of sockets or clocks, so a
test can play any interleaving by hand.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from berth.errors import BerthError, ServerError, WaitError, WireError
from berth.train.servers.channel import Room
from berth.train.servers.deeds import Deeds, Request, Worker
from berth.train.servers.messages import SILENT, Port, error_facts, filled
from berth.train.servers.order import Order
from berth.train.servers.shard import Shard
from berth.train.servers.wire import Flag, Frame, Kind, pack_json

MOST_QUEUED = 256  # requests of one worker
_HARMLESS = (Kind.PULL, Kind.OPEN, Kind.STATISTICS)  # if they are done twice


class Desk:
    """All requests of all workers."""

    def __init__(self, shard: Shard, order: Order, more_facts: Callable[[], dict[str, Any]] = dict) -> None:
        self.shard = shard
        self.order = order
        self.workers = [Worker(rank) for rank in range(order.workers)]
        self._deeds = Deeds(shard, order, self.workers, more_facts)

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
                request.port.release(request.frame)

    def lost(self, rank: int, port: Port) -> None:
        """A connection is gone: pulls that wait are asked anew, pushes stay, tables are let go."""
        worker = self.workers[rank]
        for request in list(worker.queue):
            if request.port is port:
                request.port = _NOWHERE
        if self._deeds.held_by == rank:
            self._deeds.let_go()

    def _missing(self, worker: Worker) -> list[int]:
        request = worker.queue[0]
        if request.frame.kind == Kind.END_DAY and not request.at_day_end:
            request.at_day_end = True
            self.order.end_day(worker.rank)
        return self._missing_for(worker, request)

    def _missing_for(self, worker: Worker, request: Request) -> list[int]:
        """The ranks a request waits for: none if it may be done."""
        if self._deeds.held_by not in (None, worker.rank):
            return [self._deeds.held_by]
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
        if frame.request in worker.failed:
            _answer_error(Request(frame, port, 0.0), worker.failed[frame.request])
        elif frame.kind in _HARMLESS:
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
            room, flags = self._deeds.do(worker, request)
            if request.frame.kind not in SILENT or request.frame.flags & Flag.CONFIRM:
                request.port.send(Kind.DONE, request.frame.request, room, flags=flags)
        except BerthError as error:
            _fail(worker, request, error)
        except Exception as error:  # noqa: BLE001 - a bug must not take all other workers down
            traceback.print_exc()
            _fail(worker, request, ServerError(f"the server stumbled: {type(error).__name__}: {error}"))
        request.port.release(request.frame)


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


def _fail(worker: Worker, request: Request, error: BerthError) -> None:
    """Tell the worker, and tell it again if it asks again: a push that was refused must not pass for done."""
    worker.failed[request.frame.request] = error
    if len(worker.failed) > MOST_QUEUED:
        del worker.failed[next(iter(worker.failed))]
    _answer_error(request, error)


def _answer_error(request: Request, error: BerthError) -> None:
    room = filled(request.port, [pack_json(error_facts(error))])
    request.port.send(Kind.ERROR, request.frame.request, room)
