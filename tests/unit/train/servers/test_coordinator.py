"""Tickets that are reported as completed have their gradients on all servers."""

from __future__ import annotations

import numpy as np

from berth.train.servers import RemoteStore, Secret, ServerConfig
from berth.train.servers.coordinator import Coordinator
from berth.train.servers.process import in_process_servers
from berth.train.servers.protocol import Kind
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, sgd

SECRET = Secret.random()
KEYS = np.arange(64, dtype=np.uint64)
SPEC = TableSpec("rows", 2, sgd(1.0), Initialiser(scale=0.0))


def call(store, server, kind):
    store.pool[server].release(store.pool.response(server, store.pool.send(server, kind)))


def test_a_checkpoint_calls_no_ticket_completed_whose_gradients_are_not_on_all_servers():
    """Rank 0 locks the second server before rank 1's push is executed there; the first one executes it."""
    with in_process_servers(2, SECRET, ServerConfig(mode="async", workers=2)) as running:
        addresses = [one.address for one in running]
        stores = [RemoteStore(addresses, SECRET, rank=rank, workers=2) for rank in range(2)]
        for store in stores:
            store.open([SPEC])
        saver, worker = (Coordinator(store.pool) for store in stores)
        saver.begin(0, 0, [])
        assert worker.take(None).ticket == 0
        call(stores[0], 1, Kind.LOCK)
        stores[1].push("rows", KEYS, np.ones((64, 2), np.float32))
        stores[1].end_step(0)
        worker.complete(0, 64)
        taken = worker.take(None)
        assert (taken.ticket, taken.completed, worker.unreported) == (1, 0, 1)
        call(stores[0], 0, Kind.LOCK)
        assert saver.position().undone == [0, 1]
        assert running[0].queue.shard.keys_pushed > running[1].queue.shard.keys_pushed == 0
        for server in range(2):
            call(stores[0], server, Kind.UNLOCK)
        stores[1].pull("rows", KEYS)  # a response of each server: the next step of the worker
        taken = worker.take(None)
        assert (taken.completed, taken.examples, worker.unreported) == (1, 64, 0)
        for store in stores:
            store.close()


def test_a_worker_that_ends_reports_its_last_ticket_once_all_servers_have_it():
    with in_process_servers(2, SECRET, ServerConfig(mode="async")) as running:
        store = RemoteStore([one.address for one in running], SECRET)
        store.open([SPEC])
        coordinator = Coordinator(store.pool)
        coordinator.begin(0, 0, [])
        ticket = coordinator.take(None).ticket
        store.push("rows", KEYS, np.ones((64, 2), np.float32))
        store.end_step(0)
        coordinator.complete(ticket, 64)
        coordinator.end_data(2)
        assert coordinator.position().completed == 0
        coordinator.retire()
        assert all(connection.has_acknowledged(connection.last_request) for connection in store.pool)
        assert coordinator.report().completed == 1
        store.close()
