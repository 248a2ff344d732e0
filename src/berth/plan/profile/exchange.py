"""How long two processes take to synchronise a layer: dense gradients by all-reduce, sparse rows by pull and push.

For sparse layers one process is the worker and the other the server that keeps the table: keys travel there, rows
back, gradients there again, and the server adds them up. The clock is the wall's, since waiting for each other is part
of it; the fastest of many short repeats counts, since waiting for a core that others use is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from berth.plan.profile.document import LayerFacts

WORKER, SERVER = 0, 1
_MOST_ROWS = 2**20  # of the server's table: larger ones would only cost time to fill
TIMES_REPEATED = 8  # of what is asked for: an exchange is short


def time_all_reduce(layer: LayerFacts, repeats: int, pair: dist.ProcessGroup) -> float:
    """Seconds to reduce the gradients of a layer over two processes; both must call it."""
    gradients = torch.zeros(layer.dense_bytes // 4)
    return _fastest({1: lambda: dist.all_reduce(gradients, group=pair)}, repeats)[1]


def time_pull_push(
    layer: LayerFacts, unit_counts: Sequence[int], repeats: int, rank: int
) -> dict[int, float]:
    """Seconds to pull the rows that 1/k of the batch touches and push their gradients; both must call it."""
    width = layer.row_bytes // 4
    rows = {
        units: max(1, round(layer.touched_bytes / layer.row_bytes / units**layer.touched_growth))
        for units in unit_counts
    }
    if rank == SERVER:
        table = torch.zeros(min(_MOST_ROWS, max(1, layer.sparse_bytes // layer.row_bytes)), width)
        return _fastest({units: partial(_serve, table, count) for units, count in rows.items()}, repeats)
    keys = torch.randint(0, 2**62, (max(rows.values()),), generator=torch.Generator().manual_seed(0))
    return _fastest(
        {units: partial(_pull_and_push, keys[:count], width) for units, count in rows.items()}, repeats
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
    table.index_add_(0, rows, gradients.mul_(-0.01))  # with `alpha` it would be ten times slower
    dist.send(torch.zeros(1), WORKER)


def _fastest(steps: Mapping[int, Callable[[], object]], repeats: int) -> dict[int, float]:
    """Seconds of the fastest run of each step, taken in turns so that a busy moment spoils none of them alone."""
    seconds: dict[int, float] = dict.fromkeys(steps, math.inf)
    for turn in range(1 + TIMES_REPEATED * repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn:  # the first turn only warms up
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds
