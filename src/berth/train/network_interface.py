"""Network interfaces, addresses and options of sockets; the interface that gloo uses."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import ExitStack

IFNAME = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915


def use_route_interface(host: str, port: int, keep: ExitStack) -> str | None:
    """Make gloo use the interface of the route to `host`, unless the environment names one; returns its name.

    Gloo reads the environment whenever a group is made, so it is set until `keep` is closed.
    """
    if IFNAME in os.environ:
        return os.environ[IFNAME]
    address = source_address(host, port)
    name = interface_of(address) if address is not None else None
    if name is not None:
        os.environ[IFNAME] = name
        keep.callback(os.environ.pop, IFNAME, None)
    return name


def interface_address() -> str | None:
    """Return the IPv4 address of the interface that the environment names, if it does."""
    names = os.environ.get(IFNAME, "").split(",")
    return _address_of(names[0]) if names[0] else None


def source_address(host: str, port: int) -> str | None:
    """Return the source address of packets to `host`; sends nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str) -> str | None:
    """Return the interface with an address."""
    if ":" in address:
        return _interface_of_six(address)
    if address.startswith("127."):
        address = "127.0.0.1"
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def set_tcp_options(peer: socket.socket) -> None:
    """Disable Nagle's algorithm, and detect a dead peer within 30 s by keep-alives."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _address_of(name: str) -> str | None:
    """Return the IPv4 address of an interface."""
    request = array.array("B", struct.pack("256s", name[:15].encode()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(request.tobytes()[20:24])


def _interface_of_six(address: str) -> str | None:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            return next((line.split()[-1] for line in file if line.split()[0] == wanted), None)
    except OSError:
        return None
