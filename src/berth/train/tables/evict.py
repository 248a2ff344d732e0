"""Which records leave memory: the clock, with a few chances for those that are asked for often.

The hand walks the entries of the index, where key and place stand side by side. A record it meets loses one
chance; one without chances leaves. Records that the batch at hand works on are pinned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry
from berth.train.tables.hashing import Keys
from berth.train.tables.index import Places

Chances = NDArray[np.uint8]

MOST_CHANCES = 3
_PIN = 0x80


@entry
def touch(chances: Chances, places: Places) -> None:
    """Records that are used gain a chance."""
    for number in range(len(places)):
        if places[number] >= 0 and chances[places[number]] < MOST_CHANCES:
            chances[places[number]] += 1


@entry
def pin(chances: Chances, places: Places, pinned: bool) -> None:
    """Hold records in memory, or no longer."""
    for number in range(len(places)):
        if places[number] >= 0:
            if pinned:
                chances[places[number]] |= _PIN
            else:
                chances[places[number]] &= ~_PIN


@entry
def choose(
    table: Keys, places: Places, chances: Chances, hand: int, keys: Keys, chosen: Places
) -> tuple[int, int]:
    """Fill `keys` and `chosen` with records that shall leave: how many, and where the hand stands now."""
    mask, count = len(places) - 1, 0
    hand &= mask
    for _ in range((MOST_CHANCES + 1) * len(places)):
        place = places[hand]
        if place >= 0:
            if chances[place] == 0:
                keys[count], chosen[count] = table[hand], place
                chances[place] = _PIN  # not to be chosen twice
                count += 1
            elif chances[place] < _PIN:
                chances[place] -= 1
        hand = (hand + 1) & mask
        if count == len(keys):
            break
    return count, hand
