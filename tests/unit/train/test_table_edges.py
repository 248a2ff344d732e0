"""Edge cases of tables: cold records, freed memory, evicted rows, the smallest steps and the largest numbers."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from berth.errors import InputError
from berth.train.tables.admission import Admission
from berth.train.tables.cold import BLOCK_BYTES, ColdFile
from berth.train.tables.decay import DecayPolicy
from berth.train.tables.dedup import DedupedKeys
from berth.train.tables.evict import MAX_REFERENCES, choose_victims, pin
from berth.train.tables.index import Index
from berth.train.tables.initialise import Initialiser
from berth.train.tables.memory import release_pages, reserve
from berth.train.tables.optimise import Optimiser, adagrad, adam, rowwise_adagrad, sgd
from berth.train.tables.rows import Rows
from berth.train.tables.statistics import Counts, Statistics
from berth.train.tables.table import Table

WIDE = BLOCK_BYTES // 4  # a record that fills a block by itself
TOGETHER = 256  # blocks that are written at a time


def test_a_push_after_the_rows_of_its_batch_were_removed_creates_them_again():
    """A push goes to where the last pull found its rows, unless one was removed since: others may be there now."""
    keys, others = np.arange(5), np.arange(100, 105)
    gradients, found = np.ones((5, 2), np.float32), []
    for together in (True, False):
        table, batch = Table(2, optimiser=adagrad(0.1)), DedupedKeys.of(keys.copy())
        table.pull_deduped(batch, np.empty((5, 2), np.float32))
        table.delete(keys)
        table.touch(others)
        table.push_deduped(batch if together else DedupedKeys.of(keys.copy()), gradients)
        found.append(table.save())
    np.testing.assert_array_equal(found[0].keys, np.concatenate([keys, others]))
    np.testing.assert_array_equal(found[0].records, found[1].records)


@pytest.fixture
def cold(tmp_path):
    made = ColdFile(tmp_path, WIDE)
    yield made
    made.close()


def records(first: int, count: int) -> tuple:
    keys = np.arange(first, first + count)
    rows = (
        np.repeat(keys.astype(np.float32)[:, None], WIDE, axis=1) + np.arange(WIDE, dtype=np.float32) / WIDE
    )
    return keys, rows, (keys % 3 == 0).astype(np.uint8)


@pytest.mark.parametrize(("width", "per_block"), [(1, 341), (8, 102), (1022, 1), (5000, 1)])
def test_a_block_holds_as_many_records_as_fit(tmp_path, width, per_block):
    made = ColdFile(tmp_path, width)
    assert made.per_block == per_block
    made.close()


def test_records_come_back_in_any_order_written_or_pending(cold):
    keys, rows, changed = records(0, TOGETHER + 44)
    positions = cold.append(keys, rows, changed)
    mixed = np.random.default_rng(0).permutation(len(keys))
    found, marks = cold.read(positions[mixed])
    assert (found == rows[mixed]).all()
    assert (marks == changed[mixed]).all()
    assert cold.count == len(keys)


def test_blocks_of_dead_records_are_written_again_and_the_file_stays(cold):
    for turn in range(6):
        keys, rows, changed = records(1000 * turn, TOGETHER)
        positions = cold.append(keys, rows, changed)
        assert (cold.read(positions)[0] == rows).all()
        cold.drop(positions)
    assert cold.count == 0
    assert cold.file_bytes == 2 * TOGETHER * cold.block.itemsize


def test_of_half_empty_blocks_the_emptiest_are_named_first(tmp_path):
    made = ColdFile(tmp_path, 254)  # four records in a block
    assert made.per_block == 4
    keys = np.arange(3 * TOGETHER * 4)
    positions = made.append(keys, np.zeros((len(keys), 254), np.float32), np.zeros(len(keys), np.uint8))
    assert made.sparse().tolist() == []
    living = np.full(3 * TOGETHER, 1)
    living[:3], living[7] = (4, 3, 2), 2
    kept = np.arange(len(keys)) % 4 < np.repeat(living, 4)
    made.drop(positions[~kept])
    named = made.sparse().tolist()
    assert len(named) == TOGETHER
    assert named[:4] == [3, 4, 5, 6]
    assert not {0, 1, 2, 7} & set(named)
    made.drop(positions[kept & (np.arange(len(keys)) >= 20)])
    assert made.sparse().tolist() == []  # the rest of the file is free
    made.close()


def test_only_whole_pages_behind_what_is_kept_are_given_back():
    page = mmap.PAGESIZE // 4
    column = reserve(4 * page, np.float32)
    column[:] = 1.0
    release_pages(column, page + 1)
    assert (column[: 2 * page] == 1.0).all()
    assert (column[2 * page :] == 0.0).all()
    release_pages(column, page)
    assert (column[:page] == 1.0).all()
    assert (column[page:] == 0.0).all()


def test_the_hand_finds_victims_even_if_all_have_every_chance():
    keys, places = np.arange(10, 18), np.arange(8, dtype=np.int32)
    left = np.full(8, MAX_REFERENCES, np.uint8)
    pin(left, places[:3], True)
    out, chosen = np.zeros(4, np.int64), np.zeros(4, np.int32)
    count, _ = choose_victims(keys, places, left, 0, out, chosen)
    assert count == 4
    assert out.tolist() == [13, 14, 15, 16]
    assert chosen.tolist() == [3, 4, 5, 6]


def test_an_index_says_when_it_can_hold_no_more():
    index = Index()
    assert index.entries_for(2**31 - 2) * 0.75 >= 2**31 - 2
    with pytest.raises(InputError, match="at most"):
        index.entries_for(2**31 - 1)


def test_statistics_are_the_ratios_they_are_called():
    counts = Counts(pulled=10, missed=4, pushed=12, pushed_distinct=3)
    reported = Statistics(5, 2, 700, 300, counts, 0, 0)
    assert (reported.hit_rate, reported.skew, reported.bytes_per_row) == (0.6, 4.0, 200.0)
    idle = Statistics(0, 0, 0, 0, Counts(), 0, 0)
    assert (idle.hit_rate, idle.skew, idle.bytes_per_row) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("how", "share"), [(adam(0.1), 0.5), (Optimiser("adagrad", 0.1, 0.0, epsilon=1e-8), 0.5)]
)
def test_a_gradient_as_small_as_epsilon_makes_half_a_step(how, share):
    table = Table(2, optimiser=how, initialiser=Initialiser(scale=0.0))
    table.push([1], np.array([[1e-8, -1e-8]], np.float32))
    assert table.pull([1])[0].tolist() == pytest.approx([-0.1 * share, 0.1 * share], rel=1e-3)


def test_a_push_of_merged_keys_makes_their_rows():
    table, batch = Table(2, optimiser=sgd(1.0)), DedupedKeys.of(np.array([5, 6, 5]))
    table.push_deduped(batch, np.ones((3, 2), np.float32))
    first = Table(2).pull([5, 6])
    assert (table.pull([5, 6]) == first - np.array([[2], [1]], np.float32)).all()
    assert (table.counts.pushed, table.counts.pushed_distinct, table.counts.dropped) == (3, 2, 0)
    table.push_deduped(DedupedKeys.of(np.array([9])), np.ones((1, 2), np.float32), create=False)
    assert (len(table), table.counts.dropped) == (2, 1)


def test_rows_that_were_cut_off_are_given_back_and_begin_as_zeros():
    rows = Rows(1024, 8)  # a page each
    places = rows.take(8)
    rows.write(places, np.ones((8, 1024), np.float32))
    rows.changed[:8] = 1
    rows.free(places[1:7])
    rows.free(places[7:])
    rows.cut(3)
    assert (rows.top, rows.count, rows.bytes) == (3, 1, 3 * rows.place_bytes)
    assert (rows.data[: 3 * 1024] == 1).all()
    assert not rows.data[3 * 1024 :].any()
    assert sorted(rows.take(4).tolist()) == [1, 2, 3, 4]  # none of those that are gone
    rows.cut(9)
    assert rows.top == 5


def test_places_that_fall_free_are_given_out_again_the_last_first():
    rows = Rows(1, 10)
    rows.take(6)
    rows.free(np.array([1, 2], np.int32))
    rows.free(np.array([4], np.int32))
    assert rows.count == 3
    assert rows.take(2).tolist() == [4, 1]
    assert rows.take(3).tolist() == [2, 6, 7]
    with pytest.raises(InputError, match="does not fit the memory of this machine"):
        rows.take(3)


def test_a_pull_counts_what_was_not_in_memory_once():
    table = Table(2)
    table.pull([1, 1, 2])
    table.peek([2, 3, 3])
    table.pull([3], create=False)
    assert (table.counts.pulled, table.counts.missed, table.counts.created) == (7, 4, 2)
    for missed in (5, 5):
        table.pull_deduped(DedupedKeys.of(np.array([1, 9, 9])), np.empty((3, 2), np.float32))
        assert (table.counts.missed, table.counts.created) == (missed, 3)
    assert table.counts.pulled == 13


def test_a_delta_after_a_load_holds_only_what_came_later():
    table, other = Table(2, optimiser=sgd(1.0)), Table(2, optimiser=sgd(1.0))
    table.push([1, 2], np.ones((2, 2), np.float32))
    other.push([7], np.ones((1, 2), np.float32))
    other.delete([7])
    other.load(table.save())
    assert len(other.save(changed_only=True).keys) == 0
    other.push([2], np.ones((1, 2), np.float32))
    delta = other.save(changed_only=True)
    assert (delta.keys.tolist(), delta.removed.tolist()) == ([2], [])
    with pytest.raises(InputError, match="saved rows have 2 numbers each, rows of this table have 3"):
        Table(3, optimiser=sgd()).load(table.save())


def test_a_table_saves_the_day_and_goes_on_from_it():
    table, other = (Table(1, decay=DecayPolicy(decay_per_day=0.5, min_score=0.01)) for _ in range(2))
    table.push([1], np.zeros((1, 1), np.float32), shows=np.array([4.0]), clicks=np.array([4.0]))
    table.end_day()
    table.end_day()
    other.load(table.save())
    assert (other.day, other.scores([1, 2]).tolist()) == (2, [1.0, 0.0])
    assert other.end_day().tolist() == []
    assert other.scores([1]).tolist() == [0.5]


def test_a_place_takes_the_memory_of_its_record_and_a_mark():
    assert (Rows(3, 8).place_bytes, Table(4, optimiser=adam()).store.rows.place_bytes) == (13, 4 * 13 + 1)


def test_closing_works_after_the_cold_file_was_removed(tmp_path):
    held = ColdFile(tmp_path, 4)
    held.path.unlink()
    held.close()


@pytest.mark.parametrize(
    ("how", "rate", "initial", "epsilon"),
    [
        (sgd(), 0.01, 3.0, 1e-10),
        (rowwise_adagrad(), 0.05, 3.0, 1e-10),
        (adagrad(), 0.05, 0.0, 1e-10),
        (adam(), 0.001, 3.0, 1e-8),
    ],
)
def test_optimisers_have_the_rates_that_are_written_down(how, rate, initial, epsilon):
    assert (how.learning_rate, how.initial_accumulator, how.epsilon) == (rate, initial, epsilon)
    assert (how.beta1, how.beta2, how.bounds) == (0.9, 0.999, (-np.inf, np.inf))


@pytest.mark.parametrize(
    ("ask", "error", "why"),
    [
        (lambda: Table(0), InputError, "dim must be at least 1, got 0"),
        (lambda: Admission("odd", 1), InputError, "count"),
        (lambda: Table(1).pull([1.5]), TypeError, "keys must be integers, got float64"),
        (lambda: Table(1).scores([1]), InputError, "the table has no decay policy"),
    ],
)
def test_what_a_table_can_not_be_asked_is_refused(ask, error, why):
    with pytest.raises(error, match=why):
        ask()


def test_keys_are_any_64_bits_however_they_are_written():
    table = Table(1)
    table.pull(np.array([2**64 - 1, 5], np.uint64))
    assert len(table) == 2
    table.pull([-1, 5])
    table.pull(np.array([[-1], [5]], np.int32))
    assert len(table) == 2
    assert table.pull([]).shape == (0, 1)
