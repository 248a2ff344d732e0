"""What a table has been asked for, and how well it was prepared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Numbers that only grow."""

    pulled: int = 0  # keys, duplicates included
    missed: int = 0  # distinct keys pulled whose record was not in memory
    pushed: int = 0
    pushed_distinct: int = 0
    created: int = 0  # rows made on first touch
    refused: int = 0  # keys asked for that were not admitted
    dropped: int = 0  # gradients of keys without a row
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """A table at one moment."""

    rows: int
    hot_rows: int
    memory_bytes: int
    cold_bytes: int
    counts: Counts
    fetched: int  # records brought back from the cold tier
    evicted: int  # records written to it

    @property
    def hit_rate(self) -> float:
        """Share of pulled keys whose record was in memory (new ones count as misses)."""
        return 1.0 - self.counts.missed / self.counts.pulled if self.counts.pulled else 1.0

    @property
    def skew(self) -> float:
        """Keys pushed for each distinct key of a batch: 1 is none, Zipf's many."""
        return self.counts.pushed / self.counts.pushed_distinct if self.counts.pushed_distinct else 1.0

    @property
    def bytes_per_row(self) -> float:
        """Memory and disk taken for each row."""
        return (self.memory_bytes + self.cold_bytes) / self.rows if self.rows else 0.0


def shard_skew(asked: list[int]) -> float:
    """How much more keys the busiest shard was asked for than the mean one."""
    return max(asked) * len(asked) / sum(asked) if sum(asked) else 1.0
