"""A worker's requests about the run as a whole: tickets and metrics, on the first server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from berth.train.servers.protocol import Array, Kind
from berth.train.servers.run_handlers import POSTED
from berth.train.servers.server_pool import ServerPool
from berth.train.servers.tickets import NONE

_FIRST = 0  # the server with the ticket book


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
        return [arrays[start : start + POSTED] for start in range(0, len(arrays), POSTED)]

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
