"""Request queues of a server, one per worker, and the rules that decide which request may run.

The requests of a worker run in order. The head of a queue may have to wait for the end of a step, for the end of a day,
or while the tables are being saved. This module uses neither sockets nor clocks, so tests can play any interleaving.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from berth.errors import BerthError, ServerError, WaitError, WireError
from berth.train.servers.coordinator import RunHandlers
from berth.train.servers.handlers import Handlers, Port, Request, Worker, filled_buffer
from berth.train.servers.protocol import (
    UNACKNOWLEDGED,
    Flag,
    Frame,
    Kind,
    error_to_json,
    pack_json,
)
from berth.train.servers.shard import Shard, StepTracker
from berth.train.servers.transport import PayloadBuffer

MAX_QUEUED = 256  # requests of one worker
_IDEMPOTENT = (  # safe to repeat
    Kind.PULL, Kind.OPEN, Kind.STATISTICS, Kind.BEGIN, Kind.TAKE, Kind.TICKETS, Kind.COLLECT, Kind.RETIRE, Kind.PROBE,
)  # fmt: skip


class RequestQueue:
    """The requests of all workers."""

    def __init__(
        self, shard: Shard, tracker: StepTracker, extra_statistics: Callable[[], dict[str, Any]] = dict
    ) -> None:
        self.shard = shard
        self.tracker = tracker
        self.workers = [Worker(rank) for rank in range(tracker.workers)]
        self._handlers = Handlers(shard, tracker, self.workers, extra_statistics)
        self._run_handlers = RunHandlers(tracker)

    def submit(self, rank: int, frame: Frame, port: Port, now_s: float) -> None:
        """Enqueue a request; a retry of an accepted request is not executed again."""
        worker = self.workers[rank]
        if frame.request <= worker.accepted:
            self._handle_retry(worker, frame, port)
            return
        if len(worker.queue) >= MAX_QUEUED:
            raise WireError(f"rank {rank} sent more than {MAX_QUEUED} requests without waiting")
        worker.accepted = frame.request
        worker.step = frame.step
        worker.queue.append(Request(frame, port, now_s))

    def run(self, now_s: float) -> None:
        """Execute everything that may run, in rank order."""
        moved = True
        while moved:
            moved = False
            for worker in self.workers:
                while worker.queue and not self._missing(worker):
                    request = worker.queue.popleft()
                    self._execute(worker, request)
                    if worker.queue:
                        worker.queue[0].waiting_since_s = now_s
                    moved = True

    def oldest_wait_s(self) -> float | None:
        """Return the time since which the longest-waiting worker waits, or None."""
        return min((worker.queue[0].waiting_since_s for worker in self.workers if worker.queue), default=None)

    def expire(self, before_s: float, status: dict[int, str]) -> None:
        """Fail requests that have waited since `before_s`; the error names the ranks waited for and their `status`."""
        for worker in self.workers:
            if worker.queue and worker.queue[0].waiting_since_s <= before_s:
                request = worker.queue.popleft()
                missing = self._missing_for(worker, request)
                names = ", ".join(f"rank {rank} ({status.get(rank, 'never seen')})" for rank in missing)
                what = f"step {request.frame.step} of rank {worker.rank} timed out waiting for {names}"
                _answer_error(request, WaitError(what))
                request.port.release(request.frame)

    def lost(self, rank: int, port: Port) -> None:
        """Handle a lost connection: queued requests stay, their responses are discarded, a lock is released."""
        worker = self.workers[rank]
        for request in list(worker.queue):
            if request.port is port:
                request.port = _DISCARD
        if self._handlers.locked_by == rank:
            self._handlers.unlock()

    def _missing(self, worker: Worker) -> list[int]:
        request = worker.queue[0]
        if request.frame.kind == Kind.END_DAY and not request.at_day_end:
            request.at_day_end = True
            self.tracker.end_day(worker.rank)
        return self._missing_for(worker, request)

    def _missing_for(self, worker: Worker, request: Request) -> list[int]:
        """Return the ranks that a request waits for; empty if it may run."""
        if self._handlers.locked_by not in (None, worker.rank):
            return [self._handlers.locked_by]
        kind = request.frame.kind
        if kind == Kind.PULL or (kind == Kind.LOCK and self.tracker.mode == "sync"):
            return self.tracker.missing_for_pull(worker.rank)
        if kind == Kind.END_DAY:
            return self.tracker.missing_for_pull(worker.rank) or self.tracker.missing_for_day(worker.rank)
        return []

    def _handle_retry(self, worker: Worker, frame: Frame, port: Port) -> None:
        for request in worker.queue:
            if request.frame.request == frame.request:
                request.port = port
                return
        if frame.request in worker.failed:
            _answer_error(Request(frame, port, 0.0), worker.failed[frame.request])
        elif frame.kind in _IDEMPOTENT:
            frame.flags |= Flag.RETRY
            self._execute(worker, Request(frame, port, 0.0))
        elif frame.kind in (Kind.PUSH, Kind.MERGE, Kind.END_DAY, Kind.LOAD, Kind.PREFETCH, Kind.POST):
            port.send(Kind.DONE, frame.request)
        else:
            _answer_error(
                Request(frame, port, 0.0),
                ServerError("the connection was lost while the tables were being saved"),
            )
            port.release(frame)

    def _execute(self, worker: Worker, request: Request) -> None:
        """Execute a request and send the response or the error."""
        try:
            about_run = request.frame.kind in RunHandlers.BY_KIND
            handlers = self._run_handlers if about_run else self._handlers
            buffer, flags = handlers.handle(worker, request)
            if request.frame.kind not in UNACKNOWLEDGED or request.frame.flags & Flag.CONFIRM:
                request.port.send(Kind.DONE, request.frame.request, buffer, flags=flags)
        except BerthError as error:
            _fail(worker, request, error)
        except Exception as error:  # noqa: BLE001 - a bug must not take all other workers down
            traceback.print_exc()
            _fail(worker, request, ServerError(f"internal server error: {type(error).__name__}: {error}"))
        request.port.release(request.frame)


class _DiscardPort:
    """The port of a worker whose connection is lost."""

    def reserve(self, length: int) -> PayloadBuffer:
        return PayloadBuffer(np.empty(length, np.uint8))

    def send(
        self,
        kind: Kind,
        request: int,
        buffer: PayloadBuffer | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
    ) -> None:
        pass

    def release(self, frame: Frame) -> None:
        pass


_DISCARD = _DiscardPort()


def _fail(worker: Worker, request: Request, error: BerthError) -> None:
    """Send the error, and remember it for retries: a rejected push must not count as applied."""
    worker.failed[request.frame.request] = error
    if len(worker.failed) > MAX_QUEUED:
        del worker.failed[next(iter(worker.failed))]
    _answer_error(request, error)


def _answer_error(request: Request, error: BerthError) -> None:
    buffer = filled_buffer(request.port, [pack_json(error_to_json(error))])
    request.port.send(Kind.ERROR, request.frame.request, buffer)
