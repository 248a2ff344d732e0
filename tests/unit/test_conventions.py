"""Conventions of the code base that a test can check."""

from __future__ import annotations

import subprocess
import sys

import pytest

import berth

HEAVY = {"numba", "polars", "scipy", "torch", "ray", "pandas"}


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
    )


@pytest.mark.parametrize(
    "module", ["berth.cli.main", "berth.cluster", "berth.network", "berth.train", "berth.workload"]
)
def test_importing_a_package_or_the_command_line_loads_no_heavy_module(module):
    assert not HEAVY & modules_after(f"import {module}")


def test_the_command_line_is_there_without_numpy():
    assert "numpy" not in modules_after("import berth.cli.main")


@pytest.mark.slow
def test_a_job_is_submitted_without_a_compiler(tmp_path):
    (tmp_path / "journal.sqlite").touch()  # of a controller that does not answer
    arguments = ["berth", "submit", "--state", str(tmp_path), "--gpus", "1", "--", "true"]
    program = (
        f"import sys\nfrom berth.cli.main import main\nsys.argv = {arguments}\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 75"
    )
    loaded = modules_after(program)
    assert not (HEAVY | {"numpy", "yaml", "rich.table", "berth.live.spec"}) & loaded
    assert {name for name in loaded if name.startswith("berth.cli.") and "train" in name} == set()


@pytest.mark.parametrize(
    "package",
    [
        "berth.cluster",
        "berth.live",
        "berth.network",
        "berth.plan",
        "berth.schedule",
        "berth.simulate",
        "berth.testing",
        "berth.train",
        "berth.train.checkpoint",
        "berth.train.data",
        "berth.workload",
        "berth.zoo",
    ],
)
def test_every_public_name_of_a_package_can_be_imported(package):
    import importlib

    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = module.nonsense


def berth_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "berth.cli.main", *arguments], capture_output=True, text=True, check=False
    )


def test_version_and_help_answer():
    assert berth_command("--version").stdout == f"berth {berth.__version__}\n"
    assert "cluster" in berth_command("--help").stdout


@pytest.mark.slow
def test_without_arguments_the_first_commands_are_shown():
    result = berth_command()
    assert (result.returncode, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 80
    for words in ("berth simulate ", "berth plan ", "berth up ", "berth submit ", "berth --help"):
        assert words in result.stdout


@pytest.mark.slow
def test_a_mistake_is_one_message_on_stderr_and_exit_code_two():
    result = berth_command("cluster", "show", "no-such-preset")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: no cluster preset is called 'no-such-preset'")
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_debug_shows_the_traceback_of_a_mistake():
    result = berth_command("--debug", "cluster", "show", "no-such-preset")
    assert "Traceback" in result.stderr
    assert result.returncode != 0


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m berth.cli.main cluster devices | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""
