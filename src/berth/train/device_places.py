"""Which rows are in device memory, and where: the host's side of a cache. It holds keys and places, no rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.train.tables.evict import add_reference, choose_victims, pin
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Index, Places

_SEEN_PER_PLACE = 4  # keys that were missed once and are remembered, for each place


class CachePlaces:
    """Up to `capacity` keys, each with a place; rarely used ones are evicted (generalised CLOCK).

    A key gets a place if one is free, else when it is missed for the second time: most keys of a click log occur once.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.changed = np.zeros(capacity, np.bool_)  # since the row was last written to the table
        self.version = 0  # increases whenever a key gets or loses a place
        self._index, self._seen = Index(), Index()
        self._references = np.zeros(capacity, np.uint8)
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self._hand = 0

    def __len__(self) -> int:
        return self._index.count

    def find(self, keys: Keys) -> Places:
        """Return the place of each key, `EMPTY` if it has none."""
        return self._index.find(keys)[0]

    def use(self, places: Places) -> None:
        """Count a use of places; `EMPTY` ones are skipped."""
        add_reference(self._references, places)

    def worth_a_place(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which of the unique keys, which have no place, should get one; the others are remembered."""
        if not self.capacity:
            return np.zeros(len(keys), np.bool_)
        wanted = self._seen.find(keys)[0] != EMPTY
        wanted[np.flatnonzero(~wanted)[: len(self._free)]] = True
        if self._seen.count + len(keys) > _SEEN_PER_PLACE * self.capacity:
            self._seen = Index()
        self._seen.put(keys[~wanted], np.zeros(int((~wanted).sum()), np.int32))
        self._seen.remove(keys[wanted])
        return wanted

    def evict_for(self, count: int, pinned: Places) -> tuple[int, Keys, Places]:
        """Evict keys until `count` places are free; returns how many, and keys and places of those that changed."""
        needed = count - len(self._free)
        keys, places = np.empty(max(needed, 0), np.int64), np.empty(max(needed, 0), np.int32)
        if needed <= 0:
            return 0, keys, places
        pin(self._references, pinned, True)
        index = self._index
        found, self._hand = choose_victims(
            index.table, index.places, self._references, self._hand, keys, places
        )
        pin(self._references, pinned, False)
        assert found == needed, "more keys are pinned than planned"
        changed = self.changed[places]
        self._index.remove(keys)
        self._release(places)
        return found, keys[changed], places[changed]

    def grow(self, capacity: int) -> None:
        """Add free places; rows stay where they are."""
        new = np.arange(capacity - 1, self.capacity - 1, -1, dtype=np.int32)
        self.changed = np.concatenate([self.changed, np.zeros(len(new), np.bool_)])
        self._references = np.concatenate([self._references, np.zeros(len(new), np.uint8)])
        self._free = np.concatenate([new, self._free])
        self.capacity = capacity

    def put(self, keys: Keys) -> Places:
        """Give places to new keys; as many must be free."""
        places = self._free[len(self._free) - len(keys) :][::-1].copy()
        self._free = self._free[: len(self._free) - len(keys)]
        self._index.put(keys, places)
        self.use(places)
        self.version += 1
        return places

    def remove(self, keys: Keys) -> None:
        """Forget keys, with or without a place."""
        places = self._index.remove(keys)
        self._release(places[places != EMPTY])

    def changed_rows(self) -> tuple[Keys, Places]:
        """Return the keys whose rows changed since they were last written to the table, and their places."""
        keys, places = self._index.entries()
        changed = self.changed[places]
        return keys[changed], places[changed]

    def _release(self, places: Places) -> None:
        self._references[places] = 0
        self.changed[places] = False
        self._free = np.concatenate([self._free, places])
        self.version += 1
