"""Headers of exchanges: what every rank does in this one, and how many keys it sends to each other rank.

All ranks of a group make the same calls in the same order, so the headers of an exchange must agree. A rank that has
nothing more to look up (`SERVE`) agrees with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from berth.errors import InputError
from berth.train.resident.exchange import Exchange, Numbers

COLUMNS = 4  # of each table


class Call(IntEnum):
    """What a rank does in an exchange."""

    PULL = 1
    PEEK = 2
    STEP = 3
    SERVE = 4


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of all ranks, as this one received them."""

    calls: list[Call]
    tables: list[int]  # which one a rank looks up
    flags: list[int]
    numbers: Numbers  # [rank, table, column]

    def column(self, table: int, column: int) -> list[int]:
        """Return a number of every rank."""
        found: list[int] = self.numbers[:, table, column].tolist()
        return found

    def any_flag(self, flag: int) -> bool:
        """Return whether a rank has set a flag."""
        return any(flags & flag for flags in self.flags)

    @property
    def looked_up(self) -> int | None:
        """Return the table that ranks look up, None if all of them serve."""
        pairs = zip(self.calls, self.tables, strict=True)
        return next((table for call, table in pairs if call != Call.SERVE), None)


def exchange_headers(
    exchange: Exchange, call: Call, names: Sequence[str], numbers: Numbers, *, table: int = 0, flags: int = 0
) -> Headers:
    """Send this rank's header, with `numbers` of [rank, table, column], to all; raises if theirs do not agree."""
    sent = np.empty((exchange.size, 3 + numbers[0].size), np.int64)
    sent[:, :3] = call, table, flags
    sent[:, 3:] = numbers.reshape(exchange.size, -1)
    received = exchange.numbers(sent)
    headers = Headers(
        [Call(one) for one in received[:, 0].tolist()],
        received[:, 1].tolist(),
        received[:, 2].tolist(),
        received[:, 3:].reshape(numbers.shape),
    )
    _check(headers, names)
    return headers


def no_numbers(exchange: Exchange, names: Sequence[str]) -> Numbers:
    """Return zeros of [rank, table, column]."""
    return np.zeros((exchange.size, max(1, len(names)), COLUMNS), np.int64)


def _check(headers: Headers, names: Sequence[str]) -> None:
    """Raise unless all ranks make the same call, of the same table."""
    calls = enumerate(zip(headers.calls, headers.tables, strict=True))
    made = {rank: one for rank, one in calls if one[0] != Call.SERVE}
    if len(set(made.values())) <= 1:
        return
    first = min(made)
    second = next(rank for rank, one in made.items() if one != made[first])
    raise InputError(
        "workers use tables in different orders: "
        + ", ".join(f"worker {rank} {_text(made[rank], names)}" for rank in (first, second)),
        hint="make every step use every table in the same order, whatever the batch contains; or use --tables servers",
    )


def _text(made: tuple[Call, int], names: Sequence[str]) -> str:
    call, table = made
    return "ends its step" if call == Call.STEP else f"looks up {names[table]!r}"
