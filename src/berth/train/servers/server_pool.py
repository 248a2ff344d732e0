"""The connections of one worker to all servers of a run: send to all, receive in order of arrival."""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from berth.errors import InputError, ServerError
from berth.train.heartbeat import HEARTBEAT
from berth.train.servers.auth import CONTROL_RANK, Secret, WorkerIdentity
from berth.train.servers.connection import ClientOptions, ServerConnection
from berth.train.servers.protocol import (
    MAX_PAYLOAD_BYTES,
    Array,
    Flag,
    Frame,
    Kind,
    Layout,
    copy_arrays,
    layout_of,
)
from berth.train.servers.transport import Address, Channel


class ServerPool:
    """A connection to each server; `step` is sent with every request, for error messages."""

    def __init__(
        self,
        addresses: Sequence[Address],
        secret: Secret,
        options: ClientOptions,
        *,
        rank: int,
        workers: int,
        generation: int,
    ) -> None:
        self.step = 0
        self._is_control = rank == CONTROL_RANK
        self._options = options
        self._flusher = Flusher()
        self._connections: list[ServerConnection] = []
        self._leaving = False
        session = secrets.randbits(64)
        try:
            for index, address in enumerate(addresses):
                identity = WorkerIdentity(
                    rank, workers, index, len(addresses), generation, session, options.shared
                )
                self._connections.append(ServerConnection(address, identity, secret, options))
        except BaseException:
            self.close()
            raise
        self.mode = str(self._connections[0].facts["mode"])
        self.tiered = bool(self._connections[0].facts["tiered"])
        server_timeout_s = max(float(str(connection.facts["patience_s"])) for connection in self._connections)
        self._timeout_s = server_timeout_s + options.timeout_s

    def __len__(self) -> int:
        return len(self._connections)

    def __getitem__(self, shard: int) -> ServerConnection:
        return self._connections[shard]

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(self._connections)

    def send(
        self, shard: int, kind: Kind, arrays: Sequence[Array] | None = None, *, flags: int = Flag.NONE
    ) -> int:
        """Send a request with copies of arrays to one server; returns its number."""
        if arrays is None:
            return self._connections[shard].send(kind, flags=flags, step=self.step)
        return self.send_in_place(shard, kind, layout_of(arrays), partial(copy_arrays, arrays), flags=flags)

    def send_in_place(
        self,
        shard: int,
        kind: Kind,
        layout: Layout,
        fill: Callable[[list[Array]], None],
        *,
        flags: int = Flag.NONE,
    ) -> int:
        """Send a request whose arrays are written directly into the payload."""
        connection = self._connections[shard]
        check_message_size(layout.length)
        number = connection.send(kind, layout, fill, flags=flags, step=self.step)
        self._flusher.watch(connection.channel)
        return number

    def send_all(self, kind: Kind) -> Iterator[tuple[int, Frame]]:
        """Send a request to all servers and yield their responses."""
        return self.responses([self.send(shard, kind) for shard in range(len(self))])

    def call_all(self, kind: Kind) -> None:
        """Send a request to all servers and wait for the responses."""
        for _ in self.send_all(kind):
            pass

    def leave(self) -> None:
        """Say goodbye to all servers, each of which may end at once."""
        self._leaving = True
        self.call_all(Kind.BYE)

    def responses(self, numbers: list[int]) -> Iterator[tuple[int, Frame]]:
        """Yield the responses to one request per server; each is released when the next is taken."""
        for shard, frame in self.as_completed(dict(enumerate(numbers))):
            yield shard, frame
            self._connections[shard].release(frame)

    def response(self, shard: int, number: int) -> Frame:
        """Return the response of one server; the caller releases it."""
        return next(frame for _, frame in self.as_completed({shard: number}))

    def as_completed(self, waiting: dict[int, int]) -> Iterator[tuple[int, Frame]]:
        """Yield (server, response) in order of arrival; the caller releases them."""
        remaining = dict(waiting)
        while remaining:
            arrived = [
                shard for shard, number in remaining.items() if number in self._connections[shard].responses
            ]
            for shard in arrived:
                yield shard, self._connections[shard].take(remaining.pop(shard))
            if remaining and not arrived:
                pairs = [(self._connections[shard], number) for shard, number in remaining.items()]
                self._wait_until(_any_answered(pairs), [connection for connection, _ in pairs])

    def wait_for_window(self, shard: int) -> None:
        """Wait while too many pushes are unacknowledged."""
        connection = self._connections[shard]
        self._wait_until(lambda: connection.pushes_in_flight < self._options.in_flight, [connection])

    def close(self) -> None:
        """Close all connections."""
        self._flusher.close()
        for connection in self._connections:
            connection.close()

    def _wait_until(self, done: Callable[[], bool], connections: list[ServerConnection]) -> None:
        """Read until `done()`; raises after the timeout, and at once when any server is lost: its rows are."""
        deadline = time.monotonic() + self._timeout_s
        for connection in connections:
            connection.flush_unsent()
        HEARTBEAT.waiting = HEARTBEAT.waiting or not self._is_control
        try:
            while not done():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    names = ", ".join(connection.name for connection in connections)
                    raise ServerError(f"no response within {self._timeout_s:g} s from {names}")
                for connection in _ready(connections if self._leaving else self._connections, left_s):
                    connection.read()
        finally:
            HEARTBEAT.waiting = HEARTBEAT.waiting and self._is_control


def _ready(connections: list[ServerConnection], timeout_s: float) -> list[ServerConnection]:
    """Return the connections ready to read or write; `poll` has no limit on descriptors."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN | (select.POLLOUT if connection.channel.has_outgoing else 0))
    files = {file for file, _ in poll.poll(timeout_s * 1000)}
    return [connection for connection in connections if connection.fileno() in files]


def check_message_size(length: int) -> None:
    """Raise for a message larger than the protocol allows."""
    if length > MAX_PAYLOAD_BYTES:
        raise InputError(
            f"message of {length} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}",
            hint="use smaller batches, or more servers",
        )


def _any_answered(pairs: list[tuple[ServerConnection, int]]) -> Callable[[], bool]:
    return lambda: any(number in connection.responses for connection, number in pairs)


_PAUSE_MS = 200  # then the next connection is served


class Flusher:
    """A thread that sends what a socket did not accept at once, while the worker computes."""

    def __init__(self) -> None:
        self._waiting: set[Channel] = set()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True

    def watch(self, channel: Channel) -> None:
        """Send the remaining data of a connection, if any."""
        if not channel.has_outgoing:
            return
        with self._change:
            self._waiting.add(channel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="berth-flusher", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Stop the thread."""
        with self._change:
            self._open = False
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or not self._open)
                if not self._open:
                    return
                channels = list(self._waiting)
            for channel in channels:
                broken = not self._sends(channel)
                with self._change:
                    if broken or not channel.has_outgoing:
                        self._waiting.discard(channel)

    @staticmethod
    def _sends(channel: Channel) -> bool:
        """Send some data; returns False if the connection is broken, which the worker will notice."""
        try:
            poll = select.poll()
            poll.register(channel, select.POLLOUT)
            poll.poll(_PAUSE_MS)
            channel.flush()
        except (OSError, ValueError):
            return False
        return True
