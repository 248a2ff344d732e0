"""Gloo between hosts, through the gateways: ranks listen on loopback addresses that only gateways connect to others."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

from berth.errors import InputError
from berth.train.gateway import Endpoint
from berth.train.hosts import Hosts
from berth.train.rendezvous import RankInfo
from berth.train.servers.auth import Secret

NAME = "berthgloo"  # of the backend; torch allows letters only
_LEAVE_S = 5.0
_READY_S = 300.0  # hosts may be busy
_LISTEN = "0A"  # state in /proc/net/tcp


def use_gateways(
    store: Any, secret: Secret, hosts: Hosts, rank_info: RankInfo, backend: str, keep: ExitStack
) -> str:
    """Start the gateway if this rank leads its host; returns the backend whose CPU part uses the gateways."""
    device, endpoint = _listening_device()
    store.set(f"gloo/{rank_info.rank}", json.dumps(endpoint))
    if hosts.is_leader:
        gateway = GatewayProcess(secret, hosts.address(hosts.here))
        keep.callback(gateway.stop)
        store.set(f"gateway/{hosts.here}", str(gateway.port))
        gateways = [(hosts.address(host), _port(store, hosts, host)) for host in range(hosts.with_workers)]
        ranks = {rank: _endpoint(store, rank) for rank in range(rank_info.world_size)}
        gateway.route(
            [endpoint for rank, endpoint in ranks.items() if hosts.of_rank(rank) == hosts.here],
            [
                (endpoint, gateways[hosts.of_rank(rank)])
                for rank, endpoint in ranks.items()
                if hosts.of_rank(rank) != hosts.here
            ],
        )
        store.set(f"gateway ready/{hosts.here}", "")
    for host in range(hosts.with_workers):
        _wait(store, f"gateway ready/{host}", hosts, host)
    _register(device)
    return backend.replace("gloo", NAME)


class GatewayProcess:
    """The gateway of this host; it ends with this process."""

    def __init__(self, secret: Secret, host: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "berth.train.gateway", "--host", host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **secret.environment()},
            text=True,
            bufsize=1,
            process_group=0,
        )
        self.port = int(self._line())

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def route(self, targets: list[Endpoint], remote: list[tuple[Endpoint, Endpoint]]) -> None:
        """Set the routes; returns when the gateway listens at all of them."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"targets": targets, "remote": remote}) + "\n")
        self._line()

    def stop(self) -> None:
        """Stop the gateway."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _line(self) -> str:
        stream = self._process.stdout
        assert stream is not None
        line = stream.readline() if select.select([stream], [], [], _READY_S)[0] else ""
        if not line:
            raise InputError("the gateway to other hosts did not start", hint="its error is above")
        return line


def _listening_device() -> tuple[Any, Endpoint]:
    """Return a device of gloo on a loopback address of its own, and where it listens."""
    parts = secrets.token_bytes(3)
    host = f"127.{parts[0] | 64}.{parts[1]}.{parts[2] or 1}"
    device = ProcessGroupGloo.create_device(hostname=host)
    ours = {os.readlink(f"/proc/self/fd/{name}") for name in _open_files()}
    address = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        own_address, _, port = columns[1].partition(":")
        if own_address == address and columns[3] == _LISTEN and f"socket:[{columns[9]}]" in ours:
            return device, (host, int(port, 16))
    raise InputError(
        "gloo does not listen on a loopback address", hint="use --plain on a network that you trust"
    )


def _open_files() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")]


def _register(device: Any) -> None:
    """Register the backend, whose groups all use one device."""

    gloo: Any = ProcessGroupGloo  # torch's types lack its options

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        options = gloo._Options()
        options._devices = [device]
        options._timeout = timeout
        return gloo(store, rank, size, options)

    dist.Backend.register_backend(NAME, create, devices=["cpu"])


def _endpoint(store: Any, rank: int) -> Endpoint:
    host, port = json.loads(store.get(f"gloo/{rank}"))
    return str(host), int(port)


def _port(store: Any, hosts: Hosts, host: int) -> int:
    _wait(store, f"gateway/{host}", hosts, host)
    return int(store.get(f"gateway/{host}"))


def _wait(store: Any, key: str, hosts: Hosts, host: int) -> None:
    try:
        store.wait([key], timedelta(seconds=_READY_S))
        store.get(key)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"the gateway of {hosts.names()[host]} did not start: {reason}") from error
