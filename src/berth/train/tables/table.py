"""A sparse table: pull rows by key, push gradients for them.

A row is made when it is first touched, if it is admitted. A push merges the gradients of the same key and lets
each row learn once. With a life cycle, `end_day` deletes the rows that nobody needs any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.train.tables import life as lives
from berth.train.tables.admit import Admission, Gate
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Places
from berth.train.tables.initialise import Floats, Initialiser, fill, fill_weights
from berth.train.tables.life import Life
from berth.train.tables.merge import Merged, distinct
from berth.train.tables.optimise import Optimiser, apply
from berth.train.tables.state import State, join
from berth.train.tables.statistics import Counts, Statistics
from berth.train.tables.store import Store, as_keys
from berth.train.tables.tiers import TieredStore

_NONE = np.empty(0, np.int64)


class Table:
    """Rows of `dim` weights by 64-bit key; beyond `memory_bytes` they go to a file in `folder`."""

    def __init__(
        self,
        dim: int,
        *,
        optimiser: Optimiser | None = None,
        initialiser: Initialiser | None = None,
        admission: Admission | None = None,
        life: Life | None = None,
        memory_bytes: int | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if dim < 1:
            raise InputError(f"a row has at least one weight, not {dim}")
        self.dim = dim
        self.optimiser = optimiser or Optimiser()
        self.initialiser = initialiser or Initialiser()
        self.gate = Gate(admission) if admission else None
        self.life = life
        self.day = 0
        self.counts = Counts()
        self._numbers = self.optimiser.numbers()
        self._removed: list[Keys] = []  # since the last save
        self.width = len(self._first_state()) + dim
        self.store = _store(self.width, memory_bytes, folder)

    def __len__(self) -> int:
        return self.store.index.count

    def pull(self, keys: object, *, out: Floats | None = None, create: bool = True) -> Floats:
        """The weights of each key, [n, dim], into `out` if given; a key without a row gets one, or zeros."""
        asked = as_keys(keys)
        self.counts.pulled += len(asked)
        weights = np.empty((len(asked), self.dim), np.float32) if out is None else self._fitting(asked, out)
        before = self._misses()
        for part in self.store.pieces(len(asked)):
            self.store.rows.read_weights(self._places(asked[part], create), weights[part])
        self.counts.missed += self._misses() - before
        return weights

    def pull_merged(self, batch: Merged, out: Floats) -> None:
        """The weights of each key into `out`; each distinct one is looked up once. Not where keys are counted."""
        self.counts.pulled += len(batch)
        out = self._fitting(batch.keys, out)
        weights = np.empty((len(batch.unique), self.dim), np.float32)
        before = self._misses()
        for part in self.store.pieces(len(batch.unique)):
            self.store.rows.read_weights(self._places(batch.unique[part], create=True), weights[part])
        self.counts.missed += self._misses() - before
        batch.spread(weights, out)

    def peek(self, keys: object, *, out: Floats | None = None) -> Floats:
        """As `pull`, and no row is made: a key without one reads as it would if it were pulled."""
        asked = as_keys(keys)
        self.counts.pulled += len(asked)
        weights = np.empty((len(asked), self.dim), np.float32) if out is None else self._fitting(asked, out)
        before = self.store.fetched
        for part in self.store.pieces(len(asked)):
            places, missing = self.store.locate(asked[part])
            self.store.rows.read_weights(places, weights[part])
            if missing:
                self._foretell(asked[part], np.flatnonzero(places == EMPTY), weights[part])
                self.counts.missed += missing
        self.counts.missed += self.store.fetched - before
        return weights

    def touch(self, keys: object) -> None:
        """Make the rows of keys that have none yet."""
        asked = as_keys(keys)
        for part in self.store.pieces(len(asked)):
            self._places(asked[part], True)

    def push(
        self,
        keys: object,
        gradients: Floats,
        shows: Floats | None = None,
        clicks: Floats | None = None,
        *,
        create: bool = True,
    ) -> None:
        """Let the row of each key learn from its gradient, [n, dim]; each key was shown once if not said."""
        self.push_merged(Merged.of(as_keys(keys)), gradients, shows, clicks, create=create)

    def push_merged(
        self,
        batch: Merged,
        gradients: Floats,
        shows: Floats | None = None,
        clicks: Floats | None = None,
        *,
        create: bool = True,
    ) -> None:
        """The same for keys of which the distinct ones are known."""
        slopes = batch.summed(self._checked(batch.keys, gradients))
        self.counts.pushed += len(batch)
        self.counts.pushed_distinct += len(batch.unique)
        counts_clicks = self.life is not None or (self.gate is not None and self.gate.rule.kind == "score")
        seen = lives.shows_and_clicks(counts_clicks, len(batch), shows, clicks)
        if seen is not None:
            seen = batch.summed(seen)
        for part in self.store.pieces(len(batch.unique)):
            self._learn(batch.unique[part], slopes[part], None if seen is None else seen[part], create)

    def delete(self, keys: object) -> int:
        """Forget the rows of keys; how many there were."""
        removed = self.store.remove(as_keys(keys))
        self._removed.append(removed)
        self.counts.removed += len(removed)
        return len(removed)

    def end_day(self) -> Keys:
        """A day is over: rows fade, those that died are deleted. The keys of the dead."""
        self.day += 1
        if self.gate:
            self.gate.fade()
        if self.life is None:
            return _NONE
        dead = [keys[self.life.dead_on(self.day, self._lives(keys))] for keys in self.store.in_parts()]
        gone = np.sort(np.concatenate([_NONE, *dead]))
        self.delete(gone)
        return gone

    def scores(self, keys: object) -> Floats:
        """What the rows of keys are worth today; 0 for keys without a row."""
        if self.life is None:
            raise InputError("the table has no life cycle", hint="give it one: Table(..., life=Life())")
        asked = as_keys(keys)
        known = self.store.index.find(asked)[0] != EMPTY
        out = np.zeros(len(asked), np.float32)
        out[known] = self.life.score_on(self.day, self._lives(asked[known]))
        return out

    def save(self, *, changed_only: bool = False) -> State:
        """The table as arrays, all of it or what changed since the last call.

        The next call counts changes from here; if this state can't be kept, save all the next time.
        """
        return join(list(self.save_parts(changed_only=changed_only)))

    def save_parts(self, *, changed_only: bool = False) -> Iterator[State]:
        """As `save`, a little at a time: load them in this order. Meanwhile the table must be left alone."""
        gone = np.unique(np.concatenate([_NONE, *self._removed])) if changed_only else _NONE
        gone = gone[self.store.index.find(gone)[0] == EMPTY]
        nothing = np.empty((0, self.width), np.float32)
        nobody = np.empty(0, np.int32)
        yield State(not changed_only, self.day, _NONE, nothing, gone, _NONE, nobody)
        for keys in self.store.in_parts():
            records, changed = self.store.records(keys)
            wanted = np.flatnonzero(changed) if changed_only else np.arange(len(keys))
            wanted = wanted[np.argsort(keys[wanted])]
            yield State(False, self.day, keys[wanted], records[wanted], _NONE, _NONE, nobody)
        waiting = self.gate.waiting.entries() if self.gate else (_NONE, nobody)
        yield State(False, self.day, _NONE, nothing, _NONE, *waiting)
        self._removed = []
        self.store.clear_changed()

    def load(self, state: State) -> None:
        """Put a saved state into the table: a whole one replaces what is there, a delta is laid over it."""
        if state.records.shape != (len(state.keys), self.width):
            raise InputError(
                f"the saved rows have {state.records.shape[-1]} numbers each, this table's have {self.width}",
                hint="dimension, optimiser and life cycle must be those it was saved with",
            )
        self.store.remove(np.concatenate([_NONE, *self.store.in_parts()]) if state.whole else state.removed)
        for part in self.store.pieces(len(state.keys)):
            keys = state.keys[part]
            places, missing = self.store.locate(keys)
            if missing:
                absent = np.flatnonzero(places == EMPTY)
                places[absent] = self.store.create(keys[absent], places)
            self.store.rows.write(places, np.ascontiguousarray(state.records[part]))
        self.day = state.day
        self._removed = []
        self.store.clear_changed()
        if self.gate:
            self.gate.load(state.waiting_keys, state.waiting)

    def statistics(self) -> Statistics:
        """The table at this moment."""
        store = self.store
        waiting = self.gate.waiting.bytes if self.gate else 0
        return Statistics(
            len(self),
            store.rows.count,
            store.bytes + waiting,
            store.cold_bytes,
            self.counts,
            store.fetched,
            store.evicted,
        )

    def _learn(self, keys: Keys, slopes: Floats, seen: Floats | None, create: bool) -> None:
        counted = self.gate is not None and self.gate.rule.kind == "count"  # when the row was pulled
        places, rows = self._places(keys, create and not counted), self.store.rows
        absent = places == EMPTY
        self.counts.dropped += int(absent.sum())
        if seen is not None and self.gate and absent.any():
            worth = (self.life or Life()).score(seen[absent, 0], seen[absent, 1])
            self.gate.see(keys[absent], worth)
        flat, code = slopes.reshape(-1), self.optimiser.code
        apply(rows.data, rows.changed, rows.width, self.dim, places, flat, code, self._numbers)
        if seen is not None and self.life:
            lives.see(
                rows.data, rows.width, places, seen.reshape(-1), float(self.day), self.life.decay_per_day
            )

    def _places(self, keys: Keys, create: bool) -> Places:
        places, missing = self.store.locate(keys)
        if not missing or not create:
            return places
        absent = np.flatnonzero(places == EMPTY)
        fresh, inverse = distinct(keys[absent])
        if self.gate:
            admitted = self.gate.ask(fresh, np.bincount(inverse, minlength=len(fresh)))
            self.counts.refused += int((~admitted).sum())
            given = np.full(len(fresh), EMPTY, np.int32)
            given[admitted] = self._create(fresh[admitted], places)
        else:
            given = self._create(fresh, places)
        places[absent] = given[inverse]
        return places

    def _foretell(self, keys: Keys, absent: NDArray[np.int64], out: Floats) -> None:
        """The first values of rows that are not there, for those that would get one."""
        if self.gate:
            absent = absent[self.gate.would_admit(keys[absent])]
        fill_weights(out, absent.astype(np.int32), keys[absent], self.initialiser)

    def _create(self, keys: Keys, beside: Places) -> Places:
        places, rows = self.store.create(keys, beside), self.store.rows
        fill(rows.data, rows.width, self.dim, keys, places, self.initialiser, self._first_state())
        rows.changed[places] = 1
        self.counts.created += len(keys)
        return places

    def _first_state(self) -> Floats:
        born = np.array([0, 0, self.day] if self.life else [], np.float32)
        return np.concatenate([self.optimiser.first_state(self.dim), born])

    def _lives(self, keys: Keys) -> Floats:
        return self.store.records(keys)[0][:, -lives.COLUMNS :]

    def _misses(self) -> int:
        return self.counts.created + self.counts.refused + self.store.fetched

    def _fitting(self, keys: Keys, out: Floats) -> Floats:
        right = out.shape == (len(keys), self.dim) and out.dtype == np.float32 and out.flags.c_contiguous
        if not right:
            raise InputError(f"rows are written to contiguous float32 of shape ({len(keys)}, {self.dim})")
        return out

    def _checked(self, keys: Keys, gradients: Floats) -> Floats:
        if gradients.shape != (len(keys), self.dim):
            raise InputError(
                f"{len(keys)} keys need gradients of shape ({len(keys)}, {self.dim}), not {gradients.shape}"
            )
        return np.ascontiguousarray(gradients, np.float32)


def _store(width: int, memory_bytes: int | None, folder: str | Path | None) -> Store:
    if memory_bytes is None:
        return Store(width)
    if folder is None:
        raise InputError("a memory budget needs a folder for the rows that do not fit")
    return TieredStore(width, memory_bytes, folder)
