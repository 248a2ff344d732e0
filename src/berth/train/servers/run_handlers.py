"""Handlers of requests about the run as a whole: tickets, metrics, and workers that have finished.

Only the modes without a common step use them, so that no worker waits for another. The first server answers all of
them except `RETIRE`, which goes to every server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from berth.errors import WireError
from berth.train.servers.handlers import Request, Worker, expect_arrays, filled_buffer
from berth.train.servers.protocol import Array, Flag, Kind
from berth.train.servers.sync_mode import StepTracker
from berth.train.servers.tickets import NONE, TicketBook
from berth.train.servers.transport import PayloadBuffer

POSTED = 3  # arrays of a worker's metrics: scores, labels, losses


class RunHandlers:
    """The ticket book, and the last metrics of each worker."""

    def __init__(self, tracker: StepTracker) -> None:
        self._tracker = tracker
        self._tickets = TicketBook(tracker.workers)
        self._takes: list[tuple[int, Array] | None] = [None] * tracker.workers  # in case a response is lost
        self._posted: list[list[Array]] = [[] for _ in range(tracker.workers)]

    def handle(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        """Handle a request; returns payload and flags of the response."""
        return self.BY_KIND[request.frame.kind](self, worker, request)

    def _begin(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        head, undone = expect_arrays(request.frame.arrays(), 2)
        first, examples = head.tolist()
        self._tickets.begin(first, examples, undone.tolist())
        return None, Flag.NONE

    def _take(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        """Complete tickets and take the next one; a retry gets the same response."""
        last = self._takes[worker.rank]
        if last is not None and request.frame.flags & Flag.RETRY and last[0] == request.frame.request:
            return filled_buffer(request.port, [last[1]]), Flag.NONE
        head, done = expect_arrays(request.frame.arrays(), 2)
        if head.shape != (4,) or done.ndim != 2 or done.shape[1] != 2:
            raise WireError("a ticket request needs 4 numbers and pairs of ticket and examples")
        wanted, goal, data_end, stop = head.tolist()
        tickets = self._tickets
        for ticket, examples in done.tolist():
            tickets.complete(ticket, examples)
        if data_end != NONE:
            tickets.end_data(data_end)
        if stop:
            tickets.stop()
        ticket = tickets.take(goal if goal != NONE else None) if wanted else NONE
        stopping = tickets.stop_at is not None
        response = np.array([ticket, tickets.completed, tickets.examples, stopping], np.int64)
        self._takes[worker.rank] = request.frame.request, response
        return filled_buffer(request.port, [response]), Flag.NONE

    def _read_tickets(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        book = self._tickets
        head = np.array([book.first_untaken, book.completed, book.examples], np.int64)
        return filled_buffer(request.port, [head, np.array(book.undone, np.int64)]), Flag.NONE

    def _post(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        self._posted[worker.rank] = [array.copy() for array in expect_arrays(request.frame.arrays(), POSTED)]
        return None, Flag.NONE

    def _collect(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        """Return the metrics of all ranks; empty for a rank that posted none."""
        nothing = [np.empty(0, np.float32)] * POSTED
        arrays = [array for posted in self._posted for array in posted or nothing]
        return filled_buffer(request.port, arrays), Flag.NONE

    def _retire(self, worker: Worker, request: Request) -> tuple[PayloadBuffer | None, int]:
        self._tracker.retired[worker.rank] = True
        return None, Flag.NONE

    BY_KIND: ClassVar[dict[Kind, Callable[..., tuple[PayloadBuffer | None, int]]]] = {
        Kind.BEGIN: _begin,
        Kind.TAKE: _take,
        Kind.TICKETS: _read_tickets,
        Kind.POST: _post,
        Kind.COLLECT: _collect,
        Kind.RETIRE: _retire,
    }
