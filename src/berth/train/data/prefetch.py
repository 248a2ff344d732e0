"""Prepares the next batches in a thread while the model trains."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Iterates over items, up to `depth` of which are prepared ahead."""

    def __init__(self, items: Iterator[T], depth: int = 2) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._stopping = threading.Event()
        self._ended: BaseException | None = None
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True, name="berth-reader")
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._ended is not None:
            raise self._ended
        item, error = self._queue.get()
        if error is None and item is not None:
            return item
        self._ended = error or StopIteration()
        raise self._ended

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue

    def _fill(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                if self._stopping.is_set():
                    return
                self._queue.put((item, None))
            self._queue.put((None, None))
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            self._queue.put((None, error))
