"""The reference for contention: jobs that share links, played iteration by iteration.

An iteration of a job is a silent part (the forward pass), then a backward pass that produces gradients in
buckets; a bucket is sent once it exists and the ones before it have left, and the iteration ends with the
backward pass or with the last bucket, whichever is later. Jobs that send at the same time share their links
max-min. Nothing else happens, nothing is random, and nothing is averaged: this is what the closed form of
`berth.network` is held against, so it shares no code with it.

When gradients appear follows from the profile's overlap y. With sending alone at a constant rate for C seconds
behind a backward pass of B, an iteration must take silent + (B^y + C^y)^(1/y), for every C. That holds just when
the share produced by time t is 1 - (1 - (t/B)^q)^(1/q) with 1/y + 1/q = 1: a straight line where all is hidden
(y infinite), everything at the very end where nothing is (y = 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

BUCKETS = 40


@dataclass(frozen=True)
class SharingJob:
    """One job: its iteration, and the load per byte sent on each link it crosses."""

    silent_s: float
    backward_s: float
    volume: float  # bytes per iteration
    peak: float  # bytes/s while no other job sends
    overlap: float
    weights: dict[int, float]  # by link

    def alone_s(self) -> float:
        """Return the seconds of one iteration while no other job sends, by the formula."""
        comm_s = self.volume / self.peak
        shared_s: float = (self.backward_s**self.overlap + comm_s**self.overlap) ** (1 / self.overlap)
        return self.silent_s + shared_s

    def produced_at(self, buckets: int) -> list[float]:
        """Return when each bucket exists, in seconds from the start of the iteration."""
        if self.overlap == 1:
            return [self.silent_s + self.backward_s] * buckets
        q = self.overlap / (self.overlap - 1)
        shares = [(number + 0.5) / buckets for number in range(buckets)]
        return [self.silent_s + self.backward_s * (1 - (1 - share) ** q) ** (1 / q) for share in shares]


def iteration_seconds(
    jobs: Sequence[SharingJob],
    capacity: Sequence[float],
    offsets: Sequence[float],
    *,
    iterations: int = 40,
    skip: int = 15,
    buckets: int = BUCKETS,
) -> list[float]:
    """Return each job's mean seconds per iteration, the first `skip` left out; job i starts at `offsets[i]`."""
    players = [_Player(job, offset, buckets) for job, offset in zip(jobs, offsets, strict=True)]
    now = 0.0
    known: dict[tuple[bool, ...], list[float]] = {}  # rates depend only on which jobs send
    while any(len(player.ends) <= iterations for player in players):
        sends = tuple(player.backlog > 0 for player in players)
        rates = known.get(sends) or known.setdefault(sends, max_min(jobs, capacity, sends))
        step = min(player.next_event(now, rate) for player, rate in zip(players, rates, strict=True))
        now += step
        for player, rate in zip(players, rates, strict=True):
            player.advance(now, step, rate)
    return [(p.ends[iterations] - p.ends[skip]) / (iterations - skip) for p in players]


def mean_slowdowns(
    jobs: Sequence[SharingJob], capacity: Sequence[float], offsets: int, **options: int
) -> list[float]:
    """Return each job's slowdown over running alone, the mean over a grid of offsets between the jobs."""
    alone = [iteration_seconds([job], capacity, [0.0], **options)[0] for job in jobs]
    totals = [0.0] * len(jobs)
    grid = list(itertools.product(range(offsets), repeat=len(jobs) - 1))
    for cell in grid:
        starts = [0.0]
        for number, place in enumerate(cell, start=1):
            starts.append((place + 0.5 * number) / offsets * alone[number])
        for i, seconds in enumerate(iteration_seconds(jobs, capacity, starts, **options)):
            totals[i] += seconds / alone[i]
    return [total / len(grid) for total in totals]


def max_min(jobs: Sequence[SharingJob], capacity: Sequence[float], sends: Sequence[bool]) -> list[float]:
    """Return the max-min fair rates of the jobs that send, 0 for the others: progressive filling."""
    rates = [0.0] * len(jobs)
    rising = {i for i, sending in enumerate(sends) if sending}
    while rising:
        limits = {i: jobs[i].peak for i in rising}
        for link, total in enumerate(capacity):
            weight = sum(jobs[i].weights.get(link, 0.0) for i in rising)
            used = sum(jobs[i].weights.get(link, 0.0) * rates[i] for i in range(len(jobs)) if i not in rising)
            for i in rising:
                if jobs[i].weights.get(link, 0.0) > 0:
                    limits[i] = min(limits[i], (total - used) / weight)
        level = min(limits.values())
        for i in [i for i, limit in limits.items() if limit <= level]:
            rates[i] = level
            rising.remove(i)
    return rates


class _Player:
    """A job in the middle of its iterations."""

    def __init__(self, job: SharingJob, start: float, buckets: int) -> None:
        self.job, self.begin = job, start
        self.produced_at = job.produced_at(buckets)
        self.bucket = job.volume / buckets
        self.made, self.backlog = 0, 0.0
        self.ends = [start]

    def next_event(self, now: float, rate: float) -> float:
        """Return the seconds until a bucket exists, the backlog has left, or the iteration ends."""
        if self.made < len(self.produced_at):
            ahead = self.begin + self.produced_at[self.made] - now
        elif self.backlog > 0:
            ahead = math.inf
        else:
            ahead = self.begin + self.job.silent_s + self.job.backward_s - now
        if self.backlog > 0:
            ahead = min(ahead, self.backlog / rate)
        return max(0.0, ahead)

    def advance(self, now: float, step: float, rate: float) -> None:
        """Let time pass: send, then produce, then perhaps begin again."""
        if self.backlog > 0:
            self.backlog -= rate * step
            if self.backlog < 1e-9 * self.bucket:
                self.backlog = 0.0
        while self.made < len(self.produced_at) and self.begin + self.produced_at[self.made] <= now:
            self.made += 1
            self.backlog += self.bucket
        over = self.begin + self.job.silent_s + self.job.backward_s <= now
        if over and self.made == len(self.produced_at) and self.backlog == 0:
            self.ends.append(now)
            self.begin, self.made = now, 0
