"""Counters of a table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class Counts:
    """Cumulative counters."""

    pulled: int = 0  # keys, duplicates included
    missed: int = 0  # unique keys pulled whose record was not in memory
    pushed: int = 0
    pushed_distinct: int = 0
    created: int = 0  # rows created
    refused: int = 0  # keys not admitted
    dropped: int = 0  # gradients of keys without a row
    removed: int = 0


_COUNTED = tuple(field.name for field in fields(Counts))


@dataclass(frozen=True, slots=True)
class Statistics:
    """State and counters of a table."""

    rows: int
    hot_rows: int
    memory_bytes: int
    cold_bytes: int
    counts: Counts
    fetched: int  # records loaded from the cold tier
    evicted: int  # records written to it

    @property
    def hit_rate(self) -> float:
        """Return the share of pulled keys whose record was in memory; new ones are misses."""
        return 1.0 - self.counts.missed / self.counts.pulled if self.counts.pulled else 1.0

    @property
    def skew(self) -> float:
        """Return keys pushed per unique key of a batch."""
        return self.counts.pushed / self.counts.pushed_distinct if self.counts.pushed_distinct else 1.0

    @property
    def bytes_per_row(self) -> float:
        """Return memory and disk per row."""
        return (self.memory_bytes + self.cold_bytes) / self.rows if self.rows else 0.0


def shard_skew(asked: list[int]) -> float:
    """Return the load of the busiest shard relative to the mean."""
    return max(asked) * len(asked) / sum(asked) if sum(asked) else 1.0


def table_totals(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of one table over all shards."""
    totals: dict[str, Any] = {name: sum(facts[name] for facts in shards) for name in shards[0]}
    counts = {name: totals.pop(name) for name in _COUNTED}
    taken = totals["memory_bytes"] + totals["cold_bytes"]
    return {
        **totals,
        "counts": counts,
        "hit_rate": 1 - counts["missed"] / counts["pulled"] if counts["pulled"] else 1.0,
        "skew": counts["pushed"] / counts["pushed_distinct"] if counts["pushed_distinct"] else 1.0,
        "bytes_per_row": taken / totals["rows"] if totals["rows"] else 0.0,
    }
