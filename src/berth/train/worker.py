"""One worker process of a run: its model, its sparse store and its session."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from berth.errors import InputError, ServerError
from berth.train.async_session import AsyncSession
from berth.train.devices import find_device, use_device
from berth.train.distributed_session import DistributedSession
from berth.train.launch import ATTEMPT, PEER_LOST, server_addresses
from berth.train.launch_config import LaunchConfig, needs_server, table_users
from berth.train.learner import Learner
from berth.train.local import LocalStore
from berth.train.process_group import ProcessGroup, join_process_group
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo
from berth.train.servers import Address, Secret, ServerConfig, ServerProcess, connect
from berth.train.servers.auth import VARIABLE
from berth.train.sparse import SparseStore
from berth.train.stages.learner import StageLearner
from berth.zoo import LayeredModel

_SERVERS_KEY = "berth/servers"  # in the key-value store of the process group
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def worker_session(
    recipe: Recipe, config: LaunchConfig, rank_info: RankInfo, *, notify: Callable[[str], None] = print
) -> DistributedSession:
    """Return this rank's session, after joining the other ranks and resuming with them."""
    layout, options = config.layout, config.options
    if rank_info.world_size != layout.world_size:
        raise InputError(
            f"{rank_info.world_size} processes were started, but the stages need {layout}"
            + (f" = {layout.world_size}" if layout.stages > 1 else ""),
            hint="give as many ranks, or another --scale" if config.planned is not None else None,
        )
    smallest = recipe.batch // max(layout.replicas)
    if config.cuts and smallest < config.micro_batches:
        raise InputError(
            f"{smallest} examples of a replica can't be split into {config.micro_batches} micro-batches",
            hint="use a larger --batch or a smaller --micro",
        )
    device = find_device(options.device)
    use_device(device)
    process_group = join_process_group(rank_info, layout, device)
    store = _open_store(process_group, table_users(recipe.model, layout, config.cuts), config)

    independent = options.mode != "sync" and config.servers > 0

    def make_learner(rows: SparseStore) -> Learner:
        if config.cuts:
            assert isinstance(recipe.model, LayeredModel)
            cut = config.cuts[process_group.stage]
            return StageLearner(recipe.model, rows, process_group, cut, micro_batches=config.micro_batches)
        return Learner(
            recipe.model,
            rows,
            workers=layout.readers,
            all_reduce=None if independent else process_group.all_reduce,
            device=device,
            bf16=options.bf16,
            slowdown=config.slowdown,
            dense_on_servers=independent,
        )

    session = AsyncSession if independent else DistributedSession
    return session(
        recipe.model,
        recipe.data,
        replace(options, batch=recipe.batch, threads=1),
        process_group=process_group,
        store=store,
        learner=make_learner,
        planned=config.planned,
        notify=notify,
    )


@contextmanager
def exit_if_peer_lost(rank_info: RankInfo, notify: Callable[[str], None]) -> Iterator[None]:
    """Exit at once when another rank is lost: the launcher knows which one, and restarts all of them."""
    try:
        yield
    except ServerError as error:
        if rank_info.is_single:
            raise
        if ATTEMPT not in os.environ:
            notify(f"error: {str(error).splitlines()[0]}")
        os._exit(PEER_LOST)  # skips everything that would wait for the other ranks


def _open_store(process_group: ProcessGroup, users: Sequence[int], config: LaunchConfig) -> SparseStore:
    addresses, secret = _servers(process_group, len(users), config)
    if process_group.rank_info.rank not in users:
        return cast("SparseStore", NoTables())
    if not addresses:
        if len(users) > 1:
            raise needs_server()
        _remove_at_exit(process_group, config.server)
        return LocalStore(memory_bytes=config.server.memory_bytes, folder=config.server.folder)
    rank, options = users.index(process_group.rank_info.rank), config.options
    more: dict[str, Any] = {"every": options.geo_every} if options.mode == "geo" else {}
    return connect(addresses, secret, rank=rank, workers=len(users), codec=options.codec, **more)


def _remove_at_exit(process_group: ProcessGroup, server: ServerConfig) -> None:
    if server.folder is not None:
        process_group.keep.callback(shutil.rmtree, server.folder, ignore_errors=True)


def _servers(process_group: ProcessGroup, workers: int, config: LaunchConfig) -> tuple[list[Address], Secret]:
    """Return the servers of the launcher; without a launcher, rank 0 starts them and publishes their addresses."""
    addresses = server_addresses()
    if addresses or not config.servers:
        return addresses, Secret.find() if addresses else Secret.random()
    if process_group.is_main:
        return _start_servers(process_group, workers, config)
    published = json.loads(process_group.store.get(_SERVERS_KEY))
    return [Address.from_json(text) for text in published["servers"]], shared_secret(published["secret_file"])


def _start_servers(
    process_group: ProcessGroup, workers: int, config: LaunchConfig
) -> tuple[list[Address], Secret]:
    """Start servers on this machine. The secret is not published: the key-value store has no authentication."""
    host, file = process_group.rank_info.host, None
    if VARIABLE in os.environ:
        secret = Secret.find()
    elif host in _LOOPBACK:
        secret = Secret.random()
        file = process_group.keep.enter_context(secret_file(secret))
    else:
        raise InputError(
            "workers on several machines need a shared secret", hint=f"set {VARIABLE} for all of them"
        )
    server = replace(config.server, servers=config.servers, workers=workers, host=host)
    _remove_at_exit(process_group, server)  # after the servers have ended
    started = [ServerProcess(replace(server, index=index), secret) for index in range(config.servers)]
    for process in started:
        process_group.keep.callback(process.stop)
    if process_group.store is not None:
        published = {"servers": [process.address.to_json() for process in started], "secret_file": file}
        process_group.store.set(_SERVERS_KEY, json.dumps(published))
    return [process.address for process in started], secret


@contextmanager
def secret_file(secret: Secret) -> Iterator[str]:
    """Write the secret to a temporary file that only this user can read."""
    with tempfile.TemporaryDirectory(prefix="berth-secret-") as folder:
        path = Path(folder, "secret")
        path.touch(mode=0o600)
        path.write_text(secret.environment()[VARIABLE])
        yield str(path)


def shared_secret(path: str | None) -> Secret:
    """Return the secret of rank 0, from the environment or from the file that rank 0 published.

    Anyone who reaches the key-value store can publish a path, so the file must be one that only this user can read.
    """
    if path is None or VARIABLE in os.environ:
        return Secret.find()
    try:
        file = os.lstat(path)
    except OSError as error:
        raise InputError(f"the secret can't be read: {error.strerror}", where=path) from error
    if not stat.S_ISREG(file.st_mode) or file.st_uid != os.getuid() or file.st_mode & 0o077:
        raise InputError("is not a private file of this user, so it is not the run's secret", where=path)
    return Secret.find(path)


class NoTables:
    """The store of a stage without tables."""

    def open(self, tables: Sequence[Any]) -> None:
        """Check that there are none."""
        assert not tables

    def end_step(self, step: int) -> None:
        """Do nothing."""

    def end_day(self) -> None:
        """Do nothing."""

    def statistics(self) -> dict[str, Any]:
        """Return no tables."""
        return {"tables": {}}

    def close(self) -> None:
        """Do nothing."""
