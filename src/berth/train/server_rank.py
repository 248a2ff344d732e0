"""A server that is a rank of the run: a process of a job whose role is to hold tables.

It joins the workers, publishes its address, and serves until rank 0 reports that all workers have finished. A request
to stop (SIGTERM) is left to the workers, which save their rows here before they end.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from berth.errors import ServerError
from berth.train.fault_points import NAME
from berth.train.hosts import Hosts
from berth.train.launch_config import LaunchConfig
from berth.train.rendezvous import RankInfo, wait_for_all
from berth.train.servers import Address, Secret, ServerConfig, ServerProcess

ADDRESS_KEY = "berth/servers"  # in the key-value store of the run
_FINISHED = "berth/finished"
_LEFT = "berth/left"
_LEAVE_S = 10.0
_POLL_S = 0.25


def run_server_rank(config: LaunchConfig, rank_info: RankInfo, notify: Callable[[str], None]) -> None:
    """Serve until all workers have finished; raises `ServerError` if rank 0 or the server is lost."""
    index = rank_info.server
    assert index is not None
    with ExitStack() as keep:
        joined = wait_for_all(rank_info, keep, plain=config.options.plain)
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        keep.callback(signal.signal, signal.SIGTERM, before)
        [process] = start_servers(config, joined.secret, joined.hosts, keep, [index], attempt=joined.attempt)
        joined.store.set(f"{ADDRESS_KEY}/{index}", process.address.to_json())
        notify(f"server {index} of {config.servers}")
        try:
            while not joined.store.check([_FINISHED]):
                if process.process.poll() is not None:
                    raise ServerError(f"server {index} ended with exit code {process.process.returncode}")
                time.sleep(_POLL_S)
            joined.store.get(_FINISHED)  # raises if it was not set by the run
            joined.store.set(f"{_LEFT}/{index}", "")
        except RuntimeError as error:  # torch.distributed has no common error type
            raise ServerError(f"lost rank 0: {str(error).splitlines()[0]}") from error


def dismiss_server_ranks(store: Any, rank_info: RankInfo) -> None:
    """On rank 0, when all workers have finished: let the servers end, and wait until they know."""
    store.set(_FINISHED, "")
    with suppress(RuntimeError):  # one that is lost does not matter any more
        store.wait([f"{_LEFT}/{index}" for index in range(rank_info.servers)], timedelta(seconds=_LEAVE_S))


def server_rank_addresses(store: Any, servers: int) -> list[Address]:
    """Return the addresses that servers have published; waits for them."""
    published = [store.get(f"{ADDRESS_KEY}/{index}").decode() for index in range(servers)]
    return [Address.from_json(text) for text in published]


def start_servers(
    config: LaunchConfig,
    secret: Secret,
    hosts: Hosts | None,
    keep: ExitStack,
    indices: Sequence[int],
    workers: int | None = None,
    *,
    attempt: int = 1,
) -> list[ServerProcess]:
    """Start servers on this host, until `keep` is closed; others reach them by the interface to the rendezvous.

    `workers`: how many connect to each; None: as configured. `attempt`: of the run, in the names of processes.
    """
    server = config.server
    host = hosts.address(hosts.here) if hosts is not None and len(hosts) > 1 else "127.0.0.1"
    if server.memory_bytes is not None and server.folder is None:
        server = replace(server, folder=tempfile.mkdtemp(prefix="berth-cold-"))
    server = replace(server, servers=config.servers, workers=workers or server.workers, host=host)
    remove_at_exit(keep, server)  # after the servers have ended
    started = [
        ServerProcess(replace(server, index=index), secret, environment={NAME: f"server{index}/{attempt}"})
        for index in indices
    ]
    for process in started:
        keep.callback(process.stop)
    return started


def remove_at_exit(keep: ExitStack, server: ServerConfig) -> None:
    """Remove the folder of cold rows when `keep` is closed."""
    if server.folder is not None:
        keep.callback(shutil.rmtree, server.folder, ignore_errors=True)
