"""How the processes of a training find each other: by torchrun's environment, whoever started them.

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` come from berth's own launcher, torchrun, a berth job or Ray;
inside a Slurm step the same is read from Slurm's variables. Without any of them a training is alone.
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
from berth.train.route import IFNAME, follow_route
from berth.train.watch import SILENT_S, say

LISTENER = "BERTH_TRAIN_LISTENER"  # a socket that is bound to the port already, for rank 0
_SLURM_PORT = 29_500
PATIENCE_S = 1800.0  # for a process that does not come, or is busy loading; it is named sooner


@dataclass(frozen=True, slots=True)
class Seat:
    """This process among those of the training."""

    rank: int = 0
    world: int = 1
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def alone(self) -> bool:
        """Nobody to meet."""
        return self.world == 1

    def environment(self) -> dict[str, str]:
        """The variables that say so."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.world),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


def seat_of(environment: Mapping[str, str] | None = None) -> Seat | None:
    """The seat that the environment gives; None: nobody started this process as one of several."""
    told = os.environ if environment is None else environment
    if "RANK" in told and "WORLD_SIZE" in told:
        rank, world = _number(told, "RANK"), _number(told, "WORLD_SIZE")
        if world > 1 and not ("MASTER_ADDR" in told and "MASTER_PORT" in told):
            raise InputError("RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not")
        port = _number(told, "MASTER_PORT") if "MASTER_PORT" in told else 0
        return _checked(Seat(rank, world, told.get("MASTER_ADDR", "127.0.0.1"), port))
    if "SLURM_PROCID" in told and _number(told, "SLURM_NTASKS", 1) > 1:
        host = first_host(told.get("SLURM_STEP_NODELIST") or told.get("SLURM_JOB_NODELIST", "127.0.0.1"))
        job = _number(told, "SLURM_JOB_ID", 0)
        port = _number(told, "MASTER_PORT", _SLURM_PORT + job % 10_000)
        return _checked(Seat(_number(told, "SLURM_PROCID"), _number(told, "SLURM_NTASKS"), host, port))
    return None


def first_host(nodes: str) -> str:
    """The first of Slurm's list of nodes: `gpu[03-07,9],cpu1` is gpu03."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", nodes.strip())
    if found is None:
        raise InputError(f"{nodes!r} is no list of Slurm's nodes")
    return found.group(1) + (found.group(2) or "")


def join(seat: Seat, say: Callable[[str], None] = say) -> Any:
    """Meets the others; returns the store in which small facts can be left for them."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    follow_route(seat.host, seat.port)
    store = _meet(seat, say)
    try:
        dist.init_process_group(
            "gloo",
            store=PrefixStore("gloo", store),
            rank=seat.rank,
            world_size=seat.world,
            timeout=timedelta(seconds=PATIENCE_S),
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"rank {seat.rank} of {seat.world} did not meet the others at {seat.host}:{seat.port}",
            hint=f"{str(error).splitlines()[0]}; the interface is {os.environ.get(IFNAME, 'not known')}:"
            f" another one is chosen by {IFNAME}",
        ) from error
    return store


def pulse_board(seat: Seat) -> Any:
    """A connection of its own to the store: who waits for a fact there must not hold up a pulse."""
    return _prefixed(_store(seat, is_master=False, wait_s=PATIENCE_S))


def _meet(seat: Seat, say: Callable[[str], None]) -> Any:
    """The store, once every rank has come; who has not is named every `SILENT_S`."""
    begun = time.monotonic()
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself holds the store
    store = None
    while store is None:
        try:
            store = _store(seat, is_master=seat.rank == 0 and not agent, wait_s=SILENT_S)
        except RuntimeError as error:
            if seat.rank == 0 and not agent:
                hint = str(error).splitlines()[0]
                raise InputError(f"rank 0 can't listen at {seat.host}:{seat.port}", hint=hint) from None
            _not_yet(seat, [0], begun, say)
    store = _prefixed(store)
    store.set(f"here/{seat.rank}", "1")
    while missing := _missing(seat, store):
        if seat.rank == min(set(range(seat.world)) - set(missing)):
            _not_yet(seat, missing, begun, say)
    return store


def _missing(seat: Seat, store: Any) -> list[int]:
    """Ranks that have not come, after some time; nothing at once when all are here."""
    keys = [f"here/{rank}" for rank in range(seat.world)]
    try:
        store.wait(keys, timedelta(seconds=SILENT_S))
    except RuntimeError:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    return []


def _not_yet(seat: Seat, missing: Sequence[int], begun: float, say: Callable[[str], None]) -> None:
    waited = time.monotonic() - begun
    ranks = f"rank{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing))} of {seat.world}"
    text = f"{ranks} did not come to {seat.host}:{seat.port} in {waited:.0f} s"
    if waited > PATIENCE_S:
        raise InputError(text, hint="start every rank, with the same MASTER_ADDR and MASTER_PORT")
    say(f"waiting: {text}")


def _store(seat: Seat, *, is_master: bool, wait_s: float) -> Any:
    from torch._C._distributed_c10d import TCPStore

    listener = os.environ.get(LISTENER) if is_master else None
    return TCPStore(
        seat.host,
        seat.port,
        is_master=is_master,
        timeout=timedelta(seconds=wait_s),
        wait_for_workers=False,
        master_listen_fd=int(listener) if listener is not None else None,
    )


def _prefixed(store: Any) -> Any:
    """A start again by torchrun does not see what the start before left."""
    from torch.distributed.distributed_c10d import PrefixStore

    store.set_timeout(timedelta(seconds=PATIENCE_S))
    return PrefixStore(f"berth/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _checked(seat: Seat) -> Seat:
    if not 0 <= seat.rank < seat.world:
        raise InputError(f"rank {seat.rank} is not one of {seat.world}")
    return seat


def _number(told: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = told.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InputError(f"{name} is {text!r}, which is no number") from None
