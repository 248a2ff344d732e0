"""Bad rows of a trace: counts by cause, and the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from berth.workload.trace import BadRow, BadRows

SHOWN = 10


class BadRowCollector:
    """Collects bad rows while a trace is read."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: list[BadRow] = []

    def add(self, count: int, rows: Iterable[BadRow]) -> None:
        """Add `count` rows of one cause; only the first of `rows` (in order of lines) are used."""
        if not count:
            return
        shown = list(islice(rows, SHOWN))
        cause = f"{shown[0].field}: {shown[0].reason}" if shown[0].field else shown[0].reason
        self._counts[cause] = self._counts.get(cause, 0) + count
        self._first = sorted([*self._first, *shown], key=lambda row: row.line)[:SHOWN]

    def summary(self) -> BadRows:
        """Return the counts, most frequent cause first."""
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return BadRows(dict(ranked), tuple(self._first))
