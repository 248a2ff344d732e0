"""How the processes of a training find each other: by torchrun's environment, whoever started them.

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` come from berth's own launcher, torchrun, a berth job or Ray;
inside a Slurm step the same is read from Slurm's variables. Without any of them a training is alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from berth.errors import InputError

_SLURM_PORT = 29_500
PATIENCE_S = 1800.0  # for a process that does not come, or is busy loading; the launcher sees sooner who died


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


def join(seat: Seat) -> Any:
    """Meets the others; returns the store in which small facts can be left for them."""
    import torch.distributed as dist

    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{seat.host}:{seat.port}",
            rank=seat.rank,
            world_size=seat.world,
            timeout=timedelta(seconds=PATIENCE_S),
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"rank {seat.rank} of {seat.world} did not meet the others at {seat.host}:{seat.port}",
            hint=str(error).splitlines()[0],
        ) from error
    return dist.distributed_c10d._get_default_store()


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
