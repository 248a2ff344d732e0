"""Sparse servers: processes that hold the tables, and the store through which workers use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.servers.auth import Secret
    from berth.train.servers.client import RemoteStore
    from berth.train.servers.connection import ClientOptions
    from berth.train.servers.geo import GeoStore, connect
    from berth.train.servers.process import ServerProcess
    from berth.train.servers.protocol import Codec, Mode
    from berth.train.servers.server import Server, ServerConfig
    from berth.train.servers.transport import Address

_HOMES = {
    "Address": "transport",
    "Codec": "protocol",
    "GeoStore": "geo",
    "ClientOptions": "connection",
    "Mode": "protocol",
    "RemoteStore": "client",
    "Secret": "auth",
    "Server": "server",
    "ServerProcess": "process",
    "ServerConfig": "server",
    "connect": "geo",
}

__all__ = [
    "Address",
    "ClientOptions",
    "Codec",
    "GeoStore",
    "Mode",
    "RemoteStore",
    "Secret",
    "Server",
    "ServerConfig",
    "ServerProcess",
    "connect",
]

__getattr__ = exports(__name__, _HOMES)
