"""The order of requests in each mode, without sockets or a clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import InputError, UnknownNameError, WireError
from berth.train.servers.protocol import (
    Flag,
    Frame,
    Kind,
    error_from_json,
    pack,
    pack_json,
    read_json,
    unpack,
)
from berth.train.servers.request_queue import MAX_QUEUED, RequestQueue
from berth.train.servers.shard import Shard, StepTracker
from berth.train.servers.transport import PayloadBuffer
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, DecayPolicy, Initialiser, Table, adagrad, sgd

DIM = 4
SPEC = TableSpec("rows", DIM, adagrad(), Initialiser())


class Ear:
    """A port that keeps the responses."""

    def __init__(self):
        self.responses = {}
        self.released = []

    def reserve(self, length):
        return PayloadBuffer(np.zeros(length, np.uint8))

    def send(self, kind, request, buffer=None, *, flags=Flag.NONE, step=0):
        self.responses[request] = (kind, flags, unpack(buffer.payload) if buffer else [])

    def release(self, frame):
        self.released.append(frame.request)


class Play:
    """Workers that send requests in any order."""

    def __init__(self, mode="sync", workers=2, staleness=0, spec=SPEC):
        self.queue = RequestQueue(Shard(), StepTracker(mode, workers, staleness))
        self.ears = [Ear() for _ in range(workers)]
        self.numbers = [0] * workers
        self.queue.shard.open([spec])

    def request(self, rank, kind, arrays=None, flags=Flag.NONE, number=None, now_s=0.0):
        self.numbers[rank] += number is None
        request = number or self.numbers[rank]
        payload = np.empty(0, np.uint8) if arrays is None else pack(arrays)
        self.queue.submit(rank, Frame(kind, flags, 0, request, payload), self.ears[rank], now_s)
        self.queue.run(now_s)
        return request

    def pull(self, rank, keys, times=None, number=None, now_s=0.0):
        arrays = [np.array([[0, 0]], np.int32), np.array(keys, np.int64)]
        arrays += [] if times is None else [np.array(times, np.int32)]
        return self.request(rank, Kind.PULL, arrays, number=number, now_s=now_s)

    def push(self, rank, keys, value, number=None, flags=Flag.NONE):
        values = np.full((len(keys), DIM), value, np.float32)
        arrays = [np.array([[0, 0]], np.int32), np.array(keys, np.int64), values]
        return self.request(rank, Kind.PUSH, arrays, flags, number)

    def end(self, rank):
        return self.request(rank, Kind.PUSH, flags=Flag.END_STEP)

    def response(self, rank, number):
        kind, _, arrays = self.ears[rank].responses[number]
        assert kind == Kind.DONE, read_json(arrays[0])
        return arrays[0] if arrays else None

    def waits(self, rank, number):
        return number not in self.ears[rank].responses

    def error(self, rank, number):
        kind, _, arrays = self.ears[rank].responses[number]
        assert kind == Kind.ERROR
        return error_from_json(read_json(arrays[0]))

    def rows(self):
        return self.queue.shard.tables[0].save()


def test_in_sync_mode_a_pull_waits_until_all_have_ended_the_step_before():
    play = Play()
    play.push(0, [1], 1)
    play.end(0)
    asked = play.pull(0, [1])
    assert play.waits(0, asked)
    play.push(1, [1], 2)
    play.end(1)
    table = Table(DIM, optimiser=adagrad())
    table.push([1, 1], np.array([[1] * DIM, [2] * DIM], np.float32))  # one step of both, not one of each
    assert (play.response(0, asked) == table.pull([1])).all()


def test_in_async_mode_no_worker_waits():
    play = Play("async")
    play.push(0, [1], 1)
    play.end(0)
    assert not play.waits(0, play.pull(0, [1]))


def test_in_half_async_mode_a_worker_leads_by_at_most_the_staleness():
    play = Play("half-async", staleness=2)
    play.end(0)
    assert not play.waits(0, play.pull(0, [1]))
    play.end(0)
    asked = play.pull(0, [1])  # for a third step, while the other has ended none
    assert play.waits(0, asked)
    play.end(1)
    assert not play.waits(0, asked)


def test_in_half_async_mode_no_worker_waits_for_one_that_has_finished():
    play = Play("half-async", staleness=1)
    play.end(0)
    asked = play.pull(0, [1])
    assert play.waits(0, asked)
    play.request(1, Kind.RETIRE)
    assert not play.waits(0, asked)
    play.end(1)  # it goes on after all
    play.end(0)
    assert play.waits(0, play.pull(0, [1]))


def test_one_worker_sees_its_own_pushes_at_once():
    play = Play(workers=1)
    before = play.response(0, play.pull(0, [1])).copy()
    play.push(0, [1], 1)
    assert (play.response(0, play.pull(0, [1])) != before).all()


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_in_sync_mode_rows_do_not_depend_on_the_speed_of_workers(data):
    """Three workers, four steps: any interleaving that the rules allow ends with the same bits."""
    spec = data.draw(
        st.sampled_from([SPEC, TableSpec("rows", DIM, adagrad(), Initialiser(), Admission("count", 5))])
    )
    counted = spec.admission is not None

    def run(choose):
        play = Play(workers=3, spec=spec)
        scripts = [
            [(step, operation) for step in range(4) for operation in ("pull", "push", "end")]
            for _ in range(3)
        ]
        asked = [None] * 3
        seen = [[] for _ in range(3)]
        while any(scripts):
            free = [
                rank
                for rank in range(3)
                if scripts[rank] and (asked[rank] is None or not play.waits(rank, asked[rank]))
            ]
            rank = choose(free)
            if asked[rank] is not None:
                seen[rank].append(play.response(rank, asked[rank]).copy())
                asked[rank] = None
            step, operation = scripts[rank].pop(0)
            keys = [rank, step, 7, 8 + step % 2]
            if operation == "pull":
                asked[rank] = play.pull(rank, sorted(set(keys)), [1] * len(set(keys)) if counted else None)
            elif operation == "push":
                play.push(rank, sorted(set(keys)), 0.1 * (rank + 1) * (step + 1))
            else:
                play.end(rank)
        return play.rows(), seen

    plain, seen = run(lambda free: free[0])
    other, other_seen = run(lambda free: data.draw(st.sampled_from(free)))
    assert (plain.keys == other.keys).all()
    assert (plain.records == other.records).all()
    for mine, theirs in zip(seen, other_seen, strict=True):
        assert all((one == two).all() for one, two in zip(mine, theirs, strict=True))


def test_a_push_that_comes_twice_is_applied_once():
    play = Play(workers=1)
    number = play.push(0, [1], 1)
    rows = play.rows()
    play.ears[0].responses.clear()
    play.push(0, [1], 1, number=number)
    assert play.response(0, number) is None
    assert (play.rows().records == rows.records).all()


def test_a_push_that_was_refused_is_refused_again_when_the_answer_was_lost():
    play = Play(workers=1)
    bad = [np.array([[5, 0]], np.int32), np.array([1]), np.ones((1, DIM), np.float32)]
    number = play.request(0, Kind.PUSH, bad)
    play.push(0, [1], 1)
    play.ears[0].responses.clear()
    play.request(0, Kind.PUSH, bad, number=number)
    assert "unknown table id 5" in str(play.error(0, number))
    for _ in range(MAX_QUEUED + 5):
        play.request(0, Kind.PUSH, bad)
    assert len(play.queue.workers[0].failed) == MAX_QUEUED


def test_a_pull_that_comes_twice_is_answered_twice_and_counted_once():
    spec = TableSpec("rows", DIM, sgd(), Initialiser(), Admission("count", 3))
    play = Play(workers=1, spec=spec)
    number = play.pull(0, [1], [2])
    play.pull(0, [1], [2], number=number)
    assert len(play.rows().keys) == 0
    play.pull(0, [1], [1])
    assert len(play.rows().keys) == 1


@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.STATISTICS])
def test_a_question_whose_answer_was_lost_is_answered_again(kind):
    play, arrays = Play(workers=1), [pack_json([SPEC.to_json()])]
    number = play.request(0, kind, arrays if kind == Kind.OPEN else None)
    first = play.response(0, number).tolist()
    play.ears[0].responses.clear()
    play.request(0, kind, arrays if kind == Kind.OPEN else None, number=number)
    again = play.response(0, number)
    assert kind == Kind.STATISTICS or again.tolist() == first == [0]
    assert kind == Kind.OPEN or read_json(again)["tables"].keys() == {"rows"}


@pytest.mark.parametrize("kind", [Kind.LOCK, Kind.PART, Kind.UNLOCK])
def test_a_save_whose_connection_broke_is_not_gone_on_with(kind):
    play = Play(workers=1)
    play.request(0, Kind.LOCK)
    number = play.request(0, kind, [np.array([0], np.int32)] if kind == Kind.PART else None)
    play.request(0, kind, [np.array([0], np.int32)] if kind == Kind.PART else None, number=number)
    assert "the connection was lost while the tables were being saved" in str(play.error(0, number))


def test_an_error_of_a_kind_that_is_not_known_is_still_an_error():
    assert str(error_from_json({"kind": "Odd", "what": "no"})) == "no"
    assert str(error_from_json({})) == "unknown error"


def test_a_pull_that_waits_is_answered_on_the_connection_that_asked_last():
    play = Play()
    play.end(0)
    number = play.pull(0, [1])
    play.queue.lost(0, play.ears[0])
    play.ears[0] = Ear()
    play.pull(0, [1], number=number)
    assert play.waits(0, number)
    play.end(1)
    assert not play.waits(0, number)


def test_a_request_that_times_out_names_the_missing_ranks():
    play = Play(workers=3)
    play.end(0)
    play.end(2)
    number = play.pull(0, [1], now_s=10.0)
    play.queue.expire(9.0, {})
    assert play.waits(0, number)
    play.queue.expire(10.0, {1: "connection lost"})
    assert "rank 1 (connection lost)" in str(play.error(0, number))
    assert number in play.ears[0].released  # its place in the ring is free again


def test_a_day_ends_once_when_all_have_come_to_its_end():
    spec = TableSpec("rows", DIM, sgd(), Initialiser(), decay=DecayPolicy())
    play = Play(spec=spec)
    for rank in (0, 1):
        play.end(rank)
    first = play.request(0, Kind.END_DAY)
    assert play.waits(0, first)
    asked = play.pull(0, [1])
    assert play.waits(0, asked)
    second = play.request(1, Kind.END_DAY)
    assert not play.waits(0, first)
    assert not play.waits(1, second)
    assert not play.waits(0, asked)
    assert play.queue.shard.tables[0].day == 1


def test_while_tables_are_saved_others_wait():
    play = Play("async")
    play.push(0, [1, 2], 1)
    play.request(0, Kind.LOCK)
    asked, pushed = play.pull(1, [1]), play.push(1, [1], 5, flags=Flag.CONFIRM)
    assert play.waits(1, asked)
    part = play.request(0, Kind.PART, [np.array([0], np.int32)])
    assert play.ears[0].responses[part][0] == Kind.DONE
    play.request(0, Kind.UNLOCK)
    assert not play.waits(1, asked)
    assert not play.waits(1, pushed)


def test_a_saver_that_is_lost_lets_go():
    play = Play("async")
    play.request(0, Kind.LOCK)
    asked = play.pull(1, [1])
    play.queue.lost(0, play.ears[0])
    play.queue.run(0.0)
    assert not play.waits(1, asked)


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        (Kind.PULL, [np.array([[9, 0]], np.int32), np.arange(2)]),
        (Kind.PULL, [np.array([[0, 7]], np.int32), np.arange(2)]),
        (Kind.PULL, [np.array([[0, 0]], np.int32)]),
        (Kind.PULL, [np.array([0, 0], np.int32), np.arange(2)]),
        (Kind.PUSH, [np.array([[0, 0]], np.int32), np.arange(2), np.ones((2, 3), np.float32)]),
        (Kind.PUSH, [np.array([[0, 0]], np.int32), np.arange(2), np.ones((3, DIM), np.float32)]),
        (Kind.PUSH, [np.array([[0, 1]], np.int32), np.arange(2), np.ones((2, DIM), np.float32)]),
        (Kind.LOAD, [np.array([0], np.int32), np.arange(2)]),
        (Kind.OPEN, [pack_json({"name": "x"})]),
        (Kind.OPEN, [pack_json([{"name": "x"}])]),
        (Kind.OPEN, [pack_json([{**SPEC.to_json(), "dim": 5}])]),
        (Kind.PART, None),
        (Kind.PREFETCH, [np.array([[3, 0]], np.int32), np.arange(2)]),
        (Kind.STATISTICS, None),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_changes_nothing(kind, arrays):
    play = Play(workers=1)
    play.push(0, [1], 1)
    before = play.rows()
    number = play.request(0, kind, arrays)
    expected = Kind.DONE if kind == Kind.STATISTICS else Kind.ERROR
    assert play.ears[0].responses[number][0] == expected
    assert (play.rows().records == before.records).all()


def test_a_worker_that_floods_is_stopped():
    play = Play()
    play.end(0)
    for _ in range(MAX_QUEUED):
        play.pull(0, [1])
    with pytest.raises(WireError, match="more than 256 requests"):
        play.pull(0, [1])


def test_orders_that_make_no_sense_are_refused():
    with pytest.raises(UnknownNameError):
        StepTracker("later", 1)
    with pytest.raises(InputError):
        StepTracker("sync", 0)


def section(*arrays, table=0, codec=0):
    return [np.array([[table, codec]], np.int32), *arrays]


KEYS, ROWS = np.array([1, 2]), np.ones((2, DIM), np.float32)
LIVING = TableSpec("rows", DIM, sgd(), Initialiser(), decay=DecayPolicy())
COUNTED = TableSpec("rows", DIM, sgd(), Initialiser(), Admission("count", 3))


@pytest.mark.parametrize(
    ("kind", "spec", "arrays", "message"),
    [
        (Kind.PULL, SPEC, [np.array([[0, 9]], np.int32), KEYS], "unknown codec 9"),
        (Kind.PULL, SPEC, [np.array([0, 0], np.int32), KEYS], "pairs of table and codec"),
        (Kind.PULL, SPEC, section(KEYS, table=5), "unknown table id 5"),
        (Kind.PULL, SPEC, section(), "request lacks an array of int64"),
        (Kind.PULL, COUNTED, section(KEYS, np.array([1], np.int32)), "needs one count per key"),
        (Kind.PUSH, SPEC, section(KEYS), "table 'rows': values do not match 2 keys"),
        (Kind.PUSH, SPEC, section(KEYS, ROWS[:1]), "table 'rows': values do not match 2 keys"),
        (Kind.PUSH, SPEC, section(KEYS, ROWS, codec=1), "table 'rows': values do not match 2 keys"),
        (Kind.PUSH, LIVING, section(KEYS, ROWS), "request lacks an array of float32"),
        (Kind.PUSH, LIVING, section(KEYS, ROWS, ROWS), "shows and clicks must be two numbers per key"),
        (Kind.OPEN, SPEC, [pack_json({"name": "x"})], "expected a list of tables"),
        (Kind.OPEN, SPEC, [pack_json([{"name": "x"}])], "invalid table description"),
        (Kind.OPEN, SPEC, [KEYS, KEYS], "expected 1 arrays, got 2"),
        (Kind.PART, SPEC, [np.array([0], np.int32)], "tables must be locked before they are saved"),
        (Kind.LOAD, SPEC, [np.array([0], np.int32), *[KEYS] * 6], "the arrays are not a table state"),
        (Kind.LOAD, SPEC, [np.array([0], np.int32), *[KEYS] * 5], "expected 6 arrays, got 5"),
        (Kind.LOAD, SPEC, None, "internal server error|too short for arrays"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_a_reason_and_changes_nothing(
    kind, spec, arrays, message, capsys
):
    play = Play(workers=1, spec=spec)
    number = play.request(0, kind, arrays, Flag.CONFIRM)
    with pytest.raises(Exception, match=message):
        raise play.error(0, number)
    assert len(play.rows().keys) == 0
    known = [np.array([3])] if spec is not COUNTED else [np.array([3]), np.array([3], np.int32)]
    assert play.response(0, play.request(0, Kind.PULL, section(*known))).shape == (1, DIM)  # and it serves on


def test_a_bug_is_reported_to_its_worker_and_the_others_continue(monkeypatch, capsys):
    play = Play("async")
    monkeypatch.setattr(play.queue.shard, "pull", lambda *_, **__: 1 // 0)
    assert "internal server error: ZeroDivisionError" in str(play.error(0, play.pull(0, [1])))
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.undo()
    assert not play.waits(1, play.pull(1, [1]))


def test_a_worker_that_saves_can_not_send_other_requests():
    play = Play(workers=1)
    play.request(0, Kind.LOCK)
    assert "can't send other requests" in str(play.error(0, play.pull(0, [1])))
    play.request(0, Kind.UNLOCK)
    assert not play.waits(0, play.pull(0, [1]))


def test_who_pushes_far_ahead_of_the_others_is_stopped(monkeypatch):
    monkeypatch.setattr("berth.train.servers.handlers.MAX_DEFERRED_BYTES", 90)
    play = Play()
    play.push(0, [1, 2], 1)
    number = play.push(0, [3, 4], 1, flags=Flag.CONFIRM)
    assert "in steps that other ranks have not ended" in str(play.error(0, number))
    play.end(0)
    play.end(1)
    assert play.rows().keys.tolist() == [1, 2]
    play.push(0, [5], 1, flags=Flag.CONFIRM)
    assert play.queue.workers[0].deferred_bytes == 8 + 4 * DIM


def test_a_merge_counts_each_workers_share():
    play = Play("geo")
    refused = play.request(0, Kind.MERGE, section(KEYS, ROWS))  # without the changes of the optimiser state
    assert play.ears[0].responses[refused][0] == Kind.ERROR
    assert not len(play.rows().keys)
    before = Table(DIM, optimiser=SPEC.optimiser)
    weights = before.pull(KEYS)
    play.request(0, Kind.MERGE, [*section(KEYS, ROWS), 4 * ROWS])
    found = play.rows().records
    assert np.allclose(found[:, :DIM], weights + 0.5)
    assert np.allclose(found[:, DIM:], before.save().records[:, DIM:] + 2.0)


def test_a_lost_response_of_a_request_that_only_reads_is_sent_again(tmp_path):
    play = Play("async")
    (tmp_path / "probe").write_text("as rank 0 wrote it")
    probe = pack_json({"probe": str(tmp_path / "probe"), "content": "as rank 0 wrote it"})
    for kind, arrays in ((Kind.TICKETS, None), (Kind.PROBE, [probe])):
        number = play.request(0, kind, arrays)
        first = play.ears[0].responses.pop(number)
        play.request(0, kind, arrays, number=number)
        again = play.ears[0].responses[number]
        assert again[0] == first[0] == Kind.DONE
        assert [part.tolist() for part in again[2]] == [part.tolist() for part in first[2]]
