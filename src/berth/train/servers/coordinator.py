"""The run as a whole, in the modes without a common step: tickets, metrics, and workers that have finished.

A ticket says which share of which batch a worker trains on next. Ticket t is share t % workers of global batch
t // workers: the same examples as in mode sync. Workers take tickets in order, each at its own pace, so a slow worker
takes fewer and leaves no work undone. The first server holds the book, and answers all of these requests except
`RETIRE`, which goes to every server; no worker waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from berth.errors import WireError
from berth.train.servers.handlers import Request, Response, Worker, expect_arrays, filled_buffer
from berth.train.servers.protocol import Array, Flag, Kind
from berth.train.servers.shard import StepTracker

if TYPE_CHECKING:
    from berth.train.servers.server_pool import ServerPool

NONE = -1  # ticket, goal or end of the data
_FIRST = 0  # the server with the ticket book
_POSTED = 3  # arrays of a worker's metrics: scores, labels, losses


@dataclass(slots=True)
class TicketBook:
    """The tickets of a run: taken in order, completed in any."""

    workers: int
    next: int = 0  # not taken before
    completed: int = 0
    examples: int = 0  # of completed tickets
    taken: set[int] = field(default_factory=set)  # not completed
    returned: list[int] = field(default_factory=list)  # in flight when the checkpoint was taken, descending
    data_end: int | None = None  # the data has no ticket from here on
    stop_at: int | None = None  # a worker was asked to stop

    def begin(self, first: int, examples: int, undone: list[int]) -> None:
        """Start from a checkpoint: tickets below `first` are completed, except `undone`."""
        self.next, self.examples = first, examples
        self.returned = sorted(undone, reverse=True)
        self.completed = first - len(undone)
        self.taken, self.data_end, self.stop_at = set(), None, None

    def complete(self, ticket: int, examples: int) -> None:
        """Count a ticket; a second completion is ignored."""
        if ticket in self.taken:
            self.taken.discard(ticket)
            self.completed += 1
            self.examples += examples

    def end_data(self, ticket: int) -> None:
        """Note that the data ends before the batch of this ticket."""
        first = ticket - ticket % self.workers
        self.data_end = first if self.data_end is None else min(first, self.data_end)
        self.taken = {one for one in self.taken if one < self.data_end}
        self.returned = [one for one in self.returned if one < self.data_end]

    def stop(self) -> None:
        """Stop after the current global batch, so that the run ends between two batches."""
        if self.stop_at is None:
            self.stop_at = -(-self.next // self.workers) * self.workers

    def take(self, goal: int | None) -> int:
        """Return the next ticket below `goal`, or `NONE`."""
        if self.returned:
            ticket = self.returned.pop()
        else:
            ends = [end for end in (goal, self.data_end, self.stop_at) if end is not None]
            if ends and self.next >= min(ends):
                return NONE
            ticket = self.next
            self.next += 1
        self.taken.add(ticket)
        return ticket

    @property
    def first_untaken(self) -> int:
        """Return the first ticket that was never taken, up to the end of the data."""
        return self.next if self.data_end is None else min(self.next, self.data_end)

    @property
    def undone(self) -> list[int]:
        """Return the tickets in flight, ascending."""
        return sorted([*self.taken, *self.returned])


class RunHandlers:
    """A server's handlers of these requests: the ticket book, and the last metrics of each worker."""

    def __init__(self, tracker: StepTracker) -> None:
        self._tracker = tracker
        self._tickets = TicketBook(tracker.workers)
        self._takes: list[tuple[int, Array] | None] = [None] * tracker.workers  # in case a response is lost
        self._posted: list[list[Array]] = [[] for _ in range(tracker.workers)]

    def handle(self, worker: Worker, request: Request) -> Response:
        """Handle a request; returns its response."""
        return self.BY_KIND[request.frame.kind](self, worker, request)

    def _begin(self, worker: Worker, request: Request) -> Response:
        head, undone = expect_arrays(request.frame.arrays(), 2)
        first, examples = head.tolist()
        self._tickets.begin(first, examples, undone.tolist())
        return None, Flag.NONE

    def _take(self, worker: Worker, request: Request) -> Response:
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

    def _read_tickets(self, worker: Worker, request: Request) -> Response:
        book = self._tickets
        head = np.array([book.first_untaken, book.completed, book.examples], np.int64)
        return filled_buffer(request.port, [head, np.array(book.undone, np.int64)]), Flag.NONE

    def _post(self, worker: Worker, request: Request) -> Response:
        self._posted[worker.rank] = [array.copy() for array in expect_arrays(request.frame.arrays(), _POSTED)]
        return None, Flag.NONE

    def _collect(self, worker: Worker, request: Request) -> Response:
        """Return the metrics of all ranks; empty for a rank that posted none."""
        nothing = [np.empty(0, np.float32)] * _POSTED
        arrays = [array for posted in self._posted for array in posted or nothing]
        return filled_buffer(request.port, arrays), Flag.NONE

    def _retire(self, worker: Worker, request: Request) -> Response:
        self._tracker.retired[worker.rank] = True
        return None, Flag.NONE

    BY_KIND: ClassVar[dict[Kind, Callable[..., Response]]] = {
        Kind.BEGIN: _begin,
        Kind.TAKE: _take,
        Kind.TICKETS: _read_tickets,
        Kind.POST: _post,
        Kind.COLLECT: _collect,
        Kind.RETIRE: _retire,
    }


class Taken(NamedTuple):
    """Response to a request for a ticket, and the state of the run."""

    ticket: int | None
    completed: int  # tickets of all workers
    examples: int  # of completed tickets
    stopping: bool  # a worker was asked to stop


@dataclass(frozen=True, slots=True)
class RunPosition:
    """Which tickets of a run are completed: all below `first_untaken`, except `undone`."""

    first_untaken: int
    completed: int
    examples: int
    undone: list[int]


class _Trained(NamedTuple):
    """A ticket whose pushes were sent."""

    ticket: int
    examples: int
    requests: list[int]  # the last one to each server when its pushes were sent


class Coordinator:
    """Takes tickets, and exchanges metrics with rank 0, without waiting for other workers.

    A ticket is reported when its pushes have arrived on all servers: a checkpoint that calls it completed has its
    gradients. The first server executes the report after them anyway; the others have to acknowledge them.
    """

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self._unreported: list[_Trained] = []

    @property
    def unreported(self) -> int:
        """Return the number of own completed tickets that the first server does not know."""
        return len(self._unreported)

    def begin(self, first: int, examples: int, undone: Sequence[int]) -> None:
        """Set the tickets of the run; other workers must not take any before."""
        self._call(Kind.BEGIN, [np.array([first, examples], np.int64), np.array(undone, np.int64)])

    def complete(self, ticket: int, examples: int) -> None:
        """Count a ticket as trained; reported with the first request after all servers have its pushes."""
        requests = [connection.last_request for connection in self._pool]
        self._unreported.append(_Trained(ticket, examples, requests))

    def take(self, goal: int | None, *, stop: bool = False, report: bool = True) -> Taken:
        """Report completed tickets, unless `report` is false, and take the next one below `goal`."""
        return self._take(1, NONE if goal is None else goal, stop=stop, report=report)

    def end_data(self, ticket: int, *, report: bool = True) -> None:
        """Report that the data ends before this ticket, and completed tickets, unless `report` is false."""
        self._take(0, NONE, data_end=ticket, report=report)

    def report(self) -> Taken:
        """Report all completed tickets; own pushes must have arrived, or the next request be a lock of all servers."""
        return self._take(0, NONE, unacknowledged=True)

    def position(self) -> RunPosition:
        """Return which tickets are completed; allowed while this worker holds the lock."""
        head, undone = self._call(Kind.TICKETS)
        first_untaken, completed, examples = head.tolist()
        return RunPosition(first_untaken, completed, examples, undone.tolist())

    def post(self, arrays: Sequence[Array]) -> None:
        """Publish this worker's metrics; does not wait."""
        self._pool.wait_for_window(_FIRST)
        self._pool.send(_FIRST, Kind.POST, arrays)

    def collect(self) -> list[list[Array]]:
        """Return the last metrics of each rank."""
        arrays = self._call(Kind.COLLECT)
        return [arrays[start : start + _POSTED] for start in range(0, len(arrays), _POSTED)]

    def retire(self) -> None:
        """Take no more steps: other workers do not wait for this one."""
        self._pool.call_all(Kind.RETIRE)

    def _take(
        self,
        wanted: int,
        goal: int,
        *,
        data_end: int | None = None,
        stop: bool = False,
        report: bool = True,
        unacknowledged: bool = False,
    ) -> Taken:
        done: list[tuple[int, int]] = []
        while report and self._unreported and (unacknowledged or self._has_arrived(self._unreported[0])):
            ticket, examples, _ = self._unreported.pop(0)
            done.append((ticket, examples))
        head = np.array([wanted, goal, NONE if data_end is None else data_end, stop], np.int64)
        [response] = self._call(Kind.TAKE, [head, np.array(done, np.int64).reshape(-1, 2)])
        ticket, completed, examples, stopping = response.tolist()
        return Taken(None if ticket == NONE else ticket, completed, examples, bool(stopping))

    def _has_arrived(self, trained: _Trained) -> bool:
        """Whether no server can lock its tables before the pushes of a ticket whose report is sent now."""
        return all(
            shard == _FIRST or self._pool[shard].has_acknowledged(request)
            for shard, request in enumerate(trained.requests)
        )

    def _call(self, kind: Kind, arrays: Sequence[Array] | None = None) -> list[Array]:
        """Return copies of the arrays of a response."""
        frame = self._pool.response(_FIRST, self._pool.send(_FIRST, kind, arrays))
        received = [array.copy() for array in frame.arrays()] if len(frame.payload) else []
        self._pool[_FIRST].release(frame)
        return received
