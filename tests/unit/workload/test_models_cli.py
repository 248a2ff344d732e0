"""`berth models` and `berth trace generate`, as they are typed."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from typer.testing import CliRunner

from berth.cli.main import app, main
from berth.workload.profiles import profile_names
from berth.workload.reading import read_trace


def run(*words):
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(monkeypatch, capsys, *words):
    """The one message of a command that fails with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["berth", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    return captured.err


def test_all_models_are_listed_within_80_columns():
    shown = run("models")
    assert all(name in shown for name in profile_names())
    assert max(map(len, shown.splitlines())) <= 80


def test_one_model_shows_the_source_of_every_number():
    shown = run("models", "resnet")
    assert "ResNet-50" in shown
    assert "measured: Gavel's throughput measurements" in shown
    assert shown.count("published:") == 2


def test_a_device_without_measurement_is_marked_modelled():
    document = json.loads(run("models", "gpt2", "--device", "H100", "--json"))
    assert document["compute_s"]["H100"]["source"]["kind"] == "modelled"
    assert document["compute_s"]["H100"]["value"] == pytest.approx(0.426 * 125 / 989)


def test_the_json_of_all_models_names_each():
    assert [entry["name"] for entry in json.loads(run("models", "--json"))["models"]] == profile_names()


def test_an_unknown_model_is_one_message(monkeypatch, capsys):
    assert "did you mean 'vgg16'" in refused(monkeypatch, capsys, "models", "vg16")


@pytest.mark.slow
def test_a_generated_file_reads_back_and_its_command_repeats_it(tmp_path):
    out = tmp_path / "jobs.csv"
    words = [
        "trace",
        "generate",
        str(out),
        "--jobs",
        "50",
        "--cluster",
        "2x8",
        "--seed",
        "5",
        "--daily",
        "0.5",
    ]
    facts = json.loads(run(*words, "--json"))
    first = out.read_bytes()
    trace = read_trace(out)
    assert len(trace) == facts["jobs"] == 50
    assert trace.num_gpu.max() <= facts["gpus"] == 16
    assert facts["load"] == pytest.approx(0.8)
    assert sum(facts["models"].values()) == 50
    run(*shlex.split(facts["command"])[1:], "--force")
    assert out.read_bytes() == first


def test_like_takes_sizes_and_durations_from_a_file(tmp_path):
    known = tmp_path / "known.csv"
    known.write_text("job_id,submit_s,num_gpu,duration_s\na,0,3,100\nb,1,3,200\n")
    out = tmp_path / "jobs.csv"
    run("trace", "generate", str(out), "--like", str(known), "--jobs", "100")
    trace = read_trace(out)
    assert set(trace.num_gpu.tolist()) == {3}
    assert 100 <= trace.duration_s.min() < trace.duration_s.max() <= 200


def test_a_dash_prints_the_trace_alone(capfdbinary, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["berth", "trace", "generate", "-", "--jobs", "3", "--mix", "none", "--users", "0"]
    )
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    captured = capfdbinary.readouterr()
    assert captured.out.splitlines()[0] == b"job_id,submit_s,num_gpu,duration_s"
    assert len(captured.out.splitlines()) == 4
    assert b"To repeat it" in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--load", "0"], "--load 0: from"),
        (["--cluster", "4y5"], "4y5"),
        (["--sizes", "phily"], "did you mean 'philly'"),
        (["--mix", "vgg=x"], "'x' is not a weight"),
        (["--span", "3"], "has no unit"),
        (["--jobs", "5", "--span", "1h", "--load", "1"], "all given"),
        (["--arrivals", "at-once", "--load", "1"], "no span and no load"),
        (["--like", "nowhere.csv"], "nowhere.csv"),
        (["--like", "x.csv", "--sizes", "odd"], "leave out --sizes"),
    ],
)
def test_a_bad_value_is_one_message_and_writes_nothing(tmp_path, monkeypatch, capsys, options, message):
    out = tmp_path / "jobs.csv"
    assert message in refused(monkeypatch, capsys, "trace", "generate", str(out), *options)
    assert not out.exists()


def test_a_file_is_not_overwritten_unless_forced(tmp_path, monkeypatch, capsys):
    out = tmp_path / "jobs.csv"
    out.write_text("mine")
    assert "exists already" in refused(monkeypatch, capsys, "trace", "generate", str(out))
    assert out.read_text() == "mine"
    run("trace", "generate", str(out), "--force", "--jobs", "5")
    assert len(read_trace(out)) == 5
