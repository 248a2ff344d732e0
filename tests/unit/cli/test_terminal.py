"""The command line in its environment: character sets, full disks, closed outputs, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from berth.cli.output import write_text
from berth.errors import InputError
from berth.plan.bench import Result, cases
from berth.report.plan_bench import compare_table
from berth.report.terminal import table

JOBS = "job_id,submit_s,num_gpu,duration_s\na,0,1,10\nb,5,2,20\n"
BERTH = f"{sys.executable} -m berth"


@pytest.fixture
def shell(tmp_path):
    """Runs a line of shell in a folder with a trace."""
    (tmp_path / "jobs.csv").write_text(JOBS)

    def run(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line,
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | environment,
        )

    return run


@pytest.mark.parametrize("width", [20, 34, 46, 52, 60, 80, 120])
@pytest.mark.parametrize("narrow", [False, True])
def test_no_table_splits_a_word_at_any_width(width, narrow):
    names = ["plan", "devices, note", "throughput", "$/h", "limited by"]
    rows = [
        ["exact, gpu-only", "3 H100 + 140 cpu-core", "9.42M/s", "26.28", "compute"],
        ["cpu-only", "not feasible", "-", "-", "-"],
    ]
    made = table("Candidates", names, rows, left=2, narrow=narrow)
    written = StringIO()
    Console(file=written, width=width).print(made)
    lines = written.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert {word for text in [*names[1:], *rows[0], *rows[1]] for word in text.split()} <= set(
        " ".join(lines).split()
    )


@pytest.fixture(scope="module")
def case():
    """Its highest throughput takes a search."""
    return next(cases(only="models"))


@pytest.mark.parametrize("width", range(56, 80))
def test_cells_that_are_not_wrapped_stay_whole_in_the_comparison_of_methods(width, case):
    results = [
        Result(
            case,
            method,
            12.5,
            12.5,
            1,
            1,
            1_234_567,
            12.34,
            "pretrained on exact's answers",
        )
        for method in ("exact", "reinforce-lstm")
    ]
    written = StringIO()
    Console(file=written, width=width).print(compare_table(results))
    lines = written.getvalue()
    assert max(len(line) for line in lines.splitlines()) <= width
    assert "…" not in lines
    for words in ("x exact", "CPU time", "evaluations", "reinforce-lstm", "1,234,567", "12.3s"):
        assert words in lines


def test_a_table_printed_on_a_narrow_terminal_is_as_it_was():
    names = ["plan", "devices, note", "throughput", "limited by"]
    made = table("Candidates", names, [["exact", "3 H100 + 140 cpu-core", "9.42M/s", "compute"]], left=2)

    def printed(width: int) -> str:
        written = StringIO()
        Console(file=written, width=width).print(made)
        return written.getvalue()

    wide = printed(80)
    assert all(printed(width) != wide for width in range(20, 50))
    assert printed(80) == wide


def test_rich_has_the_parts_that_fitting_tables_take_from_it():
    assert callable(Table._calculate_column_widths)
    assert callable(Table._get_padding_width)
    assert isinstance(Table._extra_width, property)


@pytest.mark.slow
def test_characters_missing_from_the_encoding_become_question_marks(shell):
    reported = shell(f"{BERTH} trace info jobs.csv", PYTHONIOENCODING="ascii")
    assert (reported.returncode, reported.stderr) == (0, "")
    assert "2 jobs from jobs.csv" in reported.stdout
    assert "?" in reported.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (f"{BERTH} cluster show lab >/dev/full", 2, "error: the output can't be written: No space left"),
        (
            f"{BERTH} cluster show lab --json >/dev/full",
            2,
            "error: the output can't be written: No space left",
        ),
        (f"{BERTH} cluster show lab >&-", 0, ""),
    ],
    ids=["full", "full, JSON", "closed"],
)
def test_an_output_that_can_not_be_written_is_one_message(line, code, message, shell):
    reported = shell(line)
    assert reported.returncode == code
    assert reported.stderr.startswith(message)
    assert "Traceback" not in reported.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["policies", "--help", "cluster devices --json", "trace info jobs.csv"],
)
def test_a_closed_pipe_ends_a_command_quietly(line, shell, tmp_path):
    shell("true")  # the trace is there
    reported = subprocess.Popen(
        [*BERTH.split(), *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    reported.stdout.close()  # as `head` does when it has seen enough
    with reported.stderr:
        assert reported.stderr.read() == b""
    assert reported.wait() == 128 + signal.SIGPIPE


@pytest.mark.slow
def test_an_error_message_to_a_closed_pipe_has_no_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    reported = subprocess.Popen([*BERTH.split(), "queue", "--nonsense"], stderr=write, cwd=tmp_path)
    os.close(write)
    assert reported.wait() == 128 + signal.SIGPIPE


def test_a_file_keeps_its_content_until_the_new_text_is_complete(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_text(str(page), "half of it \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "before"
    with pytest.raises(InputError, match="can't be written"):
        write_text(str(tmp_path / "none" / "page.html"), "text")


def interrupted(line: str, folder: Path, is_under_way) -> tuple[int, str]:
    """Exit code and messages of a command that gets a terminal's Ctrl-C once it is at work."""
    messages = folder / "messages"
    with (
        messages.open("w") as err,
        subprocess.Popen(
            [sys.executable, "-m", *line.split()],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        ) as process,
    ):
        while not is_under_way(messages) and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(timeout=900)
    return code, messages.read_text()


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_and_keeps_its_finished_cells(tmp_path, ctrl_c):
    cells = tmp_path / "maps" / "cells.jsonl"
    sweep = "berth sweep --cluster 4x4x8 --policy fifo --policy srtf --jobs 100000 --out maps"
    code, reported = interrupted(sweep, tmp_path, lambda _: cells.is_file() and cells.stat().st_size > 0)
    assert code == 130
    assert "Traceback" not in reported
    assert not (tmp_path / "maps" / "sweep.html").exists()
    assert all(line.endswith("}") for line in cells.read_text().splitlines())


@pytest.mark.slow
def test_ctrl_c_before_the_workers_of_a_training_can_listen(tmp_path, ctrl_c):
    train = "berth train ctrdnn-8 --batch 64 --steps 1000000 --workers 2"
    code, reported = interrupted(train, tmp_path, lambda messages: "2 x 1 workers" in messages.read_text())
    assert (code, reported.splitlines()[-1]) == (130, "stopped; nothing is saved without --checkpoint")
