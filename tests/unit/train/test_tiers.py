"""The cold tier: nothing is lost on the way to the file and back, and nothing corrupt is believed."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from berth.train.tables import Table, sgd
from berth.train.tables.cold import ColdFile
from berth.train.tables.index import EMPTY

DIM = 16
BUDGET = 2_900_000


@pytest.fixture
def table(tmp_path):
    return Table(DIM, memory_bytes=BUDGET, folder=tmp_path)


def cold_keys(table):
    keys, places = table.store.index.entries()
    return keys[places < EMPTY]


def fill(table, count=20_000):
    """So that some rows are in the file, not only in what is still to be written."""
    for part in np.array_split(np.arange(count), 20):
        table.push(part, np.ones((len(part), DIM), np.float32))


def test_rows_beyond_the_budget_are_the_same_rows(table):
    fill(table)
    plain = Table(DIM)
    fill(plain)
    reported = table.statistics()
    assert reported.evicted > 10_000
    assert reported.memory_bytes <= BUDGET
    assert reported.hot_rows < reported.rows == 20_000
    keys = np.random.default_rng(0).permutation(20_000)
    assert (table.pull(keys) == plain.pull(keys)).all()
    assert table.statistics().fetched > 5_000


def test_rows_asked_for_often_stay_in_memory(table):
    often = np.arange(500)
    for start in range(1000, 23_000, 500):
        table.pull(often)
        table.pull(np.arange(start, start + 500))
    before = table.statistics()
    table.pull(often)
    assert table.statistics().fetched == before.fetched
    assert before.evicted > 10_000


def test_a_batch_larger_than_the_memory_is_worked_on_in_pieces(table):
    keys = np.arange(22_000)
    assert (table.pull(keys) == Table(DIM).pull(keys)).all()
    assert table.statistics().memory_bytes <= BUDGET


@pytest.mark.slow
def test_the_file_stays_bounded_and_dead_records_stay_dead(table, monkeypatch):
    """Rows learn and go back and forth many times over; sparse blocks are emptied."""
    emptied = []
    sparse = ColdFile.sparse
    monkeypatch.setattr(ColdFile, "sparse", lambda cold: emptied.append(sparse(cold)) or emptied[-1])
    plain, random = Table(DIM), np.random.default_rng(3)
    for _ in range(100):
        keys = random.permutation(20_000)[:5000]
        gradients = random.standard_normal((5000, DIM)).astype(np.float32)
        table.push(keys, gradients)
        plain.push(keys, gradients)
    reported = table.statistics()
    assert sum(map(len, emptied)) > 0
    assert reported.evicted > 200_000
    assert reported.cold_bytes < 4 * 20_000 * 4 * (DIM + 3)
    assert (table.save().records == plain.save().records).all()


def test_a_row_that_changed_is_in_the_next_delta_wherever_it_has_been_since(table):
    fill(table)
    table.save()
    table.push(np.arange(100), np.ones((100, DIM), np.float32))
    for part in np.array_split(np.arange(1000, 20_000), 20):
        table.pull(part)
    assert len(np.intersect1d(cold_keys(table), np.arange(100))) > 50
    table.pull(np.arange(50))
    assert table.save(changed_only=True).keys.tolist() == list(range(100))


def test_a_corrupt_block_is_named_and_refused(table):
    fill(table)
    cold = table.store.cold
    cold.flush()
    size = cold.path.stat().st_size
    with cold.path.open("r+b") as file:
        for offset in range(100, size, cold.block.itemsize):
            file.seek(offset)
            file.write(b"\xff\xfe\xfd\xfc")
    keys = cold_keys(table)[:1]
    with pytest.raises(
        ValueError, match=r"block \d+ of the cold rows is corrupt \(bytes \d+ to \d+\)"
    ) as caught:
        table.pull(keys)
    assert str(cold.path) in str(caught.value)
    with pytest.raises(ValueError, match="corrupt"):
        table.save()


def test_a_torn_file_is_refused(table):
    fill(table)
    table.store.cold.flush()
    os.truncate(table.store.cold.path, 5000)
    with pytest.raises(ValueError, match="corrupt"):
        table.pull(cold_keys(table))


def test_the_rows_beside_a_corrupt_one_still_learn(table):
    fill(table)
    cold = table.store.cold
    cold.flush()
    bad = cold_keys(table)[0]
    position = EMPTY - 1 - int(table.store.index.find(np.array([bad]))[0][0])
    block = position // cold.per_block
    with cold.path.open("r+b") as file:
        file.seek(block * cold.block.itemsize)
        file.write(b"\xff" * 8)
    with pytest.raises(ValueError, match=f"block {block} of"):
        table.pull([bad])
    in_block = {int(key) for key in cold_keys(table) if _block(table, key) == block}
    fine = np.array([key for key in range(20_000) if key not in in_block])
    assert len(table.pull(fine)) == 20_000 - len(in_block)
    assert table.store.rows.count == (table.store.index.places >= 0).sum()


def _block(table, key):
    return (EMPTY - 1 - int(table.store.index.find(np.array([key]))[0][0])) // table.store.cold.per_block


def test_a_full_disk_is_said(table, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ValueError, match="cold rows can't be written: No space left"):
        fill(table)


def test_cold_rows_can_be_deleted_and_start_again(table):
    fill(table)
    keys = cold_keys(table)[:2000]
    assert table.delete(keys) == 2000
    assert (table.pull(keys) == Table(DIM).pull(keys)).all()


def test_a_budget_that_holds_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a table's budget of 1MB is too small, even without keys\n"):
        Table(DIM, memory_bytes=1_000_000, folder=tmp_path)


def test_a_budget_outgrown_by_the_index_is_refused_and_says_what_is_needed(tmp_path):
    table = Table(1, optimiser=sgd(), memory_bytes=2_400_000, folder=tmp_path)
    with pytest.raises(
        ValueError, match=r"too small for [\d,]+ keys\n  it needs at least .*: use a larger --memory"
    ):
        table.pull(np.arange(100_000))


def test_a_budget_needs_a_folder():
    with pytest.raises(ValueError, match="needs a folder"):
        Table(DIM, memory_bytes=BUDGET)


def test_the_file_goes_with_the_table(tmp_path):
    cold = ColdFile(tmp_path, 4)
    cold.append(np.arange(5), np.ones((5, 4), np.float32), np.zeros(5, np.uint8))
    assert cold.path.exists()
    cold.close()
    assert not list(tmp_path.iterdir())
