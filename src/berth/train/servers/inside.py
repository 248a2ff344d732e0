"""Servers as threads of this process: for tests, and for trying things out. Real ones are processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

from berth.train.servers.secret import Secret
from berth.train.servers.server import Server, Settings


@contextmanager
def serving(count: int, secret: Secret, settings: Settings | None = None) -> Iterator[list[Server]]:
    """So many servers, until the end of the block."""
    common = settings or Settings()
    servers = [Server(secret, replace(common, index=index, servers=count)) for index in range(count)]
    threads = [Thread(target=server.run, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.stop()
            thread.join()
