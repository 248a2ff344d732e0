"""Selects the network interface of the route to the rendezvous for gloo."""

from __future__ import annotations

import array
import fcntl
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
