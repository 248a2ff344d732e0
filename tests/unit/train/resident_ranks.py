"""Ranks of a run as forks of this process, in a gloo group of their own; each returns what its work returns."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from berth.train.devices import CPU
from berth.train.process_group import ProcessGroup
from berth.train.rendezvous import RankInfo
from berth.train.resident.store import ResidentStore
from berth.train.stages.cut import Layout


def in_ranks(count: int, work: Callable[[ProcessGroup], Any]) -> list[Any]:
    """Runs `work` in every rank; an exception of a rank is its result, and so is the signal that killed it."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(Path(folder), rank, count, work) for rank in range(count)]
        killed = [os.WTERMSIG(os.waitpid(child, 0)[1]) for child in children]
        return [
            killed[rank] or pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(count)
        ]


def _fork(folder: Path, rank: int, count: int, work: Callable[[ProcessGroup], Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        group = dist.group.WORLD if count > 1 else None
        result = work(ProcessGroup(RankInfo(rank, count), Layout((count,)), store=store, group=group))
        dist.barrier()
    except Exception as error:  # noqa: BLE001 - the test asserts on it
        traceback.print_exc()
        result = error
    finally:
        (folder / f"{rank}.new").write_bytes(pickle.dumps(result))
        os.rename(folder / f"{rank}.new", folder / str(rank))
        os._exit(0)


def resident(process_group: ProcessGroup, *specs: Any, device: torch.device = CPU) -> ResidentStore:
    """A store whose tables are sharded over all ranks."""
    ranks = list(range(process_group.rank_info.world_size))
    store = ResidentStore(process_group, {spec.name: ranks for spec in specs}, device)
    store.open(specs)
    return store
