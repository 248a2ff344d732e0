"""How the processes of a run find each other: by the environment variables of torchrun.

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` are set by berth's launcher, torchrun, a berth job or Ray; in a
Slurm step they are derived from Slurm's variables. Without them the run has one process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from berth.errors import ForeignValueError, InputError
from berth.train.attempt import agree_on_attempt, is_store_of_agent, name_in_store
from berth.train.heartbeat import notify, silent_after_s
from berth.train.hosts import Hosts, RankHost, this_host
from berth.train.network_interface import IFNAME, is_loopback, use_route_interface
from berth.train.run_secret import run_secret
from berth.train.servers.auth import SECRET_VARIABLE, Secret

LISTENER = "BERTH_TRAIN_LISTENER"  # descriptor of a socket bound to the port, for rank 0
_SLURM_PORT = 29_500
_LEAVE_S = 10.0
TIMEOUT_S = 1800.0  # for a process that does not join or is busy; it is reported sooner


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process."""

    rank: int = 0
    world_size: int = 1  # workers
    host: str = "127.0.0.1"
    port: int = 0
    servers: int = 0  # processes that are servers; their ranks follow those of the workers

    @property
    def address(self) -> str:
        """Return the address of the rendezvous."""
        return f"{self.host}:{self.port}"

    @property
    def processes(self) -> int:
        """Return the number of workers and servers that have a rank."""
        return self.world_size + self.servers

    @property
    def is_single(self) -> bool:
        """Whether this is the only process."""
        return self.processes == 1

    @property
    def server(self) -> int | None:
        """Return the index of the server that this process is; None for a worker."""
        return self.rank - self.world_size if self.rank >= self.world_size else None

    def environment(self) -> dict[str, str]:
        """Return torchrun's environment variables."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


def rank_from_environment(environment: Mapping[str, str] | None = None) -> RankInfo | None:
    """Return the rank set in the environment, or None if there is none."""
    variables = os.environ if environment is None else environment
    if "RANK" in variables and "WORLD_SIZE" in variables:
        rank, world_size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
        if world_size > 1 and not ("MASTER_ADDR" in variables and "MASTER_PORT" in variables):
            raise InputError("RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not")
        port = _number(variables, "MASTER_PORT") if "MASTER_PORT" in variables else 0
        return _checked(RankInfo(rank, world_size, variables.get("MASTER_ADDR", "127.0.0.1"), port))
    if "SLURM_PROCID" in variables and _number(variables, "SLURM_NTASKS", 1) > 1:
        host = _slurm_host(variables)
        job = _number(variables, "SLURM_JOB_ID", 0)
        port = _number(variables, "MASTER_PORT", _SLURM_PORT + job % 10_000)
        return _checked(
            RankInfo(_number(variables, "SLURM_PROCID"), _number(variables, "SLURM_NTASKS"), host, port)
        )
    return None


def _slurm_host(variables: Mapping[str, str]) -> str:
    """Return where the tasks of a step meet: on its first node, whose name need not resolve if it is the only one.

    `MASTER_ADDR` sets another address. Batch scripts export the first node of the job there: a step that begins on
    another node ignores it, since its rank 0 can't listen there.
    """
    job = variables.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    first, first_of_job = first_host(variables.get("SLURM_STEP_NODELIST") or job), first_host(job)
    given = variables.get("MASTER_ADDR")
    if given and (first == first_of_job or _short(given) != _short(first_of_job)):
        return given
    if (variables.get("SLURM_STEP_NUM_NODES") or variables.get("SLURM_JOB_NUM_NODES")) == "1":
        return "127.0.0.1"
    return first


def _short(host: str) -> str:
    """Return the name of a host without its domain."""
    return host.partition(".")[0]


def first_host(nodes: str) -> str:
    """Return the first node of a Slurm node list: gpu03 of `gpu[03-07,9],cpu1`."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", nodes.strip())
    if found is None:
        raise InputError(f"{nodes!r} is not a Slurm node list")
    return found.group(1) + (found.group(2) or "")


@dataclass(slots=True)
class Joined:
    """What a rank knows once all have joined."""

    store: Any  # key-value store of all ranks; its values are signed
    secret: Secret
    hosts: Hosts
    attempt: int  # from 1, of those that share the store


def join(
    rank_info: RankInfo,
    backend: str = "gloo",
    keep: ExitStack | None = None,
    *,
    plain: bool = False,
    notify: Callable[[str], None] = notify,
) -> Joined:
    """Join the other ranks, and create their process group; `keep` is closed when the run ends."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    keep = keep if keep is not None else ExitStack()
    joined = wait_for_all(rank_info, keep, notify, plain=plain)
    if joined.hosts.with_workers > 1 and not plain:
        from berth.train.secure_gloo import use_gateways

        backend = use_gateways(joined.store, joined.secret, joined.hosts, rank_info, backend, keep)
    elif len(joined.hosts) > 1:
        use_route_interface(rank_info.host, rank_info.port, keep)
    else:
        use_route_interface("127.0.0.1", rank_info.port, keep)
    if rank_info.rank == 0:
        _report_security(joined.hosts, backend, notify, plain=plain)
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore("gloo", joined.store),
            rank=rank_info.rank,
            world_size=rank_info.world_size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"rank {rank_info.rank} of {rank_info.world_size} can't join the others at {rank_info.address}",
            hint=f"{str(error).splitlines()[0]}; the network interface is {os.environ.get(IFNAME, 'unknown')}:"
            f" {IFNAME} selects another one",
        ) from error
    return joined


def _report_security(hosts: Hosts, backend: str, notify: Callable[[str], None], *, plain: bool) -> None:
    """Say what is not encrypted between hosts."""
    if len(hosts) == 1:
        return
    others = [part for part in backend.split(",") if not part.startswith("cpu:") and ":" in part]
    if plain:
        notify(f"warning: --plain: nothing is encrypted between the {len(hosts)} hosts")
    elif others:
        names = ", ".join(part.partition(":")[2] for part in others)
        notify(f"warning: dense gradients between hosts use {names}, which does not encrypt or authenticate")


def heartbeat_store(rank_info: RankInfo, joined: Joined) -> Any:
    """Return a separate connection to the key-value store, so that a blocking read does not delay heartbeats."""
    store = _store(rank_info, is_master=False, wait_s=TIMEOUT_S)
    return _signed(_of_attempt(store, joined.attempt), joined.secret, joined.attempt)


def torchrun_name() -> str:
    """Return a name that all workers of this run of torchrun have in common, over all restarts, and no other has."""
    rank_info = rank_from_environment() or RankInfo()
    try:
        return name_in_store(_store(rank_info, is_master=False, wait_s=silent_after_s()))
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"the key-value store of torchrun at {rank_info.address} can't be reached",
            hint=str(error).splitlines()[0],
        ) from None


def wait_for_all(
    rank_info: RankInfo, keep: ExitStack, notify: Callable[[str], None] = notify, *, plain: bool
) -> Joined:
    """Return store, secret and hosts once every rank has joined; missing ranks are reported again and again."""
    started = time.monotonic()
    connected = _connect(rank_info, started, notify)
    attempt = 1
    if is_store_of_agent():
        attempt = agree_on_attempt(
            connected,
            rank_info.rank,
            rank_info.processes,
            lambda missing: _report_missing(rank_info, missing, started, notify),
        )
    store = _of_attempt(connected, attempt)
    here = f"here/{rank_info.rank}"
    try:
        secret = run_secret(store, keep, is_main=rank_info.rank == 0)
    except InputError:
        store.set(here, "")  # without a signature: the others learn that this rank has no secret
        raise
    signed = _signed(store, secret, attempt)
    signed.set(here, this_host(rank_info.host, rank_info.port, plain=plain).to_json())
    while missing := _missing(rank_info, signed):
        if rank_info.rank == min(set(range(rank_info.processes)) - set(missing)):
            _report_missing(rank_info, missing, started, notify)
    try:
        ranks = _read_hosts(rank_info, signed)
    except InputError:
        _leave(rank_info, store)
        raise
    store.set(f"checked/{rank_info.rank}", "")
    return Joined(signed, secret, Hosts(ranks, rank_info.rank, rank_info.world_size), attempt)


def _connect(rank_info: RankInfo, started: float, notify: Callable[[str], None]) -> Any:
    """Return the store; rank 0 hosts it, unless torchrun does."""
    is_master = rank_info.rank == 0 and not is_store_of_agent()
    while True:
        try:
            return _store(rank_info, is_master=is_master, wait_s=silent_after_s())
        except (RuntimeError, OSError) as error:
            if is_master:
                hint = str(error).splitlines()[0]
                if _is_from_master_addr(rank_info):
                    hint += "; unset MASTER_ADDR, and the ranks meet on the first node of the step"
                raise InputError(f"rank 0 can't listen at {rank_info.address}", hint=hint) from None
            _report_missing(rank_info, [0], started, notify)


def _read_hosts(rank_info: RankInfo, store: Any) -> list[RankHost]:
    """Return where all ranks run; raises if one has another secret, or another setting of --plain."""
    ranks = []
    for rank in range(rank_info.processes):
        try:
            ranks.append(RankHost(**json.loads(store.get(f"here/{rank}"))))
        except ForeignValueError:
            raise InputError(
                f"rank {rank} does not have the secret of rank {rank_info.rank}, so they can't train together",
                hint=f"set {SECRET_VARIABLE} to the same value for all ranks",
            ) from None
    differs = next((rank for rank in range(len(ranks)) if ranks[rank].plain != ranks[0].plain), None)
    if differs is not None:
        raise InputError(
            f"ranks 0 and {differs} disagree on --plain", hint="start all ranks with the same options"
        )
    return ranks


def _leave(rank_info: RankInfo, store: Any) -> None:
    """After a refusal, keep the store of rank 0 until the others have noticed it too."""
    store.set(f"checked/{rank_info.rank}", "")
    if rank_info.rank == 0:
        with suppress(RuntimeError):
            store.wait(
                [f"checked/{rank}" for rank in range(rank_info.processes)], timedelta(seconds=_LEAVE_S)
            )


def _missing(rank_info: RankInfo, store: Any) -> list[int]:
    """Wait for all ranks for a while; returns those that have not joined."""
    keys = [f"here/{rank}" for rank in range(rank_info.processes)]
    try:
        store.wait(keys, timedelta(seconds=silent_after_s()))
    except RuntimeError:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    return []


def _report_missing(
    rank_info: RankInfo, missing: Sequence[int], started: float, notify: Callable[[str], None]
) -> None:
    waited = time.monotonic() - started
    ranks = f"rank{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing))} of {rank_info.processes}"
    source = ", which MASTER_ADDR sets," if _is_from_master_addr(rank_info) else ""
    text = f"{ranks} did not join at {rank_info.address}{source} within {waited:.0f} s"
    if waited > TIMEOUT_S:
        raise InputError(text, hint="start every rank with the same MASTER_ADDR and MASTER_PORT")
    notify(f"waiting: {text}")


def _is_from_master_addr(rank_info: RankInfo) -> bool:
    """Return whether the address of a Slurm step is that of `MASTER_ADDR`, which it may have inherited."""
    return (
        "SLURM_PROCID" in os.environ
        and "RANK" not in os.environ
        and os.environ.get("MASTER_ADDR") == rank_info.host
    )


def _store(rank_info: RankInfo, *, is_master: bool, wait_s: float) -> Any:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        rank_info.host,
        rank_info.port,
        is_master=is_master,
        timeout=timedelta(seconds=wait_s),
        wait_for_workers=False,
        master_listen_fd=_listener(rank_info) if is_master else None,
    )


def _listener(rank_info: RankInfo) -> int:
    """Return a listening socket: that of the launcher, or one on the interface of the rendezvous only."""
    if LISTENER in os.environ:
        return int(os.environ[LISTENER])
    family, _, _, _, address = socket.getaddrinfo(rank_info.host, rank_info.port, type=socket.SOCK_STREAM)[0]
    host = str(address[0])
    if is_loopback(host) and not is_loopback(rank_info.host):
        host = ""  # /etc/hosts: the name of a host is loopback there, but not elsewhere
    with socket.create_server((host, rank_info.port), family=family, backlog=1024) as listener:
        return listener.detach()


def _signed(store: Any, secret: Secret, attempt: int) -> Any:
    from berth.train.signed_store import SignedStore

    return SignedStore(store, secret, str(attempt))


def _of_attempt(store: Any, attempt: int) -> Any:
    """Return a view of the store that other attempts do not share."""
    from torch.distributed.distributed_c10d import PrefixStore

    store.set_timeout(timedelta(seconds=TIMEOUT_S))
    return PrefixStore(f"berth/{attempt}", store)


def _checked(rank_info: RankInfo) -> RankInfo:
    if not 0 <= rank_info.rank < rank_info.world_size:
        raise InputError(f"rank {rank_info.rank} is out of range: there are {rank_info.world_size}")
    return rank_info


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InputError(f"{name} is {text!r}, expected a number") from None
