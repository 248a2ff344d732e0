"""Which share of which batch a worker trains on next, in the modes without a common step.

Ticket t is share t % workers of global batch t // workers: the same examples as in mode sync. Workers take tickets in
order, each at its own pace, so a slow worker takes fewer and leaves no work undone. The first server holds the book.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NONE = -1


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
