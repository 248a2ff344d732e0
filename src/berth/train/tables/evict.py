"""Eviction: the clock algorithm with reference counts (generalised CLOCK).

The hand walks the entries of the index, where key and place are side by side. It decrements the count of each record
it meets and evicts records with count zero. Records of the current batch are pinned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry
from berth.train.tables.hashing import Keys
from berth.train.tables.index import Places

References = NDArray[np.uint8]

MAX_REFERENCES = 3
_PIN = 0x80


@entry
def add_reference(references: References, places: Places) -> None:
    """Increment the reference counts of used records."""
    for number in range(len(places)):
        if places[number] >= 0 and references[places[number]] < MAX_REFERENCES:
            references[places[number]] += 1


@entry
def pin(references: References, places: Places, pinned: bool) -> None:
    """Pin or unpin records in memory."""
    for number in range(len(places)):
        if places[number] >= 0:
            if pinned:
                references[places[number]] |= _PIN
            else:
                references[places[number]] &= ~_PIN


@entry
def choose_victims(
    table: Keys, places: Places, references: References, hand: int, keys: Keys, victims: Places
) -> tuple[int, int]:
    """Fill `keys` and `victims` with records to evict; returns their number and the new position of the hand."""
    mask, count = len(places) - 1, 0
    hand &= mask
    for _ in range((MAX_REFERENCES + 1) * len(places)):
        place = places[hand]
        if place >= 0:
            if references[place] == 0:
                keys[count], victims[count] = table[hand], place
                references[place] = _PIN  # not to be chosen twice
                count += 1
            elif references[place] < _PIN:
                references[place] -= 1
        hand = (hand + 1) & mask
        if count == len(keys):
            break
    return count, hand
