"""Rows are sorted by priority, order, tie break, arrival and id, in few comparisons whatever their order was."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from berth.schedule import queue
from berth.schedule.records import JOB

KEYS = ("order_key", "tie_break", "arrival_s", "id")
ORDERS = {
    "in order": lambda rows: rows,
    "nearly in order": lambda rows: np.roll(rows, 1),
    "reversed": lambda rows: rows[::-1],
    "shuffled": np.random.default_rng(3).permutation,
}


def jobs_of(count, values):
    """Jobs whose keys have few values each, so that every key decides somewhere."""
    dice, jobs = np.random.default_rng(7), np.zeros(count, JOB)
    jobs["priority"] = dice.integers(-1, 2, count)
    for key in KEYS:
        jobs[key] = np.arange(count) if key == "id" else dice.integers(0, values, count)
    return jobs


def in_order(jobs):
    rows = range(len(jobs))
    return sorted(rows, key=lambda row: (-jobs["priority"][row], *(jobs[key][row] for key in KEYS)))


@njit
def sort(jobs, rows):
    queue.sort_rows(jobs, rows)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 700])
def test_rows_are_sorted_whatever_their_order_was(count, order):
    jobs = jobs_of(count, 3)
    rows = np.ascontiguousarray(ORDERS[order](np.array(in_order(jobs), np.int32)))
    sort(jobs, rows)
    assert rows.tolist() == in_order(jobs)


@pytest.mark.parametrize("order", ORDERS)
def test_no_order_takes_comparisons_with_the_square_of_the_rows(order, monkeypatch):
    compared, precedes = [], python(queue.precedes)
    monkeypatch.setattr(
        queue, "precedes", lambda first, second: compared.append(1) or precedes(first, second)
    )
    monkeypatch.setattr(queue, "merge_rows", python(queue.merge_rows))
    jobs = jobs_of(400, 1)  # equal but for priorities and ids, so that keys that are copied decide nothing
    rows = np.ascontiguousarray(ORDERS[order](np.array(in_order(jobs), np.int32)))
    python(queue.sort_rows)(jobs.view(np.recarray), rows)
    assert rows.tolist() == in_order(jobs)
    assert len(compared) < 400 * 20  # by insertion alone a reversed queue takes 27,000 in each priority


def python(kernel):
    """The function behind a kernel."""
    return getattr(kernel, "py_func", kernel)
