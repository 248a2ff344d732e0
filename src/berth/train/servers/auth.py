"""Mutual authentication of workers and servers, and the handshake that opens a connection.

Client and server each send a random challenge. The response is an HMAC-SHA256 of both challenges, the role and the
identity that the client claims, so a response is valid for one connection and one side. Between hosts this runs inside
TLS (`tls.py`).

The handshake is HELLO, CHALLENGE, PROOF, WELCOME; the client proves the secret first, then the server in its WELCOME.
Until both have, only these four small frames are read, and nothing in them is interpreted beyond its length.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.errors import RefusedError, WireError
from berth.train.servers.protocol import (
    HEADER,
    MAX_HANDSHAKE_BYTES,
    Flag,
    Header,
    Kind,
    error_from_json,
    read_header,
    unpack,
)
from berth.train.servers.secret import Secret

CONTROL_RANK = 0xFFFFFFFF  # of connections that belong to no rank: heartbeats, and results of saves
CHALLENGE_BYTES = 32
PROOF_BYTES = 32


def challenge() -> bytes:
    """Return a random nonce."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def same_digest(proof: bytes, other: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof, other)


_IDENTITY = struct.Struct("<IIIIQQ?")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity that a worker claims; its proof covers it."""

    rank: int
    workers: int
    index: int  # of the server
    servers: int
    generation: int  # increases with every restart of the run
    session: int  # random, per worker process
    shared: bool = False  # requests shared memory

    def pack(self) -> bytes:
        """Return the identity as bytes."""
        return _IDENTITY.pack(
            self.rank,
            self.workers,
            self.index,
            self.servers,
            self.generation,
            self.session,
            self.shared,
        )

    @classmethod
    def read(cls, raw: bytes) -> WorkerIdentity:
        """Parse an identity."""
        if len(raw) != _IDENTITY.size:
            raise WireError("invalid HELLO frame")
        return cls(*_IDENTITY.unpack(raw))


class ServerHandshake:
    """The server side of the handshake; `identity` is set once the client is authenticated."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._mine = challenge()
        self._theirs = b""
        self._raw = b""
        self.identity: WorkerIdentity | None = None

    def hello(self, payload: bytes) -> bytes:
        """Handle HELLO; returns the challenge."""
        if self._raw or len(payload) != CHALLENGE_BYTES + _IDENTITY.size:
            raise WireError("invalid HELLO frame")
        self._theirs, self._raw = payload[:CHALLENGE_BYTES], payload[CHALLENGE_BYTES:]
        return self._mine

    def proof(self, payload: bytes) -> bytes:
        """Check the proof of the client; returns the proof of the server."""
        expected = self._secret.proof("client", self._raw, self._theirs, self._mine)
        if not self._raw or not same_digest(payload, expected):
            raise RefusedError("authentication failed: the secret differs from the server's")
        self.identity = WorkerIdentity.read(self._raw)
        return self._secret.proof("server", self._raw, self._mine, self._theirs)


def client_handshake(
    peer: socket.socket, identity: WorkerIdentity, secret: Secret, deadline_s: float
) -> dict[str, Any]:
    """Run the client side over a blocking socket; returns the JSON of WELCOME."""
    raw, mine = identity.pack(), challenge()
    _send(peer, Kind.HELLO, mine + raw, deadline_s)
    theirs = _receive(peer, Kind.CHALLENGE, deadline_s)
    _send(peer, Kind.PROOF, secret.proof("client", raw, mine, theirs), deadline_s)
    welcome = _receive(peer, Kind.WELCOME, deadline_s)
    if not same_digest(welcome[:PROOF_BYTES], secret.proof("server", raw, theirs, mine)):
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
