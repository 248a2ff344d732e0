"""Figures of a training for other programs."""

from __future__ import annotations

import csv
import math

import pytest

from berth.errors import InputError
from berth.train import logs
from berth.train.logs import COLUMNS, CsvLog, TensorBoardLog, figures, hit_rate
from berth.train.metrics import Progress

TOLD = {
    "tables": {
        "a": {"counts": {"pulled": 30, "missed": 3}, "moved_bytes": 100},
        "b": {"counts": {"pulled": 10, "missed": 3}},
    }
}


def test_figures_are_those_of_all_tables():
    progress = Progress(step=4, examples=8)
    told = figures(progress, TOLD)
    assert tuple(told) == COLUMNS
    assert (told["step"], told["examples"], told["moved_bytes"]) == (4, 8, 100)
    assert told["hit_rate"] == hit_rate(TOLD) == pytest.approx(0.85)
    assert math.isnan(told["auc"])
    assert hit_rate({"tables": {}}) == 1.0


def test_a_file_goes_on_where_it_ended_and_has_one_header(tmp_path):
    for step in (1, 2):
        log = CsvLog(tmp_path / "log.csv")
        log.write({**dict.fromkeys(COLUMNS, math.nan), "step": step, "loss": 0.5})
        log.close()
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"], row["auc"]) for row in rows] == [("1", "0.5", ""), ("2", "0.5", "")]


def test_a_file_that_can_not_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match="can't be written: No such file") as error:
        CsvLog(tmp_path / "nowhere" / "log.csv")
    assert error.value.where == str(tmp_path / "nowhere" / "log.csv")


def test_without_tensorboard_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--tensorboard needs tensorboard"):
        TensorBoardLog("folder")


def test_tensorboard_gets_what_is_a_number_by_its_step():
    class Writer:
        told, closed = [], False

        def add_scalar(self, name, value, step):
            self.told.append((name, value, step))

        def close(self):
            self.closed = True

    log = TensorBoardLog.__new__(TensorBoardLog)
    log._writer = Writer()
    log.write({**dict.fromkeys(COLUMNS, math.nan), "step": 7, "loss": 0.25, "examples": 64})
    log.close()
    assert sorted(Writer.told) == [("examples", 64, 7), ("loss", 0.25, 7)]
    assert log._writer.closed
