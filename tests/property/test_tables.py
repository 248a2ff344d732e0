"""Tables against a dictionary of rows: whatever is pulled, pushed, deleted, evicted or saved, in any order."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from berth.train.tables import Initialiser, Table, adagrad, arrays_of, from_arrays, join, split
from berth.train.tables.index import EMPTY, Index

pytestmark = pytest.mark.slow

DIM = 48  # wide rows: of the 8,000 keys that can be drawn, some 1,500 fit the budget
BUDGET_BYTES = 2_900_000
RATE = np.float32(0.05)

FIRST = Table(DIM, optimiser=adagrad())  # never pushed to

seeds = st.integers(0, 2**32 - 1)


class Naive:
    """One Python object for each row."""

    def __init__(self):
        self.rows = {}

    def row(self, key):
        if key not in self.rows:
            self.rows[key] = (FIRST.pull([key])[0], np.zeros(DIM, np.float32))
        return self.rows[key]

    def pull(self, keys):
        return np.array([self.row(key)[0] for key in keys.tolist()], np.float32).reshape(-1, DIM)

    def push(self, keys, gradients):
        merged = {}
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            merged[key] = merged.get(key, np.zeros(DIM, np.float32)) + gradient
        for key, gradient in merged.items():
            weights, total = self.row(key)
            total = total + gradient * gradient
            self.rows[key] = (weights - RATE * gradient / (np.sqrt(total) + np.float32(1e-10)), total)


class Machine(RuleBasedStateMachine):
    """The table and its model do the same things."""

    @initialize(tiered=st.booleans())
    def begin(self, tiered):
        self.folder = tempfile.TemporaryDirectory()
        self.tiered = tiered
        self.table = self.new_table()
        self.copy = self.new_table()  # follows the table through its deltas
        self.naive = Naive()

    def new_table(self):
        budget = {"memory_bytes": BUDGET_BYTES, "folder": self.folder.name} if self.tiered else {}
        return Table(DIM, optimiser=adagrad(), initialiser=Initialiser(), **budget)

    def draw(self, seed, count):
        """Few keys often, many seldom, some at the ends of what 64 bits can say."""
        random = np.random.default_rng(seed)
        keys = (random.random(count) ** 3 * 6000).astype(np.int64)
        return np.where(random.random(count) < 0.1, np.int64(-(2**63)) + keys, keys), random

    @rule(seed=seeds, count=st.integers(0, 400))
    def pull(self, seed, count):
        keys, _ = self.draw(seed, count)
        assert (self.table.pull(keys) == self.naive.pull(keys)).all()

    @rule(seed=seeds, count=st.integers(0, 400))
    def push(self, seed, count):
        keys, random = self.draw(seed, count)
        gradients = random.standard_normal((count, DIM)).astype(np.float32)
        self.table.push(keys, gradients)
        self.naive.push(keys, gradients)

    @rule(start=st.integers(0, 4000))
    def walk_over_many_keys(self, start):
        """More than fit in memory under the budget."""
        keys = np.arange(start, start + 2000)
        assert (self.table.pull(keys) == self.naive.pull(keys)).all()

    @rule(seed=seeds, count=st.integers(0, 1500))
    def delete(self, seed, count):
        keys, _ = self.draw(seed, count)
        known = {key for key in keys.tolist() if key in self.naive.rows}
        assert self.table.delete(keys) == len(known)
        for key in known:
            del self.naive.rows[key]

    @rule(shards=st.integers(1, 4))
    def save_whole_and_load_over_shards(self, shards):
        state = self.table.save()
        self.copy.load(state)
        parts = []
        for part in split(from_arrays(arrays_of(state)), shards):
            shard = Table(DIM, optimiser=adagrad())
            shard.load(part)
            parts.append(shard.save())
        joined = join(parts)
        self.table = self.new_table()
        self.table.load(joined)
        assert (joined.records == state.records).all()

    @rule()
    def save_what_changed(self):
        self.copy.load(self.table.save(changed_only=True))
        mine, theirs = self.table.save(), self.copy.save()
        assert (mine.keys == theirs.keys).all()
        assert (mine.records == theirs.records).all()

    @precondition(lambda self: hasattr(self, "table"))
    @invariant()
    def the_same_keys_have_rows_and_no_two_share_one(self):
        keys, places = self.table.store.index.entries()
        assert set(keys.tolist()) == set(self.naive.rows)
        assert len(set(places.tolist())) == len(places) == len(self.table)
        assert self.table.store.rows.count == (places >= 0).sum()

    @precondition(lambda self: hasattr(self, "table") and self.tiered)
    @invariant()
    def the_budget_is_kept(self):
        store = self.table.store
        assert store.bytes <= BUDGET_BYTES
        assert store.cold.count == (store.index.places < EMPTY).sum()

    def teardown(self):
        if hasattr(self, "table") and len(self.naive.rows):
            keys = np.array(sorted(self.naive.rows))
            assert (self.table.save().records[:, :DIM] == self.naive.pull(keys)).all()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestTables = Machine.TestCase
TestTables.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)


class IndexMachine(RuleBasedStateMachine):
    """The index alone, with keys that crowd a few homes."""

    def __init__(self):
        super().__init__()
        self.index, self.known = Index(), {}

    keys = st.lists(st.integers(-40, 40) | st.integers(-(2**63), 2**63 - 1), max_size=40, unique=True)

    @rule(keys=keys, first=st.integers(0, 1000))
    def put(self, keys, first):
        places = np.arange(first, first + len(keys), dtype=np.int32)
        self.index.put(np.array(keys, np.int64), places)
        self.known.update(zip(keys, places.tolist(), strict=True))

    @rule(keys=keys)
    def remove(self, keys):
        expected = [self.known.pop(key, EMPTY) for key in keys]
        assert self.index.remove(np.array(keys, np.int64)).tolist() == expected

    @invariant()
    def every_key_is_found(self):
        keys = np.array(list(self.known), np.int64)
        assert self.index.find(keys)[0].tolist() == list(self.known.values())
        assert self.index.count == len(self.known)
        assert self.index.find(np.arange(-41, 41))[1] == sum(key not in self.known for key in range(-41, 41))


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
