"""A sweep runs every cell once, whatever happened to the last attempt."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.simulate import sweep as room
from berth.simulate.sweep import Grid, ratios, sweep

GRID = Grid("1x2x4:H100", ("fifo", "srtf"), (1.0,), (1.0,), ("balanced",), seeds=2, jobs=20)


@pytest.fixture
def ran(monkeypatch):
    """The cells that were really played."""
    played = []
    original = room.run_cell

    def run_cell(cell):
        played.append(cell)
        return original(cell)

    monkeypatch.setattr(room, "run_cell", run_cell)
    return played


def test_a_rerun_plays_only_what_is_missing(tmp_path, ran):
    file = tmp_path / "cells.jsonl"
    first = sweep(GRID.cells(), file, workers=1)
    assert len(ran) == len(first) == 4
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]) + '{"cell": {"cut sho')
    again = sweep(GRID.cells(), file, workers=1)
    assert len(ran) == 5
    figures = [{**row["result"], "cpu_s": 0} for row in first]
    assert [{**row["result"], "cpu_s": 0} for row in again] == figures
    assert [json.loads(line)["cell"] for line in file.read_text().splitlines()] == [
        row["cell"] for row in first
    ]


def test_a_sweep_writes_each_key_a_few_times_however_many_cells_there_are(tmp_path, monkeypatch):
    written = []
    plain = json.dumps

    def counting(*args, **kwargs):
        written.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(room.json, "dumps", counting)
    monkeypatch.setattr(room, "run_cell", lambda cell: {"cell": dataclasses.asdict(cell), "result": {}})
    cells = dataclasses.replace(GRID, seeds=30).cells()
    seen = []
    sweep(cells, tmp_path / "cells.jsonl", workers=1, progress=lambda done, of: seen.append((done, of)))
    assert len(written) == 3 * len(cells)
    assert seen == [(number, len(cells)) for number in range(1, len(cells) + 1)]


def test_finished_cells_are_never_written_again(tmp_path, ran, monkeypatch):
    """A crash while a file was rewritten would cost every cell in it."""
    file = tmp_path / "cells.jsonl"
    sweep(GRID.cells(), file, workers=1)
    before = file.read_bytes()
    file.write_bytes(before + b'{"cell": {"cut sho')

    def refuse(*_args, **_kwargs):
        raise AssertionError("rewritten")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    sweep(GRID.cells(), file, workers=1)
    assert file.read_bytes() == before


def test_another_question_is_another_cell(tmp_path, ran):
    file = tmp_path / "cells.jsonl"
    sweep(GRID.cells(), file, workers=1)
    sweep(dataclasses.replace(GRID, jobs=21).cells(), file, workers=1)
    assert len(ran) == 8


def test_sizes_may_be_written_out(tmp_path):
    grid = dataclasses.replace(GRID, sizes="1=1,4=1", seeds=1)
    rows = sweep(grid.cells(), tmp_path / "cells.jsonl", workers=1)
    assert [row["result"]["finished"] for row in rows] == [20, 20]


def test_a_spoilt_file_is_refused_at_its_line(tmp_path):
    file = tmp_path / "cells.jsonl"
    file.write_text('{"cell": {}, "result": {}}\nnonsense\n')
    with pytest.raises(InputError, match="is not a finished cell") as refused:
        sweep(GRID.cells(), file, workers=1)
    assert refused.value.where == f"{file}:2"


def test_ratios_are_taken_seed_by_seed():
    def row(policy, seed, value):
        cell = {"policy": policy, "mix": "m", "load": 1.0, "congestion": 2.0, "seed": seed}
        return {"cell": cell, "result": {"mean_jct_s": value}}

    rows = [row("a", 0, 10.0), row("a", 1, 100.0), row("b", 0, 5.0), row("b", 1, 50.0)]
    found = ratios(rows, "m", 1.0, 2.0, "b", "a", "mean_jct_s")
    assert (found.ratio, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.clear


@pytest.mark.slow
def test_two_processes_find_what_one_does(tmp_path):
    alone, together = (sweep(GRID.cells(), tmp_path / f"{n}.jsonl", workers=n) for n in (1, 2))
    assert [{**row["result"], "cpu_s": 0} for row in alone] == [
        {**row["result"], "cpu_s": 0} for row in together
    ]


def test_ctrl_c_that_another_thread_receives_waits_until_the_workers_are_started(ctrl_c):
    started = []
    done = threading.Event()
    other = threading.Thread(target=done.wait)  # its mask lets the signal in
    other.start()

    def start():
        with room._ctrl_c_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            started.append("worker")

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        done.set()
        other.join()
    assert started == ["worker"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
