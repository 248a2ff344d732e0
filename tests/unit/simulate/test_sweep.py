"""A sweep runs every cell once, whatever happened to the last attempt."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

import berth.simulate as public
from berth.errors import InputError
from berth.report.simulation_sweep import map_verdict
from berth.simulate import sweep as sweep_module
from berth.simulate.compared import COMPARED
from berth.simulate.sweep import AT_ONCE, Grid, Ratio, ratios, sweep, sweep_frame

GRID = Grid("1x2x4:H100", ("fifo", "srtf"), (1.0,), (1.0,), ("balanced",), seeds=2, jobs=20)


@pytest.fixture
def ran(monkeypatch):
    """The cells that were really played."""
    played = []
    original = sweep_module.run_cell

    def run_cell(cell):
        played.append(cell)
        return original(cell)

    monkeypatch.setattr(sweep_module, "run_cell", run_cell)
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

    monkeypatch.setattr(sweep_module.json, "dumps", counting)
    monkeypatch.setattr(
        sweep_module, "run_cell", lambda cell: {"cell": dataclasses.asdict(cell), "result": {}}
    )
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


@pytest.mark.slow
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

    base = [10.0, 100.0, 20.0, 30.0, 5.0, 7.0]
    rows = [
        row(*one) for seed, value in enumerate(base) for one in (("a", seed, value), ("b", seed, value / 2))
    ]
    found = ratios(rows, "m", 1.0, 2.0, "b", "a", "mean_jct_s")
    assert (found.ratio, found.low, found.high) == (0.5, 0.5, 0.5)
    assert (found.clear, found.noise) == (True, False)
    few = ratios(rows[:-2], "m", 1.0, 2.0, "b", "a", "mean_jct_s")
    assert (few.ratio, few.low, few.high, few.clear, few.noise) == (0.5, None, None, False, False)


def test_jobs_that_arrive_at_once_have_no_load_and_known_figures():
    """Five jobs of a minute that each need the whole machine: completed after 1, 2, 3, 4 and 5 minutes."""
    grid = dataclasses.replace(
        GRID, cluster="1x1x4:H100", loads=(AT_ONCE,), arrivals="at-once", jobs=5, seeds=1, sizes="4=1",
        durations="fixed:1m",
    )  # fmt: skip
    for row in sweep(grid.cells()):
        assert (row["result"]["makespan_s"], row["result"]["mean_jct_s"]) == (300.0, 180.0)
    with pytest.raises(InputError, match="have no load"):
        dataclasses.replace(grid, loads=(0.9,))
    with pytest.raises(InputError, match="above zero"):
        dataclasses.replace(GRID, loads=(AT_ONCE,))


@pytest.mark.slow
def test_failures_are_drawn_again_for_each_seed_and_named_in_the_frame():
    grid = dataclasses.replace(GRID, faults="mtbf=6h,mttr=1h,seed=3")
    calm, rows = sweep(GRID.cells()), sweep(grid.cells())
    assert all(
        failed["result"]["mean_jct_s"] > row["result"]["mean_jct_s"]
        for failed, row in zip(rows, calm, strict=True)
    )
    frame = sweep_frame([*rows, *calm])
    assert frame["fault_seed"].to_list() == [3, 3, 4, 4, None, None, None, None]
    assert frame["policy"].to_list() == ["fifo", "srtf"] * 4
    assert frame["goodput"].to_list() == [row["result"]["goodput"] for row in [*rows, *calm]]


def test_a_grid_is_a_data_frame_in_one_call_and_keeps_its_cells(tmp_path, ran):
    file = tmp_path / "cells.jsonl"
    frame = public.run_grid(public.Grid(**dataclasses.asdict(GRID)), file)
    assert frame.height == len(ran) == 4
    assert frame["mean_jct_s"].to_list() == [
        json.loads(line)["result"]["mean_jct_s"] for line in file.read_text().splitlines()
    ]
    public.run_grid(GRID, str(file))
    assert len(ran) == 4


LESS, MORE = COMPARED["mean_jct_s"], COMPARED["goodput"]
CELLS = {
    (0.8, 1.0): Ratio(0.5, 0.4, 0.6),
    (0.8, 5.0): Ratio(0.9, 0.8, 0.95),
    (1.1, 1.0): Ratio(1.2, 1.1, 1.3),
    (1.1, 5.0): Ratio(0.95, 0.8, 1.1),
}


def test_a_map_is_summed_up_in_a_sentence():
    assert map_verdict(CELLS, LESS, "b", "a") == (
        "mean JCT: b is better than a in 2 of 4 cells (most at load 0.8, congestion x1: -50 %), "
        "worse than a in 1 of 4 cells (most at load 1.1, congestion x1: +20 %), within noise in 1."
    )
    assert "better than a in 1 of 4 cells (most at load 1.1" in map_verdict(CELLS, MORE, "b", "a")
    even = {(0.8, 1.0): Ratio(1.0, 0.9, 1.1)}
    assert map_verdict(even, LESS, "b", "a") == "mean JCT: b is within noise of a in 1 cell."
    assert "too few seeds" in map_verdict({(0.8, 1.0): Ratio(0.5)}, LESS, "b", "a")


@pytest.mark.slow
def test_two_processes_find_what_one_does(tmp_path):
    alone, together = (sweep(GRID.cells(), tmp_path / f"{n}.jsonl", workers=n) for n in (1, 2))
    assert [{**row["result"], "cpu_s": 0} for row in alone] == [
        {**row["result"], "cpu_s": 0} for row in together
    ]


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_no_process_and_no_thread_of_its_pool():
    """At the end of the process Python would write to a pipe that such a thread closes."""
    before = set(threading.enumerate())
    running = sweep_module._results(GRID.cells() * 20, 2)
    next(running), next(running)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)
    assert set(threading.enumerate()) == before
    assert not multiprocessing.active_children()


def test_ctrl_c_that_another_thread_receives_waits_until_the_workers_are_started(ctrl_c):
    started = []
    done = threading.Event()
    other = threading.Thread(target=done.wait)  # its mask lets the signal in
    other.start()

    def start():
        with sweep_module._ctrl_c_held_back():
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


def test_a_full_disk_names_the_file_of_cells(tmp_path, ran):
    file = tmp_path / "cells.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(InputError, match="can't be written: File too large") as refused:
            sweep(GRID.cells(), file, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.value.where == str(file)
    assert len(sweep(GRID.cells(), file, workers=1)) == len(GRID.cells())
