"""Sparse servers: processes that hold the tables, and the store through which workers use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.servers.address import Address
    from berth.train.servers.client import RemoteStore
    from berth.train.servers.codec import Codec
    from berth.train.servers.geo import GeoStore, connect
    from berth.train.servers.link import Manners
    from berth.train.servers.order import Mode
    from berth.train.servers.process import ServerProcess
    from berth.train.servers.secret import Secret, client_tls, server_tls
    from berth.train.servers.server import Server, Settings

_HOMES = {
    "Address": "address",
    "Codec": "codec",
    "GeoStore": "geo",
    "Manners": "link",
    "Mode": "order",
    "RemoteStore": "client",
    "Secret": "secret",
    "Server": "server",
    "ServerProcess": "process",
    "Settings": "server",
    "client_tls": "secret",
    "connect": "geo",
    "server_tls": "secret",
}

__all__ = [
    "Address",
    "Codec",
    "GeoStore",
    "Manners",
    "Mode",
    "RemoteStore",
    "Secret",
    "Server",
    "ServerProcess",
    "Settings",
    "client_tls",
    "connect",
    "server_tls",
]

__getattr__ = exports(__name__, _HOMES)
