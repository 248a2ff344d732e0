"""A gateway accepts connections of its own user only."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from berth.train import gateway as gateways
from berth.train.gateway import Gateway, owner_of
from berth.train.servers.auth import Secret


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
def test_the_user_of_a_connection_is_found_whatever_family_its_socket_has(family, host):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as client:
        endpoint = listener.getsockname()
        try:
            client.connect((host, endpoint[1]))
        except OSError:
            pytest.skip("needs IPv6")
        peer, address = listener.accept()
        with peer:
            assert owner_of(address, endpoint) == os.getuid()
            assert owner_of(address, ("127.0.0.1", 1)) is None
            client.close()
            assert owner_of(address, endpoint) is None


def test_a_connection_without_a_known_user_is_refused():
    gateway = Gateway(Secret.random(), "127.0.0.1")
    with (
        gateway._tcp,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as other_host,
    ):
        endpoint = listener.getsockname()
        with socket.create_connection(endpoint) as gone:
            gone.sendall(b"data of a stranger")
        threading.Thread(
            target=gateway._accept_local, args=(listener, endpoint, other_host.getsockname()), daemon=True
        ).start()
        with socket.create_connection(endpoint, timeout=60):
            other_host.settimeout(60)
            with other_host.accept()[0]:
                other_host.settimeout(2.0)
                with pytest.raises(TimeoutError):  # one came through, not two
                    other_host.accept()


def test_a_rank_that_listens_later_is_reached(monkeypatch):
    """A rank takes its connection to the gateway for one to the other rank, so none may be lost."""
    # it listens at an address of its own here
    monkeypatch.setattr(gateways, "_is_own", lambda address, endpoint: True)
    secret = Secret.random()
    here, there = Gateway(secret, "127.0.0.1"), Gateway(secret, "127.0.0.1")
    with here._tcp, there._tcp, socket.socket() as late, socket.socket() as free:
        late.bind(("127.0.0.1", 0))  # refuses connections until it listens
        free.bind(("127.0.0.1", 0))
        rank, entrance = late.getsockname(), free.getsockname()
        free.close()
        there.open([rank], [])
        # the route of `here` leads to the late rank under the address at which `here` listens
        threading.Thread(
            target=here._accept_local,
            args=(socket.create_server(entrance), rank, ("127.0.0.1", there.port)),
            daemon=True,
        ).start()
        with socket.create_connection(entrance, timeout=60) as client:
            client.sendall(b"first bytes")
            time.sleep(0.3)
            late.listen()
            late.settimeout(60)
            peer, _ = late.accept()
            with peer:
                peer.settimeout(60)
                assert peer.recv(64) == b"first bytes"
