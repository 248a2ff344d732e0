"""What a worker sees: several workers, modes, broken connections, messages on the wire."""

from __future__ import annotations

import select
import socket
import threading

import numpy as np
import pytest

from berth.errors import InputError, RefusedError, ServerError, UnknownNameError, WaitError
from berth.train.servers import Address, ClientOptions, RemoteStore, Secret, ServerConfig, connect
from berth.train.servers.process import in_process_servers
from berth.train.servers.protocol import Kind
from berth.train.servers.server_pool import Flusher
from berth.train.servers.transport import Channel, PayloadBuffer
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, Initialiser, Table, adagrad, join, sgd

SECRET = Secret.random()
DIM = 8
SPEC = TableSpec("rows", DIM, adagrad(), Initialiser())


def batch(seed, count=600):
    random = np.random.default_rng(seed)
    keys = (random.random(count) ** 3 * 900).astype(np.uint64)
    return keys, random.standard_normal((count, DIM)).astype(np.float32)


def opened(running, specs=(SPEC,), **config):
    store = RemoteStore([one.address for one in running], SECRET, **config)
    store.open(specs)
    return store


class Proxy:
    """Forwards bytes, and cuts all connections after a given number of them."""

    def __init__(self, address, cuts):
        self.target = (address.host, address.port)
        self.cuts = list(cuts)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @property
    def address(self):
        return Address(*self.listener.getsockname())

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self.carry(client, server, self.cuts.pop(0) if self.cuts else None)
            client.close()
            server.close()

    @staticmethod
    def carry(client, server, most):
        carried = 0
        while most is None or carried < most:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(1 << 14 if most is None else min(1 << 14, most - carried) or 1)
                if not data:
                    return
                (server if ready is client else client).sendall(data)
                carried += len(data)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.mark.parametrize("seed", range(4))
def test_cut_connections_change_nothing(seed):
    """Cut anywhere: in requests, in answers, in greetings; pushes are applied once, pulls are answered."""
    random = np.random.default_rng(seed)
    cuts = random.integers(100, 60_000, 12).tolist()
    table = Table(DIM, optimiser=adagrad())
    with in_process_servers(1, SECRET) as running:
        proxy = Proxy(running[0].address, cuts)
        store = RemoteStore([proxy.address], SECRET)
        store.open([SPEC])
        for step in range(15):
            keys, gradients = batch(100 * seed + step)
            assert (store.pull("rows", keys) == table.pull(keys)).all()
            store.push("rows", keys, gradients)
            table.push(keys, gradients)
            store.end_step(step)
        assert store.statistics()["retries"] > 3
        store.close()
        mine = table.save()
        theirs = running[0].queue.shard.tables[0].save()
        assert (mine.records == theirs.records).all()
        proxy.close()


def test_a_restarted_server_is_not_taken_for_the_old_one():
    with in_process_servers(1, SECRET) as olds, in_process_servers(1, SECRET) as news:
        proxy = Proxy(olds[0].address, [3000])
        store = RemoteStore([proxy.address], SECRET)
        store.open([SPEC])
        proxy.target = (news[0].address.host, news[0].address.port)
        with pytest.raises(ServerError, match="lost its rows"):
            train(store, 0, 1, 5, [])
        store.pool.close()
        proxy.close()


def test_a_server_that_does_not_respond_is_an_error():
    with in_process_servers(1, SECRET) as running:
        store = opened(running)
        store.pool._timeout_s = 0.4
        store.pool[0].channel.send(Kind.STATISTICS, 1)  # taken for an old request: never answered again
        with pytest.raises(ServerError, match=r"no response within 0\.4 s from server 0"):
            store.pool.response(0, 999)
        store.pool.close()


def test_a_worker_that_waits_for_one_server_learns_at_once_that_another_has_ended():
    """As when a worker of another host is killed: its server ends with it, and this worker waits for its step."""
    with in_process_servers(2, SECRET) as running:
        store = opened(running)
        threading.Timer(0.1, running[1].stop).start()
        with pytest.raises(ServerError, match=r"server 1 .*has ended and its rows are lost"):
            store.pool.response(0, 999)  # which never comes
        store.pool.close()


@pytest.mark.parametrize("mode", ["sync", "half-async"])
def test_a_missing_worker_is_named(mode):
    with in_process_servers(1, SECRET, ServerConfig(mode=mode, workers=2, timeout_s=0.3)) as running:
        store = opened(running, rank=0, workers=2)
        other = opened(running, rank=1, workers=2)
        store.end_step(0)
        with pytest.raises(WaitError, match=r"step 1 of rank 0 timed out waiting for rank 1 \(last frame"):
            store.pull("rows", batch(0)[0])
        other.pool.close()
        with pytest.raises(WaitError, match=r"rank 1 \(connection lost\)"):
            store.pull("rows", batch(0)[0])
        store.close()


def train(store, rank, workers, steps, seen):
    for step in range(steps):
        keys, gradients = batch(step)
        seen.append(store.pull("rows", keys[rank::workers]).copy())
        store.push("rows", keys[rank::workers], gradients[rank::workers])
        store.end_step(step)


def run_workers(running, workers, steps=8):
    stores = [opened(running, rank=rank, workers=workers) for rank in range(workers)]
    seen = [[] for _ in stores]
    threads = [
        threading.Thread(target=train, args=(store, rank, workers, steps, seen[rank]))
        for rank, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = join([part for _, part in stores[0].save()])
    for store in stores:
        store.close()
    return state, seen


def summed(keys, gradients):
    """As a worker sends them: each key once, gradients added in the order of the batch."""
    unique, first, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    sums = np.zeros((len(unique), gradients.shape[1]), np.float32)
    np.add.at(sums, np.argsort(order)[which], gradients)
    return unique[order], sums


def test_three_workers_in_sync_mode_give_the_same_bits_on_any_number_of_servers():
    table = Table(DIM, optimiser=adagrad())
    for step in range(8):
        keys, gradients = batch(step)
        for rank in range(3):
            table.touch(keys[rank::3])
        parts = [summed(keys[rank::3], gradients[rank::3]) for rank in range(3)]
        table.push(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))
    for servers in (1, 2):
        with in_process_servers(servers, SECRET, ServerConfig(workers=3)) as running:
            state, _ = run_workers(running, 3)
        assert (state.keys == table.save().keys).all()
        assert (state.records == table.save().records).all()


@pytest.mark.parametrize("mode", ["async", "half-async"])
def test_in_the_free_modes_all_pushes_arrive(mode):
    """With plain steps the order of pushes does not matter beyond rounding."""
    spec = TableSpec("rows", DIM, sgd(), Initialiser())
    table = Table(DIM, optimiser=sgd())
    for step in range(8):
        table.push(*batch(step))
    with in_process_servers(2, SECRET, ServerConfig(mode=mode, workers=2, staleness=1)) as running:
        stores = [opened(running, [spec], rank=rank, workers=2) for rank in range(2)]
        threads = [
            threading.Thread(target=train, args=(store, rank, 2, 8, [])) for rank, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stores[1].statistics()  # answered after its last push is applied
        state = join([part for _, part in stores[0].save()])
        for store in stores:
            store.close()
    assert (state.keys == table.save().keys).all()
    np.testing.assert_allclose(state.records, table.save().records, rtol=1e-4, atol=1e-6)


def test_in_async_mode_announced_rows_are_fetched_ahead_and_pulled_without_a_message():
    with in_process_servers(1, SECRET, ServerConfig(mode="async")) as running:
        store = opened(running)
        keys, gradients = batch(1)
        store.prefetch("rows", keys)
        store.end_step(0)
        sent = store.pool[0].bytes_moved[1]
        rows = store.pull("rows", keys)
        assert store.pool[0].bytes_moved[1] == sent
        assert (rows == Table(DIM, optimiser=adagrad()).pull(keys)).all()
        store.push("rows", keys, gradients)
        store.close()


def test_in_sync_mode_announced_tables_come_in_one_message_and_stale_rows_are_asked_for_again():
    specs = [TableSpec(f"table {number}", DIM, adagrad(), Initialiser(seed=number)) for number in range(5)]
    tables = [Table(DIM, optimiser=adagrad(), initialiser=spec.initialiser) for spec in specs]
    with in_process_servers(2, SECRET) as running:
        store = opened(running, specs)
        for step in range(4):
            for number, spec in enumerate(specs):
                store.prefetch(spec.name, batch(10 * step + number)[0])
            before = store.pool[0].last_request
            for number, spec in enumerate(specs):
                keys, gradients = batch(10 * step + number)
                assert (store.pull(spec.name, keys) == tables[number].pull(keys)).all()
                if step == 3:
                    store.push(spec.name, keys, gradients)
                    tables[number].push(keys, gradients)
            if step < 3:
                assert store.pool[0].last_request == before + 1
                for number, spec in enumerate(specs):
                    store.push(spec.name, *batch(10 * step + number))
                    tables[number].push(*batch(10 * step + number))
            store.end_step(step)
        store.close()


def test_in_sync_mode_the_rows_of_the_next_step_come_with_the_end_of_this_one():
    """They are those after the step; what is announced and never pulled makes no row."""
    keys, gradients = batch(1)
    later, _ = batch(2)
    with in_process_servers(1, SECRET) as running:
        store, plain = opened(running), Table(DIM, optimiser=adagrad())
        for asked in (keys, keys, later):
            store.pull("rows", keys)
            store.push("rows", keys, gradients)
            plain.push(keys, gradients)
            store.prefetch("rows", asked)
            store.end_step(0)
        sent = store.pool[0].last_request
        assert (store.pull("rows", later) == plain.peek(later)).all()
        assert store.pool[0].last_request == sent  # nothing was asked for
        store.prefetch("rows", np.arange(5000, 5100, dtype=np.uint64))
        store.end_step(3)
        plain.touch(later)
        assert store.statistics()["tables"]["rows"]["rows"] == len(plain)
        store.close()


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_rows_that_are_only_looked_at_are_not_made(mode):
    keys, gradients = batch(1)
    with in_process_servers(2, SECRET, ServerConfig(mode=mode)) as running:
        store = connect([one.address for one in running], SECRET, every=1)
        store.open([SPEC])
        store.pull("rows", keys)
        store.push("rows", keys, gradients)
        store.end_step(0)
        rows = store.statistics()["tables"]["rows"]["rows"]
        more = np.concatenate([keys, np.arange(5000, 5100, dtype=np.uint64)])
        seen = store.peek("rows", more)
        assert store.statistics()["tables"]["rows"]["rows"] == rows
        assert (seen == store.pull("rows", more)).all()
        store.close()


@pytest.mark.parametrize("in_flight", [1, 2, 8])
@pytest.mark.parametrize("shared", [True, False])
def test_pushes_without_pulls_are_bounded_and_all_arrive(in_flight, shared):
    table = Table(DIM, optimiser=adagrad())
    with in_process_servers(2, SECRET) as running:
        store = opened(running, options=ClientOptions(shared=shared, in_flight=in_flight, timeout_s=300))
        for step in range(12):
            keys, gradients = batch(step, 6000)
            # distinct: too many to share a message
            keys = keys * np.uint64(6000) + np.arange(6000, dtype=np.uint64)
            store.push("rows", keys, gradients)
            table.push(keys, gradients)
            assert max(link.pushes_in_flight for link in store.pool) <= in_flight
        assert (store.pull("rows", keys) == table.pull(keys)).all()
        store.close()


def test_more_batches_than_a_queue_holds_can_be_announced_under_a_budget(tmp_path):
    specs = [TableSpec(f"table {number}", DIM, sgd(), Initialiser()) for number in range(6)]
    with in_process_servers(1, SECRET, ServerConfig(memory_bytes=30 << 20, folder=tmp_path)) as running:
        store = opened(running, specs)
        for seed in range(60):
            for spec in specs:
                store.prefetch(spec.name, batch(seed, 20)[0])
        assert store.pull(specs[0].name, batch(0, 20)[0]).shape == (20, DIM)
        store.close()


def test_keys_announced_and_never_pulled_do_no_harm():
    with in_process_servers(1, SECRET) as running:
        store = opened(running)
        for seed in range(100):
            store.prefetch("rows", batch(seed)[0])
        assert store.pull("rows", batch(7)[0]).shape == (600, DIM)
        assert store.pull("rows", batch(200)[0]).shape == (600, DIM)
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_rows_in_half_the_bytes_learn_nearly_the_same(codec):
    table = Table(DIM, optimiser=sgd())
    spec = TableSpec("rows", DIM, sgd(), Initialiser())
    with in_process_servers(2, SECRET) as running:
        store = opened(running, [spec], codec=codec)
        for step in range(5):
            keys, gradients = batch(step)
            np.testing.assert_allclose(store.pull("rows", keys), table.pull(keys), atol=0.05, rtol=0.02)
            store.push("rows", keys, gradients)
            table.push(keys, gradients)
            store.end_step(step)
        store.close()


def test_what_makes_no_sense_is_refused_before_it_travels():
    with in_process_servers(1, SECRET) as running:
        store = opened(running)
        keys, gradients = batch(0)
        with pytest.raises(UnknownNameError):
            store.pull("row", keys)
        with pytest.raises(InputError, match="gradients of shape"):
            store.push("rows", keys, gradients[:-1])
        with pytest.raises(InputError, match="shows and clicks"):
            store.push("rows", keys, gradients, shows=gradients[:, 0])
        with pytest.raises(InputError, match="contiguous float32"):
            store.pull("rows", keys, np.empty((3, DIM), np.float32))
        with pytest.raises(RefusedError, match="different dim, admission"):
            store.open([TableSpec("rows", 9, adagrad(), Initialiser(), Admission("count", 2))])
        store.close()


def test_a_message_that_would_be_refused_is_not_sent():
    with in_process_servers(1, SECRET) as running:
        store = opened(running, [TableSpec("wide", 100_000, sgd(), Initialiser())])
        with pytest.raises(InputError, match="smaller batches"):
            store.pull("wide", np.arange(1000, dtype=np.uint64), np.empty((1000, 100_000), np.float32))
        store.close()


def test_a_large_state_is_loaded_in_pieces(monkeypatch):
    monkeypatch.setattr("berth.train.servers.client.PART_BYTES", 1000)
    spec = TableSpec("rows", DIM, adagrad(), Initialiser(), Admission("count", 4))
    table = Table(DIM, optimiser=adagrad(), admission=spec.admission)
    table.pull(batch(0)[0])
    with in_process_servers(2, SECRET) as running:
        store = opened(running, [spec])
        store.pull("rows", batch(1)[0])
        store.load("rows", table.save())
        mine, theirs = table.save(), join([part for _, part in store.save()])
        assert len(mine.keys)
        assert len(mine.waiting)
        assert (mine.keys == theirs.keys).all()
        assert (mine.records == theirs.records).all()
        assert sorted(mine.waiting_keys) == sorted(theirs.waiting_keys)
        store.close()


def test_statistics_have_rows_traffic_and_skew():
    with in_process_servers(2, SECRET) as running:
        store = opened(running)
        keys, gradients = batch(0)
        store.pull("rows", keys)
        store.push("rows", keys, gradients)
        statistics = store.statistics()
        assert statistics["tables"]["rows"]["rows"] == len(np.unique(keys))
        assert sum(one["keys_pushed"] for one in statistics["servers"]) == len(np.unique(keys))
        assert statistics["skew"] >= 1
        assert sum(one["bytes_in"] for one in statistics["servers"]) > 0
        assert statistics["bytes_received"] > len(np.unique(keys)) * 4 * DIM
        store.close()


def test_a_store_needs_a_server():
    with pytest.raises(InputError, match="needs at least one server"):
        RemoteStore([], SECRET)


def test_what_a_socket_does_not_take_at_once_is_sent_on_while_the_worker_computes():
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    channel, flusher = Channel(one), Flusher()
    payload = np.arange(1 << 20, dtype=np.uint8)
    channel.send(Kind.PUSH, 1, PayloadBuffer(payload.copy()))
    assert channel.has_outgoing
    flusher.watch(channel)
    came = bytearray()
    while len(came) < 48 + len(payload):
        came += other.recv(1 << 16)
    assert came[48:] == payload.tobytes()
    channel.send(Kind.PUSH, 2, PayloadBuffer(payload.copy()))
    other.close()  # a connection that broke is for the worker to notice
    flusher.watch(channel)
    flusher.close()
    assert not flusher._thread.is_alive()
    one.close()


@pytest.mark.parametrize("shared", [True, False])
def test_an_empty_batch_travels_too(shared):
    with in_process_servers(2, SECRET) as running:
        store = opened(running, options=ClientOptions(shared=shared))
        nothing = np.empty(0, np.uint64)
        store.prefetch("rows", nothing)
        assert store.pull("rows", nothing).shape == (0, DIM)
        store.push("rows", nothing, np.empty((0, DIM), np.float32))
        store.end_step(0)
        assert store.peek("rows", nothing).shape == (0, DIM)
        assert sum(len(part.keys) for _, part in store.save()) == 0
        store.close()
