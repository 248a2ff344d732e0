"""Decay and expiry of rows of a click model.

A row stores decayed counts of shows and clicks and the day it was last used. Decay is applied when the row is next
used, so the end of a day rewrites no rows. The defaults are those of Paddle's CTR accessor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.native.kernels import entry
from berth.train.tables.index import Places
from berth.train.tables.initialise import Floats

COLUMNS = 3  # shows, clicks, day last used


@dataclass(frozen=True, slots=True)
class DecayPolicy:
    """How the counts of rows decay, and when rows expire."""

    show_weight: float = 0.1  # score = show_weight * (shows - clicks) + click_weight * clicks
    click_weight: float = 1.0
    decay_per_day: float = 0.98
    min_score: float = 0.8
    max_unseen_days: int = 30

    def score(self, shows: Floats, clicks: Floats) -> Floats:
        """Return scores of rows from their counts."""
        score: Floats = self.show_weight * (shows - clicks) + self.click_weight * clicks
        return score.astype(np.float32, copy=False)

    def score_on(self, day: int, columns: Floats) -> Floats:
        """Return scores of rows on a day, from their decay columns."""
        decayed = np.float32(self.decay_per_day) ** (np.float32(day) - columns[:, 2])
        return self.score(columns[:, 0] * decayed, columns[:, 1] * decayed)

    def expired_on(self, day: int, columns: Floats) -> NDArray[np.bool_]:
        """Return which rows have expired on a day."""
        unseen = np.float32(day) - columns[:, 2]
        expired: NDArray[np.bool_] = self.score_on(day, columns) < np.float32(self.min_score)
        return expired | (unseen > self.max_unseen_days)


def shows_and_clicks(used: bool, count: int, shows: Floats | None, clicks: Floats | None) -> Floats | None:
    """Return [n, 2] for the keys of a push, or None if the table does not use them; the default is one show."""
    if not used:
        if shows is not None or clicks is not None:
            raise InputError("shows and clicks need a DecayPolicy or admission by score")
        return None
    views = np.zeros((count, 2), np.float32)
    views[:, 0] = 1 if shows is None else shows
    views[:, 1] = 0 if clicks is None else clicks
    return views


@entry
def add_views(data: Floats, width: int, places: Places, views: Floats, day: float, decay: float) -> None:
    """Add shows and clicks (`views` is [n, 2], flat) to rows; negative places are skipped."""
    for number in range(len(places)):
        if places[number] < 0:
            continue
        at = np.int64(places[number]) * width + width - COLUMNS
        decayed = np.float32(decay ** (day - data[at + 2])) if data[at + 2] != day else np.float32(1)
        data[at] = data[at] * decayed + views[2 * number]
        data[at + 1] = data[at + 1] * decayed + views[2 * number + 1]
        data[at + 2] = day
