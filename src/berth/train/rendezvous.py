"""How the processes of a run find each other: by the environment variables of torchrun.

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` are set by berth's launcher, torchrun, a berth job or Ray; in a
Slurm step they are derived from Slurm's variables. Without them the run has one process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from berth.errors import InputError
from berth.train.heartbeat import SILENT_S, notify
from berth.train.network_interface import IFNAME, use_route_interface

LISTENER = "BERTH_TRAIN_LISTENER"  # descriptor of a socket bound to the port, for rank 0
_SLURM_PORT = 29_500
TIMEOUT_S = 1800.0  # for a process that does not join or is busy; it is reported sooner


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process."""

    rank: int = 0
    world_size: int = 1
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def address(self) -> str:
        """Return the address of the rendezvous."""
        return f"{self.host}:{self.port}"

    @property
    def is_single(self) -> bool:
        """Whether this is the only process."""
        return self.world_size == 1

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
        host = first_host(
            variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "127.0.0.1")
        )
        job = _number(variables, "SLURM_JOB_ID", 0)
        port = _number(variables, "MASTER_PORT", _SLURM_PORT + job % 10_000)
        return _checked(
            RankInfo(_number(variables, "SLURM_PROCID"), _number(variables, "SLURM_NTASKS"), host, port)
        )
    return None


def first_host(nodes: str) -> str:
    """Return the first node of a Slurm node list: gpu03 of `gpu[03-07,9],cpu1`."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", nodes.strip())
    if found is None:
        raise InputError(f"{nodes!r} is not a Slurm node list")
    return found.group(1) + (found.group(2) or "")


def join(rank_info: RankInfo, backend: str = "gloo", notify: Callable[[str], None] = notify) -> Any:
    """Join the other ranks; returns their shared key-value store."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    use_route_interface(rank_info.host, rank_info.port)
    store = _wait_for_all(rank_info, notify)
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore("gloo", store),
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
    return store


def heartbeat_store(rank_info: RankInfo) -> Any:
    """Return a separate connection to the key-value store, so that a blocking read does not delay heartbeats."""
    return _prefixed(_store(rank_info, is_master=False, wait_s=TIMEOUT_S))


def _wait_for_all(rank_info: RankInfo, notify: Callable[[str], None]) -> Any:
    """Return the store once every rank has joined; missing ranks are reported every `SILENT_S`."""
    started = time.monotonic()
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun hosts the store
    store = None
    while store is None:
        try:
            store = _store(rank_info, is_master=rank_info.rank == 0 and not agent, wait_s=SILENT_S)
        except RuntimeError as error:
            if rank_info.rank == 0 and not agent:
                hint = str(error).splitlines()[0]
                raise InputError(f"rank 0 can't listen at {rank_info.address}", hint=hint) from None
            _report_missing(rank_info, [0], started, notify)
    store = _prefixed(store)
    store.set(f"here/{rank_info.rank}", "1")
    while missing := _missing(rank_info, store):
        if rank_info.rank == min(set(range(rank_info.world_size)) - set(missing)):
            _report_missing(rank_info, missing, started, notify)
    return store


def _missing(rank_info: RankInfo, store: Any) -> list[int]:
    """Wait for all ranks for a while; returns those that have not joined."""
    keys = [f"here/{rank}" for rank in range(rank_info.world_size)]
    try:
        store.wait(keys, timedelta(seconds=SILENT_S))
    except RuntimeError:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    return []


def _report_missing(
    rank_info: RankInfo, missing: Sequence[int], started: float, notify: Callable[[str], None]
) -> None:
    waited = time.monotonic() - started
    ranks = f"rank{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing))} of {rank_info.world_size}"
    text = f"{ranks} did not join at {rank_info.address} within {waited:.0f} s"
    if waited > TIMEOUT_S:
        raise InputError(text, hint="start every rank with the same MASTER_ADDR and MASTER_PORT")
    notify(f"waiting: {text}")


def _store(rank_info: RankInfo, *, is_master: bool, wait_s: float) -> Any:
    from torch._C._distributed_c10d import TCPStore

    listener = os.environ.get(LISTENER) if is_master else None
    return TCPStore(
        rank_info.host,
        rank_info.port,
        is_master=is_master,
        timeout=timedelta(seconds=wait_s),
        wait_for_workers=False,
        master_listen_fd=int(listener) if listener is not None else None,
    )


def _prefixed(store: Any) -> Any:
    """Return a view of the store that a restart by torchrun does not share."""
    from torch.distributed.distributed_c10d import PrefixStore

    store.set_timeout(timedelta(seconds=TIMEOUT_S))
    return PrefixStore(f"berth/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


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
