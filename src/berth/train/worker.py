"""One worker process of a run: its model, its sparse store and its session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch.optim import Optimizer

from berth.errors import InputError, ServerError
from berth.train.async_session import AsyncSession
from berth.train.device_store import local_store
from berth.train.devices import find_device, named_device, use_device
from berth.train.distributed_session import DistributedSession
from berth.train.fault_points import name_process
from berth.train.heartbeat import InProcessStore, StallMonitor, WatchedServer
from berth.train.hosts import Hosts
from berth.train.launch import ATTEMPT, PEER_LOST, server_addresses
from berth.train.launch_config import LaunchConfig, needs_server, table_users
from berth.train.learner import Learner
from berth.train.mixed_store import MixedStore
from berth.train.planned import is_job_plan
from berth.train.process_group import ProcessGroup, join_process_group
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo
from berth.train.resident.owners import owners_of_tables
from berth.train.resident.store import ResidentStore
from berth.train.server_rank import ADDRESS_KEY, remove_at_exit, server_rank_addresses, start_servers
from berth.train.servers import Address, ClientOptions, Secret, connect
from berth.train.servers.auth import SECRET_VARIABLE
from berth.train.servers.connection import ServerPing, ping_identity
from berth.train.sparse import SparseStore, WithoutPeers
from berth.train.stages.learner import StageLearner
from berth.zoo import LayeredModel


def worker_session(
    recipe: Recipe, config: LaunchConfig, rank_info: RankInfo, *, notify: Callable[[str], None] = print
) -> DistributedSession:
    """Return this rank's session, after joining the other ranks and resuming with them."""
    layout, options = config.layout, config.options
    if rank_info.world_size != layout.world_size:
        raise InputError(
            f"{rank_info.world_size} processes were started, but the stages need {layout}"
            + (f" = {layout.world_size}" if layout.stages > 1 else "")
            + (
                f", or {layout.world_size + config.servers} with servers" if is_job_plan(options.plan) else ""
            ),
            hint="give as many ranks, or another --scale" if config.planned is not None else None,
        )
    smallest = recipe.batch // max(layout.replicas)
    if config.cuts and smallest < config.micro_batches:
        raise InputError(
            f"{smallest} examples of a replica can't be split into {config.micro_batches} micro-batches",
            hint="use a larger --batch or a smaller --micro",
        )
    devices = [named_device(config.device_of(stage)) for stage in range(layout.stages)]
    device = find_device(config.device_of(layout.stage(rank_info.rank)))
    use_device(device)
    process_group = join_process_group(rank_info, layout, devices, plain=options.plain)
    name_process(f"rank{rank_info.rank}/{process_group.attempt}")
    store = _make_store(recipe, config, process_group, device)

    independent = options.mode != "sync" and config.servers > 0
    optimiser = recipe.optimiser or options.optimiser
    assert not isinstance(optimiser, Optimizer)  # a trainer of several processes refuses objects

    def make_learner(rows: SparseStore) -> Learner:
        if config.cuts:
            assert isinstance(recipe.model, LayeredModel)
            cut = config.cuts[process_group.stage]
            return StageLearner(
                recipe.model,
                rows,
                process_group,
                cut,
                micro_batches=config.micro_batches,
                optimiser=optimiser,
                loss=recipe.loss,
                device=device,
                bf16=options.bf16,
            )
        return Learner(
            recipe.model,
            rows,
            optimiser=optimiser,
            loss=recipe.loss,
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
        replace(options, batch=recipe.batch, threads=1, device=str(device)),
        process_group=process_group,
        store=store,
        learner=make_learner,
        planned=config.planned,
        notify=notify,
        optimiser=optimiser,
        scheduler=recipe.scheduler,
        loss=recipe.loss,
        evaluations=recipe.evaluations,
        callbacks=recipe.callbacks,
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


def _make_store(
    recipe: Recipe, config: LaunchConfig, process_group: ProcessGroup, device: torch.device
) -> SparseStore:
    """Return the tables of this rank: in the memory of workers, on servers, or, by stage, both."""
    layout, stages = config.layout, config.resident_stages
    users = table_users(recipe.model, layout, config.cuts, stages)
    if not config.resident:
        return _open_store(process_group, users, config, device)
    owners = owners_of_tables(recipe.model, layout, config.cuts, stages)
    resident = ResidentStore(process_group, owners, device)
    if not config.servers:
        return resident
    served = _open_store(process_group, users, config, device)
    connected = served if process_group.rank_info.rank in users else None
    return MixedStore(resident, connected, is_main=process_group.is_main)


def _open_store(
    process_group: ProcessGroup, users: Sequence[int], config: LaunchConfig, device: torch.device
) -> SparseStore:
    addresses, secret = _servers(process_group, len(users), config)
    if addresses:
        _watch_servers(process_group, addresses, len(users), config, secret)
    if process_group.rank_info.rank not in users:
        return cast("SparseStore", NoTables())
    if not addresses:
        if len(users) > 1:
            raise needs_server()
        remove_at_exit(process_group.keep, config.server)
        return local_store(
            device,
            config.options.device_cache_bytes,
            memory_bytes=config.server.memory_bytes,
            folder=config.server.folder,
        )
    rank, options = users.index(process_group.rank_info.rank), config.options
    more: dict[str, Any] = {"every": options.geo_every} if options.mode == "geo" else {}
    more["options"] = ClientOptions(tls=False if options.plain else None)
    return connect(addresses, secret, rank=rank, workers=len(users), codec=options.codec, **more)


def _servers(process_group: ProcessGroup, workers: int, config: LaunchConfig) -> tuple[list[Address], Secret]:
    """Return the servers of the launcher, or those with ranks; else the lowest rank of each host starts its share."""
    addresses = server_addresses()
    if addresses or not config.servers:
        return addresses, Secret.find() if addresses else Secret.random()
    secret, hosts, store = process_group.secret, process_group.hosts, process_group.store
    attempt = process_group.attempt
    if secret is None or hosts is None:
        secret = Secret.find() if SECRET_VARIABLE in os.environ else Secret.random()
        started = start_servers(
            config, secret, None, process_group.keep, range(config.servers), workers, attempt=attempt
        )
        return [process.address for process in started], secret
    if hosts.is_leader and not process_group.rank_info.servers:
        indices = [index for index in range(config.servers) if hosts.of_server(index) == hosts.here]
        started = start_servers(config, secret, hosts, process_group.keep, indices, workers, attempt=attempt)
        for index, process in zip(indices, started, strict=True):
            store.set(f"{ADDRESS_KEY}/{index}", process.address.to_json())
    return server_rank_addresses(store, config.servers), secret


def _watch_servers(
    process_group: ProcessGroup,
    addresses: Sequence[Address],
    workers: int,
    config: LaunchConfig,
    secret: Secret,
) -> None:
    """Report servers that do not answer; the lowest rank of each host pings those of its host."""
    monitor, hosts = process_group.monitor, process_group.hosts
    if monitor is None:
        monitor = StallMonitor(0, 1)
        monitor.start(InProcessStore())
        process_group.keep.callback(monitor.stop)
    servers = [_watched(index, hosts) for index in range(len(addresses))]
    counts: dict[int, Callable[[], int]] = {}
    for index, address in enumerate(addresses):
        if servers[index].rank == process_group.rank_info.rank:
            identity = ping_identity(index, len(addresses), workers)
            tls = False if config.options.plain else None
            ping = ServerPing(address, identity, secret, tls=tls, every_s=monitor.check_every_s)
            process_group.keep.callback(ping.stop)
            counts[index] = partial(getattr, ping, "answers")
    monitor.watch_servers(servers, counts, time.monotonic())


def _watched(index: int, hosts: Hosts | None) -> WatchedServer:
    """Return the name of a server in reports, and the rank that pings it."""
    if hosts is None or len(hosts) == 1:
        return WatchedServer(f"server {index}", 0)
    host = hosts.of_server(index)
    return WatchedServer(f"server {index} on {hosts.names()[host]}", hosts.pinged_by(host))


class NoTables(WithoutPeers):
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
