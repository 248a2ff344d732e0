"""Heartbeats of servers: a thread that counts the answers of one server to pings."""

from __future__ import annotations

import secrets
import select
import threading
from contextlib import suppress

from berth.errors import BerthError
from berth.train.servers.auth import CONTROL_RANK, WorkerIdentity
from berth.train.servers.connection import ClientOptions, ServerConnection
from berth.train.servers.protocol import Kind
from berth.train.servers.secret import Secret
from berth.train.servers.transport import Address

_POLL_MS = 200


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
            with suppress(BerthError, OSError):  # a server that has ended is noticed by its workers
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
            if poll.poll(_POLL_MS):
                connection.read()
        connection.release(connection.take(number))
        return True
