"""All-to-all between the ranks of a process group, on their device where the group can, else by host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from berth.train.devices import reduces_on
from berth.train.heartbeat import waiting_for_peers

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class PendingRows:
    """Rows that may still be on their way."""

    finish: Callable[[], Tensor]
    rows: Tensor | None = None

    def wait(self) -> Tensor:
        """Return the rows once they have arrived."""
        if self.rows is None:
            self.rows = self.finish()
        return self.rows


class Exchange:
    """The ranks of a group, in its order; None is the group of all ranks, and a size of 1 means this rank alone."""

    def __init__(self, group: Any, size: int, place: int) -> None:
        self.group, self.size, self.place = group, size, place
        self.sent_bytes = 0  # rows, gradients and keys, to other ranks
        self._seconds = 0.0

    def take_seconds(self) -> float:
        """Return the wall-clock time of this rank in exchanges since the last call, waiting for others included."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        with waiting_for_peers():
            yield
        self._seconds += time.perf_counter() - began

    def numbers(self, sent: Numbers) -> Numbers:
        """Send row i of [size, n] to rank i; returns a row of each rank."""
        if self.size == 1:
            return sent
        received = torch.empty(sent.shape, dtype=torch.int64)
        with self._waiting():
            dist.all_to_all_single(received, torch.from_numpy(sent), group=self.group)
        found: Numbers = received.numpy()
        return found

    def rows(self, sent: Tensor, to: Sequence[int], come: Sequence[int]) -> Tensor:
        """Send the first `to[0]` rows to the first rank, the next to the second, ...; returns those that come."""
        return self.start_rows(sent, to, come).wait()

    def start_rows(self, sent: Tensor, to: Sequence[int], come: Sequence[int]) -> PendingRows:
        """As `rows`, without waiting for the others."""
        if self.size == 1:
            return PendingRows(lambda: sent)
        row_bytes = sent.element_size() * (sent[0].numel() if len(sent) else 0)
        self.sent_bytes += row_bytes * (len(sent) - to[self.place])
        if reduces_on(sent.device):
            return self._start(sent.contiguous(), to, come)
        return self._start_by_host(sent, to, come)

    def _start(self, sent: Tensor, to: Sequence[int], come: Sequence[int]) -> PendingRows:
        received = sent.new_empty((sum(come), *sent.shape[1:]))
        with self._waiting():
            work = dist.all_to_all_single(
                received, sent, list(come), list(to), group=self.group, async_op=True
            )

        def arrived() -> Tensor:
            with self._waiting():
                work.wait()
            return received

        return PendingRows(arrived)

    def _start_by_host(self, sent: Tensor, to: Sequence[int], come: Sequence[int]) -> PendingRows:
        """Copy what others get to host memory, and what they send to the device; this rank's part stays there."""
        first = sum(to[: self.place])
        before, own, after = sent.split((first, to[self.place], len(sent) - first - to[self.place]))
        others = torch.cat([before, after])
        pending = self._start(
            others.cpu() if len(others) else torch.empty(others.shape, dtype=sent.dtype),
            _without(to, self.place),
            _without(come, self.place),
        )

        def joined() -> Tensor:
            host = pending.wait()
            there = host.to(sent.device) if len(host) else sent[:0]
            earlier = sum(come[: self.place])
            return torch.cat([there[:earlier], own, there[earlier:]])

        return PendingRows(joined)


def _without(counts: Sequence[int], place: int) -> list[int]:
    return [0 if number == place else count for number, count in enumerate(counts)]
