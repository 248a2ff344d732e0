"""An epoch has every row once, however it is shared among workers and wherever it was interrupted."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from berth.train import Trainer
from berth.train.data import Share
from berth.train.data.files import FileStream
from berth.train.metrics import Progress


def write(folder, rows, files):
    for file in range(files):
        lines = [
            "\t".join([str(row % 2), *["1"] * 13, *[f"{row:x}"] * 26]) for row in range(file, rows, files)
        ]
        (folder / f"{file}.tsv").write_text("".join(f"{line}\n" for line in lines))


def seen(batches) -> Counter:
    return Counter(int(key) for batch in batches for key in batch.inputs["slots"][:, 0, 0])


def steps_of(folder, batch, workers, first, last, position=None):
    """Rows of these steps, over all workers."""
    rows, reported = Counter(), None
    for worker in range(workers):
        stream = FileStream(folder, window=32, epochs=None)
        if position is not None:
            stream.seek(position)
        batches = stream.batches(batch, first, Share(worker, workers), 7)
        rows += seen(itertools.islice(batches, last - first))
        reported = stream.position(last)
    return rows, reported


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("batch", [7, 10, 50])
def test_fewer_steps_than_an_epoch_never_repeat_a_row(tmp_path, files, workers, batch):
    write(tmp_path, 99, files)
    steps = 99 // batch
    for epoch in range(3):
        rows, _ = steps_of(tmp_path, batch, workers, 0, (epoch * 99) // batch + steps)
        assert max(rows.values()) == epoch + 1
    rows, _ = steps_of(tmp_path, batch, workers, 0, steps)
    assert (rows.total(), len(rows)) == (steps * batch, steps * batch)


@pytest.mark.parametrize("batch", [9, 11, 33])
def test_every_pass_shows_every_row(tmp_path, batch):
    write(tmp_path, 99, 2)
    for passes in (1, 2, 3):
        rows, _ = steps_of(tmp_path, batch, 1, 0, passes * 99 // batch)
        assert set(rows.values()) == {passes}
        assert len(rows) == 99


@pytest.mark.parametrize("at", [1, 3, 8, 9, 10, 14, 20])
@pytest.mark.parametrize("workers", [1, 2])
def test_resumed_in_the_middle_of_an_epoch_no_row_comes_twice(tmp_path, at, workers):
    write(tmp_path, 99, 3)
    before, position = steps_of(tmp_path, 11, workers, 0, at)
    after, _ = steps_of(tmp_path, 11, workers, at, 27, position)
    assert set((before + after).values()) == {3}
    assert len(before + after) == 99


def test_the_end_of_the_first_pass_is_known_once_it_is_read_also_after_a_resume(tmp_path):
    write(tmp_path, 99, 2)
    stream = FileStream(tmp_path, window=32, epochs=None)
    batches = stream.batches(11, 0, Share(), 0)
    for _ in range(9):
        next(batches)
    assert stream.first_pass is None
    next(batches)
    assert stream.first_pass == 99
    again = FileStream(tmp_path, window=32, epochs=None)
    again.seek(stream.position(10))
    assert again.first_pass == 99


def test_after_the_first_pass_the_auc_is_called_that_of_training():
    progress = Progress()
    scores, labels = np.array([0.1, 0.9], np.float32), np.array([0, 1])
    progress.add(0.5, 2, scores, labels)
    assert (progress.auc, np.isnan(progress.training_auc)) == (1.0, True)
    progress.first_pass = 2
    assert progress.auc == 1.0  # the last example of the first pass
    progress.add(0.5, 2, scores, labels)
    assert (np.isnan(progress.auc), progress.training_auc) == (True, 1.0)


@pytest.mark.slow
def test_a_finished_run_that_is_run_again_still_reports_training_auc(tmp_path):
    path, roles = tmp_path / "log.csv", {"labels": "click", "slots": ["user", "item"], "dense": ["price"]}
    lines = [f"{row % 3 == 0:d},u{row % 7},i{row % 3},{row % 5}.5" for row in range(64)]
    path.write_text("\n".join(["click,user,item,price", *lines]) + "\n")
    first, again = (
        Trainer("ctrdnn-8", path, columns=roles, batch=16, checkpoints=tmp_path / "run").fit(steps=12)
        for _ in range(2)
    )
    assert (np.isnan(first.auc), np.isnan(again.auc)) == (True, True)
    assert again.losses == []
    assert again.training_auc == first.training_auc
