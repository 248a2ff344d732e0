"""Reads the shares of batches that a worker has taken, in ascending order and with gaps."""

from __future__ import annotations

from dataclasses import replace

from berth.train.data.batch import Batch, BatchSource, Share
from berth.train.data.prefetch import Prefetcher
from berth.zoo.layered import map_tensors


class TicketReader:
    """Returns share t % workers of global batch t // workers, for ticket t.

    A source with `random_access` creates any share directly. From other sources whole batches are read in order, and
    ahead, since skipping a batch of a file takes reading it.
    """

    def __init__(self, data: BatchSource, batch: int, workers: int, seed: int) -> None:
        self._data, self._batch, self._workers, self._seed = data, batch, workers, seed
        self._ahead: Prefetcher[Batch] | None = None
        self._number = -1  # of the batch that was read last
        self._whole: Batch | None = None

    def read(self, ticket: int) -> Batch | None:
        """Return the examples of a ticket, or None if the data has ended before."""
        number, share = ticket // self._workers, Share(ticket % self._workers, self._workers)
        if getattr(self._data, "random_access", False):
            batch = next(self._data.batches(self._batch, number, share, self._seed), None)
            return None if batch is None else _alone(batch)
        whole = self._whole_batch(number)
        if whole is None or share.workers == 1:
            return whole
        inputs, labels, weights = (
            map_tensors(part, lambda tensor: tensor[share.worker :: share.workers].contiguous())
            for part in (whole.inputs, whole.labels, whole.weights)
        )
        return _alone(Batch(inputs, labels, share.of(whole.examples), weights=weights))

    def close(self) -> None:
        """Stop reading ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def _whole_batch(self, number: int) -> Batch | None:
        if self._ahead is None or number < self._number:
            self.close()
            self._ahead = Prefetcher(self._data.batches(self._batch, number, Share(), self._seed))
            self._number = number - 1
        while self._number < number:
            self._whole = next(self._ahead, None)
            self._number += 1
            if self._whole is None:
                self._number = number
        return self._whole


def _alone(batch: Batch) -> Batch:
    """Return the batch with a mean loss of its own: it is trained without the shares of other workers."""
    return replace(batch, whole=max(batch.examples, 1))
