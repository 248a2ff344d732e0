"""`berth train` and `berth table`, as people call them."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from berth.cli.main import app, main
from berth.errors import InputError, UnknownNameError
from berth.train import started_by
from berth.train.checkpoint import cleared
from berth.train.data.clicks import ClickStream
from preloaded import forking, programs

SMALL = ["train", "ctrdnn-8", "--batch", "64"]


def berth(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def reported(*arguments: object) -> dict:
    return json.loads(berth(*arguments, "--json"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Checkpoints of a short training: step 4 full, 8 and 10 over it."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    berth(*SMALL, "--steps", 10, "--checkpoint", folder, "--checkpoint-every", 4)
    return folder


@pytest.mark.slow
def test_a_run_that_has_all_its_steps_says_so_and_trains_nothing(run):
    result = CliRunner().invoke(app, [*SMALL, "--steps", "6", "--checkpoint", str(run)])
    assert result.exit_code == 0
    assert "nothing is left to train: the run is at step 10 already, and 6 steps are wanted" in result.output
    assert "more --steps or --examples to go on, or --fresh to start again" in result.output
    assert "resuming" not in result.output
    assert "0 examples/s" not in result.output


@pytest.mark.slow
def test_it_works_without_options_and_shows_layer_times_and_tables():
    shown = berth(*SMALL, "--steps", 20)
    assert "ctrdnn-8: done at step 20: 1,280 examples" in shown
    assert "best possible AUC on this data 0.80" in shown
    for word in ("predicted", "measured", "embedding", "fc2", "push of rows", "dense update", "hits"):
        assert word in shown
    assert "AVX-512);" in shown.split("predicted: the profile of ctrdnn-8")[1], (
        "the CPU of the shipped profile"
    )
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_json_has_the_same_information():
    document = reported(*SMALL, "--examples", "1k")
    assert (document["step"], document["examples"]) == (16, 1024)
    assert document["tables"]["embedding"]["rows"] > 1000
    assert document["layers"][0]["predicted_s"] > 0
    assert document["bad_rows"] == 0


@pytest.mark.slow
def test_a_training_goes_on_from_its_folder_and_comes_to_the_same(run, tmp_path):
    whole = reported(*SMALL, "--steps", 14)
    resumed = reported(*SMALL, "--steps", 14, "--checkpoint", run, "--resume")
    assert resumed["resumed_from"] == 10
    assert (resumed["loss"], resumed["auc"]) == (whole["loss"], whole["auc"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch", "32", "--checkpoint", "RUN"], "a different run (batch: 64 there, 32 here)"),
        (["--seed", "9", "--checkpoint", "RUN"], "a different run"),
        (["--checkpoint", "NEW", "--resume"], "holds no checkpoint to resume"),
        (["--resume"], "need a folder"),
        (["--checkpoint", "RUN", "--resume", "--fresh"], "exclude each other"),
        (["--steps", "3", "--examples", "3"], "exclude each other"),
        (["--examples", "many"], "is not a number"),
        (["--examples", "0"], "a number above 0 is expected"),
        (["--data", "NEW/none.tsv"], "no such file or folder"),
        (["--memory", "1 furlong"], "is not a size"),
        (["--memory", "1kB", "--steps", "1"], "too small"),
        (["--servers", "2", "--mode", "snyc"], "no mode is called 'snyc'"),
        (["--mode", "async"], "mode async needs a server, and this run has none"),
        (["--mode", "geo", "--servers", "0"], "add --servers 1 or more"),
        (["--staleness", "2"], "--staleness applies to mode half-async"),
        (["--plan", "nowhere.yaml", "--stages", "2"], "--plan and --stages exclude each other"),
        (["--stages", "99"], "1 to 8 stages, got 99"),
        (["--stages", "2", "--servers", "0", "--workers", "2"], "takes a server"),
        (["--tables", "here"], "no place for tables is called 'here'"),
        (["--tables", "resident", "--workers", "2", "--servers", "2"], "--servers 2 exclude each other"),
        (["--tables", "resident", "--workers", "2", "--mode", "async"], "--mode async exclude each other"),
        (["--tables", "resident", "--memory", "1GiB"], "--memory exclude each other"),
        (["--tables", "servers", "--servers", "0"], "--servers 0 exclude each other"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(more, message, run, tmp_path):
    arguments = [text.replace("RUN", str(run)).replace("NEW", str(tmp_path)) for text in more]
    with pytest.raises(InputError) as error:
        berth(*SMALL, *arguments)
    assert message in str(error.value)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(UnknownNameError, match="ctrdn'"):
        berth("train", "ctrdn")
    with pytest.raises(UnknownNameError, match="adagra'"):
        berth(*SMALL, "--optimiser", "adagra")


def test_models_without_click_logs_say_so(tmp_path):
    with pytest.raises(InputError, match="2emb does not read click logs"):
        berth("train", "2emb", "--data", tmp_path)


def click_log(path, rows: int, *, torn: bool = False) -> None:
    keys, dense, _, labels = ClickStream().draw(0, rows)
    lines = [
        "\t".join(
            [str(label), *(str(int(value * 9)) for value in row), *(f"{key & 0xFFFFFFFF:x}" for key in ids)]
        )
        for ids, row, label in zip(keys, dense, labels, strict=True)
    ]
    if torn:
        lines[5] = lines[5][:20]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))


@pytest.mark.slow
def test_click_logs_are_read_once_and_bad_lines_are_reported(tmp_path):
    click_log(tmp_path / "day_0.tsv.gz", 300, torn=True)
    shown = berth(*SMALL, "--data", tmp_path)
    assert "done at step 5: 299 examples" in shown
    assert "1 row could not be read and was skipped" in shown
    assert "day_0.tsv.gz:6: has 8 columns, not 40" in " ".join(shown.split())
    again = reported(*SMALL, "--data", tmp_path, "--steps", 12)
    assert (again["examples"], again["bad_rows"]) == (12 * 64, 1)  # goes round


def test_strict_stops_at_a_bad_line_with_exit_code_two(tmp_path, monkeypatch, capsys):
    click_log(tmp_path / "day_0.tsv.gz", 20, torn=True)
    monkeypatch.setattr(sys, "argv", ["berth", *SMALL, "--data", str(tmp_path), "--strict"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"error: {tmp_path}/day_0.tsv.gz:6: has 8 columns, not 40" in capsys.readouterr().err


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([programs() / "berth", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_sigterm_is_a_preemption_saved_and_exit_code_zero(tmp_path):
    arguments = [*SMALL, "--steps", "1000000", "--checkpoint", str(tmp_path / "run")]
    log = tmp_path / "log.csv"
    with forking():
        process = subprocess.Popen(
            [sys.executable, "-m", "berth.cli.main", *arguments, "--csv", str(log)],
            stdout=subprocess.PIPE,
            text=True,
        )
    while not log.exists() or log.read_text().count("\n") < 2:  # it trains
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    shown, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    assert "preempted at step" in shown
    step = int(shown.split("preempted at step ")[1].split(":")[0].replace(",", ""))
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*"))[-1:] == [f"step-{step:012d}"]


@pytest.mark.slow
@pytest.mark.parametrize("config", [[], ["--servers", "1"]], ids=["alone", "launched"])
def test_ctrl_c_saves_and_says_how_to_go_on(config, tmp_path, ctrl_c):
    arguments = [*SMALL, "--steps", "1000000", "--checkpoint", str(tmp_path / "run"), *config]
    log = tmp_path / "log.csv"
    with forking():
        process = subprocess.Popen(
            [sys.executable, "-m", "berth", *arguments, "--fresh", "--csv", str(log)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
    while not log.exists() or log.read_text().count("\n") < 2:  # it trains
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=900)
    assert process.returncode == 130, said
    assert f"; to resume: berth {' '.join(arguments)} --csv {log}" in said
    assert reported(*SMALL, "--steps", 1, "--resume", "--checkpoint", tmp_path / "run")["resumed_from"] > 0


@pytest.mark.slow
def test_days_end_rows_fade_and_the_dead_leave():
    document = reported(*SMALL, "--steps", 20, "--day-every", "320")
    counts = document["tables"]["embedding"]["counts"]
    assert counts["removed"] > 0
    assert document["tables"]["embedding"]["rows"] == counts["created"] - counts["removed"]
    with pytest.raises(InputError, match="nce does not train on clicks"):
        berth("train", "nce", "--day-every", "1M")
    with pytest.raises(InputError, match="--day-every is 0"):
        berth(*SMALL, "--day-every", "0")


@pytest.mark.slow
def test_figures_over_time_go_to_a_csv_file(tmp_path):
    berth(*SMALL, "--steps", 5, "--csv", tmp_path / "log.csv")
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["step"] == "5"
    assert float(rows[-1]["loss"]) > 0


def test_own_models_train_by_path(tmp_path):
    source = """
import torch, berth.train as bt
class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = bt.Embedding(4)
        self.top = torch.nn.Linear(26 * 4, 1)
    def forward(self, inputs):
        return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)
def make_model():
    return Mine()
"""
    (tmp_path / "mine.py").write_text(source)
    shown = berth("train", f"{tmp_path}/mine.py:make_model", "--steps", 3, "--batch", 64)
    assert "mine: done at step 3: 192 examples" in shown


@pytest.mark.slow
def test_fresh_throws_away_what_was_saved(tmp_path):
    arguments = [*SMALL, "--steps", 3, "--checkpoint", tmp_path / "run"]
    berth(*arguments)
    assert reported(*arguments, "--seed", 7, "--fresh")["resumed_from"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "counter", "first"),
    [
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", 0),
        ("BERTH_JOB", "BERTH_ATTEMPT", 1),
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", 0),
    ],
    ids=["torchrun without a store", "a berth job", "a Slurm job that is requeued"],
)
def test_a_restart_deletes_what_others_saved_and_keeps_what_its_first_attempt_did(
    tmp_path, monkeypatch, job, counter, first
):
    arguments = [*SMALL, "--steps", 3, "--checkpoint", tmp_path / "run"]
    berth(*arguments)

    def resumed_from(name: str, attempt: int) -> int | None:
        """Run the command as if in a process of its own."""
        monkeypatch.setattr(cleared, "_started", Counter())
        started_by._process_name.cache_clear()
        monkeypatch.setenv(job, name)
        monkeypatch.setenv(counter, str(attempt))
        step: int | None = reported(*arguments, "--fresh")["resumed_from"]
        return step

    assert resumed_from("j1", first + 1) is None  # its first attempt ended before it deleted anything
    assert resumed_from("j1", first + 2) == 3
    assert resumed_from("j1", first) is None
    assert resumed_from("j1", first + 1) == 3
    assert reported(*arguments, "--fresh")["resumed_from"] is None  # another run of the same attempt
    assert resumed_from("j2", first + 1) is None


@pytest.mark.slow
def test_workers_that_the_launcher_restarts_keep_what_they_have_saved(tmp_path, monkeypatch):
    arguments = [*SMALL, "--steps", 3, "--checkpoint", tmp_path / "run", "--fresh"]
    berth(*arguments)
    for name, expected in (("l1", None), ("l1", 3), ("l2", None), ("l2", 3)):
        monkeypatch.setattr(cleared, "_started", Counter())
        monkeypatch.setenv("BERTH_TRAIN_LAUNCHER", name)
        assert reported(*arguments)["resumed_from"] == expected


class TestTables:
    @pytest.mark.slow
    def test_info_shows_rows_and_lengths(self, run):
        shown = berth("table", "info", run, "--step", 10)
        assert "after step 10 (delta, 1 over the full one of step 8)" in shown
        document = reported("table", "info", run)
        assert document["tables"][0]["rows"] > 1000
        assert document["tables"][0]["optimiser"] == "adagrad"

    @pytest.mark.slow
    def test_export_gives_parquet_and_a_state_dict(self, run, tmp_path):
        berth(
            "table",
            "export",
            run,
            tmp_path / "rows.parquet",
            "--dense",
            tmp_path / "w.pt",
            "--with-optimiser",
        )
        frame = pl.read_parquet(tmp_path / "rows.parquet")
        assert frame.columns == ["key", "weights", "optimiser"]
        assert frame["key"].is_sorted()
        assert frame["weights"].to_numpy().shape == (reported("table", "info", run)["tables"][0]["rows"], 16)
        weights = torch.load(tmp_path / "w.pt", weights_only=True)
        assert weights["chain.fc1.0.weight"].shape == (512, 429)

    @pytest.mark.slow
    def test_diff_counts_rows_that_came_and_changed(self, run):
        found = reported("table", "diff", run, run, "--step", 8, "--other-step", 10)
        assert found["only_first"] == 0
        assert found["only_second"] > 0
        assert found["changed"] > 0
        same = reported("table", "diff", run, run, "--step", 10, "--other-step", 10)
        assert (same["changed"], same["only_second"], same["largest"]) == (0, 0, 0.0)

    @pytest.mark.slow
    def test_a_training_goes_on_from_a_shrunk_copy(self, run, tmp_path):
        lengths = pl.read_parquet(exported(run, tmp_path))["weights"].to_numpy()
        middle = float(np.median(np.sqrt((lengths.astype(np.float64) ** 2).sum(axis=1))))
        shown = berth("table", "shrink", run, tmp_path / "small", "--shorter-than", middle, "--step", 10)
        assert "(50.0%)" in shown
        assert reported(*SMALL, "--steps", 12, "--checkpoint", tmp_path / "small")["resumed_from"] == 10

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["info", "NEW"], "holds no checkpoint"),
            (["info", "RUN", "--step", "99"], "holds no checkpoint of step 99"),
            (["info", "RUN", "--table", "x"], "no table is called 'x'"),
            (["export", "RUN"], "nothing to write"),
            (["shrink", "RUN", "NEW/s"], "no decay policy"),
            (["shrink", "RUN", "RUN", "--shorter-than", "1"], "already holds checkpoints"),
        ],
    )
    def test_a_mistake_is_said_in_a_sentence(self, arguments, message, run, tmp_path):
        words = [text.replace("RUN", str(run)).replace("NEW", str(tmp_path)) for text in arguments]
        with pytest.raises(InputError) as error:
            berth("table", *words)
        assert message in str(error.value)


def exported(run, folder):
    path = folder / "rows.parquet"
    berth("table", "export", run, path, "--step", 10)
    return path


@pytest.mark.slow
def test_a_killed_process_started_again_comes_to_the_same_figures(tmp_path):
    arguments = [*SMALL, "--steps", "400", "--json"]
    saving = [*arguments, "--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "5"]
    with forking():
        process = subprocess.Popen(
            [sys.executable, "-m", "berth.cli.main", *saving], stdout=subprocess.DEVNULL
        )
    while len(list((tmp_path / "run").glob("step-*/manifest.json"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    resumed, whole = (json.loads(command(*words).stdout) for words in (saving, arguments))
    assert resumed["resumed_from"] > 0
    for figure in ("step", "examples", "loss", "auc"):
        assert resumed[figure] == whole[figure]


def test_tensorboard_is_asked_for_by_name_where_it_is_missing(tmp_path, monkeypatch):
    from berth.train import logs

    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--tensorboard needs tensorboard"):
        berth(*SMALL, "--steps", 1, "--tensorboard", tmp_path)
