"""Every `berth` command shown in the documentation works as written."""

from __future__ import annotations

import lzma
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import transcripts

from berth.schedule import reasons
from berth.testing.up import Up

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts),
]


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-10 06:13:03,2951.0,8,23608.0,6214e9
"""


# Pages show what berth prints; these are the programs that a reader starts, `python` for the examples beside them.
PLAYED = ("berth ", "python ")


def shown_commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    commands = [command for block in blocks for command, _ in transcripts.commands(block)]
    return [command for command in commands if command.startswith(PLAYED)]


WITH_COMMANDS = [page for page in PAGES if shown_commands(page)]


def test_the_documentation_shows_commands():
    assert sum(len(shown_commands(page)) for page in WITH_COMMANDS) >= 12


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_commands_of_a_page_work_one_after_the_other(page, tmp_path, monkeypatch):
    folder = tmp_path / "examples"
    monkeypatch.setenv("BERTH_STATE", str(tmp_path / "state"))
    shutil.copytree(EXAMPLES, folder)
    # Pages that speak of a reader's own Philly download get a small made-up file of that shape.
    (folder / "philly.csv.xz").write_bytes(lzma.compress(PHILLY.encode()))
    with ExitStack() as served:
        for command in shown_commands(page):
            if command.startswith("berth up"):  # it stays up for the rest of the page
                options = shlex.split(command.partition("#")[0].rstrip(" &"))[2:]
                served.callback(Up(tmp_path / "state", *options).start().clear)
            elif command.startswith("berth view"):
                assert "http://127.0.0.1:" in first_line(f"{command} --no-open --port 0", folder)
            else:
                output = transcripts.run(command, folder)
                assert "[exit" not in output, f"{page.name}: {command}\n{output}"


def test_every_reason_is_explained_and_no_other():
    page = (ROOT / "docs" / "guides" / "why.md").read_text()
    told = re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.MULTILINE)
    assert sorted(told) == sorted(reasons.CODES.values())


@pytest.mark.parametrize(
    ("page", "example"),
    [("own-model.md", "own_model.py"), ("traces.md", "own_trace.py")],
    ids=lambda name: name,
)
def test_a_guide_shows_its_example_as_it_is(page, example):
    code = (EXAMPLES / example).read_text().partition('"""\n\n')[2]  # without the docstring
    assert f"```python\n{code}```" in (ROOT / "docs" / "guides" / page).read_text()


def first_line(command: str, folder: Path) -> str:
    """What a command says first that goes on until it is ended."""
    words = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(
        words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        line = next(line for line in process.stdout if "http" in line)
        process.terminate()
        process.communicate()
    return line


PYTHON = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL
)


def test_the_python_of_the_readme_runs(capsys):
    assert PYTHON
    for block in PYTHON:
        exec(compile(block, "README.md", "exec"), {})
    assert "times as long" in capsys.readouterr().out
