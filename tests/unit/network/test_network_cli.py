"""`berth network` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from berth.cli.main import main


@pytest.fixture(name="berth")
def _berth(monkeypatch, capsys):
    """Runs a command line; returns its exit code and what it printed to both streams."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["berth", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


CLUSTER = ("--cluster", "4x20x8:A100")


def test_a_model_is_shown_at_every_distance(berth):
    code, out, _ = berth("network", "bert-large", "--gpus", "16", *CLUSTER)
    assert code == 0
    assert "bert-large on 16 x A100" in out
    for row in (
        "2 machines of one rack",
        "16 machines of one rack",
        "2 machines in 2 racks",
        "16 machines in 4 racks",
    ):
        assert row in out
    assert "Sensitivity " in out
    assert "modelled" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_show_may_be_written_out_and_options_may_come_first(berth):
    short = berth("network", "bert-large", "--gpus", "16", *CLUSTER)
    assert berth("network", "show", "bert-large", "--gpus", "16", *CLUSTER) == short
    assert berth("network", "--gpus", "16", *CLUSTER, "bert-large") == short


def test_fit_is_still_a_command_of_its_own(berth):
    code, out, _ = berth("network", "fit", "--help")
    assert code == 0
    assert "network fit" in out


def test_help_lists_the_commands_and_an_example(berth):
    code, out, _ = berth("network", "--help")
    assert code == 0
    assert "show" in out
    assert "berth network bert-large" in out


def test_json_says_what_the_table_says(berth):
    code, out, _ = berth("network", "vgg16", "--gpus", "8", *CLUSTER, "--congestion", "5", "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["model"], answer["gpus"], answer["congestion"]) == ("vgg16", 8, 5)
    nearest, widest = answer["spreads"][0], answer["spreads"][-1]
    assert (nearest["tier"], nearest["groups"], nearest["devices_per_machine"]) == ("machine", [1, 1, 1], [8])
    assert widest["groups"] == [8, 4, 1]
    assert answer["sensitivity"] == widest["slowdown"] == widest["seconds"] / nearest["seconds"] > 1
    assert all(row["exposed_s"] == row["seconds"] - row["compute_s"] for row in answer["spreads"])
    assert {row["source"] for row in answer["spreads"]} == {"formula"}


def test_congestion_hurts_only_what_leaves_the_machine(berth):
    rows = [
        json.loads(berth("network", "vgg16", "--gpus", "8", *CLUSTER, "--congestion", load, "--json")[1])[
            "spreads"
        ]
        for load in ("1", "20")
    ]
    assert rows[0][0]["seconds"] == rows[1][0]["seconds"]
    assert all(far["seconds"] > near["seconds"] for near, far in zip(rows[0][1:], rows[1][1:], strict=True))


@pytest.mark.slow
def test_all_models_are_sorted_by_sensitivity(berth):
    code, out, _ = berth("network", "--all", "--gpus", "16", *CLUSTER)
    assert code == 0
    factors = [
        float(word[:-1])
        for line in out.splitlines()
        for word in line.split()
        if word.endswith("x") and word[0].isdigit() and "." in word
    ]
    assert len(factors) > 10
    assert factors == sorted(factors, reverse=True)


def test_several_models_are_compared(berth):
    code, out, _ = berth("network", "resnet50", "vgg16", "--gpus", "16", *CLUSTER)
    assert code == 0
    assert "2 models on 16 x" in out
    assert out.index("vgg16") < out.index("resnet50")


def test_one_gpu_has_only_one_place(berth):
    code, out, _ = berth("network", "resnet50", "--gpus", "1", *CLUSTER)
    assert code == 0
    assert "only one way to place it" in out


def test_unnamed_gpus_are_taken_as_the_device_that_is_named(berth):
    _, out, _ = berth("network", "resnet50", "--gpus", "8", "--cluster", "20x8", "--device", "A100", "--json")
    assert json.loads(out)["device"].startswith("A100")
    _, other, _ = berth("network", "resnet50", "--gpus", "8", "--cluster", "20x8", "--json")
    assert json.loads(other)["device"] == "V100"


def test_measurements_override_and_are_marked(berth, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("model,gpus,machines,racks,seconds\nBERT-Large,16,2,1,0.25\n")
    code, out, _ = berth("network", "bert-large", "--gpus", "16", *CLUSTER, "--measured", str(table))
    assert code == 0
    first = next(line for line in out.splitlines() if "2 machines of one rack" in line)
    assert "250ms*" in first
    assert "* measured" in out
    assert sum("~" in line for line in out.splitlines()) == 1 + 6  # the legend, and every other spread
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bert-larg"], "did you mean 'bert-large'?"),
        (["bert-large", "--cluster", "4x20x"], "4x20x"),
        (["bert-large", "--cluster", "nowhere"], "no cluster preset is called 'nowhere'"),
        (["bert-large", "--gpus", "0"], "at least 1 GPU"),
        (["bert-large", "--gpus", "641"], "641 GPUs are asked for, but cluster '4x20x8' has 640"),
        (["bert-large", "--congestion", "0.5"], "congestion must be 1 or more"),
        (["bert-large", "--device", "A1000"], "A1000"),
        (
            ["bert-large", "--cluster", "4x20x8:A100", "--device", "V100"],
            "no device in cluster '4x20x8:A100'",
        ),
        (["bert-large", "--measured", "nothing.csv"], "nothing.csv: no such file"),
        (["--all", "bert-large"], "exclude each other"),
        (["--gpus", "8"], "no model is named"),
        (["own.yaml"], "own.yaml: no such file"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(berth, words, message):
    code, out, err = berth("network", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_no_table_waits_for_the_compiler():
    program = "import sys, berth.cli.network, berth.report.network; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_measurements_of_other_models_only_are_refused(berth, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("model,gpus,machines,seconds\nbert-base,16,2,0.25\n")
    code, _, err = berth("network", "vgg16", "--measured", str(table))
    assert code == 2
    assert "no model with measurements is called 'vgg16'" in err
