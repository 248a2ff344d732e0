"""The heap of running jobs against a sorted list: whatever is inserted, removed and changed."""

from __future__ import annotations

import numpy as np
import pytest

from berth.native.kernels import entry
from berth.native.structs import to_native
from berth.simulate.engine_state import ACCOUNT, CLOCK, FAULT, LOG, LOG_PLACE, TRAFFIC, EngineState
from berth.simulate.heap import insert, remove, update

INSERT, REMOVE, UPDATE = range(3)


@entry
def act(engine, what, row):  # only compiled code can call a kernel
    if what == INSERT:
        insert(engine, row)
    elif what == REMOVE:
        remove(engine, row)
    else:
        update(engine, row)


def new_engine(rows: int) -> EngineState:
    accounts = np.zeros(rows, ACCOUNT)
    accounts["heap_index"] = -1
    return EngineState(
        clock=np.zeros(1, CLOCK),
        accounts=accounts,
        heap=np.zeros(rows + 1, np.int32),
        faults=np.zeros(0, FAULT),
        traffic=np.ones(1, TRAFFIC),
        log=np.zeros(1, LOG),
        log_places=np.zeros(1, LOG_PLACE),
    )


def assert_in_order(engine: EngineState, running: dict[int, float]) -> None:
    size = int(engine.clock[0]["heap"])
    assert sorted(engine.heap[:size].tolist()) == sorted(running)
    keys = [(running[row], row) for row in engine.heap[:size].tolist()]
    assert all(keys[(at - 1) // 2] < keys[at] for at in range(1, size))
    for at, row in enumerate(engine.heap[:size].tolist()):
        assert engine.accounts["heap_index"][row] == at


@pytest.mark.parametrize("seed", range(5))
def test_the_soonest_is_on_top_whatever_happened_before(seed):
    dice, rows = np.random.default_rng(seed), 40
    engine = new_engine(rows)
    native, running = to_native(engine), {}
    for _ in range(400):
        idle = [row for row in range(rows) if row not in running]
        what = int(dice.integers(3)) if running and idle else (INSERT if idle else REMOVE)
        row = int(dice.choice(idle if what == INSERT else list(running)))
        if what != REMOVE:
            running[row] = engine.accounts["finish_s"][row] = float(dice.integers(12))  # many are equal
        act(native, what, row)
        if what == REMOVE:
            del running[row]
            assert engine.accounts["heap_index"][row] == -1
        assert_in_order(engine, running)


def test_rows_leave_by_time_and_of_equal_times_by_row():
    engine = new_engine(8)
    engine.accounts["finish_s"] = [5.0, 3.0, 5.0, 1.0, 3.0, 9.0, 1.0, 5.0]
    native = to_native(engine)
    for row in (7, 2, 5, 0, 4, 1, 6, 3):
        act(native, INSERT, row)
    left = []
    while engine.clock[0]["heap"]:
        left.append(int(engine.heap[0]))
        act(native, REMOVE, left[-1])
    assert left == [3, 6, 1, 4, 0, 2, 7, 5]
