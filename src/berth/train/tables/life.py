"""The life of a row of a click model: shown, clicked, forgotten.

A row keeps how often it was shown and clicked, both fading day by day, and the day it was last seen. Fading is
worked out when the row is touched: a day's end rewrites no row, wherever it stands. Numbers as in Paddle's
accessor of click-through rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry
from berth.errors import InputError
from berth.train.tables.index import Places
from berth.train.tables.initialise import Floats

COLUMNS = 3  # shows, clicks, day last seen


@dataclass(frozen=True, slots=True)
class Life:
    """How rows age and when they die."""

    show_weight: float = 0.1  # score = show_weight * (shows - clicks) + click_weight * clicks
    click_weight: float = 1.0
    wide_score: float = 10.0  # from here on a row has its wide embedding
    decay_per_day: float = 0.98
    least_score: float = 0.8
    most_unseen_days: int = 30

    def score(self, shows: Floats, clicks: Floats) -> Floats:
        """What a row is worth keeping for."""
        score: Floats = self.show_weight * (shows - clicks) + self.click_weight * clicks
        return score.astype(np.float32, copy=False)

    def score_on(self, day: int, columns: Floats) -> Floats:
        """Scores of rows on a day, from their columns of life."""
        faded = np.float32(self.decay_per_day) ** (np.float32(day) - columns[:, 2])
        return self.score(columns[:, 0] * faded, columns[:, 1] * faded)

    def dead_on(self, day: int, columns: Floats) -> NDArray[np.bool_]:
        """Which rows are to be deleted on a day."""
        unseen = np.float32(day) - columns[:, 2]
        dead: NDArray[np.bool_] = self.score_on(day, columns) < np.float32(self.least_score)
        return dead | (unseen > self.most_unseen_days)


def shows_and_clicks(of_use: bool, count: int, shows: Floats | None, clicks: Floats | None) -> Floats | None:
    """[n, 2] for the keys of a push, if the table has any use for them; each was shown once if not said."""
    if not of_use:
        if shows is not None or clicks is not None:
            raise InputError("shows and clicks are of use only to a life cycle or admission by score")
        return None
    seen = np.zeros((count, 2), np.float32)
    seen[:, 0] = 1 if shows is None else shows
    seen[:, 1] = 0 if clicks is None else clicks
    return seen


@entry
def see(data: Floats, width: int, places: Places, seen: Floats, day: float, decay: float) -> None:
    """Rows were shown and clicked so often (`seen` is [n, 2], flat); places below zero are passed over."""
    for number in range(len(places)):
        if places[number] < 0:
            continue
        at = np.int64(places[number]) * width + width - COLUMNS
        faded = np.float32(decay ** (day - data[at + 2])) if data[at + 2] != day else np.float32(1)
        data[at] = data[at] * faded + seen[2 * number]
        data[at + 1] = data[at + 1] * faded + seen[2 * number + 1]
        data[at + 2] = day
