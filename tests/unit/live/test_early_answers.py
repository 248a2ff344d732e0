"""A request is read to its end before the connection is closed, and no client sends one twice."""

import contextlib
import json
import select
import socket
import threading

import pytest

from berth.errors import InputError
from berth.live.client import Client
from berth.live.home import SOCKET, Endpoint, UnreachableError, short_path

HEAD = "POST /api/v1/{} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n"
REACHED = ("unix", "tcp")


def connected(endpoint: Endpoint) -> socket.socket:
    if endpoint.folder is None:
        host, port = endpoint.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), 30)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(300)
    with short_path(endpoint.folder) as path:
        sock.connect(str(path))
    return sock


def head(endpoint: Endpoint, path: str, length: int) -> bytes:
    token = f"Authorization: Bearer {endpoint.token}\r\n" if endpoint.token else ""
    return HEAD.format(path, length, token).encode()


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize(
    ("path", "status"),
    [("login-code", 201), ("jobs/unknown/cancel", 404), ("machines/r0-m0/drain", 200), ("nowhere", 404)],
)
def test_no_answer_comes_before_the_body_that_its_route_does_not_need(served, reached, path, status):
    endpoint = getattr(served, reached)
    with connected(endpoint) as sock:
        sock.sendall(head(endpoint, path, 2))
        # what is answered now is closed before the body comes
        assert not select.select([sock], [], [], 0.5)[0]
        sock.sendall(b"{}")
        assert sock.makefile("rb").readline().split()[1] == str(status).encode()


@pytest.mark.parametrize("reached", REACHED)
def test_a_request_that_is_too_large_is_answered_so_however_much_of_it_comes(served, reached):
    with pytest.raises(InputError, match="a request may have at most 16777216 bytes"):
        Client(getattr(served, reached)).post("jobs", body={"spec": {"run": "x" * (20 << 20)}})


def test_a_peer_of_the_same_account_may_take_its_time(served, monkeypatch):
    monkeypatch.setattr("berth.live.api.connections._FIRST_REQUEST_S", 0.05)
    with connected(served.unix) as sock, connected(served.tcp) as stranger:
        assert select.select([stranger], [], [], 30)[0]
        assert stranger.recv(1) == b""
        sock.sendall(head(served.unix, "login-code", 0))
        assert sock.makefile("rb").readline().split()[1] == b"201"


@pytest.fixture
def hasty(tmp_path):
    """Whatever is at the socket reads the head of a request, says what it has to, and hangs up."""
    heads: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    with short_path(tmp_path) as path:
        listener.bind(str(path))
    listener.listen()

    def serve(answer: bytes) -> Client:
        def run() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        heads.append(connection.recv(1 << 16))
                        connection.sendall(answer)

        thread.append(threading.Thread(target=run))
        thread[0].start()
        return Client(Endpoint("http://localhost", folder=tmp_path))

    thread: list[threading.Thread] = []
    yield serve, heads
    listener.shutdown(socket.SHUT_RDWR)
    thread[0].join()
    listener.close()
    (tmp_path / SOCKET).unlink()


def test_an_answer_that_came_before_the_end_of_the_request_is_read(hasty):
    serve, heads = hasty
    body = json.dumps({"detail": "too busy"}).encode()
    answer = b"HTTP/1.1 503 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    with pytest.raises(UnreachableError, match="too busy"):
        serve(answer).post("jobs", body={"x": "x" * (4 << 20)})
    assert len(heads) == 1


def test_a_request_that_may_have_been_read_is_not_sent_again(hasty):
    serve, heads = hasty
    with pytest.raises(UnreachableError, match="does not answer"):
        serve(b"").post("jobs", body={"x": "x" * (4 << 20)})
    assert len(heads) == 1
