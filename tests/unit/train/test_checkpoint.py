"""What a checkpoint holds is what was there: saved twice, copied, compared, exported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from berth.errors import InputError
from berth.train import Admission, Checkpoints, DecayPolicy, Embedding, Session, sgd
from berth.train.checkpoint import CheckpointStore, DamagedError, export_table, saved_table
from berth.train.checkpoint.arrays import MAGIC, ArrayFile, frames
from berth.train.checkpoint.dense import dense_state, load_dense, unpacked
from berth.train.checkpoint.export import write_changed
from berth.train.checkpoint.inspect import diff_tables, open_checkpoint, shrink_table
from berth.train.checkpoint.manifest import FORMAT
from berth.train.options import TrainOptions


class TwoTables(torch.nn.Module):
    """One table whose keys wait for their rows, one whose rows live and die."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.waiting = Embedding(2, optimiser=sgd(0.1), admission=Admission("count", 12))
        self.living = Embedding(2, optimiser=sgd(0.1), decay=DecayPolicy())
        self.top = torch.nn.Linear(26 * 4, 1)

    def forward(self, inputs):
        keys = inputs["slots"]
        return self.top(torch.cat([self.waiting(keys), self.living(keys)], dim=-1).flatten(1)).squeeze(1)


def trained(folder, steps=6, **options):
    session = Session(
        TwoTables(),
        options=TrainOptions(batch=8, checkpoints=Checkpoints(folder, every=2, full_every=9), **options),
    )
    session.run(steps)
    return session


def same_rows(left, right) -> bool:
    return all(
        np.array_equal(getattr(left.state, name), getattr(right.state, name))
        for name in ("keys", "records", "waiting_keys", "waiting")
    )


@pytest.mark.slow
def test_a_step_that_is_saved_twice_stays_a_checkpoint(small, tmp_path):
    session = small.train(tmp_path / "saved", steps=6)
    session.save()
    session.close()
    checkpoint_store = CheckpointStore(tmp_path / "saved")
    assert [manifest.step for manifest in checkpoint_store.chain(6)] == [6]
    again = small.train(tmp_path / "saved", steps=7)
    assert again.resumed_from == 6
    again.close()


@pytest.mark.parametrize("options", [{"every": 0}, {"keep": 0}, {"full_every": 0}])
def test_no_checkpoint_at_all_is_not_asked_for_by_a_zero(options, tmp_path):
    with pytest.raises(InputError, match=f"Checkpoints.{next(iter(options))} must be at least 1, got 0"):
        Checkpoints(tmp_path, **options)


@pytest.mark.parametrize("options", [{"batch": 0}, {"day_every": 0}])
def test_a_batch_and_a_day_have_examples(small, options):
    with pytest.raises(InputError, match="must be at least 1, got 0"):
        Session(small.Small(), options=TrainOptions(**options))


@pytest.mark.slow
def test_a_copy_with_one_table_changed_has_the_others_as_they_were(tmp_path):
    trained(tmp_path / "saved", 8, day_every=16).close()
    assert len(open_checkpoint(tmp_path / "saved")[1]) == 3  # a full checkpoint, and twice what changed since
    changed = shrink_table(saved_table(tmp_path / "saved", "living"), days=15)
    write_changed(tmp_path / "saved", tmp_path / "copy", changed)
    before, copied = (saved_table(tmp_path / name, "waiting") for name in ("saved", "copy"))
    assert len(before.state.keys)
    assert len(before.state.waiting)
    assert same_rows(before, copied)
    assert same_rows(changed, saved_table(tmp_path / "copy", "living"))
    assert len(changed.state.keys) < len(saved_table(tmp_path / "saved", "living").state.keys)
    again = trained(tmp_path / "copy", 10, day_every=16)
    assert again.resumed_from == 8
    again.close()


def test_a_copy_is_never_laid_over_another(tmp_path):
    trained(tmp_path / "saved", 2).close()
    with pytest.raises(InputError, match="already holds checkpoints"):
        write_changed(tmp_path / "saved", tmp_path / "saved", saved_table(tmp_path / "saved", "living"))


def with_weights(saved, weights):
    records = saved.state.records.copy()
    for (row, column), value in weights.items():
        records[row, column] = value
    return replace(saved, state=replace(saved.state, records=records))


def test_a_row_that_is_no_longer_a_number_has_changed(tmp_path):
    trained(tmp_path / "saved", 2).close()
    first = saved_table(tmp_path / "saved", "living")
    nothing = diff_tables(first, first)
    assert (nothing.changed, nothing.same, nothing.largest) == (0, len(first.state.keys), 0.0)
    assert nothing.most_changed == []
    spoilt = with_weights(first, {(0, 0): np.nan, (1, 1): np.inf, (2, 0): first.weights[2, 0] + 2})
    found = diff_tables(first, spoilt)
    assert (found.changed, found.same) == (3, len(first.state.keys) - 3)
    assert found.largest == np.inf
    keys = first.state.keys.tolist()
    assert sorted(key for key, _ in found.most_changed) == sorted(keys[:3])
    assert found.most_changed[2] == (keys[2], pytest.approx(2.0, rel=1e-5))
    assert diff_tables(spoilt, spoilt).changed == 0


def test_rows_that_only_one_has_are_counted(tmp_path):
    trained(tmp_path / "saved", 2).close()
    whole = saved_table(tmp_path / "saved", "living")
    half = replace(
        whole, state=replace(whole.state, keys=whole.state.keys[3:], records=whole.state.records[3:])
    )
    assert (diff_tables(whole, half).only_first, diff_tables(whole, half).only_second) == (3, 0)
    assert (diff_tables(half, whole).only_first, diff_tables(half, whole).only_second) == (0, 3)


def test_rows_that_are_nearly_nothing_leave_on_request(tmp_path):
    trained(tmp_path / "saved").close()
    saved = saved_table(tmp_path / "saved", "waiting")
    with pytest.raises(InputError, match="no decay policy"):
        shrink_table(saved)
    lengths = np.linalg.norm(saved.weights, axis=1)
    bound = float(np.median(lengths)) + 1e-9
    assert set(shrink_table(saved, shorter_than=bound).state.keys) == set(saved.state.keys[lengths >= bound])


def test_a_table_for_other_programs_has_what_the_row_has(tmp_path):
    trained(tmp_path / "saved", 2).close()
    saved = saved_table(tmp_path / "saved", "living")
    assert export_table(saved, tmp_path / "rows.parquet", state=True) == len(saved.state.keys)
    read = pl.read_parquet(tmp_path / "rows.parquet")
    assert read.columns == ["key", "weights", "shows", "clicks", "day_seen"]  # plain steps keep nothing
    assert np.array_equal(read["key"].to_numpy(), saved.state.keys.view(np.uint64))
    assert np.array_equal(read["weights"].to_numpy(), saved.weights)
    assert np.array_equal(read["shows"].to_numpy(), saved.decay[:, 0])
    with pytest.raises(InputError, match="can't be written"):
        export_table(saved, tmp_path / "missing" / "rows.parquet")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda raw: b"x" + raw[1:], "is not a berth array file"),
        (lambda raw: raw[:-200], "is truncated"),
        (lambda raw: raw + MAGIC[:5], "is not a berth array file"),
    ],
)
def test_arrays_that_were_not_written_are_refused(tmp_path, spoil, why):
    path = tmp_path / "arrays"
    with ArrayFile(path) as file:
        file.write({"a": np.arange(100), "none": np.empty((0, 3)), "one": np.array(True)}, {"b": 1})
        file.finish()
    ((arrays, meta),) = frames(path)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "a": list(range(100)),
        "none": [],
        "one": True,
    }
    assert (arrays["none"].shape, meta) == ((0, 3), {"b": 1})
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=why):
        list(frames(path))


def test_a_manifest_that_is_not_what_was_written_is_refused(small, tmp_path):
    small.train(tmp_path, steps=3).close()
    checkpoint_store = CheckpointStore(tmp_path)
    path = next(tmp_path.glob("step-*/manifest.json"))
    written = path.read_text()
    other_format = written.replace(f'"format": {FORMAT}', f'"format": {FORMAT - 1}')
    assert other_format != written
    for text in ("{}", "[]", other_format, "no JSON"):
        path.write_text(text)
        with pytest.raises(DamagedError):
            checkpoint_store.chain(3)


def test_what_a_checkpoint_cannot_hold_is_named():
    class Odd:
        def state_dict(self):
            return {"a": {"b": object()}}

    with pytest.raises(InputError, match="model/a/b is a object, which a checkpoint can't store"):
        dense_state(Odd(), None)


def test_random_numbers_and_nests_come_back_as_they_were():
    class Nested:
        def state_dict(self):
            return {"a": [1, (2.5, None)], 7: torch.arange(3, dtype=torch.bfloat16), "empty": torch.empty(0)}

    model = torch.nn.Linear(2, 1)
    arrays, meta = dense_state(Nested(), None)
    reported = unpacked(meta["model"], arrays)
    assert reported["a"] == [1, (2.5, None)]
    assert torch.equal(reported[7], torch.arange(3, dtype=torch.bfloat16))
    assert reported["empty"].shape == (0,)
    arrays, meta = dense_state(model, None)
    drawn = torch.rand(3), np.random.rand(3)  # noqa: NPY002 - the generator that is saved
    load_dense(model, None, arrays, meta)
    assert torch.equal(torch.rand(3), drawn[0])
    assert np.array_equal(np.random.rand(3), drawn[1])  # noqa: NPY002
    with pytest.raises(InputError, match="the checkpoint is of a different model"):
        load_dense(torch.nn.Linear(3, 1), None, arrays, meta)


def test_a_training_without_a_folder_has_nowhere_to_save(small):
    session = Session(small.Small(), options=TrainOptions(batch=8))
    with pytest.raises(InputError, match="no checkpoint folder is set"):
        session.save()
    session.close()


def test_a_folder_that_can_not_be_made_is_named(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written: Not a directory"):
        Session(small.Small(), options=TrainOptions(batch=8, checkpoints=str(tmp_path / "file" / "run")))


def test_fresh_throws_away_what_is_there_and_nothing_else(small, tmp_path):
    small.train(tmp_path / "run", steps=3).close()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    session = Session(
        small.Small(), options=TrainOptions(batch=16, checkpoints=Checkpoints(tmp_path / "run", fresh=True))
    )
    assert (session.resumed_from, CheckpointStore(tmp_path / "run").steps()) == (None, [])
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    session.close()


def test_where_no_checkpoint_can_be_used_nothing_begins_over_it(small, tmp_path):
    small.train(tmp_path / "run", steps=3).close()
    (part,) = tmp_path.glob("run/step-*/dense.bin")
    part.write_bytes(part.read_bytes()[:-1])
    said = []
    with pytest.raises(InputError, match="none of the checkpoints here can be used") as error:
        small.train(tmp_path / "run", steps=3, notify=said.append)
    assert "--fresh" in error.value.hint
    assert said[0].startswith("checkpoint of step 3 can't be used: dense.bin has ")
    with pytest.raises(InputError, match=r"step 3: dense\.bin of step 3 has"):
        open_checkpoint(tmp_path / "run")
    with pytest.raises(InputError, match=r"checkpoint of step 3 can't be used: dense\.bin has"):
        open_checkpoint(tmp_path / "run", 3)
    part.unlink()
    with pytest.raises(InputError, match=r"dense\.bin of step 3 is missing"):
        open_checkpoint(tmp_path / "run")


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda folder: open_checkpoint(folder / "nothing"), "holds no checkpoint"),
        (lambda folder: open_checkpoint(folder, 4), "holds no checkpoint of step 4"),
        (saved_table, "holds 2 tables"),
        (lambda folder: saved_table(folder, "living!"), "did you mean 'living'"),
    ],
)
def test_what_is_not_in_a_folder_is_said(tmp_path, ask, why):
    trained(tmp_path, 2).close()
    with pytest.raises(InputError, match=why):
        ask(tmp_path)


def test_tables_of_different_widths_are_not_compared(small, tmp_path):
    trained(tmp_path / "two", 1).close()
    small.train(tmp_path / "four", steps=1).close()
    with pytest.raises(InputError, match="tables of 2 and 4 weights per row can't be compared"):
        diff_tables(saved_table(tmp_path / "two", "living"), saved_table(tmp_path / "four"))


def test_a_last_checkpoint_that_could_not_be_written_is_an_error(small, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    said = []
    session = Session(
        small.Small(),
        options=TrainOptions(batch=8, checkpoints=Checkpoints(tmp_path / "run", every=100)),
        notify=said.append,
    )
    monkeypatch.setattr("berth.train.checkpoint.writer.sync_folder", full)
    with pytest.raises(InputError, match="the last checkpoint could not be written: No space left"):
        session.run(2)
    assert said == [
        "checkpoint of step 2 could not be written: No space left on device; there is no earlier one"
    ]
    assert CheckpointStore(tmp_path / "run").steps() == []
    monkeypatch.undo()
    session.close()


def test_a_disk_that_fills_while_tables_stream_costs_one_checkpoint(small, tmp_path, monkeypatch):
    """With a budget, rows are written as they are read: in the training's own thread."""
    said, write, full = [], ArrayFile.write, [False]

    def sometimes(file, arrays, meta=None):
        if full[0]:
            raise OSError(28, "No space left on device")
        write(file, arrays, meta)

    monkeypatch.setattr(ArrayFile, "write", sometimes)
    session = Session(
        small.Small(),
        options=TrainOptions(batch=8, memory="64MiB", checkpoints=Checkpoints(tmp_path / "run", every=2)),
        notify=said.append,
    )
    for step, _ in enumerate(session.steps(6), 1):
        session._writer.wait()
        full[0] = step == 3
    assert said == [
        "checkpoint of step 4 could not be written: No space left on device; the latest is that of step 2"
    ]
    chain = CheckpointStore(tmp_path / "run").chain(6)
    # the changes were part of the save that failed
    assert [(one.step, one.kind) for one in chain] == [(6, "full")]
    session.close()
