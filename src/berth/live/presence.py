"""Which machines are gone: a machine missing from one answer is not, an answer may be empty or cut short.

A machine that the back end calls down is lost at once. One that is only missing is lost after several answers in a row
without it, over a while; where many are missing or down at once, over a longer while. Until then nothing is known of
it, and nothing is decided.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

ANSWERS = 3  # in a row without a machine
MISSING_S = 10.0  # and over so many seconds
MANY = 0.25  # more than this share of the machines at once may be a wrong answer
MANY_MISSING_S = 120.0


@dataclass(slots=True)
class _Missing:
    since: float
    answers: int = 0


class Presence:
    """What was missing, since when, in how many answers."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._missing: dict[str, _Missing] = {}
        self.doubtful: frozenset[str] = frozenset()
        self.many = False

    def judge(
        self,
        machines: Collection[str],
        seen: Set[str],
        needed: Set[str],
        now: float,
        down: Set[str] = frozenset(),
    ) -> frozenset[str]:
        """Machines that are missing or down in this answer, and not yet taken for lost.

        `machines`: all that are not lost. `needed`: those with attempts on them. One that was never up and is not
        needed may be lost at once: that changes nothing. `down`: those seen that are not up; unless many machines are
        gone at once, they are believed at once.
        """
        there = seen - down
        self._known |= there
        gone = {name for name in machines if name not in there and (name in self._known or name in needed)}
        self._missing = {name: self._missing.get(name) or _Missing(now) for name in gone}
        for one in self._missing.values():
            one.answers += 1
        all_gone = 1 < len(gone) == len(machines) or 0 < len(gone - down) == len(machines)
        self.many = len(gone) > max(1, MANY * len(machines)) or all_gone
        patience_s = MANY_MISSING_S if self.many else MISSING_S
        self.doubtful = frozenset(
            name
            for name, one in self._missing.items()
            if (self.many or name not in down) and (one.answers < ANSWERS or now - one.since < patience_s)
        )
        return self.doubtful
