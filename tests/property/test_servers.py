"""A store on one to three servers against a plain table: the same bits, whatever is asked in whatever order."""

from __future__ import annotations

import tempfile
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.train.servers import ClientOptions, RemoteStore, Secret, ServerConfig
from berth.train.servers.process import in_process_servers
from berth.train.shards.routing import make_route
from berth.train.sparse import TableSpec
from berth.train.tables import (
    Admission,
    DecayPolicy,
    Initialiser,
    Table,
    adagrad,
    adam,
    join,
    rowwise_adagrad,
    sgd,
    shard_of,
)

pytestmark = pytest.mark.slow

SECRET = Secret.random()
SPECS = [
    TableSpec("narrow", 1, sgd(), Initialiser("normal", 0.1, 3)),
    TableSpec("rows", 16, adagrad(), Initialiser()),
    TableSpec("alive", 5, rowwise_adagrad(), Initialiser(), Admission("score", 2.0), DecayPolicy()),
    TableSpec("counted", 3, adam(), Initialiser(), Admission("count", 3)),
]

deeds = st.lists(
    st.tuples(
        st.sampled_from(
            ["pull", "pull", "push", "push", "step", "prefetch", "next", "peek", "day", "save", "load"]
        ),
        st.integers(0, len(SPECS) - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 300),
    ),
    max_size=14,
)


def plain_tables():
    return {
        spec.name: Table(
            spec.dim,
            optimiser=spec.optimiser,
            initialiser=spec.initialiser,
            admission=spec.admission,
            decay=spec.decay,
        )
        for spec in SPECS
    }


def drawn(seed, count, dim):
    random = np.random.default_rng(seed)
    keys = (random.random(count) ** 3 * 500).astype(np.uint64)
    keys[random.random(count) < 0.1] += np.uint64(2**63)
    gradients = random.standard_normal((count, dim)).astype(np.float32)
    gradients[random.random(count) < 0.2] = np.float32(-0.0)
    return keys, gradients, random.integers(0, 2, count).astype(np.float32)


class Both:
    """The store and the tables do the same things."""

    def __init__(self, store):
        self.store, self.tables, self.step = store, plain_tables(), 0
        store.open(SPECS)

    def do(self, deed, spec, seed, count):
        table = self.tables[spec.name]
        keys, gradients, clicks = drawn(seed, count, spec.dim)
        if deed == "pull":
            assert (self.store.pull(spec.name, keys) == table.pull(keys)).all()
        elif deed == "peek":
            assert (self.store.peek(spec.name, keys) == table.peek(keys)).all()
        elif deed == "next":  # announced, and asked for after the step
            self.store.prefetch(spec.name, keys)
            self.do("step", spec, seed, count)
            self.do("pull", spec, seed, count)
        elif deed == "push":
            seen = {"clicks": clicks} if spec.decay else {}
            self.store.push(spec.name, keys, gradients, **seen)
            table.push(keys, gradients, **seen)
        elif deed == "prefetch":
            self.store.prefetch(spec.name, keys)
        elif deed == "day":
            self.store.end_day()
            for each in self.tables.values():
                each.end_day()
        elif deed == "step":
            self.store.end_step(self.step)
            self.step += 1
        elif deed == "load":
            for name, part in list(self.store.save()):
                self.store.load(name, part)
        self.same() if deed in ("save", "load") else None

    def same(self):
        parts = list(self.store.save())
        for name, table in self.tables.items():
            mine, theirs = table.save(), join([part for other, part in parts if other == name])
            assert (mine.keys == theirs.keys).all()
            assert (mine.records.view(np.uint32) == theirs.records.view(np.uint32)).all()
            assert sorted(zip(mine.waiting_keys, mine.waiting, strict=True)) == sorted(
                zip(theirs.waiting_keys, theirs.waiting, strict=True)
            )


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "tcp"])
@settings(max_examples=15)
@given(servers=st.integers(1, 3), script=deeds)
def test_one_worker_in_sync_mode_gets_the_bits_of_a_plain_table(shared, servers, script):
    with in_process_servers(servers, SECRET) as running:
        addresses = [one.address for one in running]
        with closing(RemoteStore(addresses, SECRET, options=ClientOptions(shared=shared))) as store:
            both = Both(store)
            for deed, which, seed, count in script:
                both.do(deed, SPECS[which], seed, count)
            both.same()


@pytest.mark.parametrize("asked", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("announced", SPECS, ids=lambda spec: spec.name)
def test_keys_that_are_announced_and_never_asked_for_leave_nothing_behind(asked, announced):
    with (
        in_process_servers(2, SECRET) as running,
        closing(RemoteStore([one.address for one in running], SECRET)) as store,
    ):
        both = Both(store)
        for deed, spec in (("prefetch", announced), ("next", asked), ("push", asked), ("step", asked)):
            both.do(deed, spec, 7, 40)
        both.same()


@given(
    st.lists(st.integers(0, 40) | st.integers(-(2**63), 2**63 - 1), max_size=200),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_a_route_brings_every_row_back_and_sums_in_the_order_of_the_batch(keys, shards, dim):
    asked = np.array(keys, np.int64)
    route = make_route(asked, shards)
    values = np.random.default_rng(0).standard_normal((len(asked), dim)).astype(np.float32)
    expected = {}
    for key, value in zip(keys, values, strict=True):
        expected[key] = expected.get(key, np.zeros(dim, np.float32)) + value
    out = np.full((len(asked), dim), np.nan, np.float32)
    for shard in range(shards):
        mine = route.keys_of(shard)
        assert (shard_of(mine, shards) == shard).all()
        sums = np.empty((len(mine), dim), np.float32)
        route.add(shard, values, sums)
        assert all((sums[at] == expected[key]).all() for at, key in enumerate(mine.tolist()))
        assert route.counts_of(shard).tolist() == [keys.count(key) for key in mine.tolist()]
        route.spread(shard, np.repeat(mine[:, None] % 1000, dim, 1).astype(np.float32), out)
    assert sorted(route.sent.tolist()) == sorted(set(keys))
    assert (out == (asked % 1000)[:, None]).all()


@settings(max_examples=10)
@given(
    before=st.integers(1, 3), after=st.integers(1, 3), changed_only=st.booleans(), seed=st.integers(0, 999)
)
def test_what_is_saved_from_some_servers_loads_into_any_number(before, after, changed_only, seed):
    def fill(store, step):
        for spec in SPECS:
            keys, gradients, _ = drawn(seed + step, 200, spec.dim)
            store.pull(spec.name, keys)
            store.push(spec.name, keys, gradients)
        store.end_step(step)

    def opened(running):
        store = RemoteStore([one.address for one in running], SECRET)
        store.open(SPECS)
        return store

    with in_process_servers(before, SECRET) as olds, in_process_servers(after, SECRET) as news:
        old, new = opened(olds), opened(news)
        fill(old, 0)
        for name, part in old.save():
            new.load(name, part)
        fill(old, 1)
        old.end_day()
        for name, part in list(old.save(changed_only=changed_only)):
            new.load(name, part)
        fill(old, 2)
        fill(new, 2)
        mine, theirs = list(old.save()), list(new.save())
        for spec in SPECS:
            one, other = (
                join([part for name, part in parts if name == spec.name]) for parts in (mine, theirs)
            )
            assert one.day == other.day
            assert (one.keys == other.keys).all()
            assert (one.records == other.records).all()
        old.close()
        new.close()


@settings(max_examples=6)
@given(st.integers(0, 10_000))
def test_under_a_memory_budget_rows_are_the_same(seed):
    with (
        tempfile.TemporaryDirectory() as folder,
        in_process_servers(2, SECRET, ServerConfig(memory_bytes=2_900_000, folder=folder)) as running,
    ):
        spec, table = SPECS[1], plain_tables()["rows"]
        store = RemoteStore([one.address for one in running], SECRET)
        store.open([spec])
        random = np.random.default_rng(seed)
        for step in range(6):
            keys = random.integers(0, 60_000, 12_000).astype(np.uint64)
            gradients = random.standard_normal((12_000, spec.dim)).astype(np.float32)
            store.prefetch("rows", keys)
            assert (store.pull("rows", keys) == table.pull(keys)).all()
            store.push("rows", keys, gradients)
            table.push(keys, gradients)
            store.end_step(step)
        assert store.statistics()["tables"]["rows"]["evicted"] > 0
        store.close()
