"""Measures how long two processes take to synchronise a layer: all-reduce of dense gradients, pull and push of rows.

For sparse layers one process is the worker and the other the server that holds the table: the worker sends keys,
receives rows and sends gradients, which the server adds. Times are wall-clock times, since waiting for each other
counts; the fastest of many short repeats is used, since waiting for a busy core does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from berth.plan.profile.layer_profile import LayerFacts

WORKER, SERVER = 0, 1
_MAX_ROWS = 2**20  # of the server's table: a larger one only takes longer to fill
TIMES_REPEATED = 8  # factor on the number of repeats: an exchange is short


def time_all_reduce(layer: LayerFacts, repeats: int, pair: dist.ProcessGroup) -> float:
    """Return the seconds of an all-reduce of a layer's gradients over two processes; both must call it."""
    gradients = torch.zeros(layer.dense_bytes // 4)
    return _fastest({1: lambda: dist.all_reduce(gradients, group=pair)}, repeats)[1]


def time_pull_push(
    layer: LayerFacts, replica_counts: Sequence[int], repeats: int, rank: int
) -> dict[int, float]:
    """Return the seconds to pull the rows that 1/k of the batch touches and push their gradients; both must call it."""
    width = layer.row_bytes // 4
    rows = {
        replicas: max(1, round(layer.touched_bytes / layer.row_bytes / replicas**layer.touched_growth))
        for replicas in replica_counts
    }
    if rank == SERVER:
        table = torch.zeros(min(_MAX_ROWS, max(1, layer.sparse_bytes // layer.row_bytes)), width)
        return _fastest(
            {replicas: partial(_serve, table, count) for replicas, count in rows.items()}, repeats
        )
    keys = torch.randint(0, 2**62, (max(rows.values()),), generator=torch.Generator().manual_seed(0))
    return _fastest(
        {replicas: partial(_pull_and_push, keys[:count], width) for replicas, count in rows.items()}, repeats
    )


def _pull_and_push(keys: Tensor, width: int) -> None:
    rows, done = torch.empty(len(keys), width), torch.empty(1)
    dist.send(keys, SERVER)
    dist.recv(rows, SERVER)
    dist.send(rows, SERVER)
    dist.recv(done, SERVER)


def _serve(table: Tensor, count: int) -> None:
    keys, gradients = torch.empty(count, dtype=torch.int64), torch.empty(count, table.shape[1])
    dist.recv(keys, WORKER)
    rows = keys % len(table)
    dist.send(table.index_select(0, rows), WORKER)
    dist.recv(gradients, WORKER)
    table.index_add_(0, rows, gradients.mul_(-0.01))  # ten times faster than the `alpha` argument
    dist.send(torch.zeros(1), WORKER)


def _fastest(steps: Mapping[int, Callable[[], object]], repeats: int) -> dict[int, float]:
    """Return the fastest time of each step; steps alternate, so that a busy moment does not affect one of them only."""
    seconds: dict[int, float] = dict.fromkeys(steps, math.inf)
    for turn in range(1 + TIMES_REPEATED * repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn:  # the first turn is a warm-up
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds
