"""A gateway accepts connections of its own user only."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from berth.train.gateway import Gateway, owner_of
from berth.train.servers.secret import Secret


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
            other_host.accept()[0].close()
            other_host.settimeout(0.5)
            with pytest.raises(TimeoutError):  # one came through, not two
                other_host.accept()
