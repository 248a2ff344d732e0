"""A host's gateway: carries loopback connections of its ranks to ranks on other hosts, inside TLS.

Gloo can neither encrypt nor authenticate, so its ranks listen on loopback addresses only, a different one for each
rank. The gateway of every other host listens there at the same address and port, and connects to the gateway of the
rank's host, which connects to the rank. Gloo notices nothing.

It is a process of its own, so that encryption does not take the interpreter lock of a worker. It prints the port of
its TLS side, reads its routes as one line of JSON, prints a second line when it listens at all of them, and ends when
its standard input closes.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import ssl
import struct
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any

from berth.errors import BerthError
from berth.train.network_interface import set_tcp_options
from berth.train.servers.auth import SECRET_VARIABLE, Secret, tls_context

Endpoint = tuple[str, int]

_HANDSHAKE_S = 60.0  # hosts may be busy
_MAX_UNAUTHENTICATED = 64  # connections
_BUFFER_BYTES = 1 << 18
_POLL_MS = 1000
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in an IPv6 one
_ESTABLISHED = "01"  # state in /proc/net/tcp; a closed socket has no owner
_LOOKS, _PAUSE_S = 10, 0.1
_CONNECTED = b"\x01"  # the other gateway has connected to the rank
_TARGET = struct.Struct("<H")  # length of the JSON of an endpoint
_WAITING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Gateway:
    """The gateway of one host."""

    def __init__(self, secret: Secret, host: str) -> None:
        self._inside = tls_context(secret, server=True)
        self._outside = tls_context(secret, server=False)
        self._targets: set[Endpoint] = set()  # listeners of ranks on this host
        self._unauthenticated = BoundedSemaphore(_MAX_UNAUTHENTICATED)
        self._tcp = socket.create_server((host, 0), backlog=256)
        self.port = int(self._tcp.getsockname()[1])

    def open(self, targets: list[Endpoint], remote: list[tuple[Endpoint, Endpoint]]) -> None:
        """Serve: others may reach `targets`; connections to each remote rank go to the gateway of its host."""
        self._targets = set(targets)
        Thread(target=self._accept_remote, daemon=True).start()
        for endpoint, gateway in remote:
            listener = socket.create_server(endpoint, backlog=256)
            Thread(target=self._accept_local, args=(listener, endpoint, gateway), daemon=True).start()

    def _accept_remote(self) -> None:
        while True:
            peer, _ = self._tcp.accept()
            if not self._unauthenticated.acquire(blocking=False):
                peer.close()
                continue
            Thread(target=self._serve_remote, args=(peer,), daemon=True).start()

    def _serve_remote(self, peer: socket.socket) -> None:
        """Connect an authenticated peer to the rank that it asks for."""
        try:
            try:
                peer.settimeout(_HANDSHAKE_S)
                set_tcp_options(peer)
                peer = self._inside.wrap_socket(peer, server_side=True)
                (length,) = _TARGET.unpack(_receive(peer, _TARGET.size))
                host, port = json.loads(_receive(peer, length))
            finally:
                self._unauthenticated.release()
            if (host, port) in self._targets:
                with _connect((host, port)) as rank:
                    peer.sendall(_CONNECTED)
                    relay(rank, peer)
        except (OSError, ValueError):
            pass  # a peer without the secret, or a rank that has ended
        finally:
            peer.close()

    def _accept_local(self, listener: socket.socket, endpoint: Endpoint, gateway: Endpoint) -> None:
        while True:
            peer, address = listener.accept()
            Thread(target=self._serve_local, args=(peer, address, endpoint, gateway), daemon=True).start()

    def _serve_local(
        self, peer: socket.socket, address: Endpoint, endpoint: Endpoint, gateway: Endpoint
    ) -> None:
        """Connect a rank of this host to one of another host; other users of this host are not served."""
        with peer, suppress(OSError):
            if not _is_own(address, endpoint):
                return
            set_tcp_options(peer)
            with self._route(endpoint, gateway) as encrypted:
                relay(peer, encrypted)

    def _route(self, endpoint: Endpoint, gateway: Endpoint) -> ssl.SSLSocket:
        """Return a connection that the other gateway has connected to the rank.

        A rank takes its connection to this gateway for one to the other rank. If that failed silently, both would wait
        for each other, so it is tried again.
        """
        until_s = time.monotonic() + _HANDSHAKE_S
        while True:
            try:
                return self._try_route(endpoint, gateway)
            except OSError as error:
                if time.monotonic() > until_s:
                    print(f"berth gateway: no way to {gateway[0]}:{gateway[1]}: {error}", file=sys.stderr)
                    raise
                time.sleep(_PAUSE_S)

    def _try_route(self, endpoint: Endpoint, gateway: Endpoint) -> ssl.SSLSocket:
        with ExitStack() as opened:
            remote = opened.enter_context(_connect(gateway))
            encrypted = opened.enter_context(self._outside.wrap_socket(remote))
            target = json.dumps(endpoint).encode()
            encrypted.sendall(_TARGET.pack(len(target)) + target)
            _receive(encrypted, len(_CONNECTED))
            opened.pop_all()
            return encrypted


@dataclass(slots=True)
class _Direction:
    """Bytes from one socket to another."""

    source: socket.socket
    sink: socket.socket
    buffer: memoryview
    begin: int = 0
    end: int = 0

    def move(self) -> bool:
        """Receive or send something; returns whether it did. Raises `EOFError` once the source has closed."""
        moved = False
        with suppress(*_WAITING):
            if self.begin == self.end:
                self.begin = self.end = 0
                self.end = self.source.recv_into(self.buffer)
                if not self.end:
                    raise EOFError
                moved = True
            self.begin += self.sink.send(self.buffer[self.begin : self.end])
            moved = True
        return moved


def relay(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either side closes; one thread, since an SSL object must not be shared by two."""
    directions = [
        _Direction(source, sink, memoryview(bytearray(_BUFFER_BYTES)))
        for source, sink in ((one, other), (other, one))
    ]
    for peer in (one, other):
        peer.setblocking(False)
    with suppress(EOFError):
        while True:
            if sum(direction.move() for direction in directions):
                continue
            poll = select.poll()
            events = dict.fromkeys((one.fileno(), other.fileno()), 0)
            for direction in directions:
                empty = direction.begin == direction.end
                waits_for = direction.source if empty else direction.sink
                events[waits_for.fileno()] |= select.POLLIN if empty else select.POLLOUT
            for handle, mask in events.items():
                poll.register(handle, mask)
            poll.poll(_POLL_MS)


def _connect(endpoint: Endpoint) -> socket.socket:
    peer = socket.create_connection(endpoint, timeout=_HANDSHAKE_S)
    set_tcp_options(peer)
    return peer


def _receive(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = peer.recv(length - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _is_own(address: Endpoint, endpoint: Endpoint) -> bool:
    """Whether a process of this user made a connection; while others come and go, the kernel's list may lack it."""
    for _ in range(_LOOKS):
        owner = owner_of(address, endpoint)
        if owner is not None:
            return owner == os.getuid()
        time.sleep(_PAUSE_S)
    return False


def owner_of(address: Endpoint, endpoint: Endpoint) -> int | None:
    """Return the user id of the local process with an open connection from one IPv4 address to another; None if it is
    unknown."""
    for table, prefix in (("tcp", b""), ("tcp6", _MAPPED)):
        wanted = [_listed(address, prefix), _listed(endpoint, prefix), _ESTABLISHED]
        with suppress(OSError):
            for line in Path("/proc/thread-self/net", table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[1:4] == wanted:
                    return int(columns[7])
    return None


def _listed(endpoint: Endpoint, prefix: bytes) -> str:
    """Return an address as the kernel lists it: words of four bytes in the order of this machine."""
    packed = prefix + socket.inet_aton(endpoint[0])
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{endpoint[1]:04X}"


def main() -> None:
    """Run a gateway until standard input closes."""
    parser = argparse.ArgumentParser(prog="python -m berth.train.gateway", description=__doc__)
    parser.add_argument("--host", required=True, help="address of this host for the other hosts")
    options = parser.parse_args()
    try:
        secret = Secret.find()
        os.environ.pop(SECRET_VARIABLE, None)
        gateway = Gateway(secret, options.host)
        print(gateway.port, flush=True)
        routes: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
        remote = [((str(r[0]), int(r[1])), (str(g[0]), int(g[1]))) for r, g in routes.get("remote", ())]
        gateway.open([(str(host), int(port)) for host, port in routes.get("targets", ())], remote)
    except (OSError, BerthError) as error:
        sys.exit(f"berth gateway: {error}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # workers need it until their last checkpoint
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
