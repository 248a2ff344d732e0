"""Synchronisation modes: when pushes take effect, and how far workers may drift apart.

| mode | pushes take effect | a worker's next pull waits until |
|---|---|---|
| sync | when all workers have ended the step, in rank order | all workers have ended the step |
| half-async | on arrival | it can't get more than `staleness` steps ahead of the slowest |
| async | on arrival | never |
| geo | every few steps, as differences of rows | never |
"""

from __future__ import annotations

from typing import Literal, get_args

from berth.errors import InputError, UnknownNameError

Mode = Literal["sync", "async", "half-async", "geo"]

MODES: tuple[Mode, ...] = get_args(Mode)


class StepTracker:
    """Tracks how many steps and days each worker has ended."""

    def __init__(self, mode: Mode, workers: int, staleness: int = 0) -> None:
        if mode not in MODES:
            raise UnknownNameError("mode", mode, MODES)
        if workers < 1 or staleness < 0:
            raise InputError(
                f"need at least 1 worker and a staleness of at least 0, got {workers} and {staleness}"
            )
        self.mode: Mode = mode
        self.workers = workers
        self.staleness = staleness if mode == "half-async" else 0
        self.ended = [0] * workers  # steps of each rank
        self.days = [0] * workers
        self.retired = [False] * workers  # take no more steps: no other rank waits for them

    @property
    def defers(self) -> bool:
        """Whether pushes wait for the end of the step; never with one worker."""
        return self.mode == "sync" and self.workers > 1

    def end_step(self, rank: int) -> bool:
        """Count a step of a worker; returns whether it was the last to end that step."""
        slowest = min(self.ended)
        self.retired[rank] = False
        self.ended[rank] += 1
        return min(self.ended) > slowest

    def missing_for_pull(self, rank: int) -> list[int]:
        """Return the ranks that a worker's pull waits for."""
        if self.mode not in ("sync", "half-async"):
            return []
        need = self.ended[rank] - max(self.staleness - 1, 0)  # the step after the pull counts, too
        return [
            other for other in range(self.workers) if self.ended[other] < need and not self.retired[other]
        ]

    def end_day(self, rank: int) -> None:
        """Count a day of a worker."""
        self.days[rank] += 1

    def missing_for_day(self, rank: int) -> list[int]:
        """Return the ranks that a worker at the end of its day waits for; only in mode sync, days end together."""
        if self.mode != "sync":
            return []
        return [other for other in range(self.workers) if self.days[other] < self.days[rank]]
