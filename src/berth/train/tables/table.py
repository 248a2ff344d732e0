"""A sparse table: pull rows by key, push gradients.

A row is created on first use, if its key is admitted. A push sums the gradients of each key and updates each row once.
With a decay policy, `end_day` deletes expired rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.train.tables import decay as decay_rules
from berth.train.tables.admission import Admission, AdmissionFilter
from berth.train.tables.decay import DecayPolicy
from berth.train.tables.dedup import DedupedKeys, unique_keys
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Places
from berth.train.tables.initialise import Floats, Initialiser, fill, fill_weights
from berth.train.tables.optimise import Optimiser, apply
from berth.train.tables.state import State, join
from berth.train.tables.statistics import Counts, Statistics
from berth.train.tables.store import Store, as_keys
from berth.train.tables.tiers import TieredStore

_NONE = np.empty(0, np.int64)


class Table:
    """Rows of `dim` weights by 64-bit key; beyond `memory_bytes` cold rows go to a file in `folder`."""

    def __init__(
        self,
        dim: int,
        *,
        optimiser: Optimiser | None = None,
        initialiser: Initialiser | None = None,
        admission: Admission | None = None,
        decay: DecayPolicy | None = None,
        memory_bytes: int | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if dim < 1:
            raise InputError(f"dim must be at least 1, got {dim}")
        self.dim = dim
        self.optimiser = optimiser or Optimiser()
        self.initialiser = initialiser or Initialiser()
        self.admission_filter = AdmissionFilter(admission) if admission else None
        self.decay = decay
        self.day = 0
        self.counts = Counts()
        # of the optimiser; those of dense weights change during a run
        self.numbers = self.optimiser.numbers()
        self._removed: list[Keys] = []  # since the last save
        # the last batch, where it is, removals then
        self._pulled: tuple[DedupedKeys, Places, int] | None = None
        self.width = len(self._initial_state()) + dim
        self.store = _store(self.width, memory_bytes, folder)

    def __len__(self) -> int:
        return self.store.index.count

    def pull(self, keys: object, *, out: Floats | None = None, create: bool = True) -> Floats:
        """Return the weights of each key, [n, dim]; a key without a row gets one, or zeros if it is not admitted."""
        requested = as_keys(keys)
        self.counts.pulled += len(requested)
        weights = (
            np.empty((len(requested), self.dim), np.float32)
            if out is None
            else self._checked_out(requested, out)
        )
        before = self._misses()
        for part in self.store.pieces(len(requested)):
            self.store.rows.read_weights(self._places(requested[part], create), weights[part])
        self.counts.missed += self._misses() - before
        return weights

    def pull_deduped(self, batch: DedupedKeys, out: Floats) -> None:
        """Write the weights of each key to `out`, looking up each unique key once; not for counted admission."""
        self.counts.pulled += len(batch)
        out = self._checked_out(batch.keys, out)
        weights = np.empty((len(batch.unique), self.dim), np.float32)
        before = self._misses()
        for part in self.store.pieces(len(batch.unique)):
            places = self._places(batch.unique[part], create=True, distinct=True)
            self.store.rows.read_weights(places, weights[part])
            if self.store.keeps_places and self.admission_filter is None:
                self._pulled = (batch, places, self.store.removals)
        self.counts.missed += self._misses() - before
        batch.spread(weights, out)

    def peek(self, keys: object, *, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows."""
        requested = as_keys(keys)
        self.counts.pulled += len(requested)
        weights = (
            np.empty((len(requested), self.dim), np.float32)
            if out is None
            else self._checked_out(requested, out)
        )
        before = self.store.fetched
        for part in self.store.pieces(len(requested)):
            places, missing = self.store.locate(requested[part])
            self.store.rows.read_weights(places, weights[part])
            if missing:
                self._initial_weights(requested[part], np.flatnonzero(places == EMPTY), weights[part])
                self.counts.missed += missing
        self.counts.missed += self.store.fetched - before
        return weights

    def touch(self, keys: object) -> None:
        """Create the missing rows of keys."""
        requested = as_keys(keys)
        for part in self.store.pieces(len(requested)):
            self._places(requested[part], True)

    def push(
        self,
        keys: object,
        gradients: Floats,
        shows: Floats | None = None,
        clicks: Floats | None = None,
        *,
        create: bool = True,
    ) -> None:
        """Update the row of each key with its gradient, [n, dim]; the default is one show per key."""
        self.push_deduped(DedupedKeys.of(as_keys(keys)), gradients, shows, clicks, create=create)

    def push_deduped(
        self,
        batch: DedupedKeys,
        gradients: Floats,
        shows: Floats | None = None,
        clicks: Floats | None = None,
        *,
        create: bool = True,
    ) -> None:
        """As `push`, for deduplicated keys."""
        gradients_by_key = batch.summed(self._checked(batch.keys, gradients))
        self.counts.pushed += len(batch)
        self.counts.pushed_distinct += len(batch.unique)
        counts_clicks = self.decay is not None or (
            self.admission_filter is not None and self.admission_filter.rule.kind == "score"
        )
        views = decay_rules.shows_and_clicks(counts_clicks, len(batch), shows, clicks)
        if views is not None:
            views = batch.summed(views)
        known = self._take_places(batch)
        for part in self.store.pieces(len(batch.unique)):
            places = self._pushed_places(batch.unique[part], create) if known is None else known
            self._apply(
                batch.unique[part], places, gradients_by_key[part], None if views is None else views[part]
            )

    def delete(self, keys: object) -> int:
        """Delete the rows of keys; returns how many there were."""
        removed = self.store.remove(as_keys(keys))
        self._removed.append(removed)
        self.counts.removed += len(removed)
        return len(removed)

    def end_day(self) -> Keys:
        """End the day: delete expired rows; returns their keys."""
        self.day += 1
        if self.admission_filter:
            self.admission_filter.decay()
        if self.decay is None:
            return _NONE
        expired = [
            keys[self.decay.expired_on(self.day, self._decay_columns(keys))] for keys in self.store.in_parts()
        ]
        removed = np.sort(np.concatenate([_NONE, *expired]))
        self.delete(removed)
        return removed

    def scores(self, keys: object) -> Floats:
        """Return the scores of keys today; 0 for keys without a row."""
        if self.decay is None:
            raise InputError("the table has no decay policy", hint="set one: Table(..., decay=DecayPolicy())")
        requested = as_keys(keys)
        known = self.store.index.find(requested)[0] != EMPTY
        out = np.zeros(len(requested), np.float32)
        out[known] = self.decay.score_on(self.day, self._decay_columns(requested[known]))
        return out

    def save(self, *, changed_only: bool = False) -> State:
        """Return the whole table, or its changes since the last call.

        The next call counts changes from here; if this state is lost, save the whole table next time.
        """
        return join(list(self.save_parts(changed_only=changed_only)))

    def save_parts(self, *, changed_only: bool = False) -> Iterator[State]:
        """Yield the result of `save` in parts, in loading order; the table must not change meanwhile."""
        removed = np.unique(np.concatenate([_NONE, *self._removed])) if changed_only else _NONE
        removed = removed[self.store.index.find(removed)[0] == EMPTY]
        nothing = np.empty((0, self.width), np.float32)
        no_counts = np.empty(0, np.int32)
        yield State(not changed_only, self.day, _NONE, nothing, removed, _NONE, no_counts)
        for keys in self.store.in_parts():
            records, changed = self.store.records(keys)
            wanted = np.flatnonzero(changed) if changed_only else np.arange(len(keys))
            wanted = wanted[np.argsort(keys[wanted])]
            yield State(False, self.day, keys[wanted], records[wanted], _NONE, _NONE, no_counts)
        waiting = self.admission_filter.pending.entries() if self.admission_filter else (_NONE, no_counts)
        yield State(False, self.day, _NONE, nothing, _NONE, *waiting)
        self._removed = []
        self.store.clear_changed()

    def load(self, state: State) -> None:
        """Load a saved state: a whole one replaces the table, changes are applied to it."""
        if state.records.shape != (len(state.keys), self.width):
            raise InputError(
                f"saved rows have {state.records.shape[-1]} numbers each, rows of this table have {self.width}",
                hint="dim, optimiser and decay must be those it was saved with",
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
        if self.admission_filter:
            self.admission_filter.load(state.waiting_keys, state.waiting)

    def statistics(self) -> Statistics:
        """Return size and counters."""
        store = self.store
        waiting = self.admission_filter.pending.bytes if self.admission_filter else 0
        return Statistics(
            len(self),
            store.rows.count,
            store.bytes + waiting,
            store.cold_bytes,
            self.counts,
            store.fetched,
            store.evicted,
        )

    def _take_places(self, batch: DedupedKeys) -> Places | None:
        """Return where the rows of a batch are, if it was the last to be pulled and none was removed since."""
        pulled, self._pulled = self._pulled, None
        if pulled is None or pulled[0] is not batch or pulled[2] != self.store.removals:
            return None
        return pulled[1]

    def _pushed_places(self, keys: Keys, create: bool) -> Places:
        # rows are created by pulls
        counted = self.admission_filter is not None and self.admission_filter.rule.kind == "count"
        return self._places(keys, create and not counted, distinct=True)

    def _apply(self, keys: Keys, places: Places, gradients_by_key: Floats, views: Floats | None) -> None:
        rows, absent = self.store.rows, places == EMPTY
        self.counts.dropped += int(absent.sum())
        if views is not None and self.admission_filter and absent.any():
            worth = (self.decay or DecayPolicy()).score(views[absent, 0], views[absent, 1])
            self.admission_filter.record_scores(keys[absent], worth)
        flat, code = gradients_by_key.reshape(-1), self.optimiser.code
        apply(rows.data, rows.changed, rows.width, self.dim, places, flat, code, self.numbers)
        if views is not None and self.decay:
            decay_rules.add_views(
                rows.data, rows.width, places, views.reshape(-1), float(self.day), self.decay.decay_per_day
            )

    def _places(self, keys: Keys, create: bool, *, distinct: bool = False) -> Places:
        """Return the place of each key; keys that are `distinct` need not be deduplicated."""
        places, missing = self.store.locate(keys)
        if not missing or not create:
            return places
        absent = np.flatnonzero(places == EMPTY)
        fresh, inverse = (keys[absent], np.arange(len(absent))) if distinct else unique_keys(keys[absent])
        if self.admission_filter:
            admitted = self.admission_filter.admit(fresh, np.bincount(inverse, minlength=len(fresh)))
            self.counts.refused += int((~admitted).sum())
            given = np.full(len(fresh), EMPTY, np.int32)
            given[admitted] = self._create(fresh[admitted], places)
        else:
            given = self._create(fresh, places)
        places[absent] = given[inverse]
        return places

    def _initial_weights(self, keys: Keys, absent: NDArray[np.int64], out: Floats) -> None:
        """Write the initial weights of missing rows that would be created."""
        if self.admission_filter:
            absent = absent[self.admission_filter.would_admit(keys[absent])]
        fill_weights(out, absent.astype(np.int32), keys[absent], self.initialiser)

    def _create(self, keys: Keys, pinned: Places) -> Places:
        places, rows = self.store.create(keys, pinned), self.store.rows
        fill(rows.data, rows.width, self.dim, keys, places, self.initialiser, self._initial_state())
        rows.changed[places] = 1
        self.counts.created += len(keys)
        return places

    def _initial_state(self) -> Floats:
        decay_columns = np.array([0, 0, self.day] if self.decay else [], np.float32)
        return np.concatenate([self.optimiser.first_state(self.dim), decay_columns])

    def _decay_columns(self, keys: Keys) -> Floats:
        return self.store.records(keys)[0][:, -decay_rules.COLUMNS :]

    def _misses(self) -> int:
        return self.counts.created + self.counts.refused + self.store.fetched

    def _checked_out(self, keys: Keys, out: Floats) -> Floats:
        right = out.shape == (len(keys), self.dim) and out.dtype == np.float32 and out.flags.c_contiguous
        if not right:
            raise InputError(f"`out` must be contiguous float32 of shape ({len(keys)}, {self.dim})")
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
