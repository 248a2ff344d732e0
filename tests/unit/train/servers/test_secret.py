"""A client that can't prove the secret can't join, read or push; the secret is never sent."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from berth.errors import InputError, RefusedError, ServerError, WireError
from berth.train.servers import Address, ClientOptions, RemoteStore, Secret, Server, ServerConfig
from berth.train.servers.auth import SECRET_VARIABLE, ServerHandshake, WorkerIdentity, challenge
from berth.train.servers.process import in_process_servers
from berth.train.servers.protocol import HEADER, Flag, Header, Kind
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, sgd

SECRET = Secret(b"a secret of thirty-two bytes....")
SPEC = TableSpec("rows", 4, sgd(), Initialiser())
GREETING = WorkerIdentity(0, 1, 0, 1, 1, 99)


def frame(kind, payload):
    return Header(kind, Flag.NONE, 0, 0, 1, len(payload), 0, 0).pack() + payload


def dial(address):
    peer = socket.create_connection((address.host, address.port))
    peer.settimeout(300)
    return peer


def read(peer):
    """A frame, or nothing if the server hung up."""
    head = b""
    try:
        while len(head) < HEADER.size:
            more = peer.recv(HEADER.size - len(head))
            if not more:
                return None, b""
            head += more
        length, body = HEADER.unpack(head)[7], b""
        while len(body) < length:
            body += peer.recv(length - len(body))
        return HEADER.unpack(head)[2], body
    except ConnectionResetError:
        return None, b""


def hung_up(peer):
    while True:
        kind, _ = read(peer)
        if kind is None:
            return True
        assert kind in (Kind.ERROR, Kind.CHALLENGE)


@pytest.fixture
def server():
    with in_process_servers(1, SECRET) as servers:
        yield servers[0]


def still_serves(server):
    store = RemoteStore([server.address], SECRET)
    store.open([SPEC])
    rows = store.pull("rows", np.arange(3, dtype=np.uint64))
    store.close()
    return rows.shape == (3, 4)


@pytest.mark.parametrize("shared", [True, False])
def test_a_wrong_secret_is_refused(server, shared):
    with pytest.raises(RefusedError, match="secret differs"):
        RemoteStore([server.address], Secret.random(), options=ClientOptions(shared=shared))
    assert still_serves(server)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100),
        bytes(500),
        frame(Kind.PULL, b"12345678"),
        frame(Kind.PUSH, bytes(200)),
        frame(Kind.HELLO, b"too short"),
        frame(Kind.PROOF, bytes(32)),
        frame(Kind.HELLO, bytes(32) + GREETING.pack()) + frame(Kind.PROOF, bytes(32)),
        frame(Kind.HELLO, bytes(32) + GREETING.pack()) + frame(Kind.HELLO, bytes(32) + GREETING.pack()),
        Header(Kind.HELLO, Flag.NONE, 0, 0, 1, 1 << 40, 0, 0).pack(),
        Header(Kind.HELLO, Flag.IN_RING, 0, 0, 1, 64, 0, 0).pack(),
    ],
    ids=["http", "zeros", "pull", "push", "short", "proof first", "no proof", "hello twice", "huge", "ring"],
)
def test_an_invalid_handshake_closes_the_connection(server, data):
    peer = dial(server.address)
    peer.sendall(data)
    assert hung_up(peer)
    peer.close()
    assert still_serves(server)
    assert server.queue.shard.keys_pushed == 0


def test_a_recorded_answer_is_of_no_use(server):
    first = dial(server.address)
    mine, raw = challenge(), GREETING.pack()
    first.sendall(frame(Kind.HELLO, mine + raw))
    kind, theirs = read(first)
    assert kind == Kind.CHALLENGE
    proof = SECRET.proof("client", raw, mine, theirs)
    first.sendall(frame(Kind.PROOF, proof))
    assert read(first)[0] == Kind.WELCOME
    first.close()
    again = dial(server.address)
    again.sendall(frame(Kind.HELLO, mine + raw))
    assert read(again)[1] != theirs
    again.sendall(frame(Kind.PROOF, proof))
    assert hung_up(again)
    again.close()


def test_a_server_that_does_not_know_the_secret_is_not_trusted():
    listener = socket.create_server(("127.0.0.1", 0))
    handshake = ServerHandshake(Secret.random())

    def pretend():
        peer, _ = listener.accept()
        _, body = read(peer)
        peer.sendall(frame(Kind.CHALLENGE, handshake.hello(body)))
        read(peer)
        peer.sendall(frame(Kind.WELCOME, bytes(32) + b"{}"))
        peer.close()

    thread = threading.Thread(target=pretend, daemon=True)
    thread.start()
    with pytest.raises(RefusedError, match="does not know the secret"):
        RemoteStore([Address("127.0.0.1", listener.getsockname()[1])], SECRET)
    thread.join()
    listener.close()


def test_an_answer_is_bound_to_role_greeting_and_both_challenges():
    one, other = challenge(), challenge()
    proofs = {
        SECRET.proof("client", b"g", one, other),
        SECRET.proof("server", b"g", one, other),
        SECRET.proof("client", b"h", one, other),
        SECRET.proof("client", b"g", other, one),
        Secret.random().proof("client", b"g", one, other),
    }
    assert len(proofs) == 5


def test_the_secret_has_no_readable_form_and_short_ones_are_refused():
    assert "thirty" not in repr(SECRET)
    assert "thirty" not in str(SECRET)
    with pytest.raises(InputError, match="too short"):
        Secret(b"short")


def test_it_is_found_in_a_file_or_in_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_bytes(b"a secret of thirty-two bytes....\n")
    proof = SECRET.proof("client", b"", b"", b"")
    assert Secret.find(path).proof("client", b"", b"", b"") == proof
    monkeypatch.setenv(SECRET_VARIABLE, "a secret of thirty-two bytes....")
    assert Secret.find().proof("client", b"", b"", b"") == proof
    monkeypatch.delenv(SECRET_VARIABLE)
    with pytest.raises(InputError, match="shared secret"):
        Secret.find()
    with pytest.raises(InputError, match="can't be read"):
        Secret.find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 3, "workers": 1}, "this run has 1"),
        ({"workers": 2}, "this run has 1"),
        ({"generation": 0}, None),
    ],
)
def test_a_worker_of_another_run_is_refused(server, changes, message):
    if message is None:
        RemoteStore([server.address], SECRET, generation=5).close()
        message = "generation 0 is out of date"
    with pytest.raises(RefusedError, match=message):
        RemoteStore([server.address], SECRET, **changes)


def test_a_rank_is_taken_by_one_process_at_a_time(server):
    store = RemoteStore([server.address], SECRET)
    with pytest.raises(RefusedError, match="in use"):
        RemoteStore([server.address], SECRET)
    store.open([SPEC])
    store.close()
    assert still_serves(server)


def test_a_newer_generation_begins_with_empty_tables_and_ends_the_older(server):
    old = RemoteStore([server.address], SECRET, generation=1)
    old.open([SPEC])
    old.push("rows", np.arange(3, dtype=np.uint64), np.ones((3, 4), np.float32))
    old.end_step(0)
    new = RemoteStore([server.address], SECRET, generation=2)
    new.open([SPEC])
    assert new.statistics()["tables"]["rows"]["rows"] == 0
    with pytest.raises((ServerError, WireError)):
        old.pull("rows", np.arange(3, dtype=np.uint64))
    new.close()
    old.pool.close()


def test_a_server_listens_on_the_loopback_interface_by_default(server):
    assert server.address.host == "127.0.0.1"
    with pytest.raises(ServerError, match="connection refused"):
        RemoteStore([Address("127.0.0.1", 1)], SECRET)


def welcomed(server):
    """A peer that has proven the secret by hand."""
    peer, mine, raw = dial(server.address), challenge(), GREETING.pack()
    peer.sendall(frame(Kind.HELLO, mine + raw))
    _, theirs = read(peer)
    peer.sendall(frame(Kind.PROOF, SECRET.proof("client", raw, mine, theirs)))
    assert read(peer)[0] == Kind.WELCOME
    return peer


def test_who_was_greeted_and_greets_again_is_hung_up_on(server):
    peer = welcomed(server)
    peer.sendall(frame(Kind.HELLO, bytes(32) + GREETING.pack()))
    kind, body = read(peer)
    assert kind == Kind.ERROR
    assert b"HELLO is not a request" in body
    assert hung_up(peer)
    peer.close()


def test_who_takes_too_long_to_greet_is_hung_up_on(monkeypatch):
    monkeypatch.setattr("berth.train.servers.server._HANDSHAKE_S", 0.05)
    with in_process_servers(1, SECRET) as servers:
        peer = dial(servers[0].address)
        assert hung_up(peer)
        peer.close()
        assert still_serves(servers[0])


def test_too_many_guests_at_once_are_turned_away(monkeypatch):
    monkeypatch.setattr("berth.train.servers.server._MAX_UNAUTHENTICATED", 2)
    with in_process_servers(1, SECRET) as servers:
        unauthenticated = [dial(servers[0].address) for _ in range(2)]
        for guest in unauthenticated:
            guest.sendall(frame(Kind.HELLO, bytes(32) + GREETING.pack()))
            assert read(guest)[0] == Kind.CHALLENGE
        late = dial(servers[0].address)
        assert hung_up(late)
        late.close()
        for guest in unauthenticated:
            guest.close()
        while servers[0]._connections:
            os.sched_yield()
        assert still_serves(servers[0])


def test_a_worker_that_wants_another_server_is_refused():
    with (
        in_process_servers(2, SECRET) as servers,
        pytest.raises(RefusedError, match="this is server 1 of 2, not 0 of 2"),
    ):
        RemoteStore([servers[1].address, servers[0].address], SECRET)


def test_a_server_is_one_of_those_there_are():
    with pytest.raises(InputError, match="server index 2 is out of range"):
        Server(SECRET, ServerConfig(index=2, servers=2))


def test_an_address_that_is_taken_is_named(server):
    with pytest.raises(InputError, match="can't listen: Address already in use"):
        Server(SECRET, ServerConfig(port=server.address.port))
