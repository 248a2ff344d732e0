"""The cold tier with a memory of some hundred rows and blocks of eight: small enough to be walked through by hand."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from berth.errors import InputError
from berth.train.tables import Initialiser, Table, cold, evict, sgd, store, tiers
from berth.train.tables.index import EMPTY

BUDGET = 21_000  # some 140 hot rows beside an index for 384 keys
DIM = 16
ROWS = 8  # of a block


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(tiers, "MIN_HOT_ROWS", 16)
    monkeypatch.setattr(tiers, "PIECE", 32)
    monkeypatch.setattr(store, "PIECE", 32)
    monkeypatch.setattr(cold, "_PENDING", 4)
    monkeypatch.setattr(cold, "BLOCK_BYTES", ROWS * (8 + 4 * DIM))

    def table(**options):
        given = {"memory_bytes": BUDGET, "folder": tmp_path / "made" / "here", **options}
        return Table(DIM, optimiser=sgd(1.0), **given)

    return table


def gradients(keys):
    return np.asarray(keys, np.float32)[:, None] * np.ones(DIM, np.float32)


def is_sound(table):
    """Invariants after any operation: the accounting agrees with the index and with itself."""
    held, (keys, places) = table.store, table.store.index.entries()
    hot, positions = places[places >= 0], EMPTY - 1 - places[places < EMPTY].astype(np.int64)
    assert len(set(keys.tolist())) == len(set(places.tolist())) == len(keys) == len(table)
    assert held.rows.count == len(hot)
    assert held.bytes <= BUDGET
    assert (held.references <= evict.MAX_REFERENCES).all()  # none is pinned
    resting = np.ones(len(held.references), bool)
    resting[hot] = False
    assert not held.references[resting].any()
    assert not held.rows.changed[resting].any()
    living = np.bincount(positions // held.cold.per_block, minlength=len(held.cold._living))
    assert (living == held.cold._living).all()
    assert held.cold.count == len(positions)
    free, pending = set(held.cold._free), set(held.cold._numbers.tolist())
    assert len(free) == len(held.cold._free)
    assert not free & pending
    assert all(living[block] == 0 for block in free)
    reported = table.statistics()
    assert (reported.rows, reported.hot_rows, reported.memory_bytes) == (len(keys), len(hot), held.bytes)
    assert reported.cold_bytes == held.cold._blocks * ROWS * (8 + 4 * DIM)
    assert reported.evicted - reported.fetched >= len(positions)


def draw(random, count):
    return (random.random(count) ** 2 * 370).astype(np.int64)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_the_rows_are_those_of_a_table_in_memory(make, seed):
    table, plain, random = make(), Table(DIM, optimiser=sgd(1.0)), np.random.default_rng(seed)
    copy, others = make(), Table(DIM, optimiser=sgd(1.0))
    for turn in range(40):
        keys = draw(random, 30)
        match turn % 5:
            case 0 | 1:
                assert (table.pull(keys) == plain.pull(keys)).all()
            case 2:
                slopes = random.standard_normal((30, DIM)).astype(np.float32)
                table.push(keys, slopes)
                plain.push(keys, slopes)
            case 3:
                assert table.delete(keys) == plain.delete(keys)
            case 4:
                mine, theirs = table.save(changed_only=turn > 5), plain.save(changed_only=turn > 5)
                for name in ("keys", "records", "removed"):
                    assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
                copy.load(mine)
                others.load(theirs)
                is_sound(copy)
        is_sound(table)
        assert len(table) == len(plain)
    assert table.statistics().evicted > 100
    assert table.statistics().fetched > 20
    assert (table.save().records == plain.save().records).all()
    assert (copy.save().records == others.save().records).all()


def test_unused_rows_are_evicted_even_the_first(make):
    table = make()
    for start in range(0, 360, 20):
        table.pull(np.arange(start, start + 20))
    is_sound(table)
    places = table.store.index.find(np.arange(20))[0]
    assert (places < EMPTY).all()
    assert (table.store.index.find(np.arange(350, 360))[0] >= 0).all()
    assert (table.pull(np.arange(20)) == Table(DIM).pull(np.arange(20))).all()
    assert table.statistics().fetched == 20


def test_rows_asked_for_often_stay(make):
    table, often = make(), np.arange(1000, 1010)
    for start in range(0, 360, 10):
        for _ in range(2):
            table.pull(often)
        table.pull(np.arange(start, start + 10))
    assert table.statistics().evicted > 100
    assert (table.store.index.find(often)[0] >= 0).all()
    assert table.counts.missed == 370


def test_a_batch_keeps_its_own_rows_while_it_fetches_others(make):
    """Half of the batch is hot and the oldest there is, half is cold: the hot ones must not make room for the cold."""
    table, plain = make(), Table(DIM, optimiser=sgd(1.0))
    for tables in (table, plain):
        for start in range(0, 300, 20):
            tables.push(np.arange(start, start + 20), gradients(range(start, start + 20)))
    hot = table.store.index.entries()[0][table.store.index.entries()[1] >= 0]
    gone = np.setdiff1d(np.arange(300), hot)
    table.store.references[:] = 0
    keys = np.concatenate([hot[:15], gone[:15]])
    assert (table.pull(keys) == plain.pull(keys)).all()
    is_sound(table)


def test_what_was_saved_is_not_in_the_next_delta_wherever_it_is(make):
    table = make()
    keys = np.arange(300)
    table.push(keys, gradients(keys))
    assert table.statistics().evicted > 50
    table.save()
    assert len(table.save(changed_only=True).keys) == 0
    table.push([3, 290], gradients([1, 1]))
    table.pull(np.arange(100, 200))
    assert table.save(changed_only=True).keys.tolist() == [3, 290]


def test_an_index_that_grows_takes_its_memory_from_the_rows(make):
    table = make()
    table.pull(np.arange(40))
    before = table.store.hot_limit(table.store.index.bytes)
    table.pull(np.arange(40, 300))
    assert table.store.index.bytes == 512 * 12
    assert table.store.rows.top <= table.store.hot_limit(table.store.index.bytes) < before
    is_sound(table)
    with pytest.raises(InputError, match=r"a table's budget of .* is too small for [\d,]+ keys"):
        table.pull(np.arange(5000))


def test_blocks_of_which_little_lives_are_emptied(make, monkeypatch):
    emptied = []
    sparse = cold.ColdFile.sparse
    monkeypatch.setattr(cold.ColdFile, "sparse", lambda held: emptied.append(sparse(held)) or emptied[-1])
    table, plain, random = make(), Table(DIM, optimiser=sgd(1.0)), np.random.default_rng(1)
    for _ in range(80):
        keys = random.permutation(250)[:40]
        slopes = random.standard_normal((40, DIM)).astype(np.float32)
        table.push(keys, slopes)
        plain.push(keys, slopes)
        is_sound(table)
    assert sum(map(len, emptied)) > 4
    assert table.store.cold._blocks < 100
    assert (table.save().records == plain.save().records).all()


def test_a_compacted_block_is_free_and_its_rows_are_elsewhere(make):
    table = make()
    for start in range(0, 360, 20):
        table.pull(np.arange(start, start + 20))
    held = table.store.cold
    held.flush()
    keys, places = table.store.index.entries()
    positions = EMPTY - 1 - places.astype(np.int64)
    capacity = keys[(places < EMPTY) & (positions % ROWS > 0)]
    table.delete(capacity)  # one row of each block is left
    before = held.count
    blocks = held.sparse()
    assert len(blocks) == cold._PENDING
    table.store._compact()
    assert held.count == before
    table.pull([359])  # evicts a row for the growth of the file's accounting
    is_sound(table)
    assert set(blocks.tolist()) <= set(held._free)
    left = np.setdiff1d(np.arange(360), capacity)
    assert (table.pull(left) == Table(DIM).pull(left)).all()


def test_there_is_room_for_the_old_and_the_new_index_while_it_grows(make, monkeypatch):
    table, grown = make(), []
    make_room = table.store.index.make_room

    def watched(more):
        size = table.store.index.entries_for(more)
        if size != len(table.store.index.places):
            grown.append(table.store.bytes + 12 * size)
        make_room(more)

    monkeypatch.setattr(table.store.index, "make_room", watched)
    for start in range(0, 360, 20):
        table.pull(np.arange(start, start + 20))
    assert len(grown) == 3
    assert max(grown) <= BUDGET


def test_a_file_has_no_more_places_than_an_index_can_name(make, monkeypatch):
    monkeypatch.setattr(cold, "MAX_POSITIONS", 100)
    table = make()
    with pytest.raises(InputError, match="cold rows is full"):
        table.pull(np.arange(300))
    saved = table.save()  # what is there can still be saved
    assert len(saved.keys) > 100
    assert (saved.records[:, :DIM] == Table(DIM).pull(saved.keys)).all()


def test_after_a_full_disk_nothing_is_missing_and_nothing_is_pinned(make, monkeypatch):
    table, plain, full = make(), Table(DIM, optimiser=sgd(1.0)), [False]
    write = os.pwrite

    def pwrite(*given):
        if full[0]:
            raise OSError(errno.ENOSPC, "no room")
        return write(*given)

    monkeypatch.setattr(os, "pwrite", pwrite)
    keys = np.arange(150)
    for tables in (table, plain):
        tables.push(keys, gradients(keys))
    full[0] = True
    with pytest.raises(InputError, match="cold rows can't be written: no room"):
        table.pull(np.arange(150, 300))
    assert (table.store.references <= evict.MAX_REFERENCES).all()
    full[0] = False
    known = np.sort(table.store.index.entries()[0])
    assert (table.pull(known) == plain.pull(known)).all()
    for start in range(200, 360, 20):
        table.pull(np.arange(start, start + 20))
    assert (table.pull(keys) == plain.pull(keys)).all()


def test_a_block_that_was_altered_does_not_hold_the_rows_beside_it(make):
    table = make()
    table.pull(np.arange(300))
    held = table.store.cold
    with held.path.open("r+b") as file:
        file.seek(held.block.itemsize)
        file.write(b"\xff" * 8)
    cold_keys = table.store.index.entries()[0][table.store.index.entries()[1] < EMPTY]
    positions = EMPTY - 1 - table.store.index.find(cold_keys)[0].astype(np.int64)
    spoilt = cold_keys[positions // held.per_block == 1]
    with pytest.raises(InputError, match=r"block 1 of the cold rows is corrupt \(bytes 576 to 1152\)"):
        table.pull(spoilt[:1])
    fine = np.setdiff1d(np.arange(300), spoilt)[:60]
    assert (table.pull(fine) == Table(DIM).pull(fine)).all()
    assert (table.store.references <= evict.MAX_REFERENCES).all()


def test_two_tables_share_a_folder_and_each_takes_its_file_along(make, tmp_path):
    tables = [make(), make(initialiser=Initialiser(seed=7))]
    for table in tables:
        table.pull(np.arange(300))
    assert (tables[0].pull(np.arange(9)) != tables[1].pull(np.arange(9))).all()
    assert len(list((tmp_path / "made" / "here").iterdir())) == 2
    del table
    tables.pop()
    assert len(list((tmp_path / "made" / "here").iterdir())) == 1


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 64])
def test_a_table_is_saved_in_parts_whatever_their_number(make, rows):
    table = make()
    table.push(np.arange(rows), gradients(range(rows)))
    table.save()  # now nothing has changed, and all is saved all the same
    parts = list(table.save_parts())
    assert [len(part.keys) for part in parts][1:-1] == [32] * (rows // 32) + [rows % 32] * (rows % 32 > 0)
    other = make()
    for part in parts:
        other.load(part)
    assert other.save().keys.tolist() == list(range(rows))
