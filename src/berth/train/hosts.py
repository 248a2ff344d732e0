"""The hosts of a run: which ranks share one, and which host runs which server.

Processes share a host if they share a network namespace: then they reach each other by loopback and Unix sockets. The
lowest rank of a host, its leader, starts the host's servers and its gateway.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from berth.train.network_interface import interface_address, is_loopback, source_address

_NAMES = ("BERTH_MACHINE", "SLURMD_NODENAME")
_OUTSIDE = "192.0.2.1"  # never assigned: the route to it is the default one
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/thread-self/ns/net")


@dataclass(frozen=True, slots=True)
class RankHost:
    """Where a rank runs, as it publishes it."""

    identity: str
    name: str
    address: str  # by which other hosts reach it
    plain: bool = False  # whether it was started with --plain

    def to_json(self) -> str:
        """Return this as one line of JSON."""
        return json.dumps(asdict(self))


def this_host(rendezvous: str, port: int, *, plain: bool = False) -> RankHost:
    """Return where this process runs; its address is that of the interface to the rendezvous."""
    found = [interface_address(), source_address(rendezvous, port)]
    if not is_loopback(rendezvous):  # /etc/hosts: the name of a host is loopback there
        found = [address for address in (*found, source_address(_OUTSIDE, port)) if not _is_useless(address)]
    address = next(filter(None, found), "127.0.0.1")
    return RankHost(_identity(), host_name(), address, plain)


def _is_useless(address: str | None) -> bool:
    """Whether other hosts can't reach an address; an interface that an earlier run in this process used may be `lo`."""
    return address is None or is_loopback(address)


def host_name() -> str:
    """Return the name of this host, as the controller or Slurm calls it if one of them started this process."""
    return next((os.environ[name] for name in _NAMES if name in os.environ), socket.gethostname())


def _identity() -> str:
    boot = _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
    return f"{boot}/{_NAMESPACE.stat().st_ino if _NAMESPACE.exists() else 0}"


class Hosts:
    """The hosts of all ranks, in the order of their lowest rank; ranks from `workers` on are servers."""

    def __init__(self, ranks: Sequence[RankHost], rank: int, workers: int | None = None) -> None:
        self._ranks = ranks
        self._rank = rank
        self._workers = len(ranks) if workers is None else workers
        self._identities = list(dict.fromkeys(one.identity for one in ranks))

    def __len__(self) -> int:
        return len(self._identities)

    @property
    def with_workers(self) -> int:
        """Return how many hosts have workers; they come first."""
        return len({one.identity for one in self._ranks[: self._workers]})

    @property
    def here(self) -> int:
        """Return the host of this process."""
        return self.of_rank(self._rank)

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the lowest of its host."""
        return self._rank == self.leader(self.here)

    def of_rank(self, rank: int) -> int:
        """Return the host of a rank."""
        return self._identities.index(self._ranks[rank].identity)

    def of_server(self, index: int) -> int:
        """Return the host of a server: that of its rank, or, without one, they are dealt out in turn."""
        return self.of_rank(self._workers + index) if self._workers < len(self._ranks) else index % len(self)

    def leader(self, host: int) -> int:
        """Return the lowest rank of a host."""
        return next(rank for rank in range(len(self._ranks)) if self.of_rank(rank) == host)

    def pinged_by(self, host: int) -> int:
        """Return the worker that pings the servers of a host: one there, if there is any."""
        return self.leader(host) if host < self.with_workers else 0

    def address(self, host: int) -> str:
        """Return the address by which other hosts reach this one."""
        return self._ranks[self.leader(host)].address

    def name(self, host: int) -> str:
        """Return the name of a host."""
        return self._ranks[self.leader(host)].name

    def names(self) -> list[str]:
        """Return a distinct name for each host: its address is added where names are equal."""
        names = [self.name(host) for host in range(len(self))]
        return [
            name if names.count(name) == 1 else f"{name} ({self.address(host)})"
            for host, name in enumerate(names)
        ]
