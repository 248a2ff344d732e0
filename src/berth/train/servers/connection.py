"""A worker's connection to one server: requests are numbered, and each is executed exactly once.

Over TCP every request is kept until it is acknowledged, and resent after a reconnect. On the same machine a broken
connection means that the server process has ended, and its tables with it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import random
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.errors import BerthError, RefusedError, ServerError, WireError
from berth.train.network_interface import is_loopback, set_tcp_options
from berth.train.servers.auth import (
    CONTROL_RANK,
    PROOF_BYTES,
    Secret,
    WorkerIdentity,
    challenge,
    is_refusal,
    tls_context,
)
from berth.train.servers.protocol import (
    HEADER,
    MAX_HANDSHAKE_BYTES,
    MAX_PAYLOAD_BYTES,
    UNACKNOWLEDGED,
    Array,
    Flag,
    Frame,
    Header,
    Kind,
    Layout,
    error_from_json,
    read_header,
    read_json,
    unpack,
)
from berth.train.servers.transport import Address, Channel, PayloadBuffer, map_memory

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_SOCKET_BYTES = 4 << 20
_MAX_FAILED_RECONNECTS = 16
_PING_POLL_MS = 200


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a worker's connections."""

    shared: bool = True  # use shared memory if the server is on this machine
    timeout_s: float = 20.0  # without a response, beyond the server's own timeout
    in_flight: int = 8  # unacknowledged pushes
    tls: bool | None = None  # None: unless the server's host is a loopback address


@dataclass(slots=True)
class Sent:
    """A request without a response."""

    kind: Kind
    flags: int
    step: int
    buffer: PayloadBuffer | None


class ServerConnection:
    """Requests to one server, and its responses."""

    def __init__(
        self, address: Address, identity: WorkerIdentity, secret: Secret, options: ClientOptions
    ) -> None:
        self.address = address
        self.identity = identity
        self.name = f"server {identity.index} ({address})"
        encrypted = not is_loopback(address.host) if options.tls is None else options.tls
        self._tls = tls_context(secret, server=False) if encrypted else None
        self.unacknowledged: dict[int, Sent] = {}
        self.responses: dict[int, Frame] = {}
        self.retries = 0
        self.last_request = 0
        self._secret = secret
        self._options = options
        self._bytes = (0, 0)  # of closed connections
        self._failed_reconnects = 0  # since the last response
        self._unsent_push: int | None = None  # a push whose header is held back
        self._push_error: BerthError | None = None  # reported by the server
        self.facts: dict[str, object] = {}
        self.channel = self._connect(time.monotonic() + options.timeout_s)

    def fileno(self) -> int:
        """Return the file descriptor, for `poll`."""
        return self.channel.fileno()

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Return bytes received and sent."""
        return self._bytes[0] + self.channel.bytes_in, self._bytes[1] + self.channel.bytes_out

    @property
    def is_encrypted(self) -> bool:
        """Whether this connection uses TLS."""
        return isinstance(self.channel.socket, ssl.SSLSocket)

    @property
    def pushes_in_flight(self) -> int:
        """Return the number of unacknowledged pushes."""
        return sum(sent.kind in UNACKNOWLEDGED for sent in self.unacknowledged.values())

    def has_acknowledged(self, request: int) -> bool:
        """Whether the server has executed all pushes up to a request."""
        return not any(
            number <= request and sent.kind in UNACKNOWLEDGED for number, sent in self.unacknowledged.items()
        )

    def send(
        self,
        kind: Kind,
        layout: Layout | None = None,
        fill: Callable[[list[Array]], None] | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
    ) -> int:
        """Send a request whose arrays `fill` writes in place; returns its number."""
        self._raise_push_error()
        buffer = None
        if layout is not None and fill is not None:
            buffer = self.channel.reserve(layout.length)
            fill(layout.views(buffer.payload))
        self.last_request += 1
        if kind in UNACKNOWLEDGED and 2 * (self.pushes_in_flight + 1) >= self._options.in_flight:
            flags |= Flag.CONFIRM
        unsent, self._unsent_push = self._unsent_push, None
        self.unacknowledged[self.last_request] = Sent(kind, flags, step, buffer)
        in_ring = buffer is not None and buffer.ring_offset is not None
        if kind == Kind.PUSH and in_ring and not flags & Flag.END_STEP:
            # Only its header is left to send: it can carry the end of the step.
            self._unsent_push = self.last_request
        self._send(unsent, self.last_request if self._unsent_push is None else None)
        return self.last_request

    def end_step(self, step: int, *, more: bool = False) -> None:
        """End the step: with the held-back push if there is one; with `more`, its header waits for the next request."""
        if self._unsent_push is None:
            self.send(Kind.PUSH, flags=Flag.END_STEP, step=step)
            return
        self.unacknowledged[self._unsent_push].flags |= Flag.END_STEP
        if not more:
            self.flush_unsent()

    def flush_unsent(self) -> None:
        """Send the held-back push."""
        unsent, self._unsent_push = self._unsent_push, None
        self._send(unsent)

    def _send(self, *numbers: int | None) -> None:
        """Send requests in one system call."""
        wanted = [number for number in numbers if number is not None]
        try:
            for number in wanted:
                sent, more = self.unacknowledged[number], number != wanted[-1]
                self.channel.send(sent.kind, number, sent.buffer, flags=sent.flags, step=sent.step, more=more)
        except OSError as error:
            self._reconnect(error)

    def read(self) -> None:
        """Receive what has arrived."""
        try:
            self.channel.flush()
            frames = self.channel.receive()
        except (OSError, WireError) as error:
            self._reconnect(error)
            return
        for frame in frames:
            self._on_frame(frame)

    def take(self, number: int) -> Frame:
        """Return the response to a request, which has arrived."""
        frame = self.responses.pop(number)
        if frame.kind == Kind.ERROR:
            raise self._error(read_json(frame.arrays()[0]))
        return frame

    def release(self, frame: Frame) -> None:
        """Release a response."""
        self.channel.release(frame)

    def close(self) -> None:
        """Close the connection."""
        self.channel.close()

    def _on_frame(self, frame: Frame) -> None:
        if frame.request == 0 and frame.kind == Kind.ERROR:
            self._on_disconnect(self._error(read_json(frame.arrays()[0])))
            return
        self._failed_reconnects = 0
        self._confirmed(frame.request)
        sent = self.unacknowledged.pop(frame.request, None)
        if sent is None:
            self.release(frame)  # a second response, after a reconnect
            return
        self._recycle(sent)
        if sent.kind in UNACKNOWLEDGED:
            if frame.kind == Kind.ERROR:
                self._push_error = self._error(read_json(frame.arrays()[0]))
            self.release(frame)
        else:
            self.responses[frame.request] = frame

    def _confirmed(self, request: int) -> None:
        """Drop pushes before `request`: requests are executed in order, so a response acknowledges them."""
        done = [
            number
            for number, sent in self.unacknowledged.items()
            if number < request and sent.kind in UNACKNOWLEDGED
        ]
        for number in done:
            self._recycle(self.unacknowledged.pop(number))

    def _recycle(self, sent: Sent) -> None:
        if sent.buffer is not None and sent.buffer.ring_offset is None:
            self.channel.recycle(sent.buffer.payload)

    def _raise_push_error(self) -> None:
        if self._push_error is not None:
            error, self._push_error = self._push_error, None
            raise error

    def _error(self, facts: dict[str, str]) -> BerthError:
        return error_from_json({**facts, "what": f"{self.name}: {facts.get('what')}"})

    def _on_disconnect(self, error: BerthError) -> None:
        """Handle the server's reason for closing: after corrupted data, reconnect and resend."""
        if not isinstance(error, WireError):
            raise error
        self._reconnect(error)

    def _reconnect(self, error: Exception) -> None:
        """Reconnect and resend unacknowledged requests."""
        if self.channel.in_memory or self.channel.socket.family == socket.AF_UNIX:
            raise ServerError(f"{self.name} has ended and its rows are lost: {_reason(error)}") from error
        instance = self.facts["instance"]
        while not self._try_reconnect(instance):
            self._failed_reconnects += 1
            if self._failed_reconnects > _MAX_FAILED_RECONNECTS:
                raise ServerError(f"{self.name}: connection fails repeatedly: {_reason(error)}") from error

    def _try_reconnect(self, instance: object) -> bool:
        self._bytes, self.retries = self.bytes_moved, self.retries + 1
        self.channel.close()
        self.channel = self._connect(time.monotonic() + self._options.timeout_s)
        if self.facts["instance"] != instance:
            raise ServerError(f"{self.name} was restarted and has lost its rows")
        try:
            for number, sent in self.unacknowledged.items():
                self.channel.send(
                    sent.kind, number, sent.buffer, flags=sent.flags | Flag.RETRY, step=sent.step
                )
        except OSError:
            return False
        return True

    def _connect(self, deadline_s: float) -> Channel:
        """Connect, with growing pauses until the deadline; a refused connection is final."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._try(deadline_s)
            except ConnectionRefusedError as error:
                raise ServerError(f"{self.name} is not running: connection refused") from error
            except OSError as error:
                if is_refusal(error):
                    raise RefusedError(
                        f"{self.name} refused the encrypted connection: its secret differs, or it uses --plain"
                    ) from error
                if time.monotonic() + pause_s > deadline_s:
                    raise ServerError(
                        f"{self.name} can't be reached within {self._options.timeout_s:g} s: {_reason(error)}"
                    ) from error
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # jitter
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, deadline_s: float) -> Channel:
        peer, local = self._open_socket(deadline_s)
        try:
            self.facts = client_handshake(peer, self.identity, self._secret, deadline_s)
            channel = Channel(peer, checked=not local and self._tls is None)
            channel.max_bytes = MAX_PAYLOAD_BYTES
            if self.facts["shared"]:
                peer.setblocking(True)
                _, handles, _, _ = socket.recv_fds(peer, 1, 1)
                if not handles:
                    raise RefusedError(f"{self.name} did not send the shared memory it offered")
                to_server, to_client = map_memory(handles[0])
                channel.attach(to_server, to_client)
                peer.setblocking(False)
        except BaseException:
            peer.close()
            raise
        return channel

    def _open_socket(self, deadline_s: float) -> tuple[socket.socket, bool]:
        """Connect by the Unix socket if the server is on this machine, otherwise by TCP."""
        if self.identity.shared and self.address.local:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                local.connect("\0" + self.address.local)
                return local, True
            local.close()
        limit_s = max(deadline_s - time.monotonic(), 0.001)
        peer = socket.create_connection((self.address.host, self.address.port), timeout=limit_s)
        set_tcp_options(peer)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        return (self._tls.wrap_socket(peer) if self._tls else peer), False


def ping_identity(index: int, servers: int, workers: int) -> WorkerIdentity:
    """Return the identity of a connection for pings."""
    return WorkerIdentity(CONTROL_RANK, workers, index, servers, 1, secrets.randbits(64))


class ServerPing:
    """Pings one server from a thread; `answers` grows while its event loop runs."""

    def __init__(
        self, address: Address, identity: WorkerIdentity, secret: Secret, *, tls: bool | None, every_s: float
    ) -> None:
        self.answers = 0
        self._address = address
        self._identity = identity
        self._secret = secret
        self._options = ClientOptions(shared=False, tls=tls)
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"berth-ping-{identity.index}")
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; it is not waited for while the server does not answer."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            # A server that has ended is noticed by its workers.
            with contextlib.suppress(BerthError, OSError):
                connection = ServerConnection(self._address, self._identity, self._secret, self._options)
                try:
                    while self._answered(connection):
                        self.answers += 1
                        self._ended.wait(self._every_s)
                finally:
                    connection.close()
            self._ended.wait(self._every_s)

    def _answered(self, connection: ServerConnection) -> bool:
        """Send a ping and wait for the answer; returns False when the thread is to end."""
        if self._ended.is_set():
            return False
        number = connection.send(Kind.PING)
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        while number not in connection.responses:
            if self._ended.is_set():
                return False
            if poll.poll(_PING_POLL_MS):
                connection.read()
        connection.release(connection.take(number))
        return True


def client_handshake(
    peer: socket.socket, identity: WorkerIdentity, secret: Secret, deadline_s: float
) -> dict[str, Any]:
    """Run the client side over a blocking socket; returns the JSON of WELCOME."""
    raw, mine = identity.pack(), challenge()
    _send(peer, Kind.HELLO, mine + raw, deadline_s)
    theirs = _receive(peer, Kind.CHALLENGE, deadline_s)
    _send(peer, Kind.PROOF, secret.proof("client", raw, mine, theirs), deadline_s)
    welcome = _receive(peer, Kind.WELCOME, deadline_s)
    if not hmac.compare_digest(welcome[:PROOF_BYTES], secret.proof("server", raw, theirs, mine)):
        raise RefusedError("authentication failed: the server does not know the secret")
    info: dict[str, Any] = json.loads(welcome[PROOF_BYTES:])
    return info


def _send(peer: socket.socket, kind: Kind, payload: bytes, deadline_s: float) -> None:
    _set_deadline(peer, deadline_s)
    header = Header(kind, Flag.NONE, 0, 0, 0, len(payload), 0, 0)
    peer.sendall(header.pack() + payload)


def _receive(peer: socket.socket, kind: Kind, deadline_s: float) -> bytes:
    header = read_header(_receive_exactly(peer, HEADER.size, deadline_s), MAX_HANDSHAKE_BYTES)
    payload = _receive_exactly(peer, header.length, deadline_s)
    if header.kind == Kind.ERROR:
        raise error_from_json(json.loads(unpack(np.frombuffer(payload, np.uint8))[0].tobytes()))
    if header.kind != kind:
        raise WireError(f"expected {kind.name}, got {header.kind.name}")
    return bytes(payload)


def _receive_exactly(peer: socket.socket, length: int, deadline_s: float) -> bytearray:
    """Read exactly `length` bytes: a file descriptor may follow them."""
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        _set_deadline(peer, deadline_s)
        count = peer.recv_into(view[have:])
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        have += count
    return data


def _set_deadline(peer: socket.socket, deadline_s: float) -> None:
    peer.settimeout(max(deadline_s - time.monotonic(), 0.001))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
