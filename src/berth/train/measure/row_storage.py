"""Measures what rows cost beside look-ups and updates: creating them, new memory for them, and a tier on disk."""

from __future__ import annotations

import statistics
import tempfile
import time

import numpy as np

from berth.plan.profile.host import PerRow
from berth.plan.profile.layer_profile import short
from berth.train.local import LocalStore
from berth.train.measure.rows import WIDTHS, table_spec
from berth.train.tables.memory import reserve


def new_row_s(rows: int = 500_000) -> PerRow:
    """Return the CPU seconds that a row costs more in the step that creates it, in memory that was used before."""
    _creation_s(WIDTHS[0], 65_536)  # a warm-up
    turns = [[_creation_s(width, rows) for width in WIDTHS] for _ in range(3)]
    narrow, wide = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
    byte = max(0.0, wide - narrow) / (4 * (WIDTHS[1] - WIDTHS[0]))
    return PerRow(short(max(0.0, narrow - 4 * WIDTHS[0] * byte)), short(byte))


def _creation_s(width: int, rows: int, part: int = 32_768) -> float:
    """Return how much longer the first steps of a table take than the same again, per row."""
    name = table_spec(width).name
    store = LocalStore()
    store.open([table_spec(width)])
    table = store.table(name)
    keys = np.random.default_rng(1).integers(1, 1 << 62, rows).astype(np.uint64)
    gradients = np.full((part, width), 1e-4, np.float32)
    seconds = []
    for turn in range(3):  # the first takes memory, the second reuses it, the third creates nothing
        if turn == 1:
            table.store.remove(keys.view(np.int64))
        started = time.process_time()
        for first in range(0, rows - part + 1, part):
            store.pull(name, keys[first : first + part])
            store.push(name, keys[first : first + part], gradients)
            store.end_step(turn)
        seconds.append(time.process_time() - started)
    store.close()
    return max(0.0, seconds[1] - seconds[2]) / (rows // part * part)


def fresh_byte_s(size: int = 1 << 28, repeats: int = 4) -> float:
    """Return the median CPU seconds of a byte of a table's memory when it is touched first.

    It varies: some virtual machines get their memory from the host only then, at less than a gigabyte per second.
    """
    seconds, columns = [], []
    for _ in range(repeats):
        column = reserve(size, np.uint8)
        started = time.process_time()
        column[:: 1 << 12] = 1
        seconds.append(time.process_time() - started)
        columns.append(column)  # memory that is given back would be taken again
    return short(statistics.median(seconds) / size)


def disk_row_s(repeats: int, width: int = 16, rows: int = 200_000) -> float:
    """Return the CPU seconds that a row costs more if it has to be read from disk and another written back."""
    random = np.random.default_rng(0)
    name = table_spec(width).name
    seconds, missed = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for memory in (None, rows * (width * 4 + 16)):
            store = LocalStore(memory_bytes=memory, folder=folder if memory else None)
            store.open([table_spec(width)])
            for first in range(0, rows, 1 << 15):
                store.pull(name, np.arange(first, min(rows, first + (1 << 15)), dtype=np.uint64))
            table, taken = store.table(name), []
            before = table.counts.missed
            for _ in range(repeats):
                keys = random.choice(rows, 8_192, replace=False).astype(np.uint64)
                started = time.process_time()
                store.pull(name, keys)
                store.push(name, keys, np.zeros((len(keys), width), np.float32))
                taken.append(time.process_time() - started)
            missed = (table.counts.missed - before) / repeats
            seconds.append(statistics.median(taken))
            store.close()
    return max(0.0, seconds[1] - seconds[0]) / max(missed, 1.0)
