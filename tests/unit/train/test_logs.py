"""Figures of a training for other programs."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.train import logs
from berth.train.logs import COLUMNS, CsvLog, TensorBoardLog, current_metrics, hit_rate
from berth.train.metrics import Progress

REPORTED = {
    "tables": {
        "a": {"counts": {"pulled": 30, "missed": 3}, "moved_bytes": 100, "rows": 7},
        "b": {"counts": {"pulled": 10, "missed": 3}, "rows": 5},
    }
}


def test_figures_are_those_of_all_tables():
    progress = Progress(step=4, examples=8)
    reported = current_metrics(progress, REPORTED)
    assert tuple(reported) == COLUMNS
    assert (reported["step"], reported["examples"], reported["moved_bytes"], reported["rows"]) == (
        4,
        8,
        100,
        12,
    )
    assert reported["hit_rate"] == hit_rate(REPORTED) == pytest.approx(0.85)
    assert math.isnan(reported["auc"])
    assert hit_rate({"tables": {}}) == 1.0


def written(path, resumed, *steps, loss=0.5):
    log = CsvLog(path, resumed)
    for step in steps:
        log.write({**dict.fromkeys(COLUMNS, math.nan), "step": step, "loss": loss})
    log.close()


def rows_of(path):
    with path.open() as file:
        return [(row["step"], row["loss"], row["auc"]) for row in csv.DictReader(file)]


def test_a_file_goes_on_where_it_ended_and_has_one_header(tmp_path):
    path = tmp_path / "log.csv"
    for step in (1, 2):
        written(path, step - 1, step)
    assert rows_of(path) == [("1", "0.5", ""), ("2", "0.5", "")]


def test_a_run_that_went_back_has_one_line_for_each_step(tmp_path):
    path = tmp_path / "log.csv"
    written(path, 0, 3, 5, 8, 12)
    with path.open("a") as file:
        file.write("13,0.")  # it was killed while it wrote
    written(path, 5, 7, 12, loss=0.25)
    assert [row[:2] for row in rows_of(path)] == [("3", "0.5"), ("5", "0.5"), ("7", "0.25"), ("12", "0.25")]
    written(path, 12, 14)
    written(path, 0, 1)  # begins again from nothing, as before its first checkpoint
    assert [row[0] for row in rows_of(path)] == ["1"]


def test_a_file_with_fewer_columns_keeps_them(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,loss,auc\n1,0.5,\n")
    written(path, 1, 2)
    assert path.read_text().split() == ["step,loss,auc", "1,0.5,", "2,0.5,"]


def test_a_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("day,weather\n1,rain\n")
    with pytest.raises(InputError, match="has columns of another program"):
        CsvLog(path, 1)
    assert path.read_text() == "day,weather\n1,rain\n"


def test_tensorboard_hides_what_a_run_that_went_back_had_written(tmp_path, monkeypatch):
    seen = []
    stub = type(sys)("torch.utils.tensorboard")
    stub.SummaryWriter = lambda *args, **options: seen.append((args, options))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)
    monkeypatch.setattr(logs, "find_spec", lambda name: True)
    TensorBoardLog(tmp_path, 5)
    assert seen == [((str(tmp_path),), {"purge_step": 6})]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_file_on_a_full_disk_is_named(tmp_path):
    (tmp_path / "log.csv").write_text(",".join(COLUMNS) + "\n")
    log = CsvLog(tmp_path / "log.csv")
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - closed by the log
    log._file.close()
    log._file, log._rows = full, csv.writer(full)
    with pytest.raises(InputError, match="can't be written: No space left on device") as error:
        log.write(dict.fromkeys(COLUMNS, 1.0))
    assert error.value.where == "/dev/full"
    log.close()


def test_a_file_that_can_not_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match="can't be written: No such file") as error:
        CsvLog(tmp_path / "nowhere" / "log.csv")
    assert error.value.where == str(tmp_path / "nowhere" / "log.csv")


def test_without_tensorboard_the_error_names_the_package(monkeypatch):
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--tensorboard needs tensorboard"):
        TensorBoardLog("folder")


def test_tensorboard_gets_what_is_a_number_by_its_step():
    class Writer:
        reported, closed = [], False

        def add_scalar(self, name, value, step):
            self.reported.append((name, value, step))

        def close(self):
            self.closed = True

    log = TensorBoardLog.__new__(TensorBoardLog)
    log._writer = Writer()
    log.write({**dict.fromkeys(COLUMNS, math.nan), "step": 7, "loss": 0.25, "examples": 64})
    log.close()
    assert sorted(Writer.reported) == [("examples", 64, 7), ("loss", 0.25, 7)]
    assert log._writer.closed
