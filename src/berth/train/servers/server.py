"""A sparse server: one loop over all connections, one thread for everything.

Kernels do the work between two looks at the sockets. Threads would wait for each other's turn with the
interpreter; more cores are used by more servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import BerthError, InputError, RefusedError, WireError
from berth.train.servers.address import Address, listen_local, listen_tcp, peer_user, tune
from berth.train.servers.channel import Channel, Room
from berth.train.servers.desk import Desk
from berth.train.servers.greet import Door, Greeting
from berth.train.servers.messages import error_facts
from berth.train.servers.order import Mode, Order
from berth.train.servers.ring import RING_BYTES, make_memory, map_memory
from berth.train.servers.secret import Secret
from berth.train.servers.shard import Shard
from berth.train.servers.wire import MOST_BYTES, Flag, Frame, Kind, pack, pack_json

_GREETING_S = 5.0  # to prove the secret
_MOST_GUESTS = 64  # that have not


@dataclass(frozen=True, slots=True)
class Settings:
    """What one server of a run is told."""

    index: int = 0
    servers: int = 1
    workers: int = 1
    mode: Mode = "sync"
    staleness: int = 0  # half-async: steps that a worker may be ahead of another
    memory_bytes: int | None = None
    folder: str | Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    patience_s: float = 300.0  # how long a worker may be waited for: longer than a table takes to be saved
    ring_bytes: int = RING_BYTES


@dataclass(slots=True, eq=False)
class Caller:
    """A connection: a guest until its secret is proven, then a rank."""

    channel: Channel
    door: Door
    since_s: float
    local: bool
    shaking: bool  # hands, as TLS does
    rank: int | None = None
    gone: bool = False
    heard_s: float = 0.0
    events: int = selectors.EVENT_READ  # that we are told of

    def reserve(self, length: int) -> Room:
        """Memory for an answer."""
        return self.channel.reserve(length)

    def send(
        self, kind: Kind, request: int, room: Room | None = None, *, flags: int = Flag.NONE, step: int = 0
    ) -> None:
        """An answer; a worker that is gone asks again when it is back."""
        if self.gone:
            return
        try:
            self.channel.send(kind, request, room, flags=flags, step=step)
        except OSError:
            self.gone = True
            return
        if room and room.place is None and not self.channel.has_outgoing:
            self.channel.recycle(room.payload)

    def release(self, frame: Frame) -> None:
        """A request is done."""
        self.channel.release(frame)


class Server:
    """One process's share of the tables, for all workers of a run."""

    def __init__(
        self,
        secret: Secret,
        settings: Settings | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings = settings or Settings()
        self.instance = secrets.token_hex(8)
        self._secret = secret
        self._tls = tls
        self._say = say
        self._generation = 0
        self._sessions: dict[int, int] = {}  # of each rank
        self._callers: set[Caller] = set()
        self._bytes = {"in": 0, "out": 0}  # of connections that are over
        self._running = True
        self.desk = self._new_desk()
        self._select = selectors.DefaultSelector()
        self._tcp = listen_tcp(self.settings.host, self.settings.port)
        self._local, name = listen_local()
        self.address = Address(self.settings.host, self._tcp.getsockname()[1], name)
        self._wake, self._woken = socket.socketpair()
        for listener in (self._tcp, self._local, self._woken):
            if listener is not None:
                listener.setblocking(False)
                self._select.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while self._running:
                self.turn()
        finally:
            self.close()

    def watch(self, stream: Any) -> None:
        """End when this stream does: its other end is held by who started us."""
        self._select.register(stream, selectors.EVENT_READ, "watched")

    def stop(self) -> None:
        """End the loop, from any thread or signal handler."""
        self._running = False
        with contextlib.suppress(OSError):  # it may have noticed by itself, and be gone
            self._wake.send(b"\0")

    def turn(self) -> None:
        """Wait for something to happen, and do what follows from it."""
        for key, mask in self._select.select(self._patience_s()):
            if key.data == "watched":
                self._running = self._running and bool(os.read(key.fd, 4096))
            elif isinstance(key.data, Caller):
                self._attend(key.data, mask)
            elif key.fileobj in (self._tcp, self._local):
                self._accept(key.fileobj)
            else:
                self._woken.recv(4096)
        now = time.monotonic()
        self.desk.run(now)
        waits = self.desk.waits_since_s()
        if waits is not None and waits <= now - self.settings.patience_s:
            self.desk.give_up(now - self.settings.patience_s, self._known(now))
        self._tidy(now)

    def close(self) -> None:
        """Hang up on everybody."""
        for caller in self._callers:
            caller.channel.close()
        self._callers.clear()
        self._select.close()
        for opened in (self._tcp, self._local, self._wake, self._woken):
            if opened is not None:
                opened.close()

    def _patience_s(self) -> float | None:
        """How long nothing may happen before somebody has to be told."""
        waits = self.desk.waits_since_s()
        ends = [] if waits is None else [waits + self.settings.patience_s]
        ends += [caller.since_s + _GREETING_S for caller in self._callers if caller.rank is None]
        return max(min(ends) - time.monotonic(), 0.001) if ends else None

    def _accept(self, listener: Any) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return  # it has changed its mind
        local = listener is self._local
        tls = self._tls if not local else None
        try:
            if not self._may_come(peer, local):
                peer.close()
                return
            if not local:
                tune(peer)
            if tls:
                peer = tls.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        except OSError:
            peer.close()  # it is gone before it was greeted
            return
        channel = Channel(peer, checked=not local and not tls)
        caller = Caller(channel, Door(self._secret), time.monotonic(), local, shaking=bool(tls))
        self._callers.add(caller)
        self._select.register(peer, selectors.EVENT_READ, caller)

    def _may_come(self, peer: socket.socket, local: bool) -> bool:
        """Not too many at once, and of this machine only the same user."""
        guests = sum(caller.rank is None for caller in self._callers)
        return guests < _MOST_GUESTS and (not local or peer_user(peer) == os.getuid())

    def _attend(self, caller: Caller, mask: int) -> None:
        """Read and write what a connection is ready for; whatever goes wrong ends it and nothing else."""
        try:
            if caller.shaking and not _shaken(caller.channel.socket):
                return
            caller.shaking = False
            if mask & selectors.EVENT_WRITE:
                caller.channel.flush()
            if mask & selectors.EVENT_READ:
                for frame in caller.channel.receive():
                    self._take(caller, frame)
        except BerthError as error:
            self._refuse(caller, error)
        except OSError:
            caller.gone = True

    def _take(self, caller: Caller, frame: Frame) -> None:
        if caller.gone:
            return
        now = time.monotonic()
        caller.heard_s = now
        if caller.rank is None:
            self._meet(caller, frame)
        elif frame.kind == Kind.BYE:
            self._sessions.pop(caller.rank, None)
            self.desk.workers[caller.rank].accepted = 0
            self.desk.workers[caller.rank].failed.clear()
            caller.send(Kind.DONE, frame.request)
        elif frame.kind <= Kind.ERROR:
            raise WireError(f"{frame.kind.name} is not a request")
        else:
            self.desk.submit(caller.rank, frame, caller, now)

    def _meet(self, caller: Caller, frame: Frame) -> None:
        payload = frame.payload.tobytes()
        if frame.kind == Kind.HELLO:
            caller.send(Kind.CHALLENGE, 0, _raw(caller.door.hello(payload)))
        elif frame.kind == Kind.PROOF:
            proof = caller.door.proof(payload)
            if caller.door.greeting:
                self._welcome(caller, caller.door.greeting, proof)
        else:
            raise WireError("who does not say hello is not heard")

    def _welcome(self, caller: Caller, greeting: Greeting, proof: bytes) -> None:
        self._check(greeting)
        self._replace(greeting)
        shared = caller.local and greeting.shared
        facts = {
            "instance": self.instance,
            "mode": self.settings.mode,
            "patience_s": self.settings.patience_s,
            "accepted": self.desk.workers[greeting.rank].accepted,
            "tiered": self.settings.memory_bytes is not None,
            "shared": shared,
        }
        caller.send(Kind.WELCOME, 0, _raw(proof + json.dumps(facts).encode()))
        if shared:
            handle = make_memory(self.settings.ring_bytes)
            socket.send_fds(caller.channel.socket, [b"\0"], [handle])
            to_server, to_client = map_memory(handle)
            caller.channel.attach(to_client, to_server)
        caller.channel.most_bytes = MOST_BYTES
        caller.rank = greeting.rank
        self._say(f"rank {greeting.rank} joined{', by shared memory' if shared else ''}")

    def _check(self, greeting: Greeting) -> None:
        mine = self.settings
        if (greeting.index, greeting.servers) != (mine.index, mine.servers):
            raise RefusedError(
                f"this is server {mine.index} of {mine.servers}, not {greeting.index} of {greeting.servers}"
            )
        if greeting.workers != mine.workers or greeting.rank >= mine.workers:
            raise RefusedError(
                f"rank {greeting.rank} of {greeting.workers} workers: this run has {mine.workers}"
            )
        if greeting.generation < self._generation:
            raise RefusedError(
                f"generation {greeting.generation} is over: the run is at {self._generation} by now"
            )
        if greeting.generation == self._generation:
            before = self._sessions.get(greeting.rank, greeting.session)
            if before != greeting.session:
                raise RefusedError(f"rank {greeting.rank} is taken by another process")

    def _replace(self, greeting: Greeting) -> None:
        """Whoever was there before makes room: an older connection of the rank, or an older generation."""
        newer = greeting.generation > self._generation
        for caller in self._callers:
            if caller.rank is not None and (newer or caller.rank == greeting.rank):
                self._lost(caller)
        if newer:
            self._generation, self._sessions = greeting.generation, {}
            self.desk = self._new_desk()
        self._sessions[greeting.rank] = greeting.session

    def _refuse(self, caller: Caller, error: BerthError) -> None:
        """Say why, as far as the socket takes it, and hang up."""
        self._say(f"refused {'a guest' if caller.rank is None else f'rank {caller.rank}'}: {error}")
        caller.send(Kind.ERROR, 0, Room(pack([pack_json(error_facts(error))])))
        caller.gone = True

    def _lost(self, caller: Caller) -> None:
        caller.gone = True
        if caller.rank is not None:
            self.desk.lost(caller.rank, caller)
            caller.rank = None

    def _tidy(self, now: float) -> None:
        """Close what is over, and ask to be told when sockets that are full take more."""
        for caller in list(self._callers):
            if caller.rank is None and now - caller.since_s > _GREETING_S:
                caller.gone = True
            if caller.gone:
                self._hang_up(caller)
                continue
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.channel.has_outgoing else 0)
            if caller.events != events:
                caller.events = events
                self._select.modify(caller.channel, events, caller)

    def _hang_up(self, caller: Caller) -> None:
        if caller.rank is not None:
            self._say(f"rank {caller.rank} left")
        self._lost(caller)
        self._bytes["in"] += caller.channel.bytes_in
        self._bytes["out"] += caller.channel.bytes_out
        self._select.unregister(caller.channel)
        caller.channel.close()
        self._callers.discard(caller)

    def _known(self, now: float) -> dict[int, str]:
        """What can be said about each rank: for those who wait for it."""
        seen = dict.fromkeys(self._sessions, "its connection is lost")
        for caller in self._callers:
            if caller.rank is not None:
                seen[caller.rank] = f"last heard {now - caller.heard_s:.0f} s ago"
        return seen

    def _new_desk(self) -> Desk:
        mine = self.settings
        if not 0 <= mine.index < mine.servers:
            raise InputError(f"there is no server {mine.index} of {mine.servers}")
        shard = Shard(memory_bytes=mine.memory_bytes, folder=mine.folder)
        return Desk(shard, Order(mine.mode, mine.workers, mine.staleness), self._traffic)

    def _traffic(self) -> dict[str, Any]:
        here = [caller.channel for caller in self._callers]
        return {
            "bytes_in": self._bytes["in"] + sum(channel.bytes_in for channel in here),
            "bytes_out": self._bytes["out"] + sum(channel.bytes_out for channel in here),
            "pid": os.getpid(),
        }


def _raw(data: bytes) -> Room:
    return Room(np.frombuffer(bytearray(data), np.uint8))


def _shaken(peer: socket.socket) -> bool:
    """Whether TLS is agreed upon."""
    try:
        if isinstance(peer, ssl.SSLSocket):
            peer.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    return True


def to_stderr(line: str) -> None:
    """Say a line to whoever reads the server's log."""
    print(line, file=sys.stderr, flush=True)
