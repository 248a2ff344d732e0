"""Mode geo: every worker learns on copies of its own, and gives what it learned now and then."""

from __future__ import annotations

import numpy as np
import pytest

from berth.errors import InputError, UnknownNameError
from berth.train.servers import GeoStore, Secret, ServerConfig, connect
from berth.train.servers.process import in_process_servers
from berth.train.sparse import TableSpec
from berth.train.tables import DecayPolicy, Initialiser, Optimiser, Table, adagrad, join, sgd

SECRET = Secret.random()
DIM = 8


@pytest.mark.slow
def test_geo_alone_with_merges_after_every_step_is_like_a_table():
    spec = TableSpec("rows", DIM, adagrad(), Initialiser())
    table = Table(DIM, optimiser=adagrad())
    with in_process_servers(2, SECRET, ServerConfig(mode="geo")) as running:
        store = connect([one.address for one in running], SECRET, every=1)
        assert isinstance(store, GeoStore)
        store.open([spec])
        for step in range(6):
            random = np.random.default_rng(step)
            keys = random.integers(0, 300, 600).astype(np.uint64)  # many of them twice
            gradients = random.standard_normal((600, DIM)).astype(np.float32)
            np.testing.assert_allclose(store.pull("rows", keys), table.pull(keys), rtol=1e-4, atol=1e-6)
            store.push("rows", keys, gradients)
            table.push(keys, gradients)
            store.end_step(step)
        state = join([part for _, part in store.save()])
        np.testing.assert_allclose(
            state.records[:, :DIM], table.save().records[:, :DIM], rtol=1e-4, atol=1e-6
        )
        store.close()


@pytest.mark.slow
def test_geo_servers_hear_nothing_between_merges_and_average_what_workers_learned():
    keys = np.array([1, 2], np.uint64)
    spec = TableSpec("rows", DIM, sgd(1.0), Initialiser(scale=0.0))
    with in_process_servers(1, SECRET, ServerConfig(mode="geo", workers=2)) as running:
        addresses = [one.address for one in running]
        stores = [connect(addresses, SECRET, every=2, rank=rank, workers=2) for rank in range(2)]
        for store in stores:
            store.open([spec])
            store.pull("rows", keys)
        for step in range(2):
            for rank, store in enumerate(stores):
                store.push("rows", keys, np.full((2, DIM), rank + 1.0, np.float32))
                store.end_step(step)
            if step == 0:
                assert running[0].queue.shard.keys_pushed == 0
        # worker 0 learned -2, worker 1 learned -4; worker 1 goes on from what both have given
        assert (stores[1].pull("rows", keys) == -3).all()
        assert (stores[0].pull("rows", keys) == -1).all()
        for store in stores:
            store.close()


def learn(store, steps) -> None:
    for step in steps:
        random = np.random.default_rng(step)
        keys = random.integers(0, 60, 100).astype(np.uint64)
        store.pull("rows", keys)
        store.push("rows", keys, random.standard_normal((100, DIM)).astype(np.float32))
        store.end_step(step)


@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adagrad", "adam"])
def test_geo_resumes_with_the_optimiser_state_of_local_rows(kind):
    """Without it, the first step after a resume would be as large as the first of the run."""
    spec = TableSpec("rows", DIM, Optimiser(kind, 0.1), Initialiser("uniform"))
    every, last = np.arange(60, dtype=np.uint64), []
    with in_process_servers(2, SECRET, ServerConfig(mode="geo")) as running:
        store = connect([one.address for one in running], SECRET, every=3)
        store.open([spec])
        learn(store, range(6))
        saved = join([part for _, part in store.save()])
        learn(store, range(6, 9))
        last.append(store.pull("rows", every))
        store.close()
    with in_process_servers(1, SECRET, ServerConfig(mode="geo")) as running:
        store = connect([running[0].address], SECRET, every=3)
        store.open([spec])
        store.load("rows", saved)
        learn(store, range(6, 9))
        last.append(store.pull("rows", every))
        store.close()
    np.testing.assert_allclose(*last, rtol=1e-4, atol=1e-6)


def test_geo_servers_have_the_mean_of_the_optimiser_states_of_workers():
    keys = np.array([1, 2], np.uint64)
    spec = TableSpec("rows", DIM, adagrad(0.1), Initialiser(scale=0.0))
    with in_process_servers(1, SECRET, ServerConfig(mode="geo", workers=2)) as running:
        stores = [connect([running[0].address], SECRET, every=1, rank=rank, workers=2) for rank in range(2)]
        for store in stores:
            store.open([spec])
        for rank, store in enumerate(stores):
            store.push("rows", keys, np.full((2, DIM), rank + 1.0, np.float32))  # squares 1 and 4
            store.end_step(0)
        state = join([part for _, part in stores[0].save()]).records[:, DIM:]
        np.testing.assert_allclose(state - adagrad(0.1).first_state(DIM), 2.5, rtol=1e-6)
        for store in stores:
            store.close()


def test_geo_refuses_tables_whose_rows_come_and_go():
    with in_process_servers(1, SECRET, ServerConfig(mode="geo")) as running:
        store = connect([running[0].address], SECRET)
        with pytest.raises(InputError, match="mode geo"):
            store.open([TableSpec("rows", DIM, sgd(), Initialiser(), decay=DecayPolicy())])
        store.close()


@pytest.mark.slow
def test_geo_copies_are_fetched_again_after_a_load_and_a_day():
    with in_process_servers(1, SECRET, ServerConfig(mode="geo")) as running:
        store = connect([running[0].address], SECRET, every=100)
        store.open([TableSpec("rows", DIM, sgd(1.0), Initialiser(scale=0.0))])
        keys = np.array([1, 2], np.uint64)
        store.prefetch("rows", keys)
        store.push("rows", keys, np.ones((2, DIM), np.float32))
        store.end_day()  # what was learned is sent before
        saved = join([part for _, part in store.save()])
        assert (saved.records[:, :DIM] == -1).all()
        store.push("rows", keys, np.ones((2, DIM), np.float32))
        store.load("rows", saved)  # and what was learned since is forgotten
        assert (store.pull("rows", keys) == -1).all()
        assert (store.peek("rows", np.array([1, 9], np.uint64))[:, 0] == [-1, 0]).all()
        with pytest.raises(UnknownNameError):
            store.pull("row", keys)
        store.close()
    with pytest.raises(InputError, match="at least 1 step, got 0"):
        GeoStore(store.remote, every=0)
