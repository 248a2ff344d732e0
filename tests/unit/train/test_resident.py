"""Tables in the memory of ranks that exchange rows: values are those of one table in one process."""

from __future__ import annotations

import errno
import os
import signal
import time
from threading import Event

import numpy as np
import pytest
from resident_ranks import in_ranks, resident
from torch.distributed import FileStore

from berth.errors import InputError
from berth.train import LocalStore
from berth.train.checkpoint.arrays import ArrayFile, frames
from berth.train.heartbeat import StallMonitor
from berth.train.shards.shard_save import ShardSave
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, DecayPolicy, Initialiser, Optimiser, from_arrays, join
from berth.train.tables.hashing import shard_of

DIM, STEPS = 4, 6
ROWS = TableSpec("rows", DIM, Optimiser("adagrad", 0.1), Initialiser("uniform"))


def batches(seed: int, ranks: int, *, keys: int = 40, skew: bool = False, empty: int | None = None):
    """Keys, gradients and clicks of each rank, by step; `empty` has no examples."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(STEPS):
        parts = []
        for rank in range(ranks):
            count = 0 if rank == empty else int(draw.integers(5, 30))
            drawn = np.minimum(draw.zipf(1.3, count), keys) if skew else draw.integers(1, keys, count)
            gradients = (draw.integers(-8, 9, (count, DIM)) / 8).astype(np.float32)  # sums are exact
            clicks = draw.integers(0, 2, count).astype(np.float32)
            parts.append((drawn.astype(np.uint64), gradients, clicks))
        found.append(parts)
    return found


def alone(spec, steps, *, days=()):
    """The rows of one process that gets the batches of all ranks, one after the other."""
    store, pulled = LocalStore(), []
    store.open([spec])
    for number, parts in enumerate(steps):
        keys, gradients, clicks = (np.concatenate([part[column] for part in parts]) for column in range(3))
        pulled.append(store.pull(spec.name, keys))
        store.push(spec.name, keys, gradients, clicks=clicks if spec.counts_clicks else None)
        if number in days:
            store.end_day()
    return pulled, join([state for _, state in store.save()])


def together(spec, steps, ranks, *, days=(), prefetch=False):
    """What each rank pulled, its shard, its rows in bytes, and what all of them save."""

    def work(process_group):
        rank, store, pulled = process_group.rank_info.rank, resident(process_group, spec), []
        for number, parts in enumerate(steps):
            keys, gradients, clicks = parts[rank]
            pulled.append(store.pull(spec.name, keys))
            if prefetch and number + 1 < len(steps):
                store.prefetch(spec.name, steps[number + 1][rank][0])
            store.push(spec.name, keys, gradients, clicks=clicks if spec.counts_clicks else None)
            store.end_step(number)
            if number in days:
                store.end_day()
        shard = join(list(store._shard.parts(0, changed_only=False)))
        facts = store.statistics()
        store.close()
        return pulled, shard, facts

    return in_ranks(ranks, work)


def check(expected, found):
    pulled, state = expected
    for step, rows in enumerate(pulled):
        np.testing.assert_array_equal(np.concatenate([part[0][step] for part in found]), rows)
    saved = join([part[1] for part in found])
    np.testing.assert_array_equal(saved.keys, state.keys)
    np.testing.assert_array_equal(saved.records, state.records)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [False, True], ids=["", "prefetched"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_are_those_of_one_process(ranks, prefetch):
    """Sums of these gradients are exact, so every bit is equal whatever their order."""
    steps = batches(ranks, ranks)
    found = together(ROWS, steps, ranks, prefetch=prefetch)
    check(alone(ROWS, steps), found)
    for rank, (_, shard, facts) in enumerate(found):  # each has its share, and nothing else
        assert (shard_of(shard.keys, ranks) == rank).all()
        assert facts["tables"]["rows"]["rows"] == len(shard.keys) > 0
        assert (facts["exchanged_bytes"] > 0) == (ranks > 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad", "adam"])
def test_every_row_optimiser_is_applied_once_by_the_owner(kind):
    spec = TableSpec("rows", DIM, Optimiser(kind, 0.1), Initialiser("uniform"))
    steps = batches(7, 2)
    check(alone(spec, steps), together(spec, steps, 2, prefetch=True))


@pytest.mark.slow
@pytest.mark.parametrize("empty", [0, 1])
def test_skewed_keys_and_a_rank_without_examples(empty):
    steps = batches(3, 3, skew=True, empty=empty)
    check(alone(ROWS, steps), together(ROWS, steps, 3, prefetch=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"decay": DecayPolicy(min_score=0.5)},
        {"admission": Admission("count", 3)},
        {"admission": Admission("score", 1.0), "decay": DecayPolicy()},
    ],
    ids=["decay", "admission by count", "admission by score"],
)
def test_decay_and_admission_are_those_of_one_process(more):
    spec = TableSpec("rows", DIM, Optimiser("adagrad", 0.1), Initialiser("uniform"), **more)
    steps = batches(5, 2, keys=25)
    check(alone(spec, steps, days=(2, 4)), together(spec, steps, 2, days=(2, 4), prefetch=True))


def test_pulled_rows_without_gradients_are_created_as_in_one_process():
    """Prefetched rows are not created by their look-up, but by the end of the step that used them."""

    def work(process_group):
        store = resident(process_group, ROWS)
        base = np.uint64(100 * process_group.rank_info.rank)
        store.end_step(0)
        store.prefetch("rows", np.arange(10, dtype=np.uint64) + base)
        store.end_step(1)
        store.pull("rows", np.arange(10, dtype=np.uint64) + base)
        before = store.statistics()["tables"]["rows"]["rows"]
        store.end_step(2)
        store.prefetch("rows", np.arange(50, 60, dtype=np.uint64) + base)  # never pulled
        store.end_step(3)
        return before, store.statistics()["tables"]["rows"]["rows"]

    found = in_ranks(2, work)
    assert [sum(counts) for counts in zip(*found, strict=True)] == [0, 20]


@pytest.mark.slow
def test_ranks_that_announced_other_keys_than_they_pull_get_the_right_rows():
    """One rank has prefetched rows and the other has not: they agree on what is exchanged."""
    steps = batches(11, 2)

    def work(process_group):
        rank, store, pulled = process_group.rank_info.rank, resident(process_group, ROWS), []
        for number, parts in enumerate(steps):
            keys, gradients, _ = parts[rank]
            pulled.append(store.pull("rows", keys))
            if number + 1 < len(steps):
                following = steps[number + 1][rank][0]
                store.prefetch("rows", following if (number + rank) % 2 else following[1:])
            store.push("rows", keys, gradients)
            store.end_step(number)
        return pulled, join(list(store._shard.parts(0, changed_only=False)))

    check(alone(ROWS, steps), in_ranks(2, work))


@pytest.mark.slow
def test_two_layers_with_one_table_and_several_pulls_in_a_step():
    """Micro-batches pull one after the other and push together; two announced batches arrive together."""
    steps = batches(13, 2)

    def work(process_group):
        rank, store, pulled = process_group.rank_info.rank, resident(process_group, ROWS), []
        for number, parts in enumerate(steps):
            keys, gradients, _ = parts[rank]
            half = len(keys) // 2
            pulled.append(np.concatenate([store.pull("rows", keys[:half]), store.pull("rows", keys[half:])]))
            if number + 1 < len(steps):
                following = steps[number + 1][rank][0]
                for part in np.split(following, [len(following) // 2]):
                    store.prefetch("rows", part)
            store.push("rows", keys[:half], gradients[:half])
            store.push("rows", keys[half:], gradients[half:])
            store.end_step(number)
        return pulled, join(list(store._shard.parts(0, changed_only=False)))

    check(alone(ROWS, steps), in_ranks(2, work))


@pytest.mark.slow
def test_several_tables_are_exchanged_together():
    other = TableSpec("other", 2, Optimiser("sgd", 0.5), Initialiser("uniform"))

    def work(process_group):
        store = resident(process_group, ROWS, other)
        keys = np.arange(8, dtype=np.uint64)
        for step in range(3):
            first, second = store.pull("rows", keys), store.pull("other", keys[::-1])
            store.prefetch("rows", keys)
            store.prefetch("other", keys[::-1])
            store.push("rows", keys, np.ones((8, DIM), np.float32))
            if step != 1:
                store.push("other", keys, np.ones((8, 2), np.float32))
            store.end_step(step)
        return first, second

    one, two = in_ranks(2, work)
    store = LocalStore()
    store.open([ROWS, other])
    keys = np.arange(8, dtype=np.uint64)
    for step in range(3):
        expected = store.pull("rows", keys), store.pull("other", keys[::-1])
        store.push("rows", keys, np.full((8, DIM), 2, np.float32))
        if step != 1:
            store.push("other", keys, np.full((8, 2), 2, np.float32))
    for found in (one, two):
        for rows, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(rows, right)


@pytest.mark.slow
def test_an_evaluation_serves_ranks_until_the_last_is_done():
    """Ranks peek at different numbers of batches, and no row is created."""

    def work(process_group):
        store, rank = resident(process_group, ROWS), process_group.rank_info.rank
        with store.evaluation():
            keys = [np.arange(batch, batch + 5, dtype=np.uint64) for batch in range(rank * 2)]
            found = [store.peek("rows", some) for some in keys]
        return found, store.statistics()["tables"]["rows"]["rows"]

    found = in_ranks(3, work)
    plain = LocalStore()
    plain.open([ROWS])
    assert [(len(peeked), rows) for peeked, rows in found] == [(0, 0), (2, 0), (4, 0)]
    for batch, rows in enumerate(found[2][0]):
        expected = plain.peek("rows", np.arange(batch, batch + 5, dtype=np.uint64))
        np.testing.assert_array_equal(rows, expected)


def test_ranks_in_different_orders_are_one_message():
    def work(process_group):
        store = resident(process_group, ROWS)
        if process_group.rank_info.rank:
            store.end_step(0)
        else:
            store.pull("rows", np.arange(3, dtype=np.uint64))

    found = in_ranks(2, work)
    assert all(isinstance(error, InputError) for error in found)
    assert "worker 0 looks up 'rows', worker 1 ends its step" in str(found[0])


@pytest.mark.slow
def test_owners_write_their_own_files_and_any_number_of_ranks_loads_them(tmp_path):
    """Rank 0 asks, the others follow; a state of three shards is loaded by two, with the keys pending admission."""
    spec = TableSpec("rows", DIM, Optimiser("adam", 0.1), Initialiser("uniform"), Admission("count", 2))
    steps = batches(17, 3)

    def saved(process_group):
        store, rank = resident(process_group, spec), process_group.rank_info.rank
        for number, parts in enumerate(steps):
            store.pull("rows", parts[rank][0])
            store.push("rows", *parts[rank][:2])
            store.end_step(number)
        if rank:
            store.checkpoints.follow()
            return None
        assert store.unwritable_by(tmp_path) is None
        files = store.start_save(tmp_path, "-2", changed_only=False, streamed=False)
        hashes = store.finish_save()
        given_up = store.save()
        next(given_up)  # as when the disk of rank 0 is full
        assert store.unwritable_by(tmp_path) is None
        collected = list(store.save())
        store.checkpoints.end_requests()
        return files, hashes, collected

    files, hashes, collected = in_ranks(3, saved)[0]
    names = [f"table-0.shard-{shard}-of-3-2.bin" for shard in range(3)]
    assert files == {"rows": names}
    assert sorted(hashes) == sorted(path.name for path in tmp_path.iterdir()) == names
    written = [from_arrays(part) for name in names for part, _ in frames(tmp_path / name)]
    state, sent = join(written), join([part for _, part in collected])
    expected = alone(spec, steps)[1]
    for found in (state, sent):
        for column in ("keys", "records", "waiting_keys", "waiting"):
            np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))

    def loaded(process_group):
        store = resident(process_group, spec)
        if process_group.rank_info.rank:
            store.checkpoints.follow()
        else:
            store.load("rows", state)
            store.checkpoints.end_requests()
        return join(list(store._shard.parts(0, changed_only=False)))

    again = join(in_ranks(2, loaded))
    for column in ("keys", "records", "waiting_keys", "waiting"):
        np.testing.assert_array_equal(getattr(again, column), getattr(expected, column))


@pytest.mark.slow
def test_a_save_after_one_that_was_given_up_is_complete(tmp_path):
    """Before the second, the owner cancels the first, whose result must not pass for that of the second."""

    def work(process_group):
        store = resident(process_group, ROWS)
        if process_group.rank_info.rank:
            written, cancelled = ArrayFile.finish, Event()

            def slow(file):
                if file.path.name.endswith("-1.bin"):
                    cancelled.wait(60)
                    raise OSError(errno.EINTR, "the save was cancelled")
                return written(file)

            def cancel(save, own=ShardSave.cancel):
                cancelled.set()
                own(save)

            ArrayFile.finish, ShardSave.cancel = slow, cancel  # in this fork only
            return store.checkpoints.follow()
        store.start_save(tmp_path, "-1", changed_only=False, streamed=False)
        store.start_save(tmp_path, "-2", changed_only=False, streamed=False)
        try:
            return sorted(store.finish_save())
        finally:
            store.checkpoints.end_requests()

    assert in_ranks(2, work)[0] == [f"table-0.shard-{shard}-of-2-2.bin" for shard in range(2)]


def test_an_owner_killed_while_it_writes_fails_the_save_in_bounded_time(tmp_path):
    def work(process_group):
        store, rank = resident(process_group, ROWS), process_group.rank_info.rank
        process_group.monitor = StallMonitor(rank, 2, silent_s=0.3, notify=lambda line: None)
        process_group.monitor.start(FileStore(str(tmp_path / "heartbeats"), 2))
        if rank:

            def finish(file):
                while not (tmp_path / "started").exists():
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)

            ArrayFile.finish = finish  # in this fork only
            return store.checkpoints.follow()
        store.start_save(tmp_path, "", changed_only=False, streamed=False)
        (tmp_path / "started").touch()
        return store.finish_save()

    error, killed = in_ranks(2, work)
    assert killed == signal.SIGKILL
    assert isinstance(error, TimeoutError)
    assert error.strerror == "rank 1, which writes a part of it, does not respond"


def test_a_file_that_an_owner_can_not_write_fails_the_save(tmp_path):
    (tmp_path / "table-0.shard-1-of-2.bin").mkdir()

    def work(process_group):
        store = resident(process_group, ROWS)
        if process_group.rank_info.rank:
            store.checkpoints.follow()
            return
        try:
            store.start_save(tmp_path, "", changed_only=False, streamed=False)
        finally:
            store.checkpoints.end_requests()

    error = in_ranks(2, work)[0]
    assert isinstance(error, IsADirectoryError)
