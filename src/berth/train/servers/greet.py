"""How a connection begins: hello, challenge, proof, welcome.

Until both sides have proven the secret, only these four small frames are read, and nothing in them is interpreted
beyond its length. The client proves first; then the server does, in its welcome.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.errors import RefusedError, WireError
from berth.train.servers.messages import error_of
from berth.train.servers.secret import CHALLENGE_BYTES, PROOF_BYTES, Secret, challenge, same
from berth.train.servers.wire import HEADER, MOST_GREETING_BYTES, Flag, Header, Kind, read_header, unpack

_GREETING = struct.Struct("<IIIIQQ?")


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a worker says of itself; its proof covers it."""

    rank: int
    workers: int
    index: int  # of the server it wants
    servers: int
    generation: int  # grows whenever the run starts anew
    session: int  # drawn by the worker's process
    shared: bool = False  # payloads in shared memory, please

    def pack(self) -> bytes:
        """As it travels."""
        return _GREETING.pack(
            self.rank,
            self.workers,
            self.index,
            self.servers,
            self.generation,
            self.session,
            self.shared,
        )

    @classmethod
    def read(cls, raw: bytes) -> Greeting:
        """From its bytes."""
        if len(raw) != _GREETING.size:
            raise WireError("this is not a greeting")
        return cls(*_GREETING.unpack(raw))


class Door:
    """The server's side: tells what to answer, and who is there once it is proven."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._mine = challenge()
        self._theirs = b""
        self._raw = b""
        self.greeting: Greeting | None = None

    def hello(self, payload: bytes) -> bytes:
        """The challenge for a client that has said hello."""
        if self._raw or len(payload) != CHALLENGE_BYTES + _GREETING.size:
            raise WireError("this is not a greeting")
        self._theirs, self._raw = payload[:CHALLENGE_BYTES], payload[CHALLENGE_BYTES:]
        return self._mine

    def proof(self, payload: bytes) -> bytes:
        """The server's own proof, if the client's is right."""
        expected = self._secret.proof("client", self._raw, self._theirs, self._mine)
        if not self._raw or not same(payload, expected):
            raise RefusedError("the secret differs from the server's")
        self.greeting = Greeting.read(self._raw)
        return self._secret.proof("server", self._raw, self._mine, self._theirs)


def greet(peer: socket.socket, greeting: Greeting, secret: Secret, deadline_s: float) -> dict[str, Any]:
    """The client's side, over a socket that blocks; what the server says in its welcome."""
    raw, mine = greeting.pack(), challenge()
    _send(peer, Kind.HELLO, mine + raw, deadline_s)
    theirs = _receive(peer, Kind.CHALLENGE, deadline_s)
    _send(peer, Kind.PROOF, secret.proof("client", raw, mine, theirs), deadline_s)
    welcome = _receive(peer, Kind.WELCOME, deadline_s)
    if not same(welcome[:PROOF_BYTES], secret.proof("server", raw, theirs, mine)):
        raise RefusedError("the server does not know the secret: it is not ours")
    facts: dict[str, Any] = json.loads(welcome[PROOF_BYTES:])
    return facts


def _send(peer: socket.socket, kind: Kind, payload: bytes, deadline_s: float) -> None:
    _bound(peer, deadline_s)
    header = Header(kind, Flag.NONE, 0, 0, 0, len(payload), 0, 0)
    peer.sendall(header.pack() + payload)


def _receive(peer: socket.socket, kind: Kind, deadline_s: float) -> bytes:
    header = read_header(_exactly(peer, HEADER.size, deadline_s), MOST_GREETING_BYTES)
    payload = _exactly(peer, header.length, deadline_s)
    if header.kind == Kind.ERROR:
        raise error_of(json.loads(unpack(np.frombuffer(payload, np.uint8))[0].tobytes()))
    if header.kind != kind:
        raise WireError(f"{kind.name} was expected, {header.kind.name} came")
    return bytes(payload)


def _exactly(peer: socket.socket, length: int, deadline_s: float) -> bytearray:
    """So many bytes and not one more: a handle may follow them."""
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        _bound(peer, deadline_s)
        count = peer.recv_into(view[have:])
        if count == 0:
            raise ConnectionResetError("the other side has closed the connection")
        have += count
    return data


def _bound(peer: socket.socket, deadline_s: float) -> None:
    peer.settimeout(max(deadline_s - time.monotonic(), 0.001))
