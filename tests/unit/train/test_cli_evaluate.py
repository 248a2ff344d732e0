"""`berth evaluate` and `berth predict`, and what `berth train` says about held-out data."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from berth.cli.main import app, main
from berth.errors import InputError
from berth.train import Trainer, load_for_inference
from berth.train.checkpoint.manifest import NAME, _hash, _text
from berth.train.data import ClickStream, Share
from berth.train.data.files import FileStream

ROWS = 300


def berth(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def report(*arguments: object) -> dict:
    return json.loads(berth(*arguments, "--json"))


def clicks(path, first=0, rows=ROWS, slots=26):
    keys, dense, _, labels = ClickStream().draw(first, rows)
    columns = {"label": labels, **{f"I{n}": dense[:, n] for n in range(13)}}
    pl.DataFrame({**columns, **{f"C{n}": keys[:, n] & 0xFFFFFFFF for n in range(slots)}}).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was evaluated at steps 2, 4 and 5, with its data."""
    folder = tmp_path_factory.mktemp("run")
    data, test = clicks(folder / "train.parquet", rows=320), clicks(folder / "test.parquet", 10**6)
    document = report(
        "train", "ctrdnn-8", "--batch", 64, "--data", data, "--eval", test, "--eval-every", 2, "--best", "loss",
        "--checkpoint", folder / "saved", "--checkpoint-every", 2, "--lr", 0.01, "--rows-lr", 0.02,
    )  # fmt: skip
    return folder, document


@pytest.mark.slow
def test_evaluate_repeats_the_evaluation_of_the_run(run):
    folder, document = run
    found = report("evaluate", folder / "saved", "--data", folder / "test.parquet")
    assert document["step"] == found["step"] == 5
    assert found["examples"] == ROWS
    for name in ("auc", "log_loss", "calibration"):
        assert found[name] == pytest.approx(document["evaluation"][name], rel=1e-6)
    best = report("evaluate", folder / "saved", "--data", folder / "test.parquet", "--best")
    assert best["step"] == document["best"]["step"]
    assert document["best_checkpoint"].endswith(f"step-{best['step']:012d}")
    shown = berth("evaluate", folder / "saved", "ctrdnn-8", "--data", folder / "test.parquet")
    assert f"{found['auc']:.6f}" in shown
    assert "calibration" in shown


@pytest.mark.slow
def test_the_rate_of_rows_is_that_of_the_option(run):
    manifest = json.loads((sorted((run[0] / "saved").glob("step-*"))[-1] / NAME).read_text())["manifest"]
    assert manifest["run"]["tables"]["embedding"]["optimiser"]["learning_rate"] == 0.02
    assert manifest["run"]["dense optimiser"] == "Adam(lr=0.01)"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_predictions_are_those_of_the_model_in_the_order_of_the_rows(run, suffix, tmp_path):
    folder, _ = run
    out = tmp_path / f"predictions.{suffix}"
    document = report("predict", folder / "saved", "--data", folder / "test.parquet", "--out", out)
    assert document["rows"] == ROWS
    found = pl.read_parquet(out) if suffix == "parquet" else pl.read_csv(out)
    labels = pl.read_parquet(folder / "test.parquet")["label"].to_numpy()
    assert np.array_equal(found["label"].to_numpy(), labels)
    stream = FileStream(folder / "test.parquet", shuffled=False)
    batch = next(stream.batches(ROWS, 0, Share(), 0))
    with torch.no_grad():
        expected = torch.softmax(load_for_inference(folder / "saved")(batch.inputs), dim=1)[:, 1].numpy()
    assert found["prediction"].to_numpy() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match="exists already"):
        berth("predict", folder / "saved", "--data", folder / "test.parquet", "--out", out)


@pytest.mark.slow
def test_mistakes_get_one_message(run, tmp_path):
    folder, _ = run
    saved, data = folder / "saved", folder / "test.parquet"
    fewer = clicks(tmp_path / "fewer.parquet", slots=20)
    out = tmp_path / "out.csv"
    for arguments, message in (
        ((saved, "dlrm", "--data", data), "of a different model"),
        ((saved, "--data", fewer), "has no column 'C20'"),
        ((saved, "--data", tmp_path / "none.parquet"), "no such file"),
        ((saved, "--examples", "100"), "did not train on generated data"),
        ((saved,), "no data to evaluate on"),
        ((saved, "--data", data, "--best", "--step", "2"), "exclude each other"),
        ((tmp_path / "nothing", "--data", data), "holds no checkpoint"),
        ((saved, "--data", data, "--step", "3"), "holds no checkpoint of step 3"),
    ):
        with pytest.raises(InputError, match=message):
            berth("evaluate", *arguments)
    for arguments, message in (
        ((saved, "--data", data), "reads --data and writes --out"),
        ((saved, "--data", data, "--out", tmp_path / "out.txt"), "must end in .parquet or .csv"),
        ((saved, "--data", fewer, "--out", out), "has no column 'C20'"),
    ):
        with pytest.raises(InputError, match=message):
            berth("predict", *arguments)
    assert not out.exists()


@pytest.mark.slow
def test_ids_as_text_are_refused_by_a_model_of_ids_as_numbers(run, tmp_path):
    folder, test = run[0], tmp_path / "test.csv"
    pl.read_parquet(folder / "test.parquet").write_csv(test)
    message = "ids of column 'C0', .* are text in this file, but numbers in the training data"
    for command in ("evaluate", "predict"):
        out = ("--out", tmp_path / "out.csv") if command == "predict" else ()
        with pytest.raises(InputError, match=message):
            berth(command, folder / "saved", "--data", test, *out)
    with pytest.raises(InputError, match=message):
        berth("train", "ctrdnn-8", "--batch", 64, "--data", folder / "train.parquet", "--eval", test)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_reported(run, tmp_path):
    folder, saved = run[0], tmp_path / "saved"
    shutil.copytree(folder / "saved", saved)
    with (saved / "step-000000000005" / "dense.bin").open("r+b") as file:
        file.seek(100)
        file.write(b"\xde\xad\xbe\xef")
    data = ("--data", folder / "test.parquet")
    for command in (
        ("evaluate", saved, *data),
        ("predict", saved, *data, "--out", tmp_path / "out.csv"),
        ("export", saved, "dlrm", "--out", tmp_path / "served"),  # refused afterwards: of a different model
        ("table", "info", saved),
        ("table", "export", saved, tmp_path / "rows.parquet", "--dense", tmp_path / "both.pt"),
        ("table", "export", saved, "--dense", tmp_path / "weights.pt"),
        ("table", "shrink", saved, tmp_path / "small", "--shorter-than", "0.01"),
        ("table", "diff", saved, run[0] / "saved", "--other-step", "5"),
        ("table", "diff", run[0] / "saved", saved, "--step", "5"),
    ):
        result = CliRunner().invoke(app, [str(argument) for argument in command])
        reported = result.stderr.splitlines()[:2]
        assert reported[0].startswith("checkpoint of step 5 can't be used: dense.bin ")
        assert reported[1] == "falling back to step 4"


@pytest.mark.slow
def test_predictions_stop_at_an_unreadable_row(run, tmp_path):
    frame = pl.read_parquet(run[0] / "test.parquet")
    frame = frame.with_columns(label=pl.when(pl.int_range(pl.len()) == 7).then(5).otherwise(pl.col("label")))
    frame.write_parquet(tmp_path / "torn.parquet")
    with pytest.raises(InputError, match="a label is 0 or 1, got 5") as error:
        berth("predict", run[0] / "saved", "--data", tmp_path / "torn.parquet", "--out", tmp_path / "out.csv")
    assert "follow the rows of the data" in error.value.hint
    assert report("evaluate", run[0] / "saved", "--data", tmp_path / "torn.parquet")["bad_rows"] == 1


@pytest.mark.slow
def test_a_checkpoint_of_a_newer_version_is_refused(run, tmp_path):
    newer = tmp_path / "newer"
    berth("train", "ctrdnn-8", "--batch", 64, "--steps", 1, "--checkpoint", newer)
    path = next(newer.glob("step-*")) / NAME
    document = json.loads(path.read_text())["manifest"]
    document["format"] = 99
    path.write_text(json.dumps({"sha256": _hash(_text(document)), "manifest": document}))
    with pytest.raises(InputError, match="written by a newer version of berth"):
        berth("evaluate", newer, "--examples", 100)


def test_a_diverging_run_exits_with_two_and_names_the_step(tmp_path, monkeypatch, capsys):
    arguments = ["--dense-optimiser", "sgd", "--lr", "1e30", "--checkpoint", str(tmp_path / "run")]
    arguments += ["--checkpoint-every", "1", "--steps", "9", "--batch", "64"]
    monkeypatch.setattr(sys, "argv", ["berth", "train", "ctrdnn-8", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "is nan" in shown or "not finite after step" in shown or "is inf" in shown
    assert "start again with lower learning rates" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--eval", "x.parquet", "--eval-examples", "10"], "exclude each other"),
        (["--patience", "2"], "needs held-out data"),
        (["--dense-options", "momentum"], "expected NAME=VALUE"),
        (["--dense-options", "momentum=0.9"], "no option of optimiser Adam is called 'momentum'"),
        (["--schedule", "stepp", "--steps", "3"], "no schedule is called 'stepp'"),
    ],
)
def test_training_options_that_make_no_sense_say_so(options, message):
    with pytest.raises(InputError, match=message):
        berth("train", "ctrdnn-8", "--batch", 64, *options)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1], ids=["other names", "criteo"])
def test_held_out_files_are_read_with_the_columns_of_the_training_data(first, tmp_path):
    """Names of slots begin at `first`; 1 is the layout of Criteo's files, which checkpoints do not store."""
    for name, start in {"train": 0, "test": 10**6}.items():
        frame = pl.read_parquet(clicks(tmp_path / "raw.parquet", start))
        names = {name: f"{name[0]}{int(name[1:]) + first}" for name in frame.columns if name != "label"}
        frame.rename(names).write_parquet(tmp_path / f"{name}.parquet")
    frame = pl.read_parquet(tmp_path / "test.parquet")
    shuffled = frame.select(pl.lit(7).alias("session_id"), *reversed(frame.columns))
    shuffled.write_parquet(tmp_path / "shuffled.parquet")
    with Trainer("ctrdnn-8", tmp_path / "train.parquet", batch=64, checkpoints=tmp_path / "run") as trainer:
        trainer.fit()
        expected = trainer.evaluate(tmp_path / "test.parquet")
        assert trainer.evaluate(tmp_path / "shuffled.parquet").auc == expected.auc
        predicted = [trainer.predict(tmp_path / f"{name}.parquet") for name in ("test", "shuffled")]
        np.testing.assert_array_equal(*predicted)
    found = report("evaluate", tmp_path / "run", "--data", tmp_path / "shuffled.parquet")
    assert found["auc"] == expected.auc


@pytest.mark.slow
def test_the_checkpoint_of_the_best_evaluation_is_exported(tmp_path):
    run = ("train", "ctrdnn-8", "--batch", 64, "--steps", 12, "--eval-examples", 256, "--eval-every", 4)
    berth(*run, "--best", "auc", "--checkpoint", tmp_path / "run")
    best = report("evaluate", tmp_path / "run", "--examples", 256, "--best")["step"]
    assert report("export", tmp_path / "run", "--best", "--out", tmp_path / "served")["step"] == best
    with pytest.raises(InputError, match="--best and --step exclude each other"):
        berth("export", tmp_path / "run", "--best", "--step", 12, "--out", tmp_path / "other")
