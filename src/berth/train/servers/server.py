"""A sparse server: one event loop, one thread.

Kernels run between two polls of the sockets. Threads would only contend for the interpreter lock; more servers use more
cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import BerthError, InputError, RefusedError, WireError
from berth.train.hosts import host_name
from berth.train.network_interface import is_loopback, set_tcp_options
from berth.train.servers.auth import CONTROL_RANK, Secret, ServerHandshake, WorkerIdentity, tls_context
from berth.train.servers.protocol import (
    MAX_PAYLOAD_BYTES,
    Flag,
    Frame,
    Kind,
    Mode,
    error_to_json,
    pack,
    pack_json,
)
from berth.train.servers.request_queue import RequestQueue
from berth.train.servers.shard import Shard, StepTracker
from berth.train.servers.transport import (
    RING_BYTES,
    Address,
    Channel,
    PayloadBuffer,
    listen_local,
    listen_tcp,
    make_memory,
    map_memory,
    peer_user,
)

_HANDSHAKE_S = 5.0  # deadline for authentication
_MAX_UNAUTHENTICATED = 64  # connections
_LEAVE_S = 8.0  # for workers, once the parent process has let go


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configuration of one server of a run."""

    index: int = 0
    servers: int = 1
    workers: int = 1
    mode: Mode = "sync"
    staleness: int = 0  # half-async: steps by which a worker may lead another
    memory_bytes: int | None = None
    folder: str | Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    timeout_s: float = 300.0  # limit for waiting for a worker; longer than saving a table takes
    ring_bytes: int = RING_BYTES
    tls: bool | None = None  # None: unless `host` is a loopback address


@dataclass(slots=True, eq=False)
class Connection:
    """A connection; `rank` is set once it is authenticated, unless it belongs to no rank."""

    channel: Channel
    handshake: ServerHandshake
    connected_s: float
    local: bool
    tls_pending: bool  # TLS handshake not finished
    rank: int | None = None
    is_control: bool = False  # authenticated, for heartbeats and results of saves
    closed: bool = False
    last_frame_s: float = 0.0
    events: int = selectors.EVENT_READ  # registered with the selector

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proved the secret."""
        return self.rank is not None or self.is_control

    def reserve(self, length: int) -> PayloadBuffer:
        """Return memory for a response."""
        return self.channel.reserve(length)

    def send(
        self,
        kind: Kind,
        request: int,
        buffer: PayloadBuffer | None = None,
        *,
        flags: int = Flag.NONE,
        step: int = 0,
    ) -> None:
        """Send a response; after a reconnect the worker requests it again."""
        if self.closed:
            return
        try:
            self.channel.send(kind, request, buffer, flags=flags, step=step)
        except OSError:
            self.closed = True
            return
        if buffer and buffer.ring_offset is None and not self.channel.has_outgoing:
            self.channel.recycle(buffer.payload)

    def release(self, frame: Frame) -> None:
        """Release the memory of a request."""
        self.channel.release(frame)


class Server:
    """Serves one shard of every table to all workers of a run."""

    def __init__(
        self,
        secret: Secret,
        config: ServerConfig | None = None,
        *,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.config = config or ServerConfig()
        self.instance = secrets.token_hex(8)
        self._secret = secret
        encrypted = not is_loopback(self.config.host) if self.config.tls is None else self.config.tls
        self._tls = tls_context(secret, server=True) if encrypted else None
        self._notify = notify
        self._generation = 0
        self._sessions: dict[int, int] = {}  # by rank
        self._connections: set[Connection] = set()
        self._bytes = {"in": 0, "out": 0}  # of closed connections
        self._requests = 0
        self._running = True
        self._leave_by_s: float | None = None  # when the parent process has let go
        self.queue = self._new_queue()
        self._select = selectors.DefaultSelector()
        self._tcp = listen_tcp(self.config.host, self.config.port)
        self._local, name = listen_local()
        self.address = Address(self.config.host, self._tcp.getsockname()[1], name)
        self._wake, self._wake_receiver = socket.socketpair()
        for listener in (self._tcp, self._local, self._wake_receiver):
            if listener is not None:
                listener.setblocking(False)
                self._select.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until `stop`, or until all workers have left after `watch` ended."""
        try:
            while self._running and not self._is_deserted(time.monotonic()):
                self.run_once()
        finally:
            self.close()

    def watch(self, stream: Any) -> None:
        """Stop when this stream closes: the parent process holds the other end.

        Workers of other hosts may still be connected then; they have a few seconds to leave.
        """
        self._select.register(stream, selectors.EVENT_READ, "watched")

    def stop(self) -> None:
        """Stop the loop; callable from any thread or signal handler."""
        self._running = False
        with contextlib.suppress(OSError):  # already closed
            self._wake.send(b"\0")

    def stop_if_unused(self) -> None:
        """Stop, unless a worker has joined: then the parent process decides. Callable from a signal handler."""
        if not self._generation:
            self.stop()

    def run_once(self) -> None:
        """Wait for events once, and handle them."""
        for key, mask in self._select.select(self._timeout_s()):
            if key.data == "watched":
                if not os.read(key.fd, 4096):
                    self._select.unregister(key.fileobj)
                    self._leave_by_s = time.monotonic() + _LEAVE_S
            elif isinstance(key.data, Connection):
                self._serve(key.data, mask)
            elif key.fileobj in (self._tcp, self._local):
                self._accept(key.fileobj)
            else:
                self._wake_receiver.recv(4096)
        now = time.monotonic()
        self.queue.run(now)
        waits = self.queue.oldest_wait_s()
        if waits is not None and waits <= now - self.config.timeout_s:
            self.queue.expire(now - self.config.timeout_s, self._rank_status(now))
        self._cleanup(now)

    def _is_deserted(self, now: float) -> bool:
        """Return whether the parent process has let go, and the workers have left or had their time."""
        if self._leave_by_s is None:
            return False
        return now >= self._leave_by_s or all(connection.rank is None for connection in self._connections)

    def close(self) -> None:
        """Close all sockets."""
        for connection in self._connections:
            connection.channel.close()
        self._connections.clear()
        self._select.close()
        for opened in (self._tcp, self._local, self._wake, self._wake_receiver):
            if opened is not None:
                opened.close()

    def _timeout_s(self) -> float | None:
        """Return the time until the next timeout, or None."""
        waits = self.queue.oldest_wait_s()
        ends = [] if waits is None else [waits + self.config.timeout_s]
        ends += [] if self._leave_by_s is None else [self._leave_by_s]
        ends += [
            connection.connected_s + _HANDSHAKE_S
            for connection in self._connections
            if not connection.is_authenticated
        ]
        return max(min(ends) - time.monotonic(), 0.001) if ends else None

    def _accept(self, listener: Any) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return  # the client disconnected
        local = listener is self._local
        tls = self._tls if not local else None
        try:
            if not self._may_connect(peer, local):
                peer.close()
                return
            if not local:
                set_tcp_options(peer)
            if tls:
                peer = tls.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        except OSError:
            peer.close()  # disconnected before the handshake
            return
        channel = Channel(peer, checked=not local and not tls)
        connection = Connection(
            channel, ServerHandshake(self._secret), time.monotonic(), local, tls_pending=bool(tls)
        )
        self._connections.add(connection)
        self._select.register(peer, selectors.EVENT_READ, connection)

    def _may_connect(self, peer: socket.socket, local: bool) -> bool:
        """Return whether a connection is acceptable: not too many pending, and the same user on this machine."""
        unauthenticated = sum(not connection.is_authenticated for connection in self._connections)
        return unauthenticated < _MAX_UNAUTHENTICATED and (not local or peer_user(peer) == os.getuid())

    def _serve(self, connection: Connection, mask: int) -> None:
        """Read and write what a connection is ready for; an error closes this connection only."""
        try:
            if connection.tls_pending and not _tls_done(connection.channel.socket):
                return
            connection.tls_pending = False
            if mask & selectors.EVENT_WRITE:
                connection.channel.flush()
            if mask & selectors.EVENT_READ:
                for frame in connection.channel.receive():
                    self._on_frame(connection, frame)
        except BerthError as error:
            self._refuse(connection, error)
        except OSError:
            connection.closed = True

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if connection.closed:
            return
        now = time.monotonic()
        connection.last_frame_s = now
        if connection.is_control:
            self._control(connection, frame)
        elif connection.rank is None:
            self._authenticate(connection, frame)
        elif frame.kind == Kind.BYE:
            self._sessions.pop(connection.rank, None)
            self.queue.workers[connection.rank].accepted = 0
            self.queue.workers[connection.rank].failed.clear()
            connection.send(Kind.DONE, frame.request)
        elif frame.kind <= Kind.ERROR:
            raise WireError(f"{frame.kind.name} is not a request")
        else:
            self._requests += 1
            self.queue.submit(connection.rank, frame, connection, now)

    def _control(self, connection: Connection, frame: Frame) -> None:
        """Answer a heartbeat, or how far the last save is."""
        if frame.kind == Kind.SAVED:
            save = self.queue.shard.save
            status = (
                save.status() if save is not None else {"done": False, "files": {}, "error": [0, "no save"]}
            )
            connection.send(Kind.DONE, frame.request, PayloadBuffer(pack([pack_json(status)])))
        elif frame.kind == Kind.PING:
            connection.send(Kind.DONE, frame.request)
        else:
            raise WireError(f"{frame.kind.name} is not a request of a control connection")

    def _authenticate(self, connection: Connection, frame: Frame) -> None:
        payload = frame.payload.tobytes()
        if frame.kind == Kind.HELLO:
            connection.send(Kind.CHALLENGE, 0, _raw_buffer(connection.handshake.hello(payload)))
        elif frame.kind == Kind.PROOF:
            proof = connection.handshake.proof(payload)
            if connection.handshake.identity:
                self._welcome(connection, connection.handshake.identity, proof)
        else:
            raise WireError("expected HELLO")

    def _welcome(self, connection: Connection, identity: WorkerIdentity, proof: bytes) -> None:
        is_control = identity.rank == CONTROL_RANK
        self._check(identity)
        if not is_control:
            self._replace(identity)
        shared = connection.local and identity.shared and not is_control
        facts = {
            "instance": self.instance,
            "mode": self.config.mode,
            "patience_s": self.config.timeout_s,
            "accepted": 0 if is_control else self.queue.workers[identity.rank].accepted,
            "tiered": self.config.memory_bytes is not None,
            "shared": shared,
        }
        connection.send(Kind.WELCOME, 0, _raw_buffer(proof + json.dumps(facts).encode()))
        if shared:
            handle = make_memory(self.config.ring_bytes)
            socket.send_fds(connection.channel.socket, [b"\0"], [handle])
            to_server, to_client = map_memory(handle)
            connection.channel.attach(to_client, to_server)
        connection.channel.max_bytes = MAX_PAYLOAD_BYTES
        if is_control:
            connection.is_control = True
            return
        connection.rank = identity.rank
        self._notify(f"rank {identity.rank} joined{', by shared memory' if shared else ''}")

    def _check(self, identity: WorkerIdentity) -> None:
        mine = self.config
        if (identity.index, identity.servers) != (mine.index, mine.servers):
            raise RefusedError(
                f"this is server {mine.index} of {mine.servers}, not {identity.index} of {identity.servers}"
            )
        is_rank = identity.rank < mine.workers or identity.rank == CONTROL_RANK
        if identity.workers != mine.workers or not is_rank:
            raise RefusedError(
                f"rank {identity.rank} of {identity.workers} workers: this run has {mine.workers}"
            )
        if identity.generation < self._generation:
            raise RefusedError(
                f"generation {identity.generation} is out of date: the run is at {self._generation}"
            )
        if identity.generation == self._generation and identity.rank != CONTROL_RANK:
            before = self._sessions.get(identity.rank, identity.session)
            if before != identity.session:
                raise RefusedError(f"rank {identity.rank} is in use by another process")

    def _replace(self, identity: WorkerIdentity) -> None:
        """Close older connections of the rank, or all of an older generation."""
        newer = identity.generation > self._generation
        for connection in self._connections:
            if connection.rank is not None and (newer or connection.rank == identity.rank):
                self._lost(connection)
        if newer:
            self._generation, self._sessions = identity.generation, {}
            self.queue = self._new_queue()
        self._sessions[identity.rank] = identity.session

    def _refuse(self, connection: Connection, error: BerthError) -> None:
        """Send the reason as far as the socket accepts it, and close."""
        peer = (
            "an unauthenticated connection" if not connection.is_authenticated else f"rank {connection.rank}"
        )
        self._notify(f"refused {peer}: {error}")
        connection.send(Kind.ERROR, 0, PayloadBuffer(pack([pack_json(error_to_json(error))])))
        connection.closed = True

    def _lost(self, connection: Connection) -> None:
        connection.closed = True
        if connection.rank is not None:
            self.queue.lost(connection.rank, connection)
            connection.rank = None

    def _cleanup(self, now: float) -> None:
        """Close finished connections and update the selector's events."""
        for connection in list(self._connections):
            if not connection.is_authenticated and now - connection.connected_s > _HANDSHAKE_S:
                connection.closed = True
            if connection.closed:
                self._close(connection)
                continue
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.channel.has_outgoing else 0)
            if connection.events != events:
                connection.events = events
                self._select.modify(connection.channel, events, connection)

    def _close(self, connection: Connection) -> None:
        if connection.rank is not None:
            self._notify(f"rank {connection.rank} left")
        self._lost(connection)
        self._bytes["in"] += connection.channel.bytes_in
        self._bytes["out"] += connection.channel.bytes_out
        self._select.unregister(connection.channel)
        connection.channel.close()
        self._connections.discard(connection)

    def _rank_status(self, now: float) -> dict[int, str]:
        """Return the connection status of each rank, for timeout errors."""
        status = dict.fromkeys(self._sessions, "connection lost")
        for connection in self._connections:
            if connection.rank is not None:
                status[connection.rank] = f"last frame {now - connection.last_frame_s:.0f} s ago"
        return status

    def _new_queue(self) -> RequestQueue:
        mine = self.config
        if not 0 <= mine.index < mine.servers:
            raise InputError(f"server index {mine.index} is out of range: there are {mine.servers}")
        shard = Shard(memory_bytes=mine.memory_bytes, folder=mine.folder)
        return RequestQueue(shard, StepTracker(mine.mode, mine.workers, mine.staleness), self._traffic)

    def _traffic(self) -> dict[str, Any]:
        here = [connection.channel for connection in self._connections]
        return {
            "bytes_in": self._bytes["in"] + sum(channel.bytes_in for channel in here),
            "bytes_out": self._bytes["out"] + sum(channel.bytes_out for channel in here),
            "requests": self._requests,
            "host": host_name(),
            "pid": os.getpid(),
        }


def _raw_buffer(data: bytes) -> PayloadBuffer:
    return PayloadBuffer(np.frombuffer(bytearray(data), np.uint8))


def _tls_done(peer: socket.socket) -> bool:
    """Return whether the TLS handshake is finished."""
    try:
        if isinstance(peer, ssl.SSLSocket):
            peer.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    return True
